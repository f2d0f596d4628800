// What a job repeats and where its blocks lie (native/learn, native/run/step_plan.h) for test_layout.py
// and test_step_log.py, as a library with C functions: vectors are arrays here.
#include <algorithm>
#include <vector>

#include "learn/layout.h"
#include "learn/step_log.h"
#include "run/step_plan.h"

using dtr::Lifetime;
using dtr::Obstacle;

extern "C" {

// Returns missing_bytes; addresses has room for as many as there are lifetimes.
uint64_t layout_of(const Lifetime* lifetimes, uint64_t count, const Obstacle* obstacles,
                   uint64_t obstacle_count, uint64_t limit, uint64_t* addresses) {
  const dtr::Layout layout =
      dtr::lay_out({lifetimes, lifetimes + count}, {obstacles, obstacles + obstacle_count}, limit);
  std::copy(layout.addresses.begin(), layout.addresses.end(), addresses);
  return layout.addresses.size() == count ? layout.missing_bytes : UINT64_MAX;
}

uint64_t gap_in(const Obstacle* busy, uint64_t count, uint64_t size_bytes) {
  return dtr::lowest_gap({busy, busy + count}, size_bytes);
}

uint64_t nowhere() { return dtr::Layout::kNowhere; }

// found: the operators of the step, behind the last whole one, and whole ones; then of the program of
// the last steps: its operators, and those that do not count.
void repetition_of(const int64_t* records, uint64_t count, uint64_t* found) {
  dtr::StepLog log;
  log.append({records, records + count});
  const dtr::StepLog::Repetition step = log.repetition();
  const dtr::JobProgram program = log.last_steps(step);
  found[0] = step.period;
  found[1] = step.end;
  found[2] = step.steps;
  found[3] = program.calls.size();
  found[4] = program.counted_from;
}

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
