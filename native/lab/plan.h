// plan.h: an op log with all that will happen known from the beginning: which storages are computed
// from which, and when each is read.
//
// The semantics are those of simrd with eager eviction (simrd.h).
#pragma once

#include <cstdint>
#include <vector>

#include "simrd_log.h"

namespace dtr::schedule {

using simrd::Event;
using simrd::Op;
constexpr uint32_t kNone = UINT32_MAX;

struct Links {
  std::vector<uint32_t> tensors;
  std::vector<uint32_t> parents;   // storages that its ops read, each once, without itself
  std::vector<uint32_t> children;  // the reverse
  std::vector<uint32_t> uses;      // positions of the program that read it, ascending
};

// A position counts the ops that are no constants.
struct Plan : simrd::Log {
  // Throws InvalidArgument if the program is malformed.
  Plan(const int64_t* program, uint64_t numbers);

  std::vector<Links> links;  // by storage
  // By position: the cost of all that the program ran before; one more for the end.
  std::vector<int64_t> cost_before{0};

 private:
  void add_op(const Op& op);
};

}  // namespace dtr::schedule
