// raise_above (native/policy/power.h) against std::pow: every mantissa, several exponents and
// powers of two. Prints the worst ratios; exits with 1 if a promise is broken.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "policy/power.h"

int main() {
  double lowest = 10, highest = 0;
  for (const float a : {0.001f, 0.1f, 0.3f, 0.5f, 0.7f, 0.9f, 0.999f})
    for (const uint32_t exponent : {0u, 1u, 7u, 30u, 62u})
      for (uint32_t mantissa = 0; mantissa < (1u << 23); mantissa += dtr::kLanes) {
        dtr::Lanes s;
        float values[dtr::kLanes];
        for (uint32_t lane = 0; lane < dtr::kLanes; ++lane) {
          const uint32_t bits = (exponent + 127) << 23 | (mantissa + lane);
          std::memcpy(&values[lane], &bits, sizeof bits);
        }
        std::memcpy(&s, values, sizeof s);
        dtr::raise_above(s, a);
        for (uint32_t lane = 0; lane < dtr::kLanes; lane += mantissa % 512 ? 8 : 1) {
          const double exact = std::pow(static_cast<double>(values[lane]), static_cast<double>(a));
          const double ratio = s[lane] / exact;
          if (ratio < lowest) lowest = ratio;
          if (ratio > highest) highest = ratio;
        }
      }
  std::printf("s^a from %.6f to %.6f of what it is\n", lowest, highest);
  return lowest >= 1 && highest <= dtr::kPowerSlack ? 0 : 1;
}
