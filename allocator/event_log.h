// What pools do, in the order in which it happens, for traces (docs/reference/trace-format.md).
//
// One log serves the pools of a process, so that their events have one order. A pool adds to it
// under its own lock; whoever drains it holds no pool's lock, and only for a moment the log's.
// Nothing waits for the reader: if it does not keep up, the log ends, and counts what it lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
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
           uint64_t stream) noexcept;
  // One event directly behind the other.
  void add_move(uint16_t device, uint64_t from, uint64_t to, uint64_t size_bytes) noexcept;

  // Moves up to capacity events out, in whole blocks, oldest first; returns how many.
  uint64_t drain(const dtr_event_columns& to, uint64_t capacity);
  uint64_t lost() const;
  // How many sources write to it.
  uint32_t writers() const { return writers_.load(); }

 private:
  friend class EventSource;
  struct Block {
    uint64_t count = 0;
    Event events[kBlockEvents];
  };

  void push(uint16_t device, uint8_t kind, uint64_t address, uint64_t size_bytes,
            uint64_t stream) noexcept;

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
