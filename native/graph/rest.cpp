#include "rest.h"

#include <algorithm>

namespace dtr {

uint64_t Rest::mark_of(const dtr_pool_stats& stats) {
  if (stats.budget_bytes < kNoBudget) return stats.budget_bytes / 2;
  return stats.total_bytes > 0 ? stats.total_bytes / 10 * 9 : kNoBudget;
}

bool Rest::look() {
  since_look_ = 0;
  uint64_t peak = 0, least = kNoBudget;
  bool is_below = true;
  for (const Environment::Pool& of : environment_.pools) {
    dtr_pool_stats stats;
    dtr_pool_get_stats(of.pool, &stats);
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

void Rest::look_at(dtr_pool* pool, uint64_t size_bytes) {
  const uint64_t least = least_bytes_.load(std::memory_order_relaxed);
  if (size_bytes >= least && is_new(size_bytes)) wake();
  if (!is_on()) return;
  const bool is_small = size_bytes / kLookEvery < least;
  if (is_small && requests_.fetch_add(1, std::memory_order_relaxed) % kLookEvery != 0) return;
  dtr_pool_stats stats;
  dtr_pool_get_stats(pool, &stats);
  if (stats.allocated_bytes > mark_of(stats)) wake();
}

// Where the table is full, all others are.
bool Rest::is_new(uint64_t size_bytes) {
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

}  // namespace dtr
