// simulate_api.cpp: the C functions of the simulator.
#include <memory>
#include <string>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "base/handles.h"
#include "runtime.h"
#include "simrd.h"
#include "simulation.h"

namespace {

void check(const dtr_simulation_options& options) {
  if (options.dealloc < DTR_DEALLOC_EAGER || options.dealloc > DTR_DEALLOC_LAZY)
    throw dtr::InvalidArgument("dealloc is " + std::to_string(options.dealloc) +
                               "; allowed: 0 (eager), 1 (banish), 2 (ignore), 3 (lazy)");
  if (options.sampling < DTR_SAMPLING_NONE || options.sampling > DTR_SAMPLING_SQRT)
    throw dtr::InvalidArgument("sampling is " + std::to_string(options.sampling) +
                               "; allowed: 0 (none), 1 (sqrt)");
  if (!(options.least_size_share >= 0 && options.least_size_share <= 1))
    throw dtr::InvalidArgument("least_size_share is " + std::to_string(options.least_size_share) +
                               "; allowed: 0 to 1");
  dtr::check(options.heuristic);
  dtr::require_between("newest_staleness", options.newest_staleness, 0, 1);
  dtr::require_between("max_recompute", options.max_recompute, -1, INT64_MAX);
}

}  // namespace

extern "C" {

int32_t dtr_simulate_simrd(const dtr_simulation_options* options, const int64_t* program,
                           uint64_t numbers, dtr_simulation** out) {
  return dtr::guard([&] {
    dtr::require(out, "out");
    *out = nullptr;
    dtr::require_array(program, numbers, "program");
    dtr::require(options, "options");
    check(*options);
    if (options->heuristic.select == DTR_SELECT_CALLBACK)
      throw dtr::InvalidArgument(
          "the heuristic is a callable; allowed with simrd's semantics: scores and random");
    auto simulation = std::make_unique<dtr::Simulation>();
    const dtr::simrd::Log log(program, numbers);
    dtr::simrd::Machine(*options, log, *simulation).run();
    *out = dtr::make_handle<dtr_simulation>(std::move(simulation));
  });
}

int32_t dtr_simulate_given(int32_t dealloc, uint64_t budget_bytes, const int64_t* program,
                           uint64_t numbers, const int64_t* evictions, uint64_t count,
                           dtr_simulation** out) {
  return dtr::guard([&] {
    dtr::require(out, "out");
    *out = nullptr;
    dtr::require_array(program, numbers, "program");
    dtr::require_array(evictions, count, "evictions");
    dtr_simulation_options options{};
    options.heuristic = {DTR_SELECT_SCORE, DTR_COST_NONE, DTR_SIZE_NONE, 0, 1, 0};
    options.dealloc = dealloc;
    options.budget_bytes = budget_bytes;
    options.max_recompute = -1;
    check(options);
    if (dealloc != DTR_DEALLOC_EAGER && dealloc != DTR_DEALLOC_IGNORE)
      throw dtr::InvalidArgument("dealloc of a schedule is " + std::to_string(dealloc) +
                                 "; allowed: 0 (eager), 2 (ignore)");
    auto simulation = std::make_unique<dtr::Simulation>();
    dtr::EvictionList given(evictions, count);
    const dtr::simrd::Log log(program, numbers);
    dtr::simrd::Machine(options, log, *simulation, &given).run();
    *out = dtr::make_handle<dtr_simulation>(std::move(simulation));
  });
}

int32_t dtr_simulate_runtime(const dtr_runtime_options* options, const int64_t* program,
                             uint64_t numbers, const int64_t* workspace,
                             const int64_t* workspace_at, uint64_t operators,
                             dtr_simulation** out) {
  return dtr::guard([&] {
    dtr::require(out, "out");
    *out = nullptr;
    dtr::require_array(program, numbers, "program");
    dtr::require(options, "options");
    check(options->common);
    dtr::require_between("outputs", options->outputs, 0, 1);
    dtr::require_between("measure", options->measure, 0, 1);
    if ((workspace == nullptr) != (workspace_at == nullptr))
      dtr::require(nullptr, workspace ? "workspace_at" : "workspace");
    const dtr::Program log = dtr::decoded(program, numbers, workspace, workspace_at, operators);
    auto simulation = std::make_unique<dtr::Simulation>();
    dtr::simulate_runtime(*options, log, *simulation);
    *out = dtr::make_handle<dtr_simulation>(std::move(simulation));
  });
}

int32_t dtr_simulation_destroy(dtr_simulation* simulation) {
  return dtr::guard([&] { dtr::destroy(simulation); });
}

int32_t dtr_simulation_get_result(const dtr_simulation* simulation, dtr_simulation_result* out) {
  return dtr::guard([&] {
    dtr::require(out, "out");
    *out = dtr::of(simulation).result;
  });
}

const char* dtr_simulation_decisions(const dtr_simulation* simulation, uint64_t* length) {
  return dtr::answer(static_cast<const char*>(nullptr), [&] {
    dtr::require(length, "length");
    *length = 0;
    const std::string& decisions = dtr::of(simulation).decisions;
    *length = decisions.size();
    return decisions.c_str();
  });
}

}  // extern "C"
