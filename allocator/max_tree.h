// The greatest value at or after a place: bounds of the hole sizes in the cells of a heap, for one
// owner. 16 values have one above them that is none of theirs' less.
//
// A bound may be too high, never too low: raising is all that an insertion costs and a removal
// costs nothing. Who finds a bound too high lowers it, once for each time that it was raised.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lazy_array.h"

namespace dtr {

class MaxTree {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  explicit MaxTree(uint64_t places) {
    for (;; places = (places + kFanOut - 1) / kFanOut) {
      levels_.emplace_back(places);
      sizes_.push_back(places);
      if (places == 1) break;
    }
  }

  uint64_t bound(uint64_t place) const { return levels_[0][place]; }

  void raise(uint64_t place, uint64_t value) {
    for (auto& level : levels_) {
      if (level[place] >= value) return;
      level[place] = value;
      place /= kFanOut;
    }
  }

  // Sets what the bound of one place really is.
  void lower(uint64_t place, uint64_t value) {
    levels_[0][place] = value;
    for (size_t k = 1; k < levels_.size(); ++k) {
      const uint64_t begin = place / kFanOut * kFanOut;
      const uint64_t end = std::min(begin + kFanOut, sizes_[k - 1]);
      uint64_t greatest = 0;
      for (uint64_t i = begin; i < end; ++i) greatest = std::max(greatest, levels_[k - 1][i]);
      place /= kFanOut;
      if (levels_[k][place] == greatest) return;
      levels_[k][place] = greatest;
    }
  }

  // The first place from this one on whose bound is at least `value`, or kNone.
  uint64_t find(uint64_t place, uint64_t value) const {
    size_t k = 0;
    for (;;) {
      // Up, as long as nothing to the right in the same group serves.
      const uint64_t end = std::min((place / kFanOut + 1) * kFanOut, sizes_[k]);
      while (place < end && levels_[k][place] < value) ++place;
      if (place < end) break;
      if (++k == levels_.size()) return kNone;
      place = (end + kFanOut - 1) / kFanOut;
      if (place >= sizes_[k]) return kNone;
    }
    while (k-- > 0) {
      place *= kFanOut;
      while (levels_[k][place] < value) ++place;
    }
    return place;
  }

 private:
  static constexpr uint64_t kFanOut = 16;
  std::vector<LazyArray<uint64_t>> levels_;
  std::vector<uint64_t> sizes_;
};

}  // namespace dtr
