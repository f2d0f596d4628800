// hand.cpp: what a user does by hand: evict, pin, ask.
#include <limits>

#include "engine.h"

namespace dtr {

bool Engine::hand_evict(void* handle) {
  Deferred deferred(environment_, *this);
  std::unique_lock<EngineMutex> lock(mutex_);
  Storage* storage = graph_.by_handle.find(handle);
  if (!storage || !is_candidate(storage) || storage->locks > 0 || storage->pins > 0 ||
      capture_.is_frozen(storage))
    return false;
  // The caller holds the storage through Python, which is what evict() may refuse;
  // but the caller's tensor is a second reference, so it does not.
  return evict(storage, EvictionCause::by_user, deferred, lock);
}

bool Engine::hand_move(void* handle, const void* avoid_begin, const void* avoid_end) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* storage = graph_.by_handle.find(handle);
  return storage && mover_.move(storage, avoid_begin, avoid_end, false, deferred);
}

uint64_t Engine::compact(dtr_pool* pool) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  devices_.with(pool);
  return compactor_.compact(pool, deferred);
}

uint64_t Engine::move_some(dtr_pool* pool, uint64_t seed, uint64_t count) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  devices_.with(pool);
  return compactor_.move_some(pool, seed, count, deferred);
}

bool Engine::hand_is_resident(void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const Storage* storage = graph_.by_handle.find(handle);
  return !storage || storage->state == State::resident;
}

void* Engine::hand_pin(const void* tensor, int32_t escaped, bool owned) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  dtr_tensor_desc desc;
  describe(tensor, &desc);  // not before: another thread might evict or move it in between
  if (!desc.handle) return nullptr;
  if (escaped == 0) {
    // Whoever made it, and whatever its content will be: an op that runs may have made it, or
    // memory of others may give way to ours.
    if (pins_.size() >= look_for_dead_pins_) forget_dead_pins(deferred);
    uint32_t& pins = pins_[desc.handle];
    if (pins++ == 0) framework_->retain_weak(desc.handle);
    if (Storage* storage = graph_.by_handle.find(desc.handle); storage && storage->managed)
      storage->pins = pins;
    if (owned) framework_->retain_weak(desc.handle);
    return desc.handle;
  }
  if (!desc.data || !is_managed_device(desc)) return nullptr;
  Storage* storage = find_or_adopt(desc, deferred);
  if (!storage) return nullptr;
  if (!storage->external) {
    forget_parent(storage, deferred);
    storage->external = true;
    storage->constant_for_good = true;
    update_candidate(storage);
    contents_.note(storage);
  }
  if (escaped == 2 && storage->device_type != 0) {
    storage->captured = true;  // F2
    settling_.settle(storage, nullptr, Settling::kAnyBytes, deferred);
  }
  maybe_remove(storage, deferred);
  return nullptr;
}

void Engine::hand_end_pin(void* handle) {
  hand_unpin(handle);
  framework_->release_weak(handle);
}

bool Engine::hand_unpin(void* handle) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  const auto found = pins_.find(handle);
  if (found == pins_.end()) return false;
  const uint32_t pins = --found->second;
  if (Storage* storage = graph_.by_handle.find(handle); storage && storage->managed) {
    storage->pins = pins;
    if (pins == 0) unpark(storage);
  }
  if (pins == 0) forget_pins(handle, deferred);
  return true;
}

void Engine::forget_pins(void* handle, Deferred& deferred) {
  if (pins_.erase(handle)) deferred.release_weak(handle);
}

// Of those whose death nobody tells: the engine has no record of them.
void Engine::forget_dead_pins(Deferred& deferred) {
  for (auto at = pins_.begin(); at != pins_.end();) {
    void* handle = const_cast<void*>(at->first);
    const bool dead = framework_->strong_count(handle) == 0;
    if (dead) deferred.release_weak(handle);
    at = dead ? pins_.erase(at) : std::next(at);
  }
  look_for_dead_pins_ = std::max<size_t>(64, 2 * pins_.size());
}

}  // namespace dtr
