// thrash_guard.h: whether the job computes so much again that it had better end.
//
// A step may compute `most` times its own operators. So each operator's cost allows for (most - 1)
// times as much recomputing, and what is computed again beyond that is a debt. It is too much once
// it exceeds what a whole step allows for; half of it is worth a warning. A job that is slower than
// the limit in one step and faster in the others goes on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "policy/repeat_rate.h"

namespace dtr {

class ThrashGuard {
 public:
  // most: 0 for no limit.
  void configure(double most) {
    most_ = most;
    earlier_ns_ = lately_ns_ = 0;
    lately_ = 0;
    warned_ = false;
    forgive();
  }
  bool is_on() const { return most_ > 0; }
  double most() const { return most_; }

  // step_ns: the cost of a step's first executions; 0: that of the last operators stands for it.
  // True if it is time to warn, or too late.
  bool note(const Computed& lately, int64_t step_ns) {
    if (!is_on() || lately.own_ns + lately.again_ns == 0) return false;
    stretch(lately.own_ns);
    own_ns_ += lately.own_ns;
    again_ns_ += lately.again_ns;
    debt_ns_ = std::max(0.0, debt_ns_ + static_cast<double>(lately.again_ns) -
                                 (most_ - 1) * static_cast<double>(lately.own_ns));
    if (debt_ns_ == 0) own_ns_ = again_ns_ = 0;
    stretch_ns_ = std::max<int64_t>(step_ns > 0 ? step_ns : earlier_ns_ + lately_ns_, kLeast);
    const double most_ns = (most_ - 1) * static_cast<double>(stretch_ns_);
    is_over_ = debt_ns_ > most_ns;
    const bool warns = !warned_ && debt_ns_ > most_ns / 2;
    warned_ |= warns;
    return warns;
  }

  bool is_over() const { return is_over_; }
  // How often what ran since the debt began was computed, or a step, if that is more.
  double slowness() const {
    return 1 + static_cast<double>(again_ns_) / static_cast<double>(std::max(own_ns_, stretch_ns_));
  }
  // The job has been told.
  void forgive() {
    debt_ns_ = 0;
    is_over_ = false;
    own_ns_ = again_ns_ = 0;
  }

 private:
  static constexpr uint32_t kStretch = 4096;  // operators
  // What is computed again within a second is no grinding, and one odd reading of an operator's
  // time is much of a short step.
  static constexpr int64_t kLeast = 250'000'000;

  // The cost of the last kStretch to 2 * kStretch operators.
  void stretch(int64_t own_ns) {
    if (own_ns == 0) return;
    lately_ns_ += own_ns;
    if (++lately_ < kStretch) return;
    earlier_ns_ = lately_ns_;
    lately_ns_ = 0;
    lately_ = 0;
  }

  double most_ = 0;
  int64_t own_ns_ = 0, again_ns_ = 0;  // since the debt began
  int64_t earlier_ns_ = 0, lately_ns_ = 0;
  int64_t stretch_ns_ = kLeast;
  uint32_t lately_ = 0;
  double debt_ns_ = 0;
  bool is_over_ = false;
  bool warned_ = false;
};

}  // namespace dtr
