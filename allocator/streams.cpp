#include "streams.h"

#include <algorithm>
#include <cstdio>

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
  try {
    close();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtr_alloc: events not destroyed: %s\n", error.what());
  }
}

void Streams::close() {
  drop_old_work();
  for (Stream& stream : streams_) {
    while (!stream.events.empty()) {
      spare_.push_back(stream.events.front().second);
      stream.events.pop_front();
    }
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

Owner Streams::owner_of(uint64_t stream) {
  if (!driver_.has_streams()) return kIdle;
  if (!streams_.empty() && streams_.back().id == stream) return owners() - 1;
  auto known = owners_.find(stream);
  if (known != owners_.end()) return known->second;

  if (streams_.size() == 1 && freed_without_event_) {
    SpareEvent event(*this);
    driver_.record_event(event.get(), streams_[0].id);
    drop_old_work();
    old_work_ = event.keep();
    freed_without_event_ = false;
  }
  if (old_work_ != nullptr) driver_.stream_wait_event(stream, old_work_);
  Owner owner = owners();
  owners_.reserve(owner);
  streams_.reserve(owner);
  owners_.emplace(stream, owner);
  streams_.emplace_back();
  streams_.back().id = stream;
  return owner;
}

Fence Streams::mark(Owner owner) {
  Stream& stream = streams_[owner - 1];
  SpareEvent event(*this);
  driver_.record_event(event.get(), stream.id);
  stream.events.emplace_back(stream.last + 1, event.get());
  event.keep();
  return {owner, ++stream.last};
}

Fence Streams::freed(Owner owner) {
  if (owner == kIdle) return {};
  if (streams_.size() > 1) return mark(owner);
  freed_without_event_ = true;
  return {};
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
  if (std::find(users.begin(), users.end(), owner) == users.end()) users.push_back(owner);
}

void Streams::retire(uint64_t offset, Owner home) {
  Retired retired{offset, freed(home), {}};
  for (Owner user : uses_.at(offset)) retired.uses.push_back(mark(user));
  retired_.emplace(offset, std::move(retired));
  uses_.erase(offset);
}

bool Streams::poll() {
  bool any = false;
  for (Stream& stream : streams_) {
    while (!stream.events.empty() && driver_.event_complete(stream.events.front().second)) {
      spare_.push_back(stream.events.front().second);
      stream.completed = stream.events.front().first;
      stream.events.pop_front();
      any = true;
    }
  }
  return any;
}

void Streams::synchronize() {
  for (Stream& stream : streams_) {
    while (!stream.events.empty()) {
      driver_.synchronize_event(stream.events.back().second);
      while (!stream.events.empty()) {
        spare_.push_back(stream.events.front().second);
        stream.completed = stream.events.front().first;
        stream.events.pop_front();
      }
    }
  }
}

void Streams::settle_old_work() {
  if (streams_.size() == 1 && freed_without_event_) {
    SpareEvent event(*this);
    driver_.record_event(event.get(), streams_[0].id);
    driver_.synchronize_event(event.get());
    freed_without_event_ = false;
  }
  if (old_work_ != nullptr) {
    driver_.synchronize_event(old_work_);
    drop_old_work();
  }
}

std::vector<Retired> Streams::take_done() {
  std::vector<Retired> done;
  for (auto entry = retired_.begin(); entry != retired_.end();) {
    const std::vector<Fence>& uses = entry->second.uses;
    bool over = std::all_of(uses.begin(), uses.end(), [&](Fence use) { return complete(use); });
    if (over) done.push_back(std::move(entry->second));
    entry = over ? retired_.erase(entry) : std::next(entry);
  }
  return done;
}

}  // namespace dtr
