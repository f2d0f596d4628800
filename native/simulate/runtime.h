// runtime.h: runs an op log on the engine that trains, over tensors without contents.
//
// The engine, its pool and the simulated framework are those of any other process; only time and
// memory are not real: each op costs what the log says, and the pool hands out addresses with
// nothing behind them. What differs from simrd (simrd.h), because the runtime differs:
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

#include <cstdint>

#include "dtr_alloc.h"
#include "simulation.h"

namespace dtr {

// A program, as dtr_simulate_runtime has it (dtr/simulate.h).
struct Program {
  const int64_t* code;
  uint64_t numbers;
  const int64_t* workspace;
  const int64_t* workspace_at;
  uint64_t operators;
  // What happens before this operator is no part of what is counted as computed again, moved or
  // mapped: it fills memory, and is what the engine has seen of the job.
  uint64_t counted_from = 0;
  // By operator: so many of its results have memory before it begins. Null: none has.
  const uint32_t* made_ahead = nullptr;
  // By operator: what the engine is told that it costs, in terms of its cost. Null: 1.
  const double* weights = nullptr;
};

// Throws InvalidArgument for options or a program that make no sense.
void simulate_runtime(const dtr_runtime_options& options, const Program& program,
                      Simulation& simulation);

}  // namespace dtr
