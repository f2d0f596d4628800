// timing.h: how long work on a device takes, without waiting for it.
//
// An op's host call returns when its work is queued. So a pair of events is recorded around
// it (dtr_pool_time_begin, _end), and read when the device has come by, some ops later:
// nothing ever waits. Events cost time on the host, and a mean needs few readings: of the
// calls of one signature the first few are timed, and then one in many.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "dtr_alloc.h"

namespace dtr {

// Which calls are timed: by a hash of operator and arguments (not of results: they are not
// known when the op begins). Two hashes may share a place; then both start again.
class TimedCalls {
 public:
  bool next(uint64_t hash) {
    Place& place = places_[hash % places_.size()];
    if (place.hash != hash) place = {hash, 0};
    const uint64_t call = place.calls++;
    return call < kFirst || call % kOneIn == 0;
  }

 private:
  static constexpr uint64_t kFirst = 8;
  static constexpr uint64_t kOneIn = 64;
  struct Place {
    uint64_t hash = 0;
    uint64_t calls = 0;
  };
  std::vector<Place> places_ = std::vector<Place>(4096);
};

// What the timers of one pool will say the cost of, once they are done.
struct TimedOp {
  uint64_t signature;
  uint64_t op_key;
};
using PendingTimes = std::unordered_map<uint64_t, TimedOp>;

// Timers of a pool that are done.
struct Times {
  static constexpr uint64_t kMost = 32;
  uint64_t timers[kMost];
  int64_t ns[kMost];
  uint64_t count = 0;
  void collect(dtr_pool* pool) { count = dtr_pool_times(pool, timers, ns, kMost); }
};

}  // namespace dtr
