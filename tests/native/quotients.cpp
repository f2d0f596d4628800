// Pairs a, b on stdin (b as its high and low 64 bits); their quotients (native/lab/quotient.h)
// as hexadecimal floats, one a line.
#include <cinttypes>
#include <cstdio>

#include "lab/quotient.h"

int main() {
  int64_t a;
  uint64_t high, low;
  while (std::scanf("%" SCNd64 " %" SCNu64 " %" SCNu64, &a, &high, &low) == 3)
    std::printf("%a\n", dtr::quotient(a, static_cast<unsigned __int128>(high) << 64 | low));
}
