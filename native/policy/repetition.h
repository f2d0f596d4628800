// repetition.h: what a step is, for all who look for one in what a job runs: what is repeated, leaves
// as much memory in use as it found, and has more in use in between. (The layers of a network repeat
// each other, too; but what a layer has made stays. And what fills parameters one after the other
// repeats, and has never less in use.)
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace dtr {

// Of the most memory that was in use.
constexpr double kBalance = 0.005, kSwing = 0.05;

inline bool is_balanced(uint64_t before, uint64_t after, uint64_t most) {
  return std::abs(static_cast<double>(before) - static_cast<double>(after)) <=
         kBalance * static_cast<double>(most);
}

inline bool swings(uint64_t low, uint64_t high, uint64_t most) {
  return static_cast<double>(high - low) >= kSwing * static_cast<double>(most);
}

// For each i: how far a sequence is the same from i on as from its beginning (the Z algorithm,
// Gusfield, 1997). 0 for the beginning itself.
template <typename At>
std::vector<uint64_t> same_as_beginning(uint64_t count, At&& at) {
  std::vector<uint64_t> same(count, 0);
  for (uint64_t i = 1, left = 0, right = 0; i < count; ++i) {
    if (i < right) same[i] = std::min(right - i, same[i - left]);
    while (i + same[i] < count && at(same[i]) == at(i + same[i])) ++same[i];
    if (i + same[i] > right) {
      left = i;
      right = i + same[i];
    }
  }
  return same;
}

}  // namespace dtr
