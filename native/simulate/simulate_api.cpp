// simulate_api.cpp: the C functions of the simulator.
#include <string>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "runtime.h"
#include "simulation.h"

namespace {

void check(const dtr_simulation_options& options) {
  if (options.dealloc < DTR_DEALLOC_EAGER || options.dealloc > DTR_DEALLOC_LAZY)
    throw dtr::InvalidArgument("dealloc is " + std::to_string(options.dealloc) +
                               "; allowed: 0 (eager), 1 (banish), 2 (ignore), 3 (lazy)");
  dtr::check(options.heuristic);
  dtr::require_between("max_recompute", options.max_recompute, -1, INT64_MAX);
}

}  // namespace

DTR_EXPORT int32_t dtr_simulate_runtime(const dtr_runtime_options* options, const int64_t* program,
                                        uint64_t numbers, const int64_t* workspace,
                                        const int64_t* workspace_at, uint64_t operators,
                                        dtr_simulation_result* result, const char** decisions) {
  return dtr::guard([&] {
    dtr::require_array(program, numbers, "program");
    dtr::require(options, "options");
    dtr::require(result, "result");
    check(options->common);
    dtr::require_between("outputs", options->outputs, 0, 1);
    dtr::require_between("measure", options->measure, 0, 1);
    if ((workspace == nullptr) != (workspace_at == nullptr))
      dtr::require(nullptr, workspace ? "workspace_at" : "workspace");
    const dtr::Program log = dtr::decoded(program, numbers, workspace, workspace_at, operators);
    dtr::Simulation simulation;
    thread_local std::string text;
    text.clear();
    if (decisions) simulation.decisions = &text;
    dtr::simulate_runtime(*options, log, simulation);
    *result = simulation.result;
    if (decisions) *decisions = text.c_str();
  });
}
