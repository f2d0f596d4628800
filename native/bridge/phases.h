// phases.h: what this thread's time goes into, for benchmarks. Every nanosecond belongs to one
// phase: whoever enters a phase stops the clock of the one before, until it leaves. Switched off,
// each of these moments looks at one flag.
#pragma once

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
  engine,     // the core: ops, rematerializations, deaths of storages
  allocator,  // the core: giving memory, with the room that is made for it
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
    const int64_t now =
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    ns_[static_cast<size_t>(current_)] += now - since_ns_;
    since_ns_ = now;
    const Phase before = current_;
    current_ = phase;
    return before;
  }
  Phase current() const { return current_; }
  // Since the last time.
  std::array<int64_t, kPhases> take() {
    enter(current_);
    std::array<int64_t, kPhases> taken = ns_;
    ns_.fill(0);
    return taken;
  }

 private:
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
