// step_log.h: what a job did, as a program that the simulator runs (dtr/simulate.h), and the step
// that repeats at its end.
//
// It is made of the records of the op log (dtr/op_log.h). All views of a storage stand for the
// storage, as they share its memory.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policy/step_detector.h"
#include "run/step_plan.h"
#include "simulate/program.h"

namespace dtr {

// What a job ran, and what of it counts.
struct JobProgram : Program {
  uint64_t counted_from = 0;    // the operator with which what is played for begins
  int64_t cost_ns = 0;          // of those from there on
  std::vector<uint64_t> calls;  // by operator (run/step_plan.h)
  // Of memory of its own, at its beginning; it is there all the time.
  uint64_t constant_bytes = 0;
};

class StepLog {
 public:
  void append(const std::vector<int64_t>& records);
  // One record after the other. Storages have the op log's numbers.
  void constant(int64_t number, uint64_t size_bytes);
  void release(int64_t number);
  // Of the next operator (DTR_MEMORY_...).
  void memory(int64_t kind, int64_t value);
  struct Made {
    int64_t number;  // kView: a view
    uint64_t size_bytes;
  };
  static constexpr int64_t kView = -1;
  struct Ran {
    Instruction::Kind kind;
    uint64_t operator_name;  // as the op log has it
    int64_t cost_ns;
    std::vector<int64_t> reads;
    std::vector<Made> made;
    // Of MUTATE: indices of what it reads; -1 - i: i, unread. With kPartlyWritten (OpLogRecorder).
    std::vector<int64_t> overwritten;
  };
  void ran(const Ran& of);
  void clear() { *this = StepLog(); }

  uint64_t operators() const { return operators_.size(); }
  // Of all records that count.
  uint64_t numbers() const { return numbers_ + program_.workspace.size(); }
  // The step that was repeated last, at least twice. It begins where the least is in use.
  struct Repetition {
    uint64_t period = 0;  // operators; 0: nothing was repeated
    uint64_t end = 0;     // the operator behind the last whole step
    uint64_t steps = 0;   // whole ones before that, all alike
  };
  Repetition repetition() const;
  int64_t cost_ns() const { return program_.cost_ns; }
  // The compute of the last operators.
  int64_t cost_of_last(uint64_t operators) const;
  // The last whole steps, four at most. With two and more the second one is the first that counts.
  // If nothing was repeated: from the last point on at which less was in use than ever after, and
  // which a fair share of the operators follows; so what the job holds by now is there from the
  // beginning.
  JobProgram last_steps(const Repetition& of) const;
  // All that was recorded up to their end, of which as much counts. So what they find there can be
  // computed again, which is a constant in last_steps().
  JobProgram whole(const Repetition& of) const;
  // An operator that has begun: the numbers of the op log that it reads, and the sizes of what it
  // allocates.
  struct Begun {
    std::vector<uint64_t> reads;
    std::vector<uint64_t> sizes;
  };
  // All that was recorded, and that operator. If nothing was repeated, all of it counts.
  JobProgram whole(const Repetition& of, const Begun& begun) const;
  // The last number of the op log that was given when the second of those steps began. What has a
  // higher one belongs to a step.
  uint64_t last_number_before_steps(const Repetition& of) const;

 private:
  struct Operator {
    size_t instruction;
    uint64_t call;
    uint32_t made_ahead;
    int64_t cost_ns;
    uint64_t last_number;  // of the op log, that was given before
  };

  uint64_t first_of(const Repetition& of) const;
  uint64_t end_of(const Repetition& of) const { return of.period > 0 ? of.end : operators_.size(); }
  void add_operators(const Repetition& of, uint64_t first, uint64_t last, size_t from,
                     JobProgram& to) const;
  uint32_t define(int64_t number, uint64_t size_bytes);
  uint32_t use(int64_t number);

  StepDetector steps_{UINT64_MAX};  // of memory, what dies behind an operator counts as its own
  JobProgram program_;
  std::vector<Operator> operators_;
  std::unordered_map<int64_t, uint32_t> names_;  // by number of the op log
  std::vector<uint64_t> sizes_;                  // by name
  uint64_t last_number_ = 0;                     // of the op log
  uint64_t numbers_ = 0;
  Instruction::Kind last_kind_ = Instruction::constant;  // of the last operator's record
  std::vector<uint32_t> unused_;  // names of what was released, to be given again
  uint64_t live_bytes_ = 0;
};

}  // namespace dtr
