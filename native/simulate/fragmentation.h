// fragmentation.h: what fragmentation costs a simulation, taken at each forced eviction.
//
// A request that finds no place asks for room, once or several times, and each time something is
// evicted for it: a *forced eviction*. The bytes that are *lost* at one are those that are free
// then, and still free where they were once the request has its place: the request could use
// them neither as they were nor by mapping nor by moving, and something was evicted nevertheless.
// The block that the request got does not count, nor what was evicted for it, however much more
// than it needed: that was in use at the time.
//
// Where memory is mapped by chunks, a chunk under no block in use counts as usable, as it is mapped
// wherever it is needed; what can be lost is the rest of a chunk that is in use in part. In a fixed
// pool every free byte counts.
//
// An eviction is *scattered* if as many bytes as the request asks for were free, only not in one
// place: without fragmentation it would not have been. (A request smaller than the grain, 256
// bytes, or for a slab counts as it is rounded.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/ranges.h"
#include "dtr_alloc.h"

namespace dtr {

class Fragmentation {
 public:
  // chunk_bytes: of a pool whose chunks move; 0: nothing moves (a fixed pool).
  // is_counted: the pool has no addresses, so that nothing is ever lost.
  Fragmentation(dtr_pool* pool, uint64_t chunk_bytes, bool is_counted,
                dtr_simulation_result& result)
      : pool_(pool),
        chunk_bytes_(chunk_bytes),
        is_counted_(is_counted),
        result_(result),
        blocks_(1024) {}

  // The pool asks for room, and nothing has been evicted yet.
  void asked(uint64_t size_bytes) {
    calls_.push_back({size_bytes, dtr_pool_unused_bytes(pool_), result_.forced, free_ranges()});
  }
  // The request has its place.
  void placed() {
    if (!calls_.empty()) count_request();
  }

 private:
  // One time that room was asked for.
  struct Call {
    uint64_t size_bytes;
    uint64_t free_bytes;        // of the budget
    uint64_t evictions_before;  // result_.forced then
    std::vector<Range> ranges;  // free_ranges() then
  };

  void count_request() {
    const std::vector<Range> now = free_ranges();
    bool forced = false;
    for (size_t i = 0; i < calls_.size(); ++i) {
      const Call& call = calls_[i];
      const uint64_t after =
          i + 1 < calls_.size() ? calls_[i + 1].evictions_before : result_.forced;
      if (const uint64_t evictions = after - call.evictions_before; evictions > 0) {
        forced = true;
        const uint64_t lost = common_bytes(call.ranges, now);
        ++result_.forced_times;
        result_.lost_bytes += lost;
        result_.most_lost_bytes = std::max(result_.most_lost_bytes, lost);
        if (!is_counted_ && call.free_bytes >= call.size_bytes) {
          ++result_.scattered_times;
          result_.scattered += evictions;
        }
      }
    }
    calls_.clear();
    if (!forced) return;
    ++result_.forced_requests;
    result_.left_bytes += dtr_pool_unused_bytes(pool_);
  }
  // Free, and not to be had elsewhere; in order of addresses.
  std::vector<Range> free_ranges() {
    std::vector<Range> ranges;
    if (is_counted_) return ranges;
    uint64_t count = 0;
    for (;;) {
      check_status(dtr_pool_snapshot(pool_, blocks_.data(), blocks_.size(), &count));
      if (count <= blocks_.size()) break;
      blocks_.resize(2 * count);
    }
    // Free blocks of several owners may follow one another: together they are one range.
    for (uint64_t i = 0; i < count;) {
      if (blocks_[i].state == 1) {
        ++i;
        continue;
      }
      const uint64_t begin = blocks_[i].address;
      for (++i; i < count && blocks_[i].state != 1; ++i) continue;
      add_fixed({begin, blocks_[i - 1].address + blocks_[i - 1].size_bytes}, chunk_bytes_, &ranges);
    }
    return ranges;
  }

  dtr_pool* pool_;
  uint64_t chunk_bytes_;
  bool is_counted_;
  dtr_simulation_result& result_;
  std::vector<Call> calls_;  // of the pending request
  std::vector<dtr_block> blocks_;
};

}  // namespace dtr
