// checksum.h: 64-bit checksums of memory that others may write to: of all of it, or of a sample.
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

// Of the first word, the last one, and some between; of all, if there are no more.
inline uint64_t sampled_checksum(const void* data, uint64_t size_bytes) {
  constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;
  constexpr uint64_t kWords = 8;
  if (size_bytes < kWords * 8) return checksum(data, size_bytes);
  const auto* bytes = static_cast<const unsigned char*>(data);
  const uint64_t stride = (size_bytes - 8) / (kWords - 1);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, bytes + (i + 1 < kWords ? i * stride : size_bytes - 8), 8);
    sum += (word ^ (word >> 32)) * (kPrime + 2 * i);
  }
  return sum;
}

}  // namespace dtr
