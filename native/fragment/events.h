// events.h: a trace as a model reads it: which allocation begins or ends at which row.
//
// Rows are those of dtr_alloc/traces/trace.py, of one device. Allocations are numbered in the
// order in which they begin. What moved is one allocation, from where it was allocated first to
// where its last place was freed: another allocator moves nothing, or decides itself what to move.
#pragma once

#include <cstdint>
#include <vector>

namespace dtr::fragment {

// The rows' columns; all have `count` entries and outlive what is made of them.
struct Columns {
  const uint8_t* kind;  // DTR_EVENT_...
  const uint64_t* address;
  const uint64_t* size_bytes;
  const uint64_t* stream;
  const uint16_t* device;
  uint64_t count;
};

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
  // Throws InvalidArgument that names the row: an end of what has not begun, a beginning where
  // something is, a move from nowhere, a kind that is none.
  Events(const Columns& columns, uint16_t device);

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Allocation>& allocations() const { return allocations_; }
  // The most bytes, as asked for, and blocks that are live at once.
  uint64_t peak_live_bytes() const { return peak_live_; }
  uint64_t peak_live_blocks() const { return peak_blocks_; }

 private:
  void drop(const std::vector<bool>& dropped);

  std::vector<Step> steps_;
  std::vector<Allocation> allocations_;
  uint64_t peak_live_ = 0;
  uint64_t peak_blocks_ = 0;
};

}  // namespace dtr::fragment
