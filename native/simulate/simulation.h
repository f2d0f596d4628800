// simulation.h: what a run of an op log leaves behind.
#pragma once

#include <charconv>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "allocation_trace.h"
#include "dtr_alloc.h"
#include "run/step_plan.h"

namespace dtr {

struct Simulation {
  dtr_simulation_result result{};
  std::string* decisions = nullptr;  // if they are wanted: as dtr_simulate_runtime gives them
  AllocationTrace* trace = nullptr;  // if it is wanted
  // On the engine, what the run takes, counted alike everywhere: one for a visit to a storage (some 25
  // ns), more for a score and for an operator (runtime.cpp). One that takes more than the most ends
  // as if it thrashed.
  uint64_t most_work = UINT64_MAX;
  uint64_t work = 0;
  // What happens before this operator is no part of what is counted as computed again, moved or
  // mapped: it fills memory, and is what the engine has seen of the job.
  uint64_t counted_from = 0;
  // dtr_runtime_options.replay_ns for each operator that ran again and counts.
  int64_t replay_cost = 0;
  // By operator: what the engine is told that it costs, in terms of its cost. Empty: 1.
  std::vector<double> weights;
  // A plan to follow from one operator of the program on, given what is in memory there.
  uint64_t plan_from = 0;
  uint64_t period = 0;  // operators of a step; 0: not known
  std::function<StepPlan(const std::vector<NamedBlock>&)> make_plan;

  void decide(char kind, uint64_t id) const {
    if (!decisions) return;
    if (!decisions->empty()) *decisions += '\n';
    *decisions += kind;
    char digits[20];
    decisions->append(digits, std::to_chars(digits, std::end(digits), id).ptr);
  }
};

}  // namespace dtr
