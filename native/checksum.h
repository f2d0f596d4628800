// checksum.h: a 64-bit checksum of memory that others may write to.
//
// It tells an accidental change from none; it is no defense against an adversary.
// Four independent lanes keep a core's multiplier busy, so that it runs near
// memory speed.
#pragma once

#include <cstdint>
#include <cstring>

namespace dtr {

inline uint64_t checksum(const void* data, uint64_t size_bytes) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  uint64_t lane[4] = {1, 2, 3, 4};
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto mix = [](uint64_t state, uint64_t word) {
    state = (state ^ word) * kPrime;
    return state ^ (state >> 29);
  };
  uint64_t i = 0;
  for (; i + 32 <= size_bytes; i += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes + i, 32);
    for (int l = 0; l < 4; ++l) lane[l] = mix(lane[l], words[l]);
  }
  for (; i < size_bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, size_bytes - i < 8 ? size_bytes - i : 8);
    lane[i / 8 % 4] = mix(lane[i / 8 % 4], word);
  }
  uint64_t sum = size_bytes;
  for (uint64_t value : lane) sum = mix(sum, value);
  return sum;
}

}  // namespace dtr
