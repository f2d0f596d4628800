// heap_blocks.h: the large blocks of a pool's heap, as the pool tells them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "dtr/pool.h"

namespace dtr {

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
