// free_ranges.h: free addresses as maximal ranges, with the sums and the largest of their sizes.
//
// Ranges that touch are one, but for walls: addresses across which they do not merge.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "base/ranges.h"

namespace dtr::fragment {

class FreeRanges {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  size_t count() const { return ends_.size(); }
  uint64_t total_bytes() const { return total_; }
  uint64_t largest_bytes() const { return sizes_.empty() ? 0 : *sizes_.rbegin(); }
  double sum_squares() const { return static_cast<double>(squares_); }

  std::vector<uint64_t> sizes() const { return {sizes_.begin(), sizes_.end()}; }  // ascending
  std::vector<Range> ranges() const {                                             // ascending
    std::vector<Range> found;
    found.reserve(ends_.size());
    for (const auto& [begin, end] : ends_) found.push_back({begin, end});
    return found;
  }

  // Where the lowest range of so many bytes begins, or kNone. All in a class above that of the size
  // are large enough.
  uint64_t lowest(uint64_t size) const {
    uint64_t found = kNone;
    for (size_t above = class_of(size) + 1; above < begins_.size(); ++above)
      if (!begins_[above].empty()) found = std::min(found, *begins_[above].begin());
    for (const uint64_t begin : begins_[class_of(size)]) {
      if (begin >= found) break;
      if (ends_.at(begin) - begin >= size) return begin;
    }
    return found;
  }

  // Frees [begin, end). False, and nothing is changed: part of it is free.
  bool add(uint64_t begin, uint64_t end) {
    if (begin >= end) return begin == end;
    auto above = ends_.lower_bound(begin);
    if (above != ends_.end() && above->first < end) return false;
    if (above != ends_.begin()) {
      const auto below = std::prev(above);
      if (below->second > begin) return false;
      if (below->second == begin && walls_.count(begin) == 0) {
        begin = below->first;
        drop(below);
      }
    }
    if (above != ends_.end() && above->first == end && walls_.count(end) == 0) {
      end = above->second;
      above = drop(above);
    }
    insert(above, begin, end);
    return true;
  }

  // Takes [begin, end) out of all ranges; returns how many bytes of it were free.
  uint64_t remove(uint64_t begin, uint64_t end) {
    uint64_t taken = 0;
    auto at = ends_.upper_bound(begin);
    if (at != ends_.begin() && std::prev(at)->second > begin) --at;
    while (at != ends_.end() && at->first < end) {
      const Range range{at->first, at->second};
      at = drop(at);
      taken += std::min(range.end, end) - std::max(range.begin, begin);
      if (range.begin < begin) insert(at, range.begin, begin);
      if (end < range.end) insert(at, end, range.end);
    }
    return taken;
  }

  void raise_wall(uint64_t at) { walls_.insert(at); }
  // Those that lie between the two addresses.
  void open_walls(uint64_t after, uint64_t before) {
    if (after < before) walls_.erase(walls_.upper_bound(after), walls_.lower_bound(before));
  }

 private:
  using Ends = std::map<uint64_t, uint64_t>;
  // Of sizes between two powers of two.
  static size_t class_of(uint64_t size) { return static_cast<size_t>(std::bit_width(size)) - 1; }

  void insert(Ends::iterator before, uint64_t begin, uint64_t end) {
    const uint64_t size = end - begin;
    ends_.emplace_hint(before, begin, end);
    sizes_.insert(size);
    begins_[class_of(size)].insert(begin);
    total_ += size;
    squares_ += static_cast<unsigned __int128>(size) * size;
  }
  Ends::iterator drop(Ends::iterator range) {
    const uint64_t size = range->second - range->first;
    sizes_.erase(sizes_.find(size));
    begins_[class_of(size)].erase(range->first);
    total_ -= size;
    squares_ -= static_cast<unsigned __int128>(size) * size;
    return ends_.erase(range);
  }

  Ends ends_;  // by begin
  std::multiset<uint64_t> sizes_;
  std::array<std::set<uint64_t>, 64> begins_;  // by class
  std::set<uint64_t> walls_;
  uint64_t total_ = 0;
  unsigned __int128 squares_ = 0;
};

}  // namespace dtr::fragment
