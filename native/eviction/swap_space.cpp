#include "swap_space.h"

#include <algorithm>
#include <exception>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "graph/heap_blocks.h"
#include "graph/require.h"

namespace dtr {

namespace {

// Guesses until copies have been seen. Bytes per ns are GB/s.
constexpr double kFileBytesPerNs = 1.5;  // host memory behind a file, page cache included
constexpr double kLinkBytesPerNs = 12;   // pinned memory over PCIe 3 with 16 lanes
constexpr double kNsPerSecond = 1e9;

// On a device with streams a copy can only be timed by waiting for it: so many times.
constexpr uint64_t kTimedCopies = 4;

bool is_timed(uint8_t device_type, const Bandwidth& way, uint64_t bytes) {
  return way.learns_from(bytes) && (device_type == kCpu || way.readings() < kTimedCopies);
}

Bandwidth bandwidth_of(double bytes_per_s, uint8_t device_type) {
  if (bytes_per_s > 0) return Bandwidth(bytes_per_s / kNsPerSecond, true);
  return Bandwidth(device_type == kCpu ? kFileBytesPerNs : kLinkBytesPerNs, false);
}

}  // namespace

void SwapSpace::add_device(Device& device) const {
  device.way_out = bandwidth_of(environment_.options.swap_out_bytes_per_s, device.type);
  device.way_in = bandwidth_of(environment_.options.swap_in_bytes_per_s, device.type);
}

void SwapSpace::configure(Deferred& deferred) {
  const dtr_engine_options& options = environment_.options;
  host_.set_cap(options.swap_bytes);
  for (const auto& device : devices_) {
    if (options.swap_out_bytes_per_s > 0 || device->way_out.is_fixed())
      device->way_out = bandwidth_of(options.swap_out_bytes_per_s, device->type);
    if (options.swap_in_bytes_per_s > 0 || device->way_in.is_fixed())
      device->way_in = bandwidth_of(options.swap_in_bytes_per_s, device->type);
  }
  std::vector<Storage*> resident;
  graph_.by_address.for_each([&](const void*, Storage* storage) { resident.push_back(storage); });
  for (Storage* storage : resident) lifecycle_.update_candidate(storage);
  give_back_kept(false, deferred);
}

void SwapSpace::give_back_kept(bool all, Deferred& deferred) {
  std::vector<HostCopy*> surplus;
  if (all)
    host_.empty(&surplus);
  else
    host_.shrink(&surplus);
  for (HostCopy* copy : surplus) deferred.free_host(copy);
}

Storage* SwapSpace::settled_on(const Device& device) {
  if (!environment_.options.settles_to_host || costs_.is_on()) return nullptr;
  uint64_t most = 0;
  for (const auto& of : devices_) {
    const dtr_pool_stats stats = stats_of(of->pool);
    most +=
        stats.total_bytes ? std::min(stats.budget_bytes, stats.total_bytes) : stats.budget_bytes;
  }
  host_.set_cap(most);
  Storage* stalest = nullptr;
  graph_.by_address.for_each([&](const void* address, Storage* storage) {
    if (!storage->was_evicted || storage->parent || !storage->live || storage->external ||
        storage->captured || storage->unwritten || !search_.is_free_to_go(storage) ||
        !dtr_pool_contains(device.pool, address))
      return;
    if (!stalest || storage->last_access_ns < stalest->last_access_ns ||
        (storage->last_access_ns == stalest->last_access_ns && storage->id < stalest->id))
      stalest = storage;
  });
  return stalest;
}

SwapSpace::Outcome SwapSpace::swap_out(Storage* storage, EvictionCause cause, EngineCall& call) {
  const dtr_framework* framework = environment_.framework;
  if (!host_.has_room(storage->size_bytes)) return Outcome::not_now;
  void* const handle = storage->handle;
  void* const address = storage->address;
  if (storage->live) {
    if (!framework->retain_strong(handle)) return Outcome::not_now;
    // Dropped after the mutex: ours may be the last reference by then.
    call.deferred.release_strong(handle);
    if (!framework->detach(handle, storage)) return Outcome::not_now;
  } else if (handle) {
    // Only who holds a weak reference may count the strong ones.
    framework->retain_weak(handle);
    call.deferred.release_weak(handle);
    if (framework->strong_count(handle) > 1 || !framework->take(handle)) return Outcome::not_now;
    lifecycle_.lose_handle(storage, call.deferred);
  }
  Device& device = devices_.of(storage);
  const uint64_t bytes = storage->size_bytes;
  std::vector<HostCopy*> surplus;
  HostCopy* copy = host_.take(device.pool, bytes, &surplus);
  graph_.by_address.erase(address);
  dead_.let_go(storage);
  environment_.observers.notify(&Observer::lost, storage, cause);
  storage->address = nullptr;
  storage->state = State::swapped;
  storage->host = copy;
  storage->prefetched = false;
  swapped_[storage->id] = storage;
  environment_.stats.host_bytes += bytes;
  lifecycle_.update_candidate(storage);
  copy->moving = true;
  ++storage->locks;
  const uint64_t stream = streams_.of_last_use(storage);
  const bool timed = is_timed(device.type, device.way_out, bytes);

  call.lock.unlock();
  for (HostCopy* old : surplus) give_back(old);
  int64_t begin = 0, end = 0;
  const int32_t status = guard([&] {
    if (!copy->buffer)
      check_status(dtr_pool_host_allocate(copy->pool, copy->bytes, &copy->buffer));
    else if (copy->stream != stream)
      check_status(dtr_pool_order(copy->pool, stream, copy->stream));
    if (timed) check_status(dtr_pool_synchronize(copy->pool, stream));
    begin = now_ns();
    check_status(dtr_pool_copy_out(copy->pool, copy->buffer, address, bytes, stream));
    if (timed) check_status(dtr_pool_synchronize(copy->pool, stream));
    end = now_ns();
    // The block's own stream may be another one than that of the copy.
    check_status(dtr_pool_record_stream(copy->pool, address, stream));
    dtr_pool_note(copy->pool, DTR_EVENT_EVICT, address, bytes);
    dtr_pool_free(copy->pool, address);
  });
  const std::string text = status == DTR_OK ? "" : dtr_last_error();
  call.lock.lock();

  copy->moving = false;
  copy->stream = stream;
  copied_.notify_all();
  if (status != DTR_OK) {
    const bool has_buffer = copy->buffer != nullptr;
    drop_copy(storage);
    if (storage->live) framework->attach(storage->handle, address);
    graph_.by_address.insert(address, storage);
    lifecycle_.become_resident(storage, address);
    if (!storage->live && !storage->parent) dead_.keep(storage);
    if (!has_buffer && storage->parent) return Outcome::no_host_memory;
    lifecycle_.unlock(storage, call.deferred);
    throw_status(status, "swap: the content of storage " + std::to_string(storage->id) + ", " +
                             size_text(bytes) + ", cannot go to host memory, of which " +
                             size_text(host_.in_use_bytes()) + " of " +
                             size_text(host_.cap_bytes()) + " are in use: " + text);
  }
  if (timed && device.way_out.add(bytes, end - begin)) cost_model_.bounds().reset_all();
  ++environment_.stats.swaps;
  environment_.stats.swapped_out_bytes += bytes;
  environment_.stats.swap_ns += static_cast<uint64_t>(device.way_out.ns_of(bytes));
  environment_.observers.notify(&Observer::evicted, storage);
  lifecycle_.unlock(storage, call.deferred);
  return Outcome::done;
}

bool SwapSpace::swap_in(Storage* storage, EngineCall& call, bool ahead) {
  const dtr_framework* framework = environment_.framework;
  copied_.wait(call.lock, [&] { return !storage->host || !storage->host->moving; });
  if (storage->state != State::swapped) return true;
  HostCopy* const copy = storage->host;
  Device& device = devices_.of(storage);
  const uint64_t bytes = storage->size_bytes;
  void* const handle = storage->live ? storage->handle : nullptr;
  if (handle) framework->retain_weak(handle);
  copy->moving = true;
  uint64_t stream = streams_.for_copy(storage);
  const bool timed = !ahead && is_timed(device.type, device.way_in, bytes);

  call.lock.unlock();
  void* address = nullptr;
  bool strong = false;
  int64_t begin = 0, end = 0;
  const int32_t status = guard([&] {
    if (ahead) check_status(dtr_pool_side_stream(device.pool, &stream));
    check_status(ahead ? dtr_pool_try_allocate(device.pool, bytes, stream, &address)
                       : dtr_pool_allocate(device.pool, bytes, stream, &address));
    if (!address) return;
    // May take the GIL, so it happens without the mutex.
    strong = handle && framework->retain_strong_with_gil(handle);
    if (copy->stream != stream) check_status(dtr_pool_order(copy->pool, stream, copy->stream));
    if (timed) check_status(dtr_pool_synchronize(copy->pool, stream));
    begin = now_ns();
    check_status(dtr_pool_copy_in(copy->pool, address, copy->buffer, bytes, stream));
    if (timed) check_status(dtr_pool_synchronize(copy->pool, stream));
    end = now_ns();
  });
  const std::string text = status == DTR_OK ? "" : dtr_last_error();
  call.lock.lock();

  copy->moving = false;
  copied_.notify_all();
  if (strong) call.deferred.release_strong(handle);
  if (handle) call.deferred.release_weak(handle);
  if (status != DTR_OK) {
    if (address) call.deferred.free_block(*storage, address);
    throw_status(status, text);
  }
  if (!address) return false;
  copy->stream = stream;
  if (storage->live && !(strong && storage->handle == handle)) {
    call.deferred.free_block(*storage, address);
    return false;
  }
  if (timed && device.way_in.add(bytes, end - begin)) cost_model_.bounds().reset_all();
  drop_copy(storage);
  environment_.stats.swapped_in_bytes += bytes;
  environment_.stats.swap_ns += static_cast<uint64_t>(device.way_in.ns_of(bytes));
  if (storage->live) framework->attach(storage->handle, address);
  if (streams_.has_streams(storage->device_type))
    storage->used_on = storage->remade_on = stream;  // O2
  storage->ordered_on = kNoStream;
  graph_.by_address.insert(address, storage);
  lifecycle_.become_resident(storage, address);
  dtr_pool_note(device.pool, DTR_EVENT_REMATERIALIZE, address, bytes);
  if (!storage->live && !storage->parent) dead_.keep(storage);
  return true;
}

void SwapSpace::drop_copy(Storage* storage) {
  swapped_.erase(storage->id);
  environment_.stats.host_bytes -= storage->size_bytes;
  host_.put(storage->host);
  storage->host = nullptr;
  search_.host_memory_freed();
}

// A content that can be recomputed is not kept, whatever the policy for the dead: host memory is
// for constants, and for the living.
void SwapSpace::died(Storage* storage, Deferred& deferred) {
  if (storage->locks > 0 || !storage->children) return;  // later, or at once in maybe_remove()
  if (storage->parent) {
    drop_copy(storage);
    lifecycle_.become_evicted(storage, EvictionCause::gone);
  } else if (dead_.settles_constants()) {
    ++storage->locks;
    settling_.settle(storage, nullptr, storage->size_bytes, deferred);
    --storage->locks;
  }
}

void SwapSpace::note_return(Storage* storage, uint64_t* returned) {
  if (storage->prefetched) {
    storage->prefetched = false;
    ++environment_.stats.prefetch_hits;
  }
  if (!streams_.has_streams(storage->device_type)) return;
  prefetcher_.note_return(storage->id);
  *returned = storage->id;
}

void SwapSpace::prefetch(uint64_t returned, const GraphCapture& capture, EngineCall& call) {
  uint64_t id = returned;
  for (int ahead = 0; ahead < Prefetcher::kAhead && !capture.is_under_way(); ++ahead) {
    id = prefetcher_.after(id);
    if (id == 0) return;
    const auto found = swapped_.find(id);
    if (found == swapped_.end()) continue;
    Storage* storage = found->second;
    if (storage->locks > 0 || storage->host->moving) continue;
    ++storage->locks;
    bool fits = false;
    try {
      fits = swap_in(storage, call, true);
    } catch (const std::exception&) {
      // It is still in host memory, and the operator that needs it will be told.
    }
    if (fits) {
      storage->prefetched = true;
      ++environment_.stats.prefetches;
    }
    lifecycle_.unlock(storage, call.deferred);
    if (!fits) return;
  }
}

void SwapSpace::check(const std::vector<Storage*>& storages) const {
  uint64_t bytes = 0;
  for (const Storage* storage : storages) {
    const bool swapped = storage->state == State::swapped;
    require(swapped == (storage->host != nullptr), "R14: host memory and state disagree", storage);
    if (!swapped) continue;
    bytes += storage->size_bytes;
    require(storage->managed && !storage->external && storage->size_bytes <= storage->host->bytes,
            "R14: it may not be swapped out", storage);
    require(storage->locks > 0 || !storage->host->moving, "R14: it moves, and is not locked",
            storage);
  }
  const uint64_t counted = environment_.stats.host_bytes;
  if (bytes != counted || bytes > host_.in_use_bytes())
    throw StateError("R14: " + std::to_string(bytes) + " bytes are swapped out, counted are " +
                     std::to_string(counted) + ", in use " + std::to_string(host_.in_use_bytes()));
}

}  // namespace dtr
