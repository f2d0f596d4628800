// ahead.h: what is computed of blocks for a while ahead (C4 of candidates.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtr {

// It holds until a moment of the clock, and one of what components have lost, but not for dirty
// blocks. How far ahead that is: as far as so many searches come that the passes over all blocks
// are a share of the work.
class Ahead {
 public:
  // What a search's share of the passes is to be, in blocks.
  explicit Ahead(int64_t blocks_of_search) : blocks_of_search_(blocks_of_search) {}

  void resize(size_t blocks) {
    is_dirty_.resize(blocks);
    dirty_.reserve(2 * blocks);
  }
  void touch(uint32_t block) {
    if (is_all_dirty_ || is_dirty_[block]) return;
    if (dirty_.size() >= 2 * is_dirty_.size()) return touch_all();
    is_dirty_[block] = 1;
    dirty_.push_back(block);
  }
  void touch_all() { is_all_dirty_ = true; }
  // A block was looked at in vain, as what is computed is too low by now: once there were as many
  // as there are blocks, there is a new pass.
  void count_vain() { ++vain_; }

  // A search begins: what is computed must hold now. Then refresh().
  void advance(int64_t now_ns, int64_t decreased_ns) {
    if (is_all_dirty_ || now_ns > until_ns_ || now_ns < from_ns_ ||
        decreased_ns > until_decreased_ || vain_ > is_dirty_.size()) {
      is_all_dirty_ = true;
      until_ns_ = ahead(now_ns, from_ns_);
      until_decreased_ = ahead(decreased_ns, from_decreased_);
      from_ns_ = now_ns;
      from_decreased_ = decreased_ns;
      searches_ = 0;
      vain_ = 0;
    }
    ++searches_;
  }
  // Calls compute(block) for the dirty ones, for the time until until_ns().
  template <typename Compute>
  void refresh(Compute&& compute) {
    const auto blocks = static_cast<uint32_t>(is_dirty_.size());
    if (is_all_dirty_) {
      for (uint32_t block = 0; block < blocks; ++block) compute(block);
      std::fill(is_dirty_.begin(), is_dirty_.end(), 0);
    } else {
      for (const uint32_t block : dirty_) {
        if (block >= blocks || !is_dirty_[block]) continue;
        is_dirty_[block] = 0;
        compute(block);
      }
    }
    is_all_dirty_ = false;
    dirty_.clear();
  }

  int64_t from_ns() const { return from_ns_; }  // when all were computed
  int64_t until_ns() const { return until_ns_; }
  int64_t until_decreased() const { return until_decreased_; }
  bool holds(int64_t now_ns, int64_t decreased_ns, uint32_t block) const {
    return !is_all_dirty_ && !is_dirty_[block] && now_ns >= from_ns_ && now_ns <= until_ns_ &&
           decreased_ns <= until_decreased_;
  }

 private:
  int64_t ahead(int64_t to, int64_t from) const {
    if (from < 0) return to;  // never before: nothing is known of how fast time passes
    const auto blocks = static_cast<int64_t>(is_dirty_.size());
    return to + (to - from) / std::max<int64_t>(searches_, 1) * blocks / blocks_of_search_;
  }

  int64_t blocks_of_search_;
  std::vector<uint8_t> is_dirty_;
  std::vector<uint32_t> dirty_;  // blocks; some may be gone, or stand here twice
  bool is_all_dirty_ = true;
  int64_t until_ns_ = -1, until_decreased_ = -1;
  int64_t from_ns_ = -1, from_decreased_ = -1;
  int64_t searches_ = 0;  // since then
  size_t vain_ = 0;       // since then
};

}  // namespace dtr
