#include "timers.h"

#include <string>

#include "errors.h"

namespace dtr {

void Timers::close() {
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

uint64_t Timers::begin(uint64_t stream) {
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

void Timers::end(uint64_t timer) {
  if (timer == 0) return;
  auto found = open_.find(timer);
  if (found == open_.end() || found->second.ended) {
    throw InvalidArgument("timer is " + std::to_string(timer) +
                          "; allowed: 0, or one that was begun and has not ended");
  }
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

void Timers::drop(uint64_t timer) {
  auto found = open_.find(timer);
  if (found == open_.end() || found->second.ended) return;
  spare_.push_back(found->second.begin);
  spare_.push_back(found->second.end);
  open_.erase(found);
}

uint64_t Timers::read(uint64_t* timers, int64_t* ns, uint64_t capacity) {
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

}  // namespace dtr
