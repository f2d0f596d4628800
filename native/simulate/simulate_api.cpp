// simulate_api.cpp: the C functions of the simulator.
#include <memory>
#include <string>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "base/handles.h"
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

extern "C" {

int32_t dtr_simulate_runtime(const dtr_runtime_options* options, const int64_t* program,
                             uint64_t numbers, const int64_t* workspace,
                             const int64_t* workspace_at, uint64_t operators,
                             dtr_simulation** out) {
  return dtr::give(out, "out", [&] {
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
    return dtr::make_handle<dtr_simulation>(std::move(simulation));
  });
}

int32_t dtr_simulation_destroy(dtr_simulation* simulation) {
  return dtr::guard([&] { dtr::destroy(simulation); });
}

int32_t dtr_simulation_get_result(const dtr_simulation* simulation, dtr_simulation_result* out) {
  return dtr::give(out, "out", [&] { return dtr::of(simulation).result; });
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
