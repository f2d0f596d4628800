// events.h: a trace as a model reads it: which allocation begins or ends at which row.
//
// Rows are those of dtr_alloc/traces/trace.py, of one device, which also pairs them: allocations are
// numbered in the order in which they begin. What moved is one allocation, from where it was allocated
// first to where its last place was freed: another allocator moves nothing, or decides itself what to
// move.
#pragma once

#include <cstdint>
#include <vector>

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
         const uint64_t* stream, uint64_t count);

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
