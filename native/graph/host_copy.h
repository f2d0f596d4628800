// host_copy.h: one content in host memory.
#pragma once

#include <cstdint>

#include "dtr_alloc.h"

namespace dtr {

struct HostCopy {
  dtr_pool* pool = nullptr;  // of the device that it is for
  void* buffer = nullptr;    // null: to be allocated by who took it
  uint64_t bytes = 0;        // of the buffer
  uint64_t stream = 0;       // the last one that copied from or to it
  bool moving = false;       // a thread copies, without the mutex
};

// Gives a buffer's memory back, and forgets it. Not under the engine's mutex: it waits for copies.
inline void give_back(HostCopy* copy) {
  dtr_pool_synchronize(copy->pool, copy->stream);
  dtr_pool_host_free(copy->pool, copy->buffer);
  delete copy;
}

}  // namespace dtr
