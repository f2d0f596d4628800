// What pools do, in the order in which it happens, for traces (docs/reference/trace-format.md).
//
// One log serves the pools of a process, so that their events have one order. A pool adds to it
// under its own lock; whoever drains it holds no pool's lock, and only for a moment the log's.
// Nothing waits for the reader: if it does not keep up, the log ends, and counts what it lost.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "at_fork.h"
#include "dtr/event_log.h"
#include "not_copied.h"

namespace dtr {

// As dtr_event_columns has them.
struct Event {
  int64_t time_ns;
  uint64_t address, size_bytes, stream, op;
  uint16_t device;
  uint8_t kind;
  uint32_t place;
};

// Whoever runs operators says so here, for the events of this thread.
inline uint64_t& running_op_of_thread() {
  thread_local uint64_t op = 0;
  return op;
}

// Where in the job the thread's operators stand, as the job says it (dtr_place).
inline uint32_t& place_of_thread() {
  thread_local uint32_t place = 0;
  return place;
}

class EventLog {
 public:
  static constexpr uint64_t kBlockEvents = 4096;
  static constexpr uint64_t kMostBlocks = 1024;  // 200 MB that nobody took out

  void add(uint16_t device, uint8_t kind, uint64_t address, uint64_t size_bytes,
           uint64_t stream) noexcept {
    LogLock lock(mutex_);
    push(device, kind, address, size_bytes, stream);
  }
  // One event directly behind the other.
  void add_move(uint16_t device, uint64_t from, uint64_t to, uint64_t size_bytes) noexcept {
    LogLock lock(mutex_);
    push(device, DTR_EVENT_MOVE_FROM, from, size_bytes, 0);
    push(device, DTR_EVENT_MOVE_TO, to, size_bytes, 0);
  }

  // Moves up to capacity events out, in whole blocks, oldest first; returns how many.
  uint64_t drain(const dtr_event_columns& to, uint64_t capacity) {
    uint64_t drained = 0;
    while (capacity - drained >= kBlockEvents) {
      std::unique_ptr<Block> block;
      {
        LogLock lock(mutex_);
        if (blocks_.empty()) break;
        block = std::move(blocks_.front());
        blocks_.erase(blocks_.begin());
      }
      for (uint64_t i = 0; i < block->count; ++i, ++drained) {
        const Event& event = block->events[i];
        to.kind[drained] = event.kind;
        to.time_ns[drained] = event.time_ns;
        to.address[drained] = event.address;
        to.size_bytes[drained] = event.size_bytes;
        to.stream[drained] = event.stream;
        to.device[drained] = event.device;
        to.op[drained] = event.op;
        to.place[drained] = event.place;
      }
      block->count = 0;
      LogLock lock(mutex_);
      if (spare_ == nullptr) std::swap(spare_, block);
    }
    return drained;
  }
  uint64_t lost() const {
    LogLock lock(mutex_);
    return lost_;
  }
  // How many sources write to it.
  uint32_t writers() const { return writers_.load(); }

 private:
  friend class EventSource;
  using LogLock = std::lock_guard<std::mutex>;
  struct Block {
    uint64_t count = 0;
    Event events[kBlockEvents];
  };

  // Once one event is lost, all that follow are: what is there is the whole beginning.
  void push(uint16_t device, uint8_t kind, uint64_t address, uint64_t size_bytes,
            uint64_t stream) noexcept {
    if (lost_ != 0) {
      ++lost_;
      return;
    }
    if (blocks_.empty() || blocks_.back()->count == kBlockEvents) {
      if (blocks_.size() == kMostBlocks) {
        ++lost_;
        return;
      }
      try {
        blocks_.reserve(blocks_.size() + 1);
        blocks_.push_back(spare_ != nullptr ? std::move(spare_) : std::make_unique<Block>());
      } catch (const std::bad_alloc&) {
        ++lost_;
        return;
      }
    }
    const int64_t now_ns =
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    if (begin_ns_ == 0) begin_ns_ = now_ns;
    Block& block = *blocks_.back();
    block.events[block.count++] = {now_ns - begin_ns_,     address, size_bytes, stream,
                                   running_op_of_thread(), device,  kind,       place_of_thread()};
  }

  mutable std::mutex mutex_;  // a leaf: nothing is called under it
  HeldAcrossFork held_across_fork_ = HeldAcrossFork::leaf(mutex_);
  std::vector<std::unique_ptr<Block>> blocks_;  // oldest first; the last one is being filled
  std::unique_ptr<Block> spare_;
  int64_t begin_ns_ = 0;
  uint64_t lost_ = 0;
  std::atomic<uint32_t> writers_{0};
};

// A pool's side: to which log its events go, if to any. Changed and used under the pool's lock.
class EventSource : NotCopied {
 public:
  EventSource() = default;
  ~EventSource() { set(nullptr, 0); }

  bool is_on() const { return log_.load(std::memory_order_relaxed) != nullptr; }
  void set(EventLog* log, uint16_t device) {
    if (log != nullptr) ++log->writers_;
    EventLog* before = log_.exchange(log, std::memory_order_relaxed);
    if (before != nullptr) --before->writers_;
    device_ = device;
  }
  void add(uint8_t kind, uint64_t address, uint64_t size_bytes, uint64_t stream = 0) const {
    EventLog* log = log_.load(std::memory_order_relaxed);
    if (log != nullptr) log->add(device_, kind, address, size_bytes, stream);
  }
  void add_move(uint64_t from, uint64_t to, uint64_t size_bytes) const {
    EventLog* log = log_.load(std::memory_order_relaxed);
    if (log != nullptr) log->add_move(device_, from, to, size_bytes);
  }

 private:
  std::atomic<EventLog*> log_{nullptr};  // asked without the lock whether it is worth taking it
  uint16_t device_ = 0;
};

}  // namespace dtr
