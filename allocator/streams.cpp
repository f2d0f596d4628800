#include "streams.h"

#include <algorithm>
#include <string>

#include "errors.h"

namespace dtr {

Streams::SpareEvent::SpareEvent(Streams& streams) : streams_(streams) {
  // Room for every event to come home, so that the destructor cannot throw.
  if (streams.spare_.empty()) {
    streams.spare_.reserve(streams.spare_.capacity() + 1);
    event_ = streams.driver_.create_event();
  } else {
    event_ = streams.spare_.back();
    streams.spare_.pop_back();
  }
}

Streams::~Streams() {
  or_say("events not destroyed", [this] { close(); });
}

void Streams::close() {
  drop_old_work();
  for (Stream& stream : streams_) {
    while (!stream.events.empty()) complete_first(stream);
    stream.completed = stream.last;
  }
  while (!spare_.empty()) {
    driver_.destroy_event(spare_.back());
    spare_.pop_back();
  }
}

void Streams::drop_old_work() {
  if (old_work_ == nullptr) return;
  spare_.push_back(old_work_);
  old_work_ = nullptr;
}

Owner Streams::owner_among(uint64_t stream) {
  if (!streams_.empty() && !streams_.back().withheld && streams_.back().id == stream)
    return owners() - 1;
  auto known = owners_.find(stream);
  if (known != owners_.end()) return known->second;

  if (streams_.size() == 1 && freed_without_event_) {
    SpareEvent event(*this);
    record(event.get(), streams_[0].id);
    drop_old_work();
    old_work_ = event.keep();
    freed_without_event_ = false;
  }
  if (old_work_ != nullptr) {
    if (driver_.capturing(stream))
      settle_old_work();
    else
      driver_.stream_wait_event(stream, old_work_);
  }
  owners_.reserve(owners_.size() + 1);
  Owner owner = add(stream);
  owners_.emplace(stream, owner);
  return owner;
}

Owner Streams::add(uint64_t stream) {
  streams_.emplace_back();
  streams_.back().id = stream;
  return owners() - 1;
}

Owner Streams::withhold(uint64_t stream) {
  Owner owner;
  if (dropped_.empty()) {
    dropped_.reserve(streams_.size() + 1);  // drop() cannot fail
    owner = add(stream);
  } else {
    owner = dropped_.back();
    dropped_.pop_back();
  }
  Stream& made = streams_[owner - 1];
  made.id = stream;
  made.withheld = true;
  made.dropped = false;
  made.opened = made.completed = made.last;
  return owner;
}

bool Streams::withholds() const {
  for (const Stream& stream : streams_)
    if (stream.withheld && stream.completed < stream.opened) return true;
  return captured_ != kIdle && streams_[captured_ - 1].completed < streams_[captured_ - 1].last;
}

bool Streams::device_done() {
  if (driver_.has_streams()) {
    // Only of streams that had to do with a capture, as others may not exist any more.
    for (const Stream& stream : streams_)
      if (stream.withheld && !stream.dropped && driver_.capturing(stream.id)) return false;
    if (!driver_.synchronize_device()) return false;
  }
  if (captured_ != kIdle) open_up(captured_);
  for (Stream& stream : streams_)
    if (stream.withheld) stream.completed = stream.opened;
  return true;
}

void Streams::make_idle_safe() {
  if (always_marks_) return;
  settle_old_work();
  always_marks_ = true;
}

bool Streams::may_wait(Owner owner) const {
  return owner != kIdle && !withheld(owner) && !driver_.capturing(stream_of(owner));
}

// For waiting on the event elsewhere, or on the host.
void Streams::record(Driver::Event event, uint64_t stream) {
  if (driver_.capturing(stream))
    throw StateError("stream " + std::to_string(stream) +
                     " is being captured into a graph: nothing can wait for its earlier work, so "
                     "memory that was freed on it cannot serve another stream");
  driver_.record_event(event, stream);
}

Fence Streams::mark(Owner owner) {
  if (streams_[owner - 1].withheld) return {owner, ++streams_[owner - 1].last};
  if (driver_.capturing(stream_of(owner))) return withhold_from(owner);
  Stream& stream = streams_[owner - 1];
  SpareEvent event(*this);
  driver_.record_event(event.get(), stream.id);
  stream.events.emplace_back(stream.last + 1, event.get());
  event.keep();
  return {owner, ++stream.last};
}

Fence Streams::freed_on(Owner owner) {
  if (streams_.size() > 1 || always_marks_) return mark(owner);
  freed_without_event_ = true;
  return {};
}

Fence Streams::freed_in_any_case(Owner owner) {
  try {
    return freed(owner);
  } catch (const DriverError&) {
    return withhold_from(owner);
  }
}

// A point that only device_done() completes.
Fence Streams::withhold_from(Owner owner) {
  if (captured_ == kIdle) captured_ = withhold(stream_of(owner));
  streams_[captured_ - 1].id = stream_of(owner);
  return {captured_, ++streams_[captured_ - 1].last};
}

void Streams::wait(Owner owner, Fence fence) {
  for (const auto& [point, event] : streams_[fence.owner - 1].events) {
    if (point >= fence.point) {
      driver_.stream_wait_event(streams_[owner - 1].id, event);
      return;
    }
  }
}

void Streams::record_use(uint64_t offset, Owner owner) {
  std::vector<Owner>& users = uses_[offset];
  if (std::ranges::find(users, owner) == users.end()) users.push_back(owner);
}

void Streams::retire(uint64_t offset, Owner home) {
  Retired retired{offset, freed(home), {}};
  for (Owner user : uses_.at(offset)) retired.uses.push_back(mark(user));
  retired_.emplace(offset, std::move(retired));
  uses_.erase(offset);
}

bool Streams::follow_uses(uint64_t offset, Owner owner) {
  const auto found = uses_.find(offset);
  if (found == uses_.end()) return true;
  for (Owner user : found->second)
    if (user != owner && !may_wait(user)) return false;
  for (Owner user : found->second)
    if (user != owner) wait(owner, mark(user));
  return true;
}

bool Streams::await_uses(uint64_t offset, Owner owner) {
  if (!follow_uses(offset, owner)) return false;
  forget_uses(offset);
  return true;
}

bool Streams::hurry() {
  bool any = false;
  for (auto& [offset, retired] : retired_) {
    const Owner home = retired.home.owner;
    const bool possible = std::ranges::all_of(retired.uses, [&](Fence use) {
      return complete(use) || !streams_[use.owner - 1].withheld;
    });
    if (retired.uses.empty() || !possible || !may_wait(home)) continue;
    for (Fence use : retired.uses)
      if (!complete(use)) wait(home, use);
    retired.home = mark(home);
    retired.uses.clear();
    any = true;
  }
  return any;
}

void Streams::complete_first(Stream& stream) {
  spare_.push_back(stream.events.front().second);
  stream.completed = stream.events.front().first;
  stream.events.pop_front();
}

bool Streams::poll_all() {
  bool any = false;
  for (Stream& stream : streams_) {
    while (!stream.events.empty() && driver_.event_complete(stream.events.front().second)) {
      complete_first(stream);
      any = true;
    }
  }
  return any;
}

void Streams::synchronize() {
  for (Stream& stream : streams_) {
    if (!stream.events.empty()) driver_.synchronize_event(stream.events.back().second);
    while (!stream.events.empty()) complete_first(stream);
  }
}

void Streams::settle_old_work() {
  if (streams_.size() == 1 && freed_without_event_) {
    SpareEvent event(*this);
    record(event.get(), streams_[0].id);
    driver_.synchronize_event(event.get());
    freed_without_event_ = false;
  }
  if (old_work_ != nullptr) {
    driver_.synchronize_event(old_work_);
    drop_old_work();
  }
}

Driver::Event Streams::mark_old_work() {
  if (streams_.size() != 1 || !freed_without_event_ || driver_.capturing(streams_[0].id))
    return nullptr;
  SpareEvent event(*this);
  driver_.record_event(event.get(), streams_[0].id);
  return event.keep();
}

std::vector<Retired> Streams::take_done() {
  std::vector<Retired> done;
  for (auto entry = retired_.begin(); entry != retired_.end();) {
    const std::vector<Fence>& uses = entry->second.uses;
    bool over = std::ranges::all_of(uses, [&](Fence use) { return complete(use); });
    if (over) done.push_back(std::move(entry->second));
    entry = over ? retired_.erase(entry) : std::next(entry);
  }
  return done;
}

}  // namespace dtr
