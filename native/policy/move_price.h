// move_price.h: what it costs to move a content within its device's memory: a price for what the
// host spends on it, so that two runs decide alike, and the bytes over the bandwidth of a copy.
//
// The bandwidth is learned from copies that are large enough to show it (bandwidth.h). Before the
// first reading it is a guess, which a calibration replaces where the first price is asked for
// (move.h).
#pragma once

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

  double ns_of(uint64_t bytes) const { return launch_ns() + way_.ns_of(bytes); }
  // Of each move, whatever it copies.
  static constexpr double launch_ns() { return 5000; }
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

 private:
  static constexpr double kNsPerSecond = 1e9;
  // Guesses until a copy has been seen. Bytes per ns are GB/s.
  static constexpr double kHostBytesPerNs = 4;
  static constexpr double kDeviceBytesPerNs = 200;
  static constexpr uint64_t kOneIn = 64;
  static constexpr uint64_t kFew = 8;

  Bandwidth way_;
  uint64_t wanted_ = 0;
  bool calibrated_ = false;
};

}  // namespace dtr
