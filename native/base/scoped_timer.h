// scoped_timer.h: adds the time that a scope takes to a sum.
#pragma once

#include <atomic>
#include <cstdint>

#include "clock.h"
#include "locks.h"

namespace dtr {

class ScopedTimer {
 public:
  explicit ScopedTimer(int64_t& total_ns) : total_ns_(total_ns), begin_ns_(now_ns()) {}
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;
  ~ScopedTimer() { total_ns_ += now_ns() - begin_ns_; }

 private:
  int64_t& total_ns_;
  int64_t begin_ns_;
};

// What threads do inside the engine: from the outermost call to its end, less what it waits for
// locks.
class Bookkeeping {
 public:
  std::atomic<bool> is_timed{false};
  std::atomic<int64_t> total_ns{0};

  // Where it is off, a scope looks at one flag.
  class Scope {
   public:
    explicit Scope(Bookkeeping& of) {
      if (!of.is_timed.load(std::memory_order_relaxed) || is_inside()) return;
      is_inside() = true;
      of_ = &of;
      waited_ns_ = waited_ns_of_thread();
      begin_ns_ = now_ns();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() {
      if (!of_) return;
      of_->total_ns += now_ns() - begin_ns_ - (waited_ns_of_thread() - waited_ns_);
      is_inside() = false;
    }

   private:
    static bool& is_inside() {
      thread_local bool is = false;
      return is;
    }

    Bookkeeping* of_ = nullptr;  // null: off, or inside another scope
    int64_t begin_ns_ = 0;
    int64_t waited_ns_ = 0;
  };
};

// Nanoseconds that this thread has spent making room: not part of an op's cost.
inline int64_t& room_ns_of_thread() {
  thread_local int64_t spent = 0;
  return spent;
}

}  // namespace dtr
