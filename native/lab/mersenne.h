// mersenne.h: the random numbers of Python's `random` module, for runs that repeat its choices.
//
// MT19937 (Matsumoto and Nishimura, 1998) as std::mt19937 has it, seeded by an array of words
// as Python does, and Python's way to draw below a bound.
#pragma once

#include <cstdint>

namespace dtr {

class Mersenne {
 public:
  // random.seed(seed)
  explicit Mersenne(uint64_t seed);
  // random.randrange(bound), for 0 < bound < 2^32
  uint32_t below(uint32_t bound);

 private:
  uint32_t next();
  static constexpr uint32_t kWords = 624;
  uint32_t state_[kWords];
  uint32_t at_ = kWords;
};

}  // namespace dtr
