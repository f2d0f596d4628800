// places.h: where in the job operators are called (dtr_place), also those of autograd: a node stands
// where the operator stood whose gradient it computes. The node knows that operator's thread and
// sequence number; numbers of a thread only grow.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "bridge.h"
#include "objects.h"

namespace dtr_bridge {

// Where a thread is.
struct Position {
  uint64_t turn = 0;  // in which it was moved there
  uint32_t own = 0;
  uint32_t told = 0;  // the core
};

class Places {
 public:
  static Places& instance() { return only<Places>(); }
  // Each time with no place on any thread.
  void follow(bool on) {
    follows_ = on;
    ++turn_;
    const std::lock_guard<std::mutex> lock(mutex_);
    changes_.clear();
  }

  // A thread, which is this one, is there from now on.
  void move(Position& position, uint32_t place) {
    position.turn = turn_;
    position.own = place;
    const std::lock_guard<std::mutex> lock(mutex_);
    std::deque<Change>& changes = changes_[at::RecordFunction::currentThreadId()];
    const uint64_t next = at::sequence_number::peek();
    if (!changes.empty() && changes.back().from == next) changes.pop_back();
    changes.push_back({next, place});
    if (changes.size() > kMost) changes.pop_front();
  }

  // Tells the core, before an operator of this thread. Where it was moved to, such as a module that is
  // computed again for its gradient, goes before the node.
  void tell(Position& position) {
    uint32_t place = 0;
    if (follows()) {
      if (position.turn == turn_) place = position.own;
      if (place == 0)
        if (const auto node = torch::autograd::get_current_node())
          place = of(node->thread_id(), node->sequence_nr());
    }
    if (place != position.told) core->place(position.told = place);
  }

  // Held across fork().
  std::mutex& mutex() { return mutex_; }

 private:
  // The operators of a thread with sequence numbers from here on, up to the next change.
  struct Change {
    uint64_t from;
    uint32_t place;
  };
  static constexpr size_t kMost = 1 << 16;  // changes that are known of a thread

  bool follows() const { return follows_.load(std::memory_order_relaxed); }

  // 0 for a node that no operator of the job has made, as those that add up gradients.
  uint32_t of(uint64_t thread, uint64_t sequence) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto changes = changes_.find(thread);
    if (changes == changes_.end() || sequence == UINT64_MAX) return 0;
    const auto after = std::ranges::upper_bound(changes->second, sequence, {}, &Change::from);
    return after == changes->second.begin() ? 0 : std::prev(after)->place;
  }

  std::atomic<bool> follows_{false};
  std::atomic<uint64_t> turn_{0};
  std::mutex mutex_;
  std::map<uint64_t, std::deque<Change>> changes_;
};

}  // namespace dtr_bridge
