// simulation.h: what a run of an op log leaves behind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dtr_alloc.h"
#include "run/step_plan.h"
#include "trajectory.h"

namespace dtr {

// Behind the opaque dtr_simulation.
struct Simulation {
  dtr_simulation_result result{};
  std::string decisions;             // joined by newlines, see dtr_simulation_decisions
  Trajectory* trajectory = nullptr;  // if it is wanted
  // A plan to follow from one operator of the program on, given what is in memory there.
  uint64_t plan_from = 0;
  std::function<StepPlan(const std::vector<NamedBlock>&)> make_plan;

  void decide(char kind, uint64_t id) {
    if (!decisions.empty()) decisions += '\n';
    decisions += kind;
    char digits[20];
    int count = 0;
    do digits[count++] = static_cast<char>('0' + id % 10);
    while (id /= 10);
    while (count > 0) decisions += digits[--count];
  }
};

}  // namespace dtr
