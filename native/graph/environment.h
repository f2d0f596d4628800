// environment.h: what all parts of the engine share: its settings, the framework, the pools, the
// clock and the counters. None of them sees the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "dtr/framework.h"
#include "dtr_alloc.h"

namespace dtr {

// Hears what becomes of contents, for simulations of op logs. Called under the engine's mutex, in
// the order in which things happen: it may only note them.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // To make room, or because a user asked.
  virtual void evicted(uint64_t storage_id) = 0;
  // Its memory goes back because nothing refers to it any more.
  virtual void died(uint64_t storage_id) = 0;
  // Removed for good although others were computed from it (dealloc.cpp).
  virtual void banished(uint64_t storage_id) = 0;
  // A pool asks for room for a request of so many bytes; nothing has been evicted for it yet.
  virtual void asked_for_room(uint64_t size_bytes) = 0;
  // Its content is at another address.
  virtual void moved(uint64_t) {}
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
  Watcher* watcher = nullptr;
  std::vector<Pool> pools;
  int64_t clock_ns = 1;  // see engine.h
  dtr_engine_stats stats{};
};

}  // namespace dtr
