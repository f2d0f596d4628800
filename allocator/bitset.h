// A set of small integers with fast neighbors: which chunks are idle, where blocks start.
//
// Level 0 has one bit per member; a bit of level k + 1 says whether a word of level k is not zero.
// A search climbs until it sees a neighbor and descends to it: O(log64 size).
#pragma once

#include <cstdint>
#include <vector>

#include "lazy_array.h"

namespace dtr {

class Bitset {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  explicit Bitset(uint64_t size);

  uint64_t size() const { return size_; }
  bool test(uint64_t i) const { return levels_[0][i / 64] >> (i % 64) & 1; }

  void set(uint64_t i) {
    for (auto& level : levels_) {
      uint64_t before = level[i / 64];
      level[i / 64] = before | uint64_t{1} << (i % 64);
      if (before != 0) return;
      i /= 64;
    }
  }

  void clear(uint64_t i) {
    for (auto& level : levels_) {
      if ((level[i / 64] &= ~(uint64_t{1} << (i % 64))) != 0) return;
      i /= 64;
    }
  }

  // Whether [begin, end), which is not empty, has no other than members.
  bool all(uint64_t begin, uint64_t end) const {
    if ((begin ^ (end - 1)) >= 64) return first_absent(begin, end) == end;
    const uint64_t mask = ~uint64_t{0} << (begin % 64) & ~uint64_t{0} >> (63 - (end - 1) % 64);
    return (~levels_[0][begin / 64] & mask) == 0;
  }

  // Each works on [begin, end). set_range and clear_range return how many members changed.
  uint64_t set_range(uint64_t begin, uint64_t end);
  uint64_t clear_range(uint64_t begin, uint64_t end);
  uint64_t count(uint64_t begin, uint64_t end) const;
  // All members, visiting only words that have any.
  uint64_t count() const;

  // The nearest member on that side, i included; kNone if there is none.
  uint64_t at_or_below(uint64_t i) const;
  uint64_t at_or_above(uint64_t i) const;
  // The first non-member in [begin, end), or end.
  uint64_t first_absent(uint64_t begin, uint64_t end) const;
  // The first member in [begin, end), or end.
  uint64_t first_present(uint64_t begin, uint64_t end) const;

 private:
  uint64_t size_;
  std::vector<LazyArray<uint64_t>> levels_;
};

}  // namespace dtr
