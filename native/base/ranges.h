// ranges.h: ranges of addresses, and what two lists of them have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtr {

struct Range {
  uint64_t begin, end;
};

inline bool operator==(const Range& a, const Range& b) {
  return a.begin == b.begin && a.end == b.end;
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
