// mersenne.h: the random numbers of Python's `random` module, for runs that repeat its choices.
#pragma once

#include <cstdint>
#include <random>

namespace dtr {

class Mersenne {
 public:
  // random.seed(seed)
  explicit Mersenne(uint64_t seed);
  // random.randrange(bound), for 0 < bound < 2^32
  uint32_t below(uint32_t bound);

 private:
  std::mt19937 words_;
};

}  // namespace dtr
