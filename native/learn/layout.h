// layout.h: addresses for blocks whose lifetimes are known (dynamic storage allocation).
//
// Time goes round: what lives at the end of a step lives on at the beginning of the next.
#pragma once

#include <cstdint>
#include <vector>

namespace dtr {

struct Lifetime {
  uint64_t begin;  // in use from here on
  uint64_t end;    // to here, this moment included; before `begin`: over the end of the step
  uint64_t size_bytes;
};

// What others hold all the time.
struct Obstacle {
  uint64_t begin, end;
};

// Where so many bytes are free for the first time. busy: by address; they may overlap.
uint64_t lowest_gap(const std::vector<Obstacle>& busy, uint64_t size_bytes);

struct Layout {
  static constexpr uint64_t kNowhere = UINT64_MAX;
  std::vector<uint64_t>
      addresses;               // one for each lifetime; kNowhere: there is none below the limit
  uint64_t missing_bytes = 0;  // of those without one
};

// The best of some greedy layouts below `limit`: blocks in the order of their urgency, which is their
// size at first, each in the lowest gap; those that found none are more urgent in the next (squeaky
// wheel optimization, Joslin and Clements, 1999). Sizes and addresses are multiples of the grain.
// obstacles: by address, apart from each other.
Layout lay_out(const std::vector<Lifetime>& lifetimes, const std::vector<Obstacle>& obstacles,
               uint64_t limit);

}  // namespace dtr
