// prefetcher.h: which swapped contents begin their way back before an operator needs them.
//
// What comes back is what came back in the step before: parameters and states are used in the same
// order again and again. So it is remembered which storage came back after which, and when one
// does, the next few that are still in host memory follow on a stream of the pool's own, behind
// which their users are ordered (O2). They take only memory that is free: nothing is evicted
// for a guess. One that is used while it is there counts as a hit, and leads to those after it.
//
// Only where there are streams: elsewhere a copy would take the same time now or later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace dtr {

class Prefetcher {
 public:
  static constexpr int kAhead = 2;

  // An operator needed the storage with this id, and it has come back.
  void note_return(uint64_t id) {
    if (followers_.size() >= kMostFollowers) followers_.clear();
    if (last_return_ != 0 && last_return_ != id) followers_[last_return_] = id;
    last_return_ = id;
  }

  // The id of the storage that came back after this one, the last time; 0: none is known.
  uint64_t after(uint64_t id) const {
    const auto next = followers_.find(id);
    return next == followers_.end() ? 0 : next->second;
  }

 private:
  // Of pairs that are remembered; then they are learned anew.
  static constexpr size_t kMostFollowers = 65536;

  std::unordered_map<uint64_t, uint64_t> followers_;
  uint64_t last_return_ = 0;
};

}  // namespace dtr
