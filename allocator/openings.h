// openings.h: where a heap's memory became free since somebody looked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "block.h"
#include "dtr/pool.h"

namespace dtr {

class Openings {
 public:
  void note(const Block* hole) {
    if (count_ < kMost) holes_[count_] = {hole->offset, hole->end()};
    if (count_ <= kMost) ++count_;
  }
  // Writes those since the last call if they are no more than capacity, and returns how many there
  // were; above capacity, too, if that is not known.
  uint64_t take(dtr_opening* holes, uint64_t capacity) {
    const uint64_t count = std::exchange(count_, 0);
    if (count <= std::min(kMost, capacity)) std::copy_n(holes_, count, holes);
    return count <= kMost ? count : std::max(count, capacity + 1);
  }

 private:
  static constexpr uint64_t kMost = 32;  // a look at all blocks is as cheap then
  dtr_opening holes_[kMost] = {};
  uint64_t count_ = kMost + 1;
};

}  // namespace dtr
