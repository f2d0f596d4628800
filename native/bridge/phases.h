// phases.h: what this thread's time goes into, for benchmarks. Every nanosecond belongs to one
// phase: whoever enters a phase stops the clock of the one before, until it leaves. Only the time
// that a reading of the clock takes belongs to none; it is taken off between any two readings.
// Switched off, each of these moments looks at one flag.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace dtr_bridge {

enum class Phase : uint8_t {
  job,        // all that is not ours
  capture,    // seeing operators, keeping closures, rebuilding arguments
  operators,  // operators, run for the first time
  again,      // operators that run again
  engine,     // the core: ops, rematerializations, deaths of storages, making room
  allocator,  // the core: giving memory
};
constexpr size_t kPhases = 6;

class Phases {
 public:
  static Phases& of_thread() {
    thread_local Phases phases;
    return phases;
  }
  static std::atomic<bool>& is_on() {
    static std::atomic<bool> on{false};
    return on;
  }
  // The phase before.
  Phase enter(Phase phase) {
    const int64_t reading = reading_ns();  // which takes long the first time
    const int64_t now = now_ns();
    ns_[static_cast<size_t>(current_)] += now - since_ns_ - reading;
    since_ns_ = now;
    const Phase before = current_;
    current_ = phase;
    return before;
  }
  // Time that was counted for one phase is another's.
  void move(Phase from, Phase to, int64_t ns) {
    ns_[static_cast<size_t>(from)] -= ns;
    ns_[static_cast<size_t>(to)] += ns;
  }
  // Since the last time.
  std::array<int64_t, kPhases> take() {
    enter(current_);
    std::array<int64_t, kPhases> taken = ns_;
    ns_.fill(0);
    return taken;
  }

 private:
  static int64_t now_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  // What one reading of the clock takes: the least mean of some batches, as others interrupt us.
  static int64_t reading_ns() {
    static const int64_t measured = [] {
      constexpr int kReadings = 256, kBatches = 32;
      int64_t least = INT64_MAX;
      for (int batch = 0; batch < kBatches; ++batch) {
        const int64_t begin = now_ns();
        int64_t end = begin;
        for (int i = 0; i < kReadings; ++i) end = now_ns();
        least = std::min(least, (end - begin) / kReadings);
      }
      return least;
    }();
    return measured;
  }

  std::array<int64_t, kPhases> ns_{};
  int64_t since_ns_ = 0;
  Phase current_ = Phase::job;
};

// This thread is in a phase while it exists.
class In {
 public:
  explicit In(Phase phase) {
    if (!Phases::is_on().load(std::memory_order_relaxed)) return;
    phases_ = &Phases::of_thread();
    before_ = phases_->enter(phase);
  }
  In(const In&) = delete;
  In& operator=(const In&) = delete;
  ~In() {
    if (phases_) phases_->enter(before_);
  }

 private:
  Phases* phases_ = nullptr;
  Phase before_ = Phase::job;
};

}  // namespace dtr_bridge
