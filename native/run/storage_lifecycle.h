// storage_lifecycle.h: how records begin and end: a storage that an operator made or the recorder
// never saw, a content that is lost, comes back or is overwritten, a record that nobody needs (R1
// to R8 of records.h).
#pragma once

#include <cstdint>
#include <vector>

#include "eviction/swap_space.h"
#include "graph/contents.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/lifecycle.h"
#include "graph/pins.h"
#include "graph/settling.h"
#include "graph/unwritten.h"
#include "policy/cost_model.h"
#include "policy/devices.h"

namespace dtr {

// All of it under the engine's mutex.
class StorageLifecycle final : public Lifecycle {
 public:
  // What it works with.
  struct Parts {
    Environment& environment;
    Graph& graph;
    const Devices& devices;
    Pins& pins;
    Settling& settling;
    DeadStorages& dead;
    Contents& contents;
    UnwrittenParts& unwritten;
    SwapSpace& swap_space;
    CostModel& costs;
  };
  explicit StorageLifecycle(const Parts& parts) : parts_(parts), given_away_(parts.environment) {}

  // ---- records that begin ----
  // A live storage whose memory is ours.
  Storage* new_live(const dtr_tensor_desc& desc, Deferred& deferred);
  // The record of a tensor's storage. One never seen before becomes a constant: it was made where
  // the recorder did not look. Null if it cannot be tracked now.
  Storage* find_or_adopt(const dtr_tensor_desc& desc, Deferred& deferred);
  Storage* hand_over(Storage* old, const dtr_tensor_desc& desc) override;

  // ---- contents ----
  // The handle lives on but holds other memory (resize_, set_data): the content that the record
  // speaks of is gone.
  void content_replaced(Storage* storage, Deferred& deferred);
  void become_evicted(Storage* storage, EvictionCause cause) override;
  void become_resident(Storage* storage, void* address) override;
  // A tensor's address was given away: others may write there. is_shared: and nothing tells of it
  // (F2).
  void escape(const dtr_tensor_desc& desc, bool is_shared, uint32_t place, Deferred& deferred);
  void change_address(Storage* storage, void* address) override;
  void update_candidate(Storage* storage) override;

  // ---- records that end ----
  void forget_parent(Storage* storage, Deferred& deferred) override;
  void lose_handle(Storage* storage, Deferred& deferred) override;
  void unlock(Storage* storage, Deferred& deferred) override;
  void maybe_remove(Storage* storage, Deferred& deferred) override {
    if (!stays_recorded(storage)) remove(storage, deferred);
  }
  // An op without recorded outputs.
  void discard_op(Op* op, Deferred& deferred);
  // The framework gave a block back. False: the engine keeps it (R5).
  bool memory_died(void* address, Deferred& deferred);
  void evicted_died(Storage* storage, Deferred& deferred);
  // Those that something can bring back, in the order in which they were made.
  std::vector<Storage*> live_evicted() const;
  // Throws StateError if a storage is locked, or one of live_evicted() is none of these: then not
  // all can be forgotten.
  void require_idle(std::vector<uint64_t> lost) const;
  // Those of live_evicted() are lost.
  void lose_evicted(Deferred& deferred);
  // But what is lost, while it lives.
  void forget_all(Deferred& deferred);
  // All contents become constants, and records go but for those that know more of a storage than its
  // content. False, and nothing changed, if something is evicted or locked.
  bool forget_history(Deferred& deferred);

  // R2 to R7, R11 and R15. May hold handles until the deferred work is done.
  void check(const std::vector<Storage*>& storages, Deferred& deferred) const;

 private:
  static bool stays_recorded(const Storage* storage) {  // R3
    return storage->live || storage->children || storage->locks > 0;
  }
  Storage* new_storage(const dtr_tensor_desc& desc, bool managed);
  bool may_be_evicted(const Storage* storage) const;  // R6
  void drop_output(Storage* storage, Deferred& deferred);
  void remove(Storage* first, Deferred& deferred);
  std::vector<Storage*> with_handles() const;
  void forget_ops(Deferred& deferred);
  void forget_live(Storage* storage, Deferred& deferred);

  Parts parts_;
  Pins given_away_;  // of memory that is exclusive, whose record does not last: the escaped ones
  std::vector<Storage*> removal_;  // worklist of remove()
  std::vector<Storage*> graveyard_;
  bool removing_ = false;
};

}  // namespace dtr
