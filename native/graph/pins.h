// pins.h: what users keep from being evicted (R15). A pinned handle is held weakly for that time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>

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
    return found == pins_.end() ? 0 : found->second;
  }

  // Returns how often it is pinned now.
  uint32_t add(void* handle, Deferred& deferred) {
    if (pins_.size() >= look_for_dead_at_) forget_dead(deferred);
    uint32_t& pins = pins_[handle];
    if (pins++ == 0) environment_.framework->retain_weak(handle);
    return pins;
  }

  // Likewise; a handle without pins stays so.
  uint32_t take_back(void* handle, Deferred& deferred) {
    const auto found = pins_.find(handle);
    if (found == pins_.end()) return 0;
    const uint32_t pins = --found->second;
    if (pins == 0) forget(handle, deferred);
    return pins;
  }

  // The handle is dead, or has no pins any more.
  void forget(void* handle, Deferred& deferred) {
    if (pins_.erase(handle)) deferred.release_weak(handle);
  }

  void clear(Deferred& deferred) {
    for (const auto& [handle, pins] : pins_) deferred.release_weak(const_cast<void*>(handle));
    pins_.clear();
  }

  // R15.
  void check(const Storage* storage) const {
    require(storage->pins == (storage->live ? of(storage->handle) : 0),
            "R15: it has other pins than its handle", storage);
  }

 private:
  static constexpr size_t kFew = 64;

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
  std::unordered_map<const void*, uint32_t> pins_;
  size_t look_for_dead_at_ = kFew;  // once there are so many
};

}  // namespace dtr
