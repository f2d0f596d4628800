// step_detector.h: the step that a job repeats, for all who look for one in what it runs.
//
// A training step is nearly always one before with other numbers. So the sequence of operators is
// compared with what ran before. Nobody has to say where a step begins.
//
// A repetition is a step, or several, if it leaves as much memory in use as it found, and has more in
// use in between. (The layers of a network repeat each other, too; but what a layer has made stays. And
// what fills parameters one after the other repeats, and has never less in use.)
//
// Two questions are asked. Foresight decides at each operator and asks for the longest repetition, which
// shows after a few operators of the second step (foresight.h). The step log asks for the shortest that
// is complete, as it is played (learn/step_log.h). A plan knows its step, and its follower waits for the
// step's beginning (run/step_plan.h).
#pragma once

#include <cstdint>
#include <vector>

namespace dtr {

class StepDetector {
 public:
  // most: operators that are remembered.
  explicit StepDetector(uint64_t most) : most_(most) {}
  // An operator ran, and left so much memory in use. signature: of the operator and its sizes.
  void ran(uint64_t signature, uint64_t live_bytes);
  // What the last operator left in use has changed.
  void leaves(uint64_t live_bytes);
  void forget_half();

  // The operators that are remembered have numbers, in the order in which they ran.
  uint64_t first() const { return first_; }
  uint64_t last() const { return first_ + ran_.size() - 1; }
  uint64_t live_bytes_after(uint64_t number) const { return op(number).live_bytes; }
  // How many of the last operators are the same as those `lag` before them; `most` at most.
  uint64_t matched(uint64_t lag, uint64_t most = UINT64_MAX) const;
  // The lag of the longest repetition that ends with the last operator; 0: there is none.
  uint64_t longest() const;
  // Of the shortest complete one there, if it and what it repeats are a part in `share` of what ran.
  uint64_t complete(uint64_t share) const;

 private:
  struct Ran {
    uint64_t signature;
    uint64_t context;  // of the last kContext operators
    uint64_t before;   // the operator before of the same slot of contexts_, +1
    uint64_t live_bytes;
    uint64_t block_low, block_high;  // of the operators of its block up to it, in use
  };

  const Ran& op(uint64_t number) const { return ran_[number - first_]; }
  uint64_t swings_from() const;
  template <typename Takes>
  void for_each_lag(Takes&& takes) const;

  uint64_t most_;
  std::vector<Ran> ran_;  // from number first_ on
  uint64_t first_ = 0;
  std::vector<uint64_t> contexts_;  // the last operator of a context, +1
  uint64_t most_live_bytes_ = 0;    // after any but the last
};

}  // namespace dtr
