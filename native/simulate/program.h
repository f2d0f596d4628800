// program.h: an op log as typed instructions, and its decoder from numbers (dtr/simulate.h).
//
// Every number is checked when it is decoded, so that a program from anywhere is either run or
// named as malformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtr {

struct Result {
  uint32_t name;           // of MUTATE: the name of the argument that is overwritten
  int32_t alias;           // the index of the argument whose memory it has; -1: memory of its own
  int64_t size_bytes;      // of MUTATE, COPY and COPY_FROM: 0
  bool is_read = true;     // of MUTATE: whether the old content is
  bool is_partly = false;  // of MUTATE: whether some of its buffer is still to be written (R16)
  bool is_fresh() const { return alias < 0; }
};

struct Instruction {
  enum Kind : int64_t {
    constant = 0,
    call = 1,
    mutate = 2,
    copy = 3,
    copy_from = 4,
    release = 5,
    effect = 6
  };
  Kind kind = constant;
  bool is_operator() const { return kind == call || kind == mutate || kind == effect; }
  uint64_t op = 0;  // of a CALL, MUTATE or EFFECT: its index among these
  int64_t cost = 0;
  std::vector<uint32_t> arguments =
      {};                            // names; of COPY and COPY_FROM the source, of RELEASE its name
  std::vector<Result> results = {};  // of COPY and COPY_FROM the destination
};

struct Program {
  std::vector<Instruction> instructions;
  uint64_t operators = 0;
  size_t names = 0;  // all of them are below
  // What operators allocate and free, in pairs (DTR_MEMORY_...), and by operator where its own begin,
  // with the end of all. Empty: nothing is known of it.
  std::vector<int64_t> workspace, workspace_at;
  std::vector<uint32_t>
      made_ahead;  // by operator: results whose memory is there before; empty: none
};

// What names a program may use.
enum class Names {
  ordered,  // a new name is the next number; any name that was new once may be used
  live      // any numbers; a name that is used stands for something there
};

// Throws InvalidArgument if the program is malformed.
Program decoded(const int64_t* numbers, uint64_t count, Names names);
// The same with live names and what operators allocate; workspace_at: so many and one more, or null.
Program decoded(const int64_t* numbers, uint64_t count, const int64_t* workspace,
                const int64_t* workspace_at, uint64_t operators);

}  // namespace dtr
