#include "fragmentation.h"

#include <algorithm>

#include "base/error.h"

namespace dtr {

Fragmentation::Fragmentation(dtr_pool* pool, uint64_t chunk_bytes, bool is_counted,
                             dtr_simulation_result& result)
    : pool_(pool),
      chunk_bytes_(chunk_bytes),
      is_counted_(is_counted),
      result_(result),
      blocks_(1024) {}

void Fragmentation::asked(uint64_t size_bytes) {
  calls_.push_back({size_bytes, dtr_pool_unused_bytes(pool_), result_.forced, free_ranges()});
}

void Fragmentation::count_request() {
  const std::vector<Range> now = free_ranges();
  bool forced = false;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    const uint64_t after = i + 1 < calls_.size() ? calls_[i + 1].evictions_before : result_.forced;
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

std::vector<Range> Fragmentation::free_ranges() {
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

}  // namespace dtr
