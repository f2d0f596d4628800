// walk.h: follows a trace through the addresses it has, and says how its heap was.
//
// This is what really happened in the recorded job; run_model.h says what another allocator
// would have made of the same requests. What counts as a hole and as lost is said at the tops of
// dtr_alloc/fragment/walk.py and dtr_alloc/fragment/measures.py.
#pragma once

#include <cstdint>
#include <vector>

#include "dtr_alloc.h"
#include "free_ranges.h"

namespace dtr::fragment {

// Behind the opaque dtr_fragment_walk. Columns of equal length each.
class Walk {
 public:
  // Throws InvalidArgument that names the row: an end of what has not begun, a block that lies in
  // another one.
  explicit Walk(const dtr_fragment_walk_options& options);

  // The sizes of the holes after that row, ascending; until the next call.
  const std::vector<uint64_t>& holes_at(uint64_t row);

  dtr_fragment_heap heap() const;

 private:
  friend class Follower;

  void find_blocks();

  const dtr_fragment_walk_options options_;

  // The blocks, in the order of their beginnings.
  std::vector<int64_t> start_, end_;
  std::vector<uint64_t> address_, block_bytes_;
  std::vector<uint8_t> began_, ended_;

  // The heap after the start, and after each later row that changed it.
  std::vector<int64_t> row_;
  std::vector<uint64_t> live_, reserved_, free_, largest_;
  std::vector<double> squares_;

  // What was lost where something was evicted to make room, by the row that asked for it.
  std::vector<int64_t> lost_row_;
  std::vector<uint64_t> lost_;

  uint64_t budget_bytes_ = UINT64_MAX;
  std::vector<uint64_t> holes_;
};

}  // namespace dtr::fragment
