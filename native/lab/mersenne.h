// mersenne.h: the random numbers of Python's `random` module, for runs that repeat its choices.
#pragma once

#include <bit>
#include <cstdint>
#include <random>

namespace dtr {

// The reference implementation's init_by_array, for the one or two words of the seed.
struct PythonSeed {
  using result_type = uint32_t;
  uint64_t seed;

  static uint32_t mix(uint32_t word) { return word ^ (word >> 30); }
  void generate(uint32_t* state, const uint32_t* end) const {
    const uint32_t words = static_cast<uint32_t>(end - state);
    const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    const uint32_t length = key[1] != 0 ? 2 : 1;
    state[0] = 19650218;
    for (uint32_t i = 1; i < words; ++i) state[i] = 1812433253 * mix(state[i - 1]) + i;
    uint32_t i = 1;
    const auto step = [&] {
      if (++i == words) {
        state[0] = state[words - 1];
        i = 1;
      }
    };
    for (uint32_t k = 0, j = 0; k < words; ++k, j = (j + 1) % length) {
      state[i] = (state[i] ^ (mix(state[i - 1]) * 1664525)) + key[j] + j;
      step();
    }
    for (uint32_t k = 1; k < words; ++k) {
      state[i] = (state[i] ^ (mix(state[i - 1]) * 1566083941)) - i;
      step();
    }
    state[0] = 0x80000000;
  }
};

class Mersenne {
 public:
  // random.seed(seed)
  explicit Mersenne(uint64_t seed) {
    PythonSeed of{seed};
    words_.seed(of);
  }
  // random.randrange(bound), for 0 < bound < 2^32
  uint32_t below(uint32_t bound) {
    while (true)
      if (const uint32_t drawn = static_cast<uint32_t>(words_()) >> std::countl_zero(bound);
          drawn < bound)
        return drawn;
  }

 private:
  std::mt19937 words_;
};

}  // namespace dtr
