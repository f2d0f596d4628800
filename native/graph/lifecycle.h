// lifecycle.h: what becomes of a record. One call changes the record and all that keeps account of
// it (candidates, costs, lists of the dead, the op log). All of it under the engine's mutex. It is
// implemented above (run/storage_lifecycle.h), because it knows what keeps account.
#pragma once

#include "dtr/framework.h"
#include "observer.h"
#include "records.h"

namespace dtr {

class Deferred;

class Lifecycle {
 public:
  // The content is gone: from here on the storage counts for the costs of its neighbors.
  virtual void become_evicted(Storage* storage, EvictionCause cause) = 0;
  virtual void become_resident(Storage* storage, void* address) = 0;
  // Whether the storage is a candidate for eviction (R6) may have changed.
  virtual void update_candidate(Storage* storage) = 0;
  // A resident content has been moved.
  virtual void change_address(Storage* storage, void* address) = 0;
  // A resident storage becomes a constant.
  virtual void forget_parent(Storage* storage, Deferred& deferred) = 0;
  // The framework no longer refers to the storage.
  virtual void lose_handle(Storage* storage, Deferred& deferred) = 0;
  // The record goes if nobody needs it (R3).
  virtual void maybe_remove(Storage* storage, Deferred& deferred) = 0;
  virtual void unlock(Storage* storage, Deferred& deferred) = 0;
  // The record of the content that the old one's buffer holds from now on; the old one has none
  // (R1).
  virtual Storage* hand_over(Storage* old, const dtr_tensor_desc& desc) = 0;

 protected:
  ~Lifecycle() = default;
};

}  // namespace dtr
