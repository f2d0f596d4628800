// simrd_log.h: an op log as simrd understands it, whatever will be evicted.
//
// Tensors, storages and ops are numbered in the order of creation. Which of them there are, who
// refers to them and when, does not depend on what is evicted, so all of it is gathered once, for
// the machine (simrd.h) and for the search for schedules (plan.h).
#pragma once

#include <cstdint>
#include <vector>

#include "not_copied.h"
#include "simulate/program.h"

namespace dtr::simrd {

struct Op {
  int64_t cost = 0;
  uint64_t total_bytes = 0;  // of its outputs
  uint32_t first_output = 0;
  uint32_t outputs = 0;
  bool constant = false;
  std::vector<uint32_t> inputs;  // tensors in argument order, repeated if given twice

  uint32_t end_output() const { return first_output + outputs; }
};

struct Tensor {
  uint32_t op = 0;
  uint32_t storage = 0;
  uint64_t size_bytes = 0;  // 0: a view
};

struct LogStorage {
  uint64_t size_bytes = 0;
  uint32_t root = 0;  // its first tensor
};

// What the program does, one after the other.
struct Event {
  enum Kind : uint8_t { run, get, release };
  Kind kind;
  uint32_t id;  // of the op, or of the tensor that is referred to once more, or once less
};

class Log : NotCopied {
 public:
  // Throws InvalidArgument if the program is malformed.
  Log(const int64_t* program, uint64_t numbers);

  // Whether a view is made of more than the storage that it looks at.
  bool has_wide_views() const;
  bool is_view(uint32_t tensor) const { return storages[tensors[tensor].storage].root != tensor; }

  std::vector<Op> ops;
  std::vector<Tensor> tensors;
  std::vector<LogStorage> storages;
  std::vector<Event> events;
  std::vector<uint32_t> outputs;  // the tensors with a name at the end, in order

 private:
  void begin_op(bool constant, int64_t cost);
  void add_output(uint64_t size_bytes, const uint32_t* looks_at);
};

}  // namespace dtr::simrd
