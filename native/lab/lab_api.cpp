// lab_api.cpp: the C functions of the laboratory.
#include <string>
#include <vector>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "lab/dtr_lab.h"
#include "search.h"
#include "simrd.h"

namespace dtr {

namespace {

void check(const dtr_lab_options& options) {
  dtr::check(options.common);
  require_between("newest_staleness", options.newest_staleness, 0, 1);
  require_between("sampling", options.sampling, DTR_SAMPLING_NONE, DTR_SAMPLING_SQRT);
  require_number("least_size_share", options.least_size_share, 0, 1, "0 to 1");
}

void run(const dtr_lab_options& options, const int64_t* program, uint64_t numbers,
         EvictionList* given, dtr_simulation_result* result, const char** decisions) {
  require(result, "result");
  require(decisions, "decisions");
  require_array(program, numbers, "program");
  check(options);
  Simulation simulation;
  thread_local std::string text;
  text.clear();
  simulation.decisions = &text;
  const simrd::Log log(program, numbers);
  simrd::Machine(options, log, simulation, given).run();
  *decisions = text.c_str();
  *result = simulation.result;
}

}  // namespace

DTR_EXPORT int32_t dtr_lab_simrd(const dtr_lab_options* options, const int64_t* program,
                                 uint64_t numbers, dtr_simulation_result* result,
                                 const char** decisions) {
  return guard([&] {
    require(options, "options");
    if (options->common.heuristic.select == DTR_SELECT_CALLBACK)
      throw InvalidArgument(
          "the heuristic is a callable; allowed with simrd's semantics: scores and random");
    run(*options, program, numbers, nullptr, result, decisions);
  });
}

DTR_EXPORT int32_t dtr_lab_given(int32_t dealloc, uint64_t budget_bytes, const int64_t* program,
                                 uint64_t numbers, const int64_t* evictions, uint64_t count,
                                 dtr_simulation_result* result, const char** decisions) {
  return guard([&] {
    require_array(evictions, count, "evictions");
    if (dealloc != DTR_DEALLOC_EAGER && dealloc != DTR_DEALLOC_IGNORE)
      throw InvalidArgument("dealloc of a schedule is " + std::to_string(dealloc) +
                            "; allowed: 0 (eager), 2 (ignore)");
    dtr_lab_options options{};
    options.common.heuristic = {DTR_SELECT_SCORE, DTR_COST_NONE, DTR_SIZE_NONE, 0, 1, 0, 0};
    options.common.dealloc = dealloc;
    options.common.budget_bytes = budget_bytes;
    options.common.max_recompute = -1;
    EvictionList given(evictions, count);
    run(options, program, numbers, &given, result, decisions);
  });
}

DTR_EXPORT int32_t dtr_lab_search(const dtr_lab_search_options* options, const int64_t* program,
                                  uint64_t numbers, dtr_lab_search_result* result,
                                  const int64_t** evictions) {
  return guard([&] {
    using namespace schedule;
    require(evictions, "evictions");
    require(options, "options");
    require(result, "result");
    require_array(program, numbers, "program");
    if (!(options->seconds >= 0))
      invalid("seconds", std::to_string(options->seconds), "0 (no limit) and more");
    const Plan plan(program, numbers);
    const auto [best, steps] =
        search(plan, options->budget_bytes, options->seed, options->steps, options->seconds);
    dtr_lab_search_result found{};
    found.steps = steps;
    found.found = best.status == Status::ok;
    thread_local std::vector<int64_t> pairs;
    pairs.clear();
    if (found.found) {
      found.dealloc = best.keeps ? DTR_DEALLOC_IGNORE : DTR_DEALLOC_EAGER;
      found.remat_cost = best.remat_cost;
      found.evictions = best.evictions.size();
      for (const Eviction& eviction : best.evictions) {
        pairs.push_back(eviction.after);
        pairs.push_back(plan.storages[eviction.storage].root);
      }
    }
    *evictions = pairs.data();
    *result = found;
  });
}

DTR_EXPORT const char* dtr_lab_error(void) { return last_error(); }

}  // namespace dtr
