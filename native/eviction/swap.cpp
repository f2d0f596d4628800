// swap.cpp: contents that go to host memory and come back.
//
// A swap is one more way to evict. Its price is the time of both copies; the search for room
// compares it with the price of recomputing, and what has no parent has no other. A storage that
// was swapped out (R14) is brought back by remat_next() before it hands a closure out, so that a
// framework needs to know nothing of it.
//
// Copies run without the engine's mutex. While one does, its buffer is `moving` and the storage is
// locked; who needs the storage meanwhile waits. A copy out takes the storage's memory away
// first, so that nobody writes to it: if it fails, the memory goes back to the storage.
//
// Streams. A copy out is queued on the stream that used the block last, a copy in on the stream of
// the thread that needs the content. The block of a copy out goes back to the pool at once: what
// is queued on its stream from then on comes behind the copy. One buffer's copies are ordered by
// hand where they are on two streams.
#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "run/engine.h"

namespace dtr {

namespace {

// Guesses until copies have been seen. Bytes per ns are GB/s.
constexpr double kFileBytesPerNs = 1.5;  // host memory behind a file, page cache included
constexpr double kLinkBytesPerNs = 12;   // pinned memory over PCIe 3 with 16 lanes
constexpr double kNsPerSecond = 1e9;

// On a device with streams a copy can only be timed by waiting for it: so many times.
constexpr uint64_t kTimedCopies = 4;

// A content below this is not worth a page of host memory.
constexpr uint64_t kLeastSwapBytes = 4096;

bool is_timed(uint8_t device_type, const Bandwidth& way, uint64_t bytes) {
  return way.learns_from(bytes) && (device_type == 0 || way.readings() < kTimedCopies);
}

}  // namespace

Bandwidth Engine::bandwidth_of(double bytes_per_s, uint8_t device_type) {
  if (bytes_per_s > 0) return Bandwidth(bytes_per_s / kNsPerSecond, true);
  return Bandwidth(device_type == 0 ? kFileBytesPerNs : kLinkBytesPerNs, false);
}

bool Engine::is_swappable(const Storage* storage) const {
  return is_swapping() && !storage->external && !storage->captured &&
         storage->size_bytes >= kLeastSwapBytes;
}

double Engine::swap_ns(const Storage* storage) const {
  const Device& device = device_of(storage);
  return device.way_out.ns_of(storage->size_bytes) + device.way_in.ns_of(storage->size_bytes);
}

// What it costs to evict a resident storage whose recomputing costs so much.
double Engine::with_swap(const Storage* storage, double recompute_ns) const {
  if (!is_swappable(storage)) return recompute_ns;
  if (!storage->parent) return swap_ns(storage);
  return host_.has_room(storage->size_bytes) ? std::min(recompute_ns, swap_ns(storage))
                                             : recompute_ns;
}

// The same, whatever room there is: for bounds, which must hold when there is some again.
double Engine::at_most_swap(const Storage* storage, double recompute_ns) const {
  if (!is_swappable(storage) || options_.heuristic.cost == DTR_COST_NONE) return recompute_ns;
  return storage->parent ? std::min(recompute_ns, swap_ns(storage)) : swap_ns(storage);
}

// Whether evicting means swapping. Nobody is going to need an idle one: it is let go.
bool Engine::is_better_swapped(Storage* storage) {
  if (!is_swappable(storage)) return false;
  if (!storage->parent) return true;
  return !is_idle(storage) && host_.has_room(storage->size_bytes) &&
         swap_ns(storage) <
             (needs_.scores ? recompute_cost_ns(storage) : static_cast<double>(cost_of(storage)));
}

// Has the content copied to host memory and gives the storage's memory back. False, and nothing
// changed, if the cap leaves no room or the memory cannot be had just now. The mutex is let go
// while it copies. Where the driver refuses host memory, what can be recomputed is dropped. Throws,
// the storage as it was, if that cannot be, or a copy fails.
bool Engine::swap_out(Storage* storage, Deferred& deferred, std::unique_lock<EngineMutex>& lock) {
  if (!host_.has_room(storage->size_bytes)) return false;
  void* const handle = storage->handle;
  void* const address = storage->address;
  if (storage->live) {
    if (!framework_->retain_strong(handle)) return false;
    // Dropped after the mutex: ours may be the last reference by then.
    deferred.release_strong(handle);
    if (!framework_->detach(handle, storage)) return false;
  } else if (handle) {
    // Only who holds a weak reference may count the strong ones.
    framework_->retain_weak(handle);
    deferred.release_weak(handle);
    if (framework_->strong_count(handle) > 1 || !framework_->take(handle)) return false;
    lose_handle(storage, deferred);
  }
  Device& device = device_of(storage);
  const uint64_t bytes = storage->size_bytes;
  std::vector<HostCopy*> surplus;
  HostCopy* copy = host_.take(device.pool, bytes, &surplus);
  graph_.by_address.erase(address);
  dead_.let_go(storage);
  environment_.observers.notify(&Observer::lost, storage, eviction_cause_);
  storage->address = nullptr;
  storage->state = State::swapped;
  storage->host = copy;
  storage->prefetched = false;
  swapped_[storage->id] = storage;
  stats_.host_bytes += bytes;
  update_candidate(storage);
  copy->moving = true;
  ++storage->locks;
  const uint64_t stream = streams_.of_last_use(storage);
  const bool timed = is_timed(device.type, device.way_out, bytes);

  const EvictionCause cause = eviction_cause_;
  eviction_cause_ = EvictionCause::gone;  // of what others do meanwhile

  lock.unlock();
  for (HostCopy* old : surplus) give_back(old);
  int64_t begin = 0, end = 0;
  int32_t status = DTR_OK;
  std::string text;
  const auto all_right = [&](int32_t answer) {
    if (status == DTR_OK && answer != DTR_OK) {
      status = answer;
      text = dtr_last_error();
    }
    return status == DTR_OK;
  };
  if (copy->buffer)
    all_right(copy->stream == stream ? DTR_OK : dtr_pool_order(copy->pool, stream, copy->stream));
  else
    all_right(dtr_pool_host_allocate(copy->pool, copy->bytes, &copy->buffer));
  if (status == DTR_OK && timed) all_right(dtr_pool_synchronize(copy->pool, stream));
  begin = now_ns();
  if (status == DTR_OK)
    all_right(dtr_pool_copy_out(copy->pool, copy->buffer, address, bytes, stream));
  if (status == DTR_OK && timed) all_right(dtr_pool_synchronize(copy->pool, stream));
  end = now_ns();
  if (status == DTR_OK) {
    // The block's own stream may be another one than that of the copy.
    all_right(dtr_pool_record_stream(copy->pool, address, stream));
    if (status == DTR_OK) {
      dtr_pool_note(copy->pool, DTR_EVENT_EVICT, address, bytes);
      dtr_pool_free(copy->pool, address);
    }
  }
  lock.lock();

  copy->moving = false;
  copy->stream = stream;
  moved_.notify_all();
  if (status != DTR_OK) {
    const bool has_buffer = copy->buffer != nullptr;
    drop_host_copy(storage);
    if (storage->live) framework_->attach(storage->handle, address);
    graph_.by_address.insert(address, storage);
    become_resident(storage, address);
    if (!storage->live && !storage->parent) dead_.keep(storage);
    // Host memory cannot be had: what can be recomputed is given up instead.
    bool dropped = false;
    if (!has_buffer && storage->parent) {
      eviction_cause_ = cause;
      dropped = drop(storage, deferred);
    }
    unlock(storage, deferred);
    if (dropped) return true;
    throw_status(status, "swap: the content of storage " + std::to_string(storage->id) + " (" +
                             std::to_string(bytes) + " bytes) cannot go to host memory, of which " +
                             std::to_string(host_.in_use_bytes()) + " of " +
                             std::to_string(host_.cap_bytes()) + " bytes are in use: " + text);
  }
  if (timed && device.way_out.add(bytes, end - begin)) reset_all_bounds();
  ++stats_.swaps;
  stats_.swapped_out_bytes += bytes;
  environment_.observers.notify(&Observer::evicted, storage);
  unlock(storage, deferred);
  return true;
}

// Brings a swapped storage back, which the caller has locked. False: it is dying on another
// thread. The mutex is let go meanwhile. Throws, nothing changed, if there is no memory.
// ahead: before anybody needs it, on the pool's side stream; false, too, if no memory is free.
bool Engine::swap_in(Storage* storage, Deferred& deferred, std::unique_lock<EngineMutex>& lock,
                     bool ahead) {
  moved_.wait(lock, [&] { return !storage->host || !storage->host->moving; });
  if (storage->state != State::swapped) return true;
  HostCopy* const copy = storage->host;
  Device& device = device_of(storage);
  const uint64_t bytes = storage->size_bytes;
  void* const handle = storage->live ? storage->handle : nullptr;
  if (handle) framework_->retain_weak(handle);
  copy->moving = true;
  uint64_t stream = streams_.for_copy(storage);
  const bool timed = !ahead && is_timed(device.type, device.way_in, bytes);

  lock.unlock();
  void* address = nullptr;
  bool strong = false;
  int64_t begin = 0, end = 0;
  int32_t status = ahead ? dtr_pool_side_stream(device.pool, &stream) : DTR_OK;
  if (status == DTR_OK)
    status = ahead ? dtr_pool_try_allocate(device.pool, bytes, stream, &address)
                   : dtr_pool_allocate(device.pool, bytes, stream, &address);
  std::string text = status == DTR_OK ? "" : dtr_last_error();
  if (status == DTR_OUT_OF_MEMORY) out_of_memory_text(&text, bytes, device.pool);
  if (status == DTR_OK && address) {
    // May take the GIL, so it happens without the mutex.
    strong = handle && framework_->retain_strong_with_gil(handle);
    if (copy->stream != stream) status = dtr_pool_order(copy->pool, stream, copy->stream);
    if (status == DTR_OK && timed) status = dtr_pool_synchronize(copy->pool, stream);
    begin = now_ns();
    if (status == DTR_OK)
      status = dtr_pool_copy_in(copy->pool, address, copy->buffer, bytes, stream);
    if (status == DTR_OK && timed) status = dtr_pool_synchronize(copy->pool, stream);
    end = now_ns();
    if (status != DTR_OK) text = dtr_last_error();
  }
  lock.lock();

  copy->moving = false;
  moved_.notify_all();
  if (strong) deferred.release_strong(handle);
  if (handle) deferred.release_weak(handle);
  if (status != DTR_OK) {
    if (address) deferred.free_block(*storage, address);
    throw_status(status, text);
  }
  if (!address) return false;
  copy->stream = stream;
  if (storage->live && !(strong && storage->handle == handle)) {
    deferred.free_block(*storage, address);
    return false;
  }
  if (timed && device.way_in.add(bytes, end - begin)) reset_all_bounds();
  drop_host_copy(storage);
  stats_.swapped_in_bytes += bytes;
  if (storage->live) framework_->attach(storage->handle, address);
  if (streams_.has_streams(storage->device_type))
    storage->used_on = storage->remade_on = stream;  // O2
  storage->ordered_on = kNoStream;
  graph_.by_address.insert(address, storage);
  become_resident(storage, address);
  dtr_pool_note(device.pool, DTR_EVENT_REMATERIALIZE, address, bytes);
  if (!storage->live && !storage->parent) dead_.keep(storage);
  return true;
}

// The content of a swapped storage is no longer in host memory.
void Engine::drop_host_copy(Storage* storage) {
  swapped_.erase(storage->id);
  stats_.host_bytes -= storage->size_bytes;
  host_.put(storage->host);
  storage->host = nullptr;
  if (!parked_for_host_) return;
  // Constants that found no room there may go now.
  parked_for_host_ = false;
  for (const Device* device : devices_)
    for (size_t i = 0; i < device->candidates.size(); ++i)
      if (!device->candidates.at(i)->parent) unpark(device->candidates.at(i));
}

// Nobody holds a swapped storage any more. What can be recomputed is not kept, whatever the policy
// for the dead: host memory is for what has no other way back, and for the living.
void Engine::swapped_died(Storage* storage, Deferred& deferred) {
  if (storage->locks > 0 || !storage->children) return;  // later, or at once in maybe_remove()
  if (storage->parent) {
    drop_host_copy(storage);
    become_evicted(storage);
  } else if (dead_.settles_constants()) {
    ++storage->locks;
    settling_.settle(storage, nullptr, storage->size_bytes, deferred);
    --storage->locks;
  }
}

// The options have changed: what is a candidate, and what copies cost.
void Engine::configure_swap(Deferred& deferred) {
  host_.set_cap(options_.swap_bytes);
  for (Device* device : devices_) {
    if (options_.swap_out_bytes_per_s > 0 || device->way_out.is_fixed())
      device->way_out = bandwidth_of(options_.swap_out_bytes_per_s, device->type);
    if (options_.swap_in_bytes_per_s > 0 || device->way_in.is_fixed())
      device->way_in = bandwidth_of(options_.swap_in_bytes_per_s, device->type);
  }
  std::vector<Storage*> resident;
  graph_.by_address.for_each([&](const void*, Storage* storage) { resident.push_back(storage); });
  for (Storage* storage : resident) update_candidate(storage);
  release_host_memory(false, deferred);
}

// Gives back the kept buffers: all, or what is more than the cap allows.
void Engine::release_host_memory(bool all, Deferred& deferred) {
  std::vector<HostCopy*> surplus;
  if (all)
    host_.empty(&surplus);
  else
    host_.shrink(&surplus);
  for (HostCopy* copy : surplus) deferred.free_host(copy);
}

// An operator needs the storage, and it has come back, by itself or just now.
void Engine::note_return(Storage* storage, Frame& frame) {
  if (storage->prefetched) {
    storage->prefetched = false;
    ++stats_.prefetch_hits;
  }
  if (!streams_.has_streams(storage->device_type)) return;
  prefetcher_.note_return(storage->id);
  frame.returned = storage->id;
}

// Called without the mutex, when all that the operator needs is there.
void Engine::prefetch(Frame& frame) {
  uint64_t id = std::exchange(frame.returned, 0);
  if (id == 0) return;
  Deferred deferred(environment_, *this);
  std::unique_lock<EngineMutex> lock(mutex_);
  for (int ahead = 0; ahead < Prefetcher::kAhead && !capture_.is_under_way(); ++ahead) {
    id = prefetcher_.after(id);
    if (id == 0) return;
    const auto found = swapped_.find(id);
    if (found == swapped_.end()) continue;
    Storage* storage = found->second;
    if (storage->locks > 0 || storage->host->moving) continue;
    ++storage->locks;
    bool fits = false;
    try {
      fits = swap_in(storage, deferred, lock, true);
    } catch (const std::exception&) {
      // It is still in host memory, and the operator that needs it will be told.
    }
    if (fits) {
      storage->prefetched = true;
      ++stats_.prefetches;
    }
    unlock(storage, deferred);
    if (!fits) return;
  }
}

}  // namespace dtr
