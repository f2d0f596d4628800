// How long work on a stream takes: a pair of events around it, read when the device has passed
// both. Nothing here ever waits.
//
// A timer is open from begin() until it is read or dropped, and is read in the order in which the
// timers of its stream ended. At most kMostOpen are open at once, so that work that is timed
// faster than it is done does not gather events without end.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "driver.h"

namespace dtr {

class Timers {
 public:
  static constexpr uint64_t kMostOpen = 512;

  explicit Timers(Driver& driver) : driver_(driver) {}
  // Destroys the events, open timers included. May be called again if the driver refuses.
  void close();

  // A timer that starts at this point of the stream. 0: time the work by the clock, as the driver
  // has no streams, too many timers are open, or the stream is being captured.
  uint64_t begin(uint64_t stream);
  // The work ends at this point of the same stream. Timer 0 is allowed. Throws InvalidArgument
  // for a timer that is not running.
  void end(uint64_t timer);
  // Forgets a timer that has not ended. Others are let be.
  void drop(uint64_t timer);
  // Writes up to capacity timers that ended and whose work is done, with what it took; these are
  // closed. Returns how many. -1: the driver would not say (the stream was being captured). Does
  // not throw.
  uint64_t read(uint64_t* timers, int64_t* ns, uint64_t capacity);

 private:
  struct Timer {
    uint64_t stream;
    Driver::Event begin;
    Driver::Event end;
    bool ended;
  };

  Driver& driver_;
  uint64_t last_ = 0;  // the timer that was begun last
  std::unordered_map<uint64_t, Timer> open_;
  std::map<uint64_t, std::deque<uint64_t>> ended_;  // by stream, in the order of their ends
  std::vector<Driver::Event> spare_;
};

}  // namespace dtr
