// Where a PlanFollower (native/run/step_plan.h) takes a step to begin, for test_step_plan.py.
#include "run/step_plan.h"

#include <vector>

extern "C" {

// Of each call of a job: whether a step of the plan begins behind it.
void begins(const uint64_t* plan, uint64_t calls, const uint64_t* job, uint64_t count,
            uint8_t* is_beginning) {
  dtr::StepCount steps;
  dtr::PlanFollower follower(steps);
  int held = 0;
  follower.follow({{plan, plan + calls}, {}, {{&held, 0}}}, false);
  for (uint64_t i = 0; i < count; ++i) {
    follower.ended(job[i], nullptr);
    is_beginning[i] = follower.wants_moves();
  }
}

}  // extern "C"
