// pins.h: what users keep from being evicted (R15). A pinned handle is held weakly for that time.
// A thread can have all pinned that its operators make meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "base/thread_number.h"
#include "deferred.h"
#include "environment.h"
#include "records.h"
#include "require.h"

namespace dtr {

class Pins {
 public:
  explicit Pins(const Environment& environment) : environment_(environment) {}

  // How often a handle is pinned.
  uint32_t of(const void* handle) const {
    if (pins_.empty()) return 0;
    const auto found = pins_.find(handle);
    return found == pins_.end() ? 0 : found->second.pins;
  }

  // Returns how often it is pinned now.
  uint32_t add(void* handle, Deferred& deferred) {
    if (pins_.size() >= look_for_dead_at_) forget_dead(deferred);
    uint32_t& pins = pins_[handle].pins;
    if (pins++ == 0) environment_.framework->retain_weak(handle);
    return pins;
  }

  // Likewise; a handle without pins stays so.
  uint32_t take_back(void* handle, Deferred& deferred) {
    const auto found = pins_.find(handle);
    if (found == pins_.end()) return 0;
    const uint32_t pins = --found->second.pins;
    if (pins == 0) forget(handle, deferred);
    return pins;
  }

  // What this thread's operators make is pinned until release_made() was called as often as this.
  void hold_made() { ++holding_[thread_number()]; }

  bool holds_made() const { return !holding_.empty() && holding_.count(thread_number()) > 0; }

  // Pins what this thread, which holds what it makes, made. Returns how often it is pinned now.
  uint32_t hold(void* handle, Deferred& deferred) {
    const auto found = pins_.find(handle);
    if (found != pins_.end() && found->second.made_by != 0) return found->second.pins;
    const uint32_t pins = add(handle, deferred);
    pins_[handle].made_by = thread_number();
    return pins;
  }

  // unpinned(handle, pins): what is left of it.
  template <typename Unpinned>
  void release_made(uint64_t thread, Deferred& deferred, const Unpinned& unpinned) {
    const auto holding = holding_.find(thread);
    if (holding == holding_.end() || --holding->second > 0) return;
    holding_.erase(holding);
    std::vector<void*> made;
    for (auto& [handle, pinned] : pins_) {
      if (pinned.made_by != thread) continue;
      pinned.made_by = 0;
      made.push_back(const_cast<void*>(handle));
    }
    for (void* handle : made) unpinned(handle, take_back(handle, deferred));
  }

  // The handle is dead, or has no pins any more.
  void forget(void* handle, Deferred& deferred) {
    if (pins_.erase(handle)) deferred.release_weak(handle);
  }

  void clear(Deferred& deferred) {
    for (const auto& [handle, pins] : pins_) deferred.release_weak(const_cast<void*>(handle));
    pins_.clear();
    holding_.clear();
  }

  // R15.
  void check(const Storage* storage) const {
    require(storage->pins == (storage->live ? of(storage->handle) : 0),
            "R15: it has other pins than its handle", storage);
  }

 private:
  static constexpr size_t kFew = 64;
  struct Pinned {
    uint32_t pins = 0;
    uint64_t made_by = 0;  // the thread that holds what it makes, and made this; or 0
  };

  // Nobody tells of the death of those that have no record.
  void forget_dead(Deferred& deferred) {
    for (auto at = pins_.begin(); at != pins_.end();) {
      void* handle = const_cast<void*>(at->first);
      const bool dead = environment_.framework->strong_count(handle) == 0;
      if (dead) deferred.release_weak(handle);
      at = dead ? pins_.erase(at) : std::next(at);
    }
    look_for_dead_at_ = std::max(kFew, 2 * pins_.size());
  }

  const Environment& environment_;
  std::unordered_map<const void*, Pinned> pins_;
  std::unordered_map<uint64_t, uint32_t> holding_;  // by thread, how often
  size_t look_for_dead_at_ = kFew;                  // once there are so many
};

}  // namespace dtr
