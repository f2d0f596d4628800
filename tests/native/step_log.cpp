// The repetition that a StepLog (native/learn/step_log.h) hears, for test_step_log.py.
#include "learn/step_log.h"

#include <vector>

extern "C" {

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

}  // extern "C"
