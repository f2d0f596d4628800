// device.h: the memory of one device, and what may be evicted from it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "bandwidth.h"
#include "candidates.h"
#include "dtr_alloc.h"
#include "graph/records.h"
#include "move_price.h"

namespace dtr {

struct Device {
  uint8_t type;
  int8_t index;
  dtr_pool* pool;
  size_t number;  // among the engine's devices, from 0
  Candidates candidates = {};
  std::vector<Storage*> unscored = {};  // candidates that no search has met yet: see promote()
  bool one_range = false;               // the pool's addresses are: not of segments, nor counted
  uint64_t base = 0;                    // where they begin, with its first chunk
  Bandwidth way_out = {};               // to host memory
  Bandwidth way_in = {};
  MovePrice move_price = {};
  std::unordered_map<uint64_t, uint64_t> pending_moves = {};  // bytes, by the pool's timer
};

}  // namespace dtr
