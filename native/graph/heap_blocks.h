// heap_blocks.h: what a pool tells of its memory: its numbers, its room, the large blocks of its heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "dtr/pool.h"

namespace dtr {

inline dtr_pool_stats stats_of(dtr_pool* pool) {
  dtr_pool_stats stats;
  dtr_pool_get_stats(pool, &stats);
  return stats;
}
inline dtr_pool_room room_of(dtr_pool* pool, uint64_t size_bytes) {
  dtr_pool_room room;
  dtr_pool_get_room(pool, size_bytes, &room);
  return room;
}

// Neighbors that are make one hole for every stream, behind waits on the device.
inline bool is_free(const dtr_run_block& block) {
  return block.state == DTR_BLOCK_FREE || block.state == DTR_BLOCK_SETTLING;
}

// Writes all blocks, in the order of addresses, to a list that grows where they do not fit and is never
// made shorter. Returns how many there are.
inline size_t read_blocks(dtr_pool* pool, std::vector<dtr_run_block>* blocks) {
  for (;; blocks->resize(2 * blocks->size() + 64)) {
    uint64_t count = 0;
    check_status(dtr_pool_run(pool, nullptr, blocks->data(), blocks->size(), &count));
    if (count < blocks->size()) return count;
  }
}

}  // namespace dtr
