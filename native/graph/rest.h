// rest.h: whether the recorder rests: it records no operator, because nothing has to be evicted.
//
// At rest every content is a constant: no record of how it was made is left, so nothing is evicted,
// and whatever an operator overwrites, nothing depends on it. What holds for a storage beyond its
// content (pins, an address that was given away, a captured graph) is still known. Only parameters
// are forgotten: a tensor is one again once a recorded operator uses it as one.
//
//  Z1  It goes to rest after two looks in a row, some thousands of operators apart, between which
//      memory's peak did not rise, no request had a size that was new, and nothing was evicted; and
//      while the peak is below the mark of each pool: half of its budget, or nine tenths of its
//      device where there is no budget.
//  Z2  It wakes, for the next operator, when a request has a size that is new, or memory crosses the
//      mark; when room is asked for; and whenever somebody needs records: other settings, a log, a
//      capture, an eviction by hand. A batch that grows brings new sizes with its first operators, so
//      what is made of it is recorded, all but the first of it.
//  Z3  An operator that began at rest holds no locks. Until all of them have ended nothing is moved
//      (Mover::is_movable).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "environment.h"
#include "heap_blocks.h"

namespace dtr {

class Rest {
 public:
  explicit Rest(Environment& environment) : environment_(environment) {}

  // ---- by any thread, without the engine's mutex ----
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  // Whether an operator runs unrecorded, until it calls op_ended().
  bool op_begins() {
    if (!is_on()) return false;
    // First it is counted, then it looks: who wakes the recorder sees it, or it sees that.
    begun_.fetch_add(1);
    if (is_on_.load() && recorded_for_.load(std::memory_order_relaxed) == 0) return true;
    begun_.fetch_sub(1);
    return false;
  }
  void op_ended() { ended_.fetch_add(1); }
  bool any_runs() const { return begun_.load() != ended_.load(); }
  uint64_t operators() const { return begun_.load(std::memory_order_relaxed); }
  // A pool has served a request.
  void allocated(dtr_pool* pool, uint64_t size_bytes) {
    if (may_rest_.load(std::memory_order_relaxed)) look_at(pool, size_bytes);
  }
  void wake() {
    is_steady_.store(false);
    is_on_.store(false);
  }
  // While somebody needs to know what operators make.
  void begin_recording() { recorded_for_.fetch_add(1); }
  void end_recording() { recorded_for_.fetch_sub(1); }

  // ---- under the mutex ----
  // The options may have changed.
  void configure() {
    may_rest_.store(environment_.options.rest_after_ops > 0);
    wake();
  }
  // Another operator was recorded: whether the recorder may rest.
  bool may_begin() {
    const uint64_t after = environment_.options.rest_after_ops;
    return after > 0 && ++since_look_ >= after && look();
  }
  void begin() {
    ++environment_.stats.rests;
    is_on_.store(true);
    if (!is_steady_.load()) is_on_.store(false);  // something came in between
  }

 private:
  static constexpr size_t kSizes = 4096;
  // The sizes of smaller requests are not looked at: so many of them make the mark.
  static constexpr uint64_t kSmall = 1024;
  // Of requests at rest that are less than so many times as large, one in so many has the pool's
  // bytes looked at. So the mark is passed by a quarter at most.
  static constexpr uint32_t kLookEvery = 16;

  static uint64_t mark_of(const dtr_pool_stats& stats) {
    if (stats.budget_bytes < kNoBudget) return stats.budget_bytes / 2;
    return stats.total_bytes > 0 ? stats.total_bytes / 10 * 9 : kNoBudget;
  }
  bool look() {
    since_look_ = 0;
    uint64_t peak = 0, least = kNoBudget;
    bool is_below = true;
    for (const Environment::Pool& of : environment_.pools) {
      const dtr_pool_stats stats = stats_of(of.pool);
      const uint64_t mark = mark_of(stats);
      is_below = is_below && stats.peak_allocated_bytes <= mark;
      peak += stats.peak_allocated_bytes;
      least = std::min(least, mark / kSmall);
    }
    least_bytes_.store(least, std::memory_order_relaxed);
    const dtr_engine_stats& stats = environment_.stats;
    const uint64_t evictions = stats.evictions + stats.swaps;
    const bool is_same = peak <= peak_bytes_ && evictions == evictions_;
    peak_bytes_ = peak;
    evictions_ = evictions;
    return is_steady_.exchange(true, std::memory_order_relaxed) && is_same && is_below;
  }
  void look_at(dtr_pool* pool, uint64_t size_bytes) {
    const uint64_t least = least_bytes_.load(std::memory_order_relaxed);
    if (size_bytes >= least && is_new(size_bytes)) wake();
    if (!is_on()) return;
    const bool is_small = size_bytes / kLookEvery < least;
    if (is_small && requests_.fetch_add(1, std::memory_order_relaxed) % kLookEvery != 0) return;
    const dtr_pool_stats stats = stats_of(pool);
    if (stats.allocated_bytes > mark_of(stats)) wake();
  }
  // Where the table is full, all others are.
  bool is_new(uint64_t size_bytes) {
    constexpr uint64_t kMix = 0x9E3779B97F4A7C15;
    size_t at = size_bytes * kMix >> 52;
    for (size_t i = 0; i < kSizes / 4; ++i, at = (at + 1) % kSizes) {
      uint64_t seen = sizes_[at].load(std::memory_order_relaxed);
      if (seen == size_bytes) return false;
      if (seen == 0 &&
          (sizes_[at].compare_exchange_strong(seen, size_bytes, std::memory_order_relaxed) ||
           seen == size_bytes))
        return true;
    }
    return true;
  }

  Environment& environment_;
  std::atomic<bool> may_rest_{false};
  std::atomic<bool> is_on_{false};
  std::atomic<bool> is_steady_{false};  // since the last look
  std::atomic<uint32_t> recorded_for_{0};
  std::atomic<uint64_t> begun_{0}, ended_{0};
  std::atomic<uint32_t> requests_{0};
  std::atomic<uint64_t> least_bytes_{0};               // that is not small
  std::array<std::atomic<uint64_t>, kSizes> sizes_{};  // seen, in a hash table; 0: none
  uint64_t since_look_ = 0;
  uint64_t peak_bytes_ = 0, evictions_ = 0;  // at the last look
};

}  // namespace dtr
