// environment.h: what all parts of the engine share: its settings, the framework, the pools, the
// clock and the counters. None of them sees the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "dtr/framework.h"
#include "dtr_alloc.h"
#include "observer.h"

namespace dtr {

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

  bool has_streams(uint8_t device_type) const {
    return device_type != 0 && framework->current_stream;
  }
  // Where this thread queues work for a device; kNoStream if that has none.
  uint64_t stream_of(uint8_t device_type, int8_t device_index) const {
    return has_streams(device_type) ? framework->current_stream(device_type, device_index)
                                    : kNoStream;
  }
  // The same, for a storage's device; 0 if that has none.
  uint64_t stream_of_thread(const Storage* storage) const {
    const uint64_t stream = stream_of(storage->device_type, storage->device_index);
    return stream == kNoStream ? 0 : stream;
  }
  // Behind which a copy of a resident content comes; this thread's if no use is known.
  uint64_t stream_of_last_use(const Storage* storage) const {
    return storage->used_on == kNoStream ? stream_of_thread(storage) : storage->used_on;
  }

  dtr_engine_options options{};
  const dtr_framework* framework = nullptr;
  Observers observers;
  std::vector<Pool> pools;
  int64_t clock_ns = 1;  // see engine.h
  dtr_engine_stats stats{};
};

}  // namespace dtr
