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
#include <string>
#include <unordered_map>
#include <vector>

#include "driver.h"
#include "errors.h"

namespace dtr {

class Timers {
 public:
  static constexpr uint64_t kMostOpen = 512;

  explicit Timers(Driver& driver) : driver_(driver) {}
  // Destroys the events, open timers included. May be called again if the driver refuses.
  void close() {
    for (auto& [id, timer] : open_) {
      spare_.push_back(timer.begin);
      spare_.push_back(timer.end);
    }
    open_.clear();
    ended_.clear();
    while (!spare_.empty()) {
      driver_.destroy_event(spare_.back());
      spare_.pop_back();
    }
  }

  // A timer that starts at this point of the stream. 0: time the work by the clock, as the driver
  // has no streams, too many timers are open, or the stream is being captured.
  uint64_t begin(uint64_t stream) {
    if (!driver_.has_streams() || open_.size() >= kMostOpen) return 0;
    if (driver_.capturing(stream)) return 0;
    // Whatever fails, both events are spare or the timer's.
    spare_.reserve(spare_.size() + 2 * open_.size() + 2);
    while (spare_.size() < 2) spare_.push_back(driver_.create_event(true));
    driver_.record_event(spare_.back(), stream);
    const Driver::Event end = spare_[spare_.size() - 2];
    open_.emplace(last_ + 1, Timer{stream, spare_.back(), end, false});
    spare_.resize(spare_.size() - 2);
    return ++last_;
  }
  // The work ends at this point of the same stream. Timer 0 is allowed. Throws InvalidArgument
  // for a timer that is not running.
  void end(uint64_t timer) {
    if (timer == 0) return;
    auto found = open_.find(timer);
    if (found == open_.end() || found->second.ended)
      invalid("timer", timer, "0, or one that was begun and has not ended");
    std::deque<uint64_t>& ended = ended_[found->second.stream];
    ended.push_back(timer);
    try {
      driver_.record_event(found->second.end, found->second.stream);
    } catch (...) {
      ended.pop_back();
      throw;
    }
    found->second.ended = true;
  }
  // Forgets a timer that has not ended. Others are let be.
  void drop(uint64_t timer) {
    auto found = open_.find(timer);
    if (found == open_.end() || found->second.ended) return;
    spare_.push_back(found->second.begin);
    spare_.push_back(found->second.end);
    open_.erase(found);
  }
  // Writes up to capacity timers that ended and whose work is done, with what it took; these are
  // closed. Returns how many. -1: the driver would not say (the stream was being captured). Does
  // not throw.
  uint64_t read(uint64_t* timers, int64_t* ns, uint64_t capacity) {
    uint64_t count = 0;
    for (auto& [stream, ended] : ended_) {
      while (count < capacity && !ended.empty()) {
        const uint64_t id = ended.front();
        const Timer timer = open_.at(id);
        try {
          if (!driver_.event_complete(timer.end)) break;
          ns[count] = driver_.elapsed_ns(timer.begin, timer.end);
        } catch (const DriverError&) {
          ns[count] = -1;
        }
        timers[count++] = id;
        spare_.push_back(timer.begin);
        spare_.push_back(timer.end);
        open_.erase(id);
        ended.pop_front();
      }
    }
    return count;
  }

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
