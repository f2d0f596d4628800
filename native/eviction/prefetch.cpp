// prefetch.cpp: swapped contents begin their way back before an operator needs them.
//
// What comes back is what came back in the step before: parameters and states are used in the same
// order again and again. So it is remembered which storage came back after which, and when one
// does, the next few that are still in host memory follow on a stream of the pool's own, behind
// which whoever uses them is ordered (O2). They take only memory that is free: nothing is evicted
// for a guess. One that is used while it is there counts as a hit, and leads to those after it.
//
// Only where there are streams: elsewhere a copy would take the same time now or later.
#include <exception>

#include "run/engine.h"

namespace dtr {

namespace {

constexpr int kAhead = 2;
// Of pairs that are remembered; then they are learned anew.
constexpr size_t kMostFollowers = 65536;

}  // namespace

// An operator needs the storage, and it has come back, by itself or just now.
void Engine::note_return(Storage* storage, Frame& frame) {
  if (storage->prefetched) {
    storage->prefetched = false;
    ++stats_.prefetch_hits;
  }
  if (!has_streams(storage->device_type)) return;
  if (followers_.size() >= kMostFollowers) followers_.clear();
  if (last_return_ != 0 && last_return_ != storage->id) followers_[last_return_] = storage->id;
  last_return_ = storage->id;
  frame.returned = storage->id;
}

// Called without the mutex, when all that the operator needs is there.
void Engine::prefetch(Frame& frame) {
  if (frame.returned == 0) return;
  uint64_t id = frame.returned;
  frame.returned = 0;
  Deferred deferred(environment_, *this);
  std::unique_lock<EngineMutex> lock(mutex_);
  for (int ahead = 0; ahead < kAhead && !capture_.is_under_way(); ++ahead) {
    const auto next = followers_.find(id);
    if (next == followers_.end()) return;
    id = next->second;
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
