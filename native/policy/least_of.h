// least_of.h: the least of many numbers, of which one changes at a time.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "lanes.h"

namespace dtr {

// Two levels: the numbers, and the least of each group of them. Both are filled up with infinities.
class LeastOf {
 public:
  static constexpr size_t kGroup = 2 * kLanes;

  void resize(size_t count) {
    numbers_.assign(rounded(count), kInfinity);
    groups_.assign(rounded(numbers_.size() / kGroup), kInfinity);
  }
  // To be written to; update() before anything else is asked.
  float* data() { return numbers_.data(); }
  void update();

  float operator[](size_t index) const { return numbers_[index]; }
  void set(size_t index, float value);
  // Of the least; there is one.
  size_t index() const;

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static size_t rounded(size_t count) { return (count + kGroup - 1) / kGroup * kGroup; }

  std::vector<float> numbers_, groups_;
};

}  // namespace dtr
