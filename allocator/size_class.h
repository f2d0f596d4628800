// Size classes: 8 for each power of two, so that rounding up adds at most an eighth.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dtr {

// The class of a size, which is not 0: a multiple of unit, which is a power of two.
inline uint64_t size_class(uint64_t size, uint64_t unit) {
  constexpr int kClassBits = 3;  // classes for each power of two, as a power of two
  if (size <= unit) return unit;
  const int log = 63 - __builtin_clzll(size - 1);  // 2^log < size <= 2^(log + 1)
  const uint64_t step = std::max(unit, uint64_t{1} << (log < kClassBits ? 0 : log - kClassBits));
  return (size + step - 1) & ~(step - 1);
}

}  // namespace dtr
