// environment.h: what all parts of the engine share: its settings, the framework, the pools, the
// clock and the counters. None of them sees the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "dtr/framework.h"
#include "dtr_alloc.h"
#include "observer.h"
#include "step_count.h"

namespace dtr {

constexpr uint64_t kNoBudget = uint64_t{1} << 62;  // bytes from which on a budget is none

// The processor time of searches: what other programs take from the thread meanwhile is not in it. One
// in so many is measured, as reading that clock twice takes a microsecond, and a search 3 to 36.
struct SearchSample {
  static constexpr uint64_t kOneIn = 13;
  uint64_t searches = 0;
  int64_t measured_ns = 0;  // of the first, and of each kOneIn-th after it
  double mean_ns() const {
    const uint64_t measured = (searches + kOneIn - 1) / kOneIn;
    return measured > 0 ? static_cast<double>(measured_ns) / static_cast<double>(measured) : 0;
  }
  double all_ns() const { return mean_ns() * static_cast<double>(searches); }
};

struct Environment {
  struct Pool {
    uint8_t device_type;
    int8_t device_index;
    dtr_pool* pool;
  };

  // Null for a device that is not managed.
  dtr_pool* pool_of(uint8_t device_type, int8_t device_index) const {
    for (const Pool& of : pools)
      if (of.device_type == device_type && of.device_index == device_index) return of.pool;
    return nullptr;
  }

  dtr_engine_options options{};
  const dtr_framework* framework = nullptr;
  void* engine = nullptr;  // only to tell the framework
  Observers observers;
  std::vector<Pool> pools;
  int64_t replay_ns = 0;  // of the pools' devices (RoomPrice)
  int64_t clock_ns = 1;   // see engine.h
  StepCount step;
  dtr_engine_stats stats{};
  SearchSample search_sample;
};

}  // namespace dtr
