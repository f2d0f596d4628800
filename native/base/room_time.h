// room_time.h: the time that a thread's allocations take from when they ask for room: searches, evictions
// and remaps. It is not part of an op's cost.
#pragma once

#include <cstdint>
#include <utility>

#include "clock.h"
#include "not_copied.h"

namespace dtr {

class RoomTime {
 public:
  static int64_t spent_ns() { return of_thread().spent_ns_; }
  // The allocation that is under way asks for room.
  static void begin() {
    int64_t& since_ns = of_thread().since_ns_;
    if (since_ns == 0) since_ns = now_ns();
  }
  // An allocation, from its begin to its end.
  class Allocation : NotCopied {
   public:
    Allocation() { time_.since_ns_ = 0; }
    ~Allocation() {
      if (const int64_t since_ns = std::exchange(time_.since_ns_, 0); since_ns != 0)
        time_.spent_ns_ += now_ns() - since_ns;
    }

   private:
    RoomTime& time_ = of_thread();
  };

 private:
  static RoomTime& of_thread() {
    thread_local RoomTime one;
    return one;
  }
  int64_t spent_ns_ = 0, since_ns_ = 0;
};

}  // namespace dtr
