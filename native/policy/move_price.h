// move_price.h: what it costs to move a content within its device's memory: what the host spends
// on it, and the bytes over the bandwidth of a copy.
//
// Both are learned: the first from every move, the second from copies that are large enough to
// show it. What is stated stays where it is until the readings have moved away by more than a
// fifth, as in bandwidth.h. Before the first reading they are guesses, which a calibration
// replaces where the first price is asked for (move.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "bandwidth.h"

namespace dtr {

class MovePrice {
 public:
  MovePrice() = default;
  // bytes_per_s 0: as measured. is_host: the host copies.
  MovePrice(double bytes_per_s, bool is_host)
      : way_(bytes_per_s > 0 ? bytes_per_s / kNsPerSecond
                             : (is_host ? kHostBytesPerNs : kDeviceBytesPerNs),
             bytes_per_s > 0) {}

  double ns_of(uint64_t bytes) const { return launch_ns_ + way_.ns_of(bytes); }
  double launch_ns() const { return launch_ns_; }
  double bytes_per_ns() const { return way_.bytes_per_ns(); }
  bool is_fixed() const { return way_.is_fixed(); }
  uint64_t readings() const { return way_.readings(); }
  // The first few copies, and then one in many.
  bool wants_reading(uint64_t bytes) {
    return way_.learns_from(bytes) && wanted_++ % kOneIn < kFew;
  }
  bool needs_calibration() {
    const bool needs = !is_fixed() && !calibrated_ && readings() == 0;
    calibrated_ = true;
    return needs;
  }

  void add_copy(uint64_t bytes, int64_t ns) { way_.add(bytes, ns); }
  // What the host spent on one move, without copying. A thread that was preempted meanwhile says
  // little, so it counts as twice the mean.
  void add_launch(int64_t ns) {
    if (is_fixed()) return;
    const auto reading_ns = static_cast<double>(ns);
    mean_ns_ = mean_ns_ == 0 ? std::min(reading_ns, launch_ns_)
                             : mean_ns_ + (std::min(reading_ns, 2 * mean_ns_) - mean_ns_) / kMemory;
    if (mean_ns_ < launch_ns_ / kStep || mean_ns_ > launch_ns_ * kStep) launch_ns_ = mean_ns_;
  }

 private:
  static constexpr double kNsPerSecond = 1e9;
  // Guesses until a copy has been seen. Bytes per ns are GB/s.
  static constexpr double kHostBytesPerNs = 4;
  static constexpr double kDeviceBytesPerNs = 200;
  static constexpr double kLaunchNs = 5000;
  static constexpr double kMemory = 8;  // moves
  static constexpr double kStep = 1.2;
  static constexpr uint64_t kOneIn = 64;
  static constexpr uint64_t kFew = 8;

  Bandwidth way_;
  double launch_ns_ = kLaunchNs;
  double mean_ns_ = 0;
  uint64_t wanted_ = 0;
  bool calibrated_ = false;
};

}  // namespace dtr
