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

  explicit Bitset(uint64_t size) : size_(size) {
    uint64_t words = size;
    do {
      words = (words + 63) / 64;
      levels_.emplace_back(words);
    } while (words > 1);
  }

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

  // Each works on [begin, end).
  void set_range(uint64_t begin, uint64_t end) {
    for_words(begin, end, [&](uint64_t word, uint64_t mask) {
      // One bit through set() carries the summary; the others follow in the same word.
      if (levels_[0][word] == 0) set(word * 64 + lowest(mask));
      levels_[0][word] |= mask;
    });
  }
  void clear_range(uint64_t begin, uint64_t end) {
    for_words(begin, end, [&](uint64_t word, uint64_t mask) {
      uint64_t hit = mask & levels_[0][word];
      if (hit == 0) return;
      uint64_t last = uint64_t{1} << lowest(hit);
      levels_[0][word] &= ~(hit & ~last);
      clear(word * 64 + lowest(hit));
    });
  }
  uint64_t count(uint64_t begin, uint64_t end) const {
    uint64_t total = 0;
    for_words(begin, end, [&](uint64_t word, uint64_t mask) {
      total += __builtin_popcountll(levels_[0][word] & mask);
    });
    return total;
  }
  // All members, visiting only words that have any.
  uint64_t count() const {
    uint64_t total = 0;
    for (uint64_t i = at_or_above(0); i != kNone; i = at_or_above(i)) {
      total += __builtin_popcountll(levels_[0][i / 64]);
      i = (i / 64 + 1) * 64;
    }
    return total;
  }

  // The nearest member on that side, i included; kNone if there is none.
  uint64_t at_or_below(uint64_t i) const {
    for (size_t k = 0; k < levels_.size(); ++k) {
      uint64_t word = levels_[k][i / 64] & (~uint64_t{0} >> (63 - i % 64));
      if (word != 0) {
        uint64_t found = i / 64 * 64 + highest(word);
        while (k-- > 0) found = found * 64 + highest(levels_[k][found]);
        return found;
      }
      if (i / 64 == 0) return kNone;
      i = i / 64 - 1;
    }
    return kNone;
  }
  uint64_t at_or_above(uint64_t i) const {
    if (i >= size_) return kNone;
    uint64_t bits = size_;
    for (size_t k = 0; k < levels_.size(); ++k) {
      uint64_t word = levels_[k][i / 64] & (~uint64_t{0} << (i % 64));
      if (word != 0) {
        uint64_t found = i / 64 * 64 + lowest(word);
        while (k-- > 0) found = found * 64 + lowest(levels_[k][found]);
        return found;
      }
      bits = (bits + 63) / 64;
      i = i / 64 + 1;
      if (i >= bits) return kNone;
    }
    return kNone;
  }
  // The first non-member in [begin, end), or end.
  uint64_t first_absent(uint64_t begin, uint64_t end) const {
    uint64_t found = end;
    while (begin < end) {
      uint64_t word = ~levels_[0][begin / 64] & (~uint64_t{0} << (begin % 64));
      if (word != 0) {
        found = begin / 64 * 64 + lowest(word);
        break;
      }
      begin = (begin / 64 + 1) * 64;
    }
    return found < end ? found : end;
  }
  // The first member in [begin, end), or end.
  uint64_t first_present(uint64_t begin, uint64_t end) const {
    if (begin >= end) return end;
    uint64_t found = at_or_above(begin);
    return found < end ? found : end;
  }

 private:
  static int lowest(uint64_t word) { return __builtin_ctzll(word); }
  static int highest(uint64_t word) { return 63 - __builtin_clzll(word); }

  // Calls visit(word index, mask) for the words that [begin, end) touches.
  template <typename Visit>
  static void for_words(uint64_t begin, uint64_t end, Visit visit) {
    while (begin < end) {
      uint64_t word = begin / 64;
      uint64_t mask = ~uint64_t{0} << (begin % 64);
      if (end < (word + 1) * 64) mask &= ~(~uint64_t{0} << (end % 64));
      visit(word, mask);
      begin = (word + 1) * 64;
    }
  }

  uint64_t size_;
  std::vector<LazyArray<uint64_t>> levels_;
};

}  // namespace dtr
