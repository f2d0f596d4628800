// lanes.h: code for the processor that it runs on, and what passes over columns share.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "power.h"

// The same function twice, once for newer processors. Results may differ in the last bit, of
// bounds, which have slack; so the choice does not.
#if defined(__x86_64__) && defined(__GNUC__)
#define DTR_FOR_AVX2 __attribute__((target("avx2,fma")))
#endif

namespace dtr {

#ifdef DTR_FOR_AVX2
inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
#else
constexpr bool has_avx2() { return false; }
#endif

inline float rounded_down(double value) {
  const auto near = static_cast<float>(value);
  return near > value ? std::nextafter(near, -std::numeric_limits<float>::infinity()) : near;
}

inline float rounded_up(double value) { return -rounded_down(-value); }

[[gnu::always_inline]] inline void load(const float* from, Lanes& out) {
  std::memcpy(&out, from, sizeof out);
}

[[gnu::always_inline]] inline float least_lane(const Lanes& of) {
  Lanes lanes = of;
  for (int apart : {4, 2, 1}) {
    const IntLanes here = {0, 1, 2, 3, 4, 5, 6, 7};
    const Lanes other = __builtin_shuffle(lanes, here ^ apart);
    lanes = other < lanes ? other : lanes;
  }
  return lanes[0];
}

}  // namespace dtr
