// deferred.h: what must happen after the engine's mutex is released, because it may run code of
// others: deleters, drivers, pools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "environment.h"
#include "locks.h"
#include "not_copied.h"
#include "records.h"

namespace dtr {

class DeadStorages;

class Deferred : NotCopied {
 public:
  Deferred(const Environment& environment, DeadStorages& dead, EngineMutex& mutex)
      : environment_(environment), dead_(dead), mutex_(mutex) {}
  // Runs deleters, which may enter the engine again; the mutex is free by then.
  ~Deferred();

  void free_block(const Storage& storage, void* address) {
    add({Kind::block, storage.device_type, storage.device_index, address});
  }
  void release_strong(void* handle) { add({Kind::strong, 0, 0, handle}); }
  void release_weak(void* handle) { add({Kind::weak, 0, 0, handle}); }
  void free_host(HostCopy* copy) { add({Kind::host, 0, 0, copy}); }
  void drop_closure(void* closure) { add({Kind::closure, 0, 0, closure}); }
  // Before the rest, because it may add to it.
  void banish_queued() { banish_ = true; }
  // At once: no code of others runs for that. The mutex is free by then.
  void free_blocks();

 private:
  enum class Kind : uint8_t { strong, weak, host, closure, block, done };
  struct Action {
    Kind kind;
    uint8_t device_type;  // of a block
    int8_t device_index;
    void* what;
  };

  void add(const Action& action) {
    if (count_ < kFew)
      few_[count_++] = action;
    else
      more_.push_back(action);
  }
  void perform(const Action& action) const;

  static constexpr size_t kFew = 8;  // they allocate nothing
  const Environment& environment_;
  DeadStorages& dead_;
  EngineMutex& mutex_;
  Action few_[kFew];
  size_t count_ = 0;
  std::vector<Action> more_;
  bool banish_ = false;
};

// A call of the engine under its mutex. What it defers happens after the mutex is released.
struct EngineCall {
  template <typename... Held>
  EngineCall(const Environment& environment, DeadStorages& dead, EngineMutex& mutex, Held... held)
      : deferred(environment, dead, mutex), lock(mutex, held...) {}
  Deferred deferred;
  std::unique_lock<EngineMutex> lock;
};

}  // namespace dtr
