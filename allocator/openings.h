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
    if (count_ < DTR_MOST_OPENINGS) holes_[count_] = {hole->offset, hole->end()};
    if (count_ <= DTR_MOST_OPENINGS) ++count_;
  }
  // Writes those since the last call, and returns how many; DTR_MOST_OPENINGS + 1: there were more.
  uint64_t take(dtr_opening* holes) {
    const uint64_t count = std::exchange(count_, 0);
    std::copy_n(holes_, std::min<uint64_t>(count, DTR_MOST_OPENINGS), holes);
    return count;
  }

 private:
  dtr_opening holes_[DTR_MOST_OPENINGS] = {};
  uint64_t count_ = DTR_MOST_OPENINGS + 1;
};

}  // namespace dtr
