// lay_out() and lowest_gap() (native/learn/layout.h) for test_layout.py, as a library with C
// functions: their vectors are arrays here.
#include "learn/layout.h"

#include <algorithm>

using dtr::Lifetime;
using dtr::Obstacle;

extern "C" {

// Returns missing_bytes; addresses has room for as many as there are lifetimes.
uint64_t layout_of(const Lifetime* lifetimes, uint64_t count, const Obstacle* obstacles,
                   uint64_t obstacle_count, uint64_t limit, uint64_t* addresses) {
  const dtr::Layout layout =
      dtr::lay_out({lifetimes, lifetimes + count}, {obstacles, obstacles + obstacle_count}, limit);
  std::copy(layout.addresses.begin(), layout.addresses.end(), addresses);
  return layout.addresses.size() == count ? layout.missing_bytes : UINT64_MAX;
}

uint64_t gap_in(const Obstacle* busy, uint64_t count, uint64_t size_bytes) {
  return dtr::lowest_gap({busy, busy + count}, size_bytes);
}

uint64_t nowhere() { return dtr::Layout::kNowhere; }

}  // extern "C"
