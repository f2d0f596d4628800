// What the large blocks of a pool begin at and are rounded to.
#pragma once

#include <cstdint>

namespace dtr {

// In bytes; a multiple of every driver's alignment. Not more than needed: jobs are full of tensors
// whose sizes are small multiples of each other, and what is rounded away from each spoils that two
// of them fit where one has been.
constexpr uint64_t kGrain = 256;

inline uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }
inline uint64_t in_grains(uint64_t bytes) { return round_up(bytes, kGrain); }

}  // namespace dtr
