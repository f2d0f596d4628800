// bandwidth.h: how fast bytes move between a device and host memory, learned from copies.
//
// What is *stated* is what prices are made of. It stays where it is until the mean of the readings
// has moved away from it by more than a fifth: a price that changes makes every bound of the search
// for room (candidates.h, C1) worthless.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtr {

class Bandwidth {
 public:
  // Copies below this say more about the call than about the way.
  static constexpr uint64_t kLeastBytes = 1 << 18;

  Bandwidth() = default;
  // Begins with a guess. fixed: readings do not move it.
  Bandwidth(double bytes_per_ns, bool fixed) : stated_(bytes_per_ns), fixed_(fixed) {}

  double ns_of(uint64_t bytes) const { return static_cast<double>(bytes) / stated_; }
  double bytes_per_ns() const { return stated_; }
  uint64_t readings() const { return readings_; }
  bool is_fixed() const { return fixed_; }
  bool learns_from(uint64_t bytes) const { return !fixed_ && bytes >= kLeastBytes; }

  // One more copy. True: what is stated has changed.
  bool add(uint64_t bytes, int64_t ns) {
    if (!learns_from(bytes) || ns < 1) return false;
    ++readings_;
    // A thread that was preempted meanwhile says little of the way.
    auto took_ns = static_cast<double>(ns);
    if (readings_ > 1) took_ns = std::min(took_ns, 2 * static_cast<double>(bytes) * ns_ / bytes_);
    // Older copies count for less and less, so that the mean follows a machine that grows busier.
    bytes_ = bytes_ * kMemory + static_cast<double>(bytes);
    ns_ = ns_ * kMemory + took_ns;
    const double mean = bytes_ / ns_;
    if (readings_ > 1 && mean > stated_ / kStep && mean < stated_ * kStep) return false;
    stated_ = mean;
    return true;
  }

 private:
  static constexpr double kMemory = 0.9;
  static constexpr double kStep = 1.2;
  double stated_ = 1;  // bytes per ns, which is GB/s
  bool fixed_ = false;
  uint64_t readings_ = 0;
  double bytes_ = 0;
  double ns_ = 0;
};

}  // namespace dtr
