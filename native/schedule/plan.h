// plan.h: an op log with all that will happen known from the beginning.
//
// Tensors, storages and ops are numbered as simrd numbers them: in the order of creation. Which of
// them there are, who refers to them and when, does not depend on what is evicted, so all of it is
// gathered once. The semantics are those of simrd with eager eviction (simulate/simrd.h).
#pragma once

#include <cstdint>
#include <vector>

namespace dtr::schedule {

constexpr uint32_t kNone = UINT32_MAX;

struct Op {
  int64_t cost = 0;
  uint64_t total_bytes = 0;  // of its outputs
  uint32_t first_output = 0;
  uint32_t outputs = 0;
  uint32_t inputs = 0;  // where its inputs begin in Plan::inputs; they end where the next's begin
};

struct Tensor {
  uint32_t op = 0;
  uint32_t storage = 0;
  uint64_t size_bytes = 0;  // 0: a view
};

struct Storage {
  uint64_t size_bytes = 0;
  uint32_t root = 0;  // its first tensor
  bool constant = false;
  std::vector<uint32_t> tensors;
  std::vector<uint32_t> parents;   // storages that its ops read, each once, without itself
  std::vector<uint32_t> children;  // the reverse
  std::vector<uint32_t> uses;      // positions of the program that read it, ascending
};

// What the program does, one after the other. A position counts kRun events.
struct Event {
  enum Kind : uint8_t { kRun, kConstant, kGet, kRelease };
  Kind kind;
  uint32_t id;  // of the op, or of the tensor that is referred to once more, or once less
};

struct Plan {
  // Throws InvalidArgument if the program is malformed.
  Plan(const int64_t* program, uint64_t numbers);

  uint32_t inputs_end(uint32_t op) const {
    return op + 1 < ops.size() ? ops[op + 1].inputs : static_cast<uint32_t>(inputs.size());
  }

  std::vector<Op> ops;
  std::vector<uint32_t> inputs;  // of all ops: tensors, in the order of arguments
  std::vector<Tensor> tensors;
  std::vector<Storage> storages;
  std::vector<Event> events;
  std::vector<uint32_t> outputs;  // tensors that the program wants at the end, in order
  // By position: the cost of all that the program ran before; one more for the end.
  std::vector<int64_t> cost_before;

 private:
  uint32_t add_op(int64_t cost, const std::vector<uint32_t>& arguments, bool constant);
  void add_output(uint32_t op, uint64_t size_bytes, uint32_t alias);
  void close_op(uint32_t op);
};

}  // namespace dtr::schedule
