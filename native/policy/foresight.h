// foresight.h: when a storage will be used again, as the job's own past tells.
//
// A training step is nearly always one before with other numbers. So the sequence of operators
// (their signatures: operator, shapes, dtypes) is compared with what ran before, and the operator
// that runs now stands for the one that ran `lag` operators ago. What that one's tensors were used
// for next says when this one's will be. Nobody has to say where a step begins.
//
//  E1  The lag is that of the longest repetition that is a step or several (repetition.h).
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
    uint64_t signature;
    uint64_t context;    // a hash of the last kContext operators
    uint64_t before;     // the operator before of the same slot of contexts_, +1
    uint64_t first_use;  // in uses_
    int64_t begin_ns, end_ns;
    uint64_t live_bytes;
    uint64_t block_low, block_high;  // of the operators of its block up to it, in use
  };
  static constexpr uint64_t kContext = 8;         // operators
  static constexpr uint64_t kBlock = 64;          // operators
  static constexpr uint64_t kMost = 1 << 17;      // operators that are remembered
  static constexpr uint64_t kMostUses = 1 << 20;  // of their tensors, but for the last operator's
  static constexpr uint64_t kSlots = 1 << 14;     // of contexts
  static constexpr uint64_t kMostLooks = 2048;    // at operators of the same context
  static constexpr uint64_t kLongest = 4096;      // repetitions count for no more
  static constexpr uint64_t kNever = UINT64_MAX;

  const Ran& op(uint64_t number) const { return ran_[number - base_]; }
  uint64_t swings_from() const;
  void find_lag();
  void forget_the_oldest();

  bool is_on_ = false;
  std::vector<Ran> ran_;        // from number base_ on
  std::vector<uint64_t> uses_;  // the operator that uses it next, from number use_base_ on
  uint64_t base_ = 0, use_base_ = 1;
  std::vector<uint64_t> contexts_;  // the last operator of a context, +1
  uint64_t lag_ = 0;
  int64_t lag_ns_ = 0;
  uint64_t use_ = 0;  // of the earlier operator's, the one that stands for the next
  uint64_t live_bytes_ = 0, most_live_bytes_ = 0;
};

}  // namespace dtr
