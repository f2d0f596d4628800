// eviction_list.h: a schedule: evictions that were decided beforehand, instead of by a score.
//
// Eviction `after` N happens right before the run's execution number N + 1 (first executions and
// repeated ones count) allocates its outputs, in the order of the list. Then the outputs must
// fit: nothing else is evicted for room.
#pragma once

#include <cstdint>
#include <string>

#include "errors.h"

namespace dtr {

class EvictionList {
 public:
  // pairs: after, storage; as often as count says. The storage is named by its first tensor.
  EvictionList(const int64_t* pairs, uint64_t count) : pairs_(pairs), count_(count) {}

  // The storage that goes next, if one goes after so many executions, else -1.
  int64_t next(uint64_t executions) {
    if (at_ == count_ || pairs_[2 * at_] > static_cast<int64_t>(executions)) return -1;
    if (pairs_[2 * at_] < static_cast<int64_t>(executions))
      fail("comes after " + std::to_string(pairs_[2 * at_]) + " executions, when there were " +
           std::to_string(executions) + "; allowed: ascending numbers");
    const int64_t storage = pairs_[2 * at_++ + 1];
    if (storage < 0) refuse("is none; allowed: the first tensor of a storage that exists by then");
    return storage;
  }
  // The eviction that next() gave last cannot be.
  [[noreturn]] void refuse(const std::string& why) {
    --at_;
    fail("evicts storage " + std::to_string(pairs_[2 * at_ + 1]) + " after " +
         std::to_string(pairs_[2 * at_]) + " executions, which " + why);
  }
  void check_end(uint64_t executions) const {
    if (at_ < count_)
      fail("comes after " + std::to_string(pairs_[2 * at_]) + " executions; the run has " +
           std::to_string(executions));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InvalidArgument("schedule: eviction " + std::to_string(at_) + " " + what);
  }
  const int64_t* pairs_;
  uint64_t count_;
  uint64_t at_ = 0;
};

}  // namespace dtr
