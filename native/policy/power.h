// power.h: s^a for eight floats at once, never too small.
//
// For a bound of a score, s^a may be too large by a little, but not too small. So
//
//     s^a <= raise_above(s, a) <= s^a * kPowerSlack      for s >= 1, 0 <= a <= 1
//
// The logarithm and the power of two are polynomials between powers of two; their errors
// (below 8.9e-4 and 1.5e-4, both signs) are added at the end, with rounding. A test
// compares every mantissa with std::pow (tests/native/power_bound.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtr {

constexpr size_t kLanes = 8;
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using IntLanes = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

constexpr float kPowerSlack = 1.0017f;

[[gnu::always_inline]] inline void raise_above(Lanes& s, float a) {
  const IntLanes bits = (IntLanes)s;
  const Lanes exponent = __builtin_convertvector((bits >> 23) - 127, Lanes);
  const IntLanes fraction_bits = (bits & 0x007FFFFF) | 0x3F800000;
  const Lanes m = (Lanes)fraction_bits - 1;
  // log2(1 + m), within 8.9e-4
  const Lanes log2 = exponent + m + m * (1 - m) * (0.422865f - 0.15921963f * m);
  Lanes y = a * log2;
  const Lanes zero = y * 0;
  y = y > zero ? y : zero;
  const IntLanes whole = __builtin_convertvector(y, IntLanes);
  const Lanes f = y - __builtin_convertvector(whole, Lanes);
  // 2^f, within 1.5e-4
  const Lanes power = 1 + f - f * (1 - f) * (0.30410987f + 0.07924491f * f);
  const IntLanes scale_bits = (whole + 127) << 23;
  // 1.00085 > 2^8.9e-4 * (1 + 1.5e-4) and rounding
  s = power * (Lanes)scale_bits * 1.00085f;
}

}  // namespace dtr
