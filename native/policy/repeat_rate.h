// repeat_rate.h: how much compute went, lately, into what had been computed again before.
//
// The marginal cost (score.h) takes it that an evicted storage is computed again once. Where memory
// does not hold a chain for so long, its parts are computed again and again, and every cost that a
// score counts is too low. That shows in the time spent on storages that come back for the second
// time or more, over the time that the job's own operators took.
#pragma once

#include <cstdint>

namespace dtr {

// What a job has computed: its own operators, what was computed again, and of that what had been
// computed again before.
struct Computed {
  int64_t own_ns = 0, again_ns = 0, twice_ns = 0;
  Computed operator-(const Computed& earlier) const {
    return {own_ns - earlier.own_ns, again_ns - earlier.again_ns, twice_ns - earlier.twice_ns};
  }
};

class RepeatRate {
 public:
  // An operator ran, for the first time or again.
  void note(const Computed& lately) {
    own_ns_ += static_cast<double>(lately.own_ns);
    twice_ns_ += static_cast<double>(lately.twice_ns);
    if (++noted_ % kHalfLife != 0) return;
    own_ns_ /= 2;
    twice_ns_ /= 2;
  }
  void forget() {
    own_ns_ = twice_ns_ = 0;
    has_taken_over_ = false;
  }
  // e* goes on, until forget().
  void take_over() { has_taken_over_ = true; }
  bool has_taken_over() const { return has_taken_over_; }

  // Costs are too low by more than what chance does: remaps count for no more than they take
  // (room.h).
  bool shows() const { return twice_ns_ > kShows * own_ns_; }
  // They are so wrong that e*, which charges a chain to each of its parts, does better, with one
  // victim at a time.
  bool is_high() const { return twice_ns_ > kHigh * own_ns_; }

 private:
  static constexpr uint64_t kHalfLife = 512;  // operators
  // From the eight logs of the DTR paper and logs of 34 jobs of other authors (bench/foreign), at 0.5
  // to 0.2 of their activations. Jobs that the marginal cost serves best stay below 0.02, most of
  // them. With 0.15 U-Nets are served worse, with 0.45 chains.
  static constexpr double kShows = 0.02;
  static constexpr double kHigh = 0.25;

  bool has_taken_over_ = false;
  double own_ns_ = 0, twice_ns_ = 0;  // halved now and then
  uint64_t noted_ = 0;
};

}  // namespace dtr
