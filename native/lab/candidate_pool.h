// candidate_pool.h: the candidates for eviction in simrd's order, and the search among them.
//
// The order decides ties: the last of the smallest scores is chosen, but a score of exactly zero
// ends the search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtr::simrd {

class CandidatePool {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  size_t size() const { return size_; }
  bool has(uint32_t id) const { return id < at_.size() && at_[id] != kNone; }

  // At the end of the order.
  void enter(uint32_t id) {
    // Holes are closed when they are the most of it, so that entering stays cheap on average.
    if (ids_.size() > 64 && ids_.size() > size_ + size_ / 4) close_holes();
    if (id >= at_.size()) at_.resize(id + 1, kNone);
    at_[id] = static_cast<uint32_t>(ids_.size());
    ids_.push_back(id);
    ++size_;
  }
  bool leave(uint32_t id) {
    if (!has(id)) return false;
    ids_[at_[id]] = kNone;
    at_[id] = kNone;
    --size_;
    return true;
  }

  // All of them, in the order.
  void list(std::vector<uint32_t>* ids) const {
    ids->clear();
    for (const uint32_t id : ids_)
      if (id != kNone) ids->push_back(id);
  }

 private:
  void close_holes() {
    size_t kept = 0;
    for (const uint32_t id : ids_) {
      if (id == kNone) continue;
      at_[id] = static_cast<uint32_t>(kept);
      ids_[kept++] = id;
    }
    ids_.resize(kept);
  }

  std::vector<uint32_t> ids_;  // kNone: a hole
  std::vector<uint32_t> at_;   // by id: where it stands
  size_t size_ = 0;
};

}  // namespace dtr::simrd
