// events.h: a trace as a model reads it: which allocation begins or ends at which row.
//
// Rows are those of dtr_alloc/traces/trace.py, of one device, which also pairs them: allocations are
// numbered in the order in which they begin. What moved is one allocation, from where it was allocated
// first to where its last place was freed: another allocator moves nothing, or decides itself what to
// move.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace dtr::fragment {

struct Step {
  uint64_t row;
  uint32_t allocation;
  bool begins;
};

struct Allocation {
  uint64_t size_bytes;  // as asked for
  uint64_t stream;
};

class Events {
 public:
  // As dtr_fragment_load().
  Events(const int64_t* start, const int64_t* end, const uint64_t* size_bytes,
         const uint64_t* stream, uint64_t count) {
    require_between("count", static_cast<int64_t>(count), 0, UINT32_MAX);
    for (uint32_t id = 0; id < count; ++id) {
      const int64_t first = id > 0 ? start[id - 1] + 1 : 0;
      if (start[id] < first || (end[id] != -1 && end[id] <= start[id]))
        throw InvalidArgument("allocation " + std::to_string(id) + " is from row " +
                              std::to_string(start[id]) + " to " + std::to_string(end[id]) +
                              "; allowed: from " + std::to_string(first) +
                              " or behind it, to a row behind that, or -1");
      allocations_.push_back({size_bytes[id], stream[id]});
      steps_.push_back({static_cast<uint64_t>(start[id]), id, true});
      if (end[id] != -1) steps_.push_back({static_cast<uint64_t>(end[id]), id, false});
    }
    std::ranges::sort(steps_, {}, &Step::row);
    uint64_t bytes = 0, blocks = 0;
    for (const Step& step : steps_) {
      blocks += step.begins ? 1 : -1;
      peak_blocks_ = std::max(peak_blocks_, blocks);
      const uint64_t size = allocations_[step.allocation].size_bytes;
      bytes += step.begins ? size : uint64_t{0} - size;
      peak_live_ = std::max(peak_live_, bytes);
    }
  }

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Allocation>& allocations() const { return allocations_; }
  // The most bytes, as asked for, and blocks that are live at once.
  uint64_t peak_live_bytes() const { return peak_live_; }
  uint64_t peak_live_blocks() const { return peak_blocks_; }

 private:
  std::vector<Step> steps_;
  std::vector<Allocation> allocations_;
  uint64_t peak_live_ = 0;
  uint64_t peak_blocks_ = 0;
};

}  // namespace dtr::fragment
