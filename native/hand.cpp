// hand.cpp: what a user does by hand: evict, pin, ask.
#include <limits>

#include "engine.h"
#include "errors.h"

namespace dtr {

bool Engine::hand_evict(void* handle) {
  Deferred deferred(*this);
  std::unique_lock<EngineMutex> lock(mutex_);
  Storage* storage = by_handle_.find(handle);
  if (!storage || !is_candidate(storage) || storage->locks > 0 || storage->pins > 0 ||
      is_frozen(storage))
    return false;
  // The caller holds the storage through Python, which is what evict() may refuse;
  // but the caller's tensor is a second reference, so it does not.
  eviction_cause_ = Journal::Cause::by_hand;
  const bool done = evict(storage, deferred, lock);
  eviction_cause_ = Journal::Cause::gone;
  return done;
}

bool Engine::hand_is_resident(void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const Storage* storage = by_handle_.find(handle);
  return !storage || storage->state == State::resident;
}

void* Engine::hand_pin(const void* tensor, int32_t escaped, bool owned) {
  Deferred deferred(*this);
  std::lock_guard<EngineMutex> lock(mutex_);
  dtr_tensor_desc desc;
  describe(tensor, &desc);  // not before: another thread might evict or move it in between
  if (!desc.handle || !is_managed_device(desc)) return nullptr;
  if (!desc.data) {
    const Storage* known = by_handle_.find(desc.handle);
    if (known && known->state != State::resident)
      throw StateError("storage " + std::to_string(known->id) + " (" +
                       std::to_string(known->size_bytes) +
                       " bytes) is evicted; allowed: to pin it once it is back (dtr_remat_want)");
    return nullptr;
  }
  Storage* storage = escaped < 0 ? by_handle_.find(desc.handle) : find_or_adopt(desc, deferred);
  if (!storage) return nullptr;
  if (escaped <= 0) {
    ++storage->pins;
  } else if (!storage->external) {
    forget_parent(storage, deferred);
    storage->external = true;
    storage->constant_for_good = true;
    update_candidate(storage);
    note_content(storage);
  }
  if (escaped == 2 && storage->device_type != 0) {
    storage->captured = true;  // F2
    settle(storage, nullptr, std::numeric_limits<uint64_t>::max(), deferred);
  }
  maybe_remove(storage, deferred);
  if (escaped > 0) return nullptr;
  if (owned) framework_->retain_weak(desc.handle);
  return desc.handle;
}

void Engine::hand_end_pin(void* handle) {
  hand_unpin(handle);
  framework_->release_weak(handle);
}

bool Engine::hand_unpin(void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* storage = by_handle_.find(handle);
  if (!storage || storage->pins == 0) return false;
  if (--storage->pins == 0) unpark(storage);
  return true;
}

}  // namespace dtr
