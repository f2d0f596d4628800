// user_requests.cpp: what users ask for: to evict, to pin, whether something is there.
#include "engine.h"

namespace dtr {

bool Engine::user_evict(void* handle) {
  Transaction call(*this);
  rest_.wake();
  Storage* storage = graph_.by_handle.find(handle);
  if (!storage || !is_candidate(storage) || storage->locks > 0 || storage->pins > 0 ||
      capture_.is_frozen(storage))
    return false;
  // The caller holds the storage through Python, which is what the evictor may refuse;
  // but the caller's tensor is a second reference, so it does not.
  return evictor_.evict(storage, EvictionCause::by_user, call);
}

bool Engine::user_move(const void* which, const void* avoid_begin, const void* avoid_end) {
  Transaction call(*this);
  Storage* storage = graph_.by_handle.find(which);
  if (!storage) storage = graph_.by_address.find(which);
  return storage && mover_.move(storage, avoid_begin, avoid_end, call.deferred);
}

uint64_t Engine::compact(dtr_pool* pool) {
  Transaction call(*this);
  devices_.with(pool);
  return compactor_.compact(pool, call.deferred);
}

bool Engine::user_is_resident(void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const Storage* storage = graph_.by_handle.find(handle);
  return !storage || storage->state == State::resident;
}

dtr_holder Engine::user_why_kept(void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const Storage* storage = graph_.by_handle.find(handle);
  return storage ? memory_use_.holder(storage) : dtr_holder{0, 0, 0, DTR_KEPT_NOT_MET};
}

void* Engine::user_pin(const void* tensor, int32_t escaped, uint32_t place, bool owned) {
  Transaction call(*this);
  dtr_tensor_desc desc;
  describe(tensor, &desc);  // not before: another thread might evict or move it in between
  if (!desc.handle) return nullptr;
  if (escaped != 0) {
    if (desc.data && pool_of(desc.device_type, desc.device_index))
      lifecycle_.escape(desc, escaped == 2, place, call.deferred);
    return nullptr;
  }
  // Whoever made it, and whatever its content will be: an op that runs may have made it, or memory
  // of others may give way to ours.
  note_pins(desc.handle, pins_.add(desc.handle, call.deferred));
  if (owned) framework_->retain_weak(desc.handle);
  return desc.handle;
}

void Engine::user_end_pin(void* handle) {
  user_unpin(handle);
  framework_->release_weak(handle);
}

uint64_t Engine::user_pin_made() {
  std::lock_guard<EngineMutex> lock(mutex_);
  pins_.hold_made();
  rest_.begin_recording();
  return thread_number();
}

void Engine::user_release_made(uint64_t thread) {
  Transaction call(*this);
  rest_.end_recording();
  pins_.release_made(thread, call.deferred,
                     [this](void* handle, uint32_t pins) { note_pins(handle, pins); });
}

bool Engine::user_unpin(void* handle) {
  Transaction call(*this);
  if (pins_.of(handle) == 0) return false;
  note_pins(handle, pins_.take_back(handle, call.deferred));
  return true;
}

// It has so many now.
void Engine::note_pins(void* handle, uint32_t pins) {
  Storage* storage = graph_.by_handle.find(handle);
  if (!storage || !storage->managed) return;
  storage->pins = pins;
  if (pins == 0) cost_model_.bounds().unpark(storage);
}

}  // namespace dtr
