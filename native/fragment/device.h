// device.h: a device that gives memory in segments: any address, never more than it has.
//
// Physical memory does not fragment there (it is pages), so a request is refused for its size
// alone. Addresses go to the lowest gap that fits, in steps of kSegmentAlignment, unless the
// caller knows which address the next segment got in a real run: with equal sizes the order of
// addresses decides which block an allocator reuses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "grain.h"
#include "model.h"

namespace dtr::fragment {

class Device {
 public:
  static constexpr uint64_t kSegmentAlignment = 2 << 20;

  // addresses: of the segments to come, in order; what is not usable any more is passed over.
  Device(uint64_t budget_bytes, const uint64_t* addresses, uint64_t count)
      : budget_(budget_bytes), known_(addresses, addresses + count) {}

  uint64_t held_bytes() const { return held_; }
  bool has(uint64_t size) const { return size <= budget_ && held_ <= budget_ - size; }

  // Memory without an address: for those who have address space of their own.
  bool take_bytes(uint64_t size) {
    if (!has(size)) return false;
    held_ += size;
    return true;
  }
  void give_bytes(uint64_t size) { held_ -= size; }

  uint64_t take(uint64_t size) {  // the address, or kNoPlace
    if (!take_bytes(size)) return kNoPlace;
    const uint64_t address = place(size);
    segments_[address] = size;
    return address;
  }
  void give(uint64_t address) {
    const auto found = segments_.find(address);
    give_bytes(found->second);
    lowest_gap_ = std::min(lowest_gap_, address);
    segments_.erase(found);
  }

 private:
  uint64_t place(uint64_t size) {
    if (next_known_ < known_.size()) {
      const uint64_t address = known_[next_known_++];
      const auto above = segments_.lower_bound(address);
      const bool clear = (above == segments_.end() || address + size <= above->first) &&
                         (above == segments_.begin() ||
                          std::prev(above)->first + std::prev(above)->second <= address);
      if (clear) return address;
    }
    // No gap that we know of begins below lowest_gap_.
    uint64_t at = lowest_gap_;
    auto next = segments_.lower_bound(at);
    if (next != segments_.begin()) {
      const auto below = std::prev(next);
      if (below->first + below->second > at)
        at = round_up(below->first + below->second, kSegmentAlignment);
    }
    for (; next != segments_.end() && next->first < at + size; ++next)
      at = round_up(next->first + next->second, kSegmentAlignment);
    if (at == lowest_gap_) lowest_gap_ = round_up(at + size, kSegmentAlignment);
    return at;
  }

  uint64_t budget_;
  uint64_t held_ = 0;
  std::map<uint64_t, uint64_t> segments_;  // address -> size
  uint64_t lowest_gap_ = kSegmentAlignment;
  std::vector<uint64_t> known_;
  size_t next_known_ = 0;
};

}  // namespace dtr::fragment
