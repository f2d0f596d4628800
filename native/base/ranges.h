// ranges.h: ranges of addresses, and what two lists of them have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "grain.h"

namespace dtr {

struct Range {
  uint64_t begin, end;
};

inline bool operator==(const Range& a, const Range& b) {
  return a.begin == b.begin && a.end == b.end;
}

// Adds what of a free range cannot be mapped elsewhere: all but its whole chunks, of so many bytes
// each. 0: nothing is mapped elsewhere.
inline void add_fixed(const Range& free, uint64_t chunk_bytes, std::vector<Range>* to) {
  const auto add = [to](uint64_t begin, uint64_t end) {
    if (begin < end) to->push_back({begin, end});
  };
  if (chunk_bytes == 0) return add(free.begin, free.end);
  const uint64_t first = round_up(free.begin, chunk_bytes);
  const uint64_t last = free.end / chunk_bytes * chunk_bytes;
  if (first > last) return add(free.begin, free.end);  // within one chunk
  add(free.begin, first);
  add(last, free.end);
}

// How many bytes lie in a range of both lists, each of which ascends.
inline uint64_t common_bytes(const std::vector<Range>& a, const std::vector<Range>& b) {
  uint64_t bytes = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const uint64_t begin = std::max(a[i].begin, b[k].begin);
    const uint64_t end = std::min(a[i].end, b[k].end);
    if (begin < end) bytes += end - begin;
    ++(a[i].end < b[k].end ? i : k);
  }
  return bytes;
}

}  // namespace dtr
