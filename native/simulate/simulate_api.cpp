// simulate_api.cpp: the C functions of the simulator.
#include <string>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "runtime.h"
#include "simulation.h"

DTR_EXPORT int32_t dtr_simulate_runtime(const dtr_runtime_options* options, const int64_t* program,
                                        uint64_t numbers, const int64_t* workspace,
                                        const int64_t* workspace_at, uint64_t operators,
                                        dtr_simulation_result* result, const char** decisions) {
  return dtr::guard([&] {
    dtr::require_array(program, numbers, "program");
    dtr::require(options, "options");
    dtr::require(result, "result");
    dtr::check(options->common);
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
