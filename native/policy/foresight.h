// foresight.h: when a storage will be used again, as the job's own past tells.
//
// The operator that runs now stands for the one that ran `lag` operators ago (step_detector.h). What
// that one's tensors were used for next says when this one's will be.
//
//  E1  The lag is that of the longest repetition.
//  E2  The first operator that does not match ends it, and the score goes back to staleness. What
//      repeats is looked for at every operator from then on.
//  E3  Time is the job's own compute. Between two uses of a storage the time until the next one only
//      falls, and one that is overdue is due now. So what was computed once is an upper bound of it
//      until the storage is used, or the lag is another (candidates.h, C1).
//
// A buffer is what is used: a new version goes on where the old one stood.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/records.h"
#include "step_detector.h"

namespace dtr {

class Foresight {
 public:
  // Off: nothing is recorded, and what was known is forgotten.
  void turn(bool on);
  bool is_on() const { return is_on_; }
  // Whether the job repeats what it did before.
  bool sees() const { return lag_ > 0; }

  // An operator ran for the first time; own_ns: the job's own compute before it, and its own.
  // True if what was said of others before holds no more.
  bool ran(uint64_t signature, int64_t own_ns, int64_t cost_ns);
  // The tensors of that operator, one after the other: arguments, then results.
  void uses(Storage* storage);
  void lives(uint64_t size_bytes) { live_bytes_ += size_bytes; }
  void died(uint64_t size_bytes) { live_bytes_ -= size_bytes; }

  // The time until the program uses it next.
  double until_own_use(const Storage* storage) const;
  // Likewise, or until it is needed to bring back what the program will use.
  double until_use(const Storage* storage) const;

 private:
  struct Ran {
    uint64_t first_use;  // in uses_
    int64_t begin_ns, end_ns;
  };
  static constexpr uint64_t kMost = 1 << 17;      // operators that are remembered
  static constexpr uint64_t kMostUses = 1 << 20;  // of their tensors, but for the last operator's
  static constexpr uint64_t kNever = UINT64_MAX;

  const Ran& op(uint64_t number) const { return ran_[number - steps_.first()]; }

  bool is_on_ = false;
  StepDetector steps_{kMost};
  std::vector<Ran> ran_;        // by operator
  std::vector<uint64_t> uses_;  // the operator that uses it next, from number use_base_ on
  uint64_t use_base_ = 1;
  uint64_t lag_ = 0;
  int64_t lag_ns_ = 0;
  uint64_t use_ = 0;  // of the earlier operator's, the one that stands for the next
  uint64_t live_bytes_ = 0;
};

}  // namespace dtr
