#include "mersenne.h"

namespace dtr {

namespace {

constexpr uint32_t kMiddle = 397;

uint32_t mix(uint32_t word) { return word ^ (word >> 30); }

}  // namespace

// The reference implementation's init_by_array, for the one or two words of the seed.
Mersenne::Mersenne(uint64_t seed) {
  const uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const uint32_t length = key[1] != 0 ? 2 : 1;
  state_[0] = 19650218;
  for (uint32_t i = 1; i < kWords; ++i) state_[i] = 1812433253 * mix(state_[i - 1]) + i;
  uint32_t i = 1;
  const auto step = [&] {
    if (++i == kWords) {
      state_[0] = state_[kWords - 1];
      i = 1;
    }
  };
  for (uint32_t k = 0, j = 0; k < kWords; ++k, j = (j + 1) % length) {
    state_[i] = (state_[i] ^ (mix(state_[i - 1]) * 1664525)) + key[j] + j;
    step();
  }
  for (uint32_t k = 1; k < kWords; ++k) {
    state_[i] = (state_[i] ^ (mix(state_[i - 1]) * 1566083941)) - i;
    step();
  }
  state_[0] = 0x80000000;
}

uint32_t Mersenne::next() {
  if (at_ == kWords) {
    for (uint32_t i = 0; i < kWords; ++i) {
      const uint32_t joined = (state_[i] & 0x80000000) | (state_[(i + 1) % kWords] & 0x7fffffff);
      state_[i] = state_[(i + kMiddle) % kWords] ^ (joined >> 1) ^ ((joined & 1) ? 0x9908b0df : 0);
    }
    at_ = 0;
  }
  uint32_t word = state_[at_++];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680;
  word ^= (word << 15) & 0xefc60000;
  return word ^ (word >> 18);
}

uint32_t Mersenne::below(uint32_t bound) {
  uint32_t bits = 0;
  for (uint32_t rest = bound; rest > 0; rest >>= 1) ++bits;
  uint32_t drawn = next() >> (32 - bits);
  while (drawn >= bound) drawn = next() >> (32 - bits);
  return drawn;
}

}  // namespace dtr
