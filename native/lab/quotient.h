// quotient.h: division of whole numbers as Python has it, correctly rounded.
//
// simrd's scores are such quotients, and two scores that differ in the last bit, or do not, make
// different choices: sizes times ages are often beyond the 53 bits of a double.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace dtr {

inline int bits(unsigned __int128 value) {
  const auto high = static_cast<uint64_t>(value >> 64);
  const auto low = static_cast<uint64_t>(value);
  return high ? 64 + std::bit_width(high) : std::bit_width(low);
}

// a / b for |a| <= 2^62 and 0 < b < 2^125.
inline double quotient(int64_t a, unsigned __int128 b) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (a > -kExact && a < kExact && b < static_cast<unsigned __int128>(kExact))
    return static_cast<double>(a) / static_cast<double>(static_cast<uint64_t>(b));
  if (a == 0) return 0;
  // Long division: 54 bits of the quotient, the last to round by, and whether any are left.
  unsigned __int128 rest = a < 0 ? -static_cast<unsigned __int128>(a) : a;
  int exponent = bits(rest) - bits(b);
  if (exponent < 0)
    rest <<= -exponent;
  else
    b <<= exponent;
  if (rest < b) {
    rest <<= 1;
    --exponent;
  }
  uint64_t digits = 0;
  for (int i = 0; i < 54; ++i) {
    digits <<= 1;
    if (rest >= b) {
      rest -= b;
      digits |= 1;
    }
    rest <<= 1;
  }
  const bool half = digits & 1;
  digits >>= 1;
  if (half && (rest != 0 || (digits & 1))) ++digits;
  const double value = std::ldexp(static_cast<double>(digits), exponent - 52);
  return a < 0 ? -value : value;
}

}  // namespace dtr
