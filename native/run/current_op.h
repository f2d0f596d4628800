// current_op.h: the operator that this thread runs, for all who are asked to serve its requests: the
// events of memory, the hints of placement and the plan of a step.
#pragma once

#include "event_log.h"
#include "eviction/placement_hint.h"
#include "step_plan.h"

namespace dtr {

// Operators run inside of each other: whoever begins one keeps what ran before, and puts it back when
// the one that began is over, however it ended.
struct CurrentOp {
  uint64_t op_key = 0;
  uint32_t place = 0;
  PlacementHint::Running hint;
  PlanFollower::Running planned;

  static CurrentOp of_thread() {
    return {running_op_of_thread(), place_of_thread(), PlacementHint::running_of_thread(),
            PlanFollower::running_of_thread()};
  }
  void put_back() const {
    running_op_of_thread() = op_key;
    place_of_thread() = place;
    PlacementHint::running_of_thread() = hint;
    PlanFollower::running_of_thread() = planned;
  }
};

}  // namespace dtr
