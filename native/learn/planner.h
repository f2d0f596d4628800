// planner.h: makes a plan (run/step_plan.h) of a step that was played: what is needed in memory
// and when (simulate/allocation_trace.h) gets addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layout.h"
#include "run/step_plan.h"
#include "simulate/allocation_trace.h"

namespace dtr {

// A block that is there in all steps. handle: of what may move, wherever it is now, else null.
struct HeldBlock {
  uint64_t offset;
  uint64_t size_bytes;
  void* handle;
};

// What is allocated in one step of a trace.
class StepBlocks {
 public:
  // Of the operators [first_op, first_op + period), of which the next as many go on likewise.
  StepBlocks(const AllocationTrace& trace, uint64_t first_op, uint64_t period);

  // At once, with what is held: no less memory may do.
  uint64_t bytes_with(const std::vector<HeldBlock>& held) const;
  // In the pool's addresses below `limit`, where `held` are, too, by offset. None if they do not
  // fit. Its calls are the caller's to set.
  std::optional<StepPlan> lay_out(const std::vector<HeldBlock>& held, uint64_t limit) const;
  // At once, of blocks that are so small that slabs serve them: a plan has no addresses for them.
  uint64_t small_bytes() const { return small_bytes_; }

  static constexpr uint64_t kLeastBytes = 2049;

 private:
  uint64_t length_;  // of the step, in the trace's time
  std::vector<StepPlan::Place> places_, small_;
  std::vector<Lifetime> lifetimes_;            // of places_
  uint64_t small_bytes_ = 0, most_bytes_ = 0;  // in use at once
};

}  // namespace dtr
