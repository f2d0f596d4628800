// runtime.h: runs an op log on the engine that trains, over tensors without contents.
//
// The engine, its pool and the simulated framework are those of any other process; only time and
// memory are not real: each op costs what the log says, and the pool hands out addresses with
// nothing behind them. What differs from simrd (lab/simrd.h), because the runtime differs:
//
//   - A result that looks at an argument is a view: a further name for its storage. A CALL of
//     nothing but views is no op and costs nothing.
//   - MUTATE overwrites its arguments in place: a new version of the storage (records.h, R1), no
//     new memory. All names of the storage see it.
//   - A storage dies with its last name, a constant too.
//   - What cannot be repeated (EFFECT) reads its arguments and takes its time; simrd sees
//   constants.
//   - What an op allocates besides its results, and in which order, is as the log has it.
#pragma once

#include "dtr_alloc.h"
#include "program.h"
#include "simulation.h"

namespace dtr {

// As the C functions get them. Throws InvalidArgument for a program that is malformed, and for options
// that make no sense.
Program checked(const dtr_runtime_options* options, const int64_t* program, uint64_t numbers,
                const int64_t* workspace, const int64_t* workspace_at, uint64_t operators);
// With options that were checked.
void simulate_runtime(const dtr_runtime_options& options, const Program& program,
                      Simulation& simulation);

}  // namespace dtr
