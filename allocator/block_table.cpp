#include "block_table.h"

#include <algorithm>
#include <utility>

namespace dtr {

// False if the block would lie too far from its home.
bool BlockTable::put(std::vector<uint32_t>& slots, Block* block) const {
  const uint64_t home = home_of(block->offset), steps = steps_to_gap(slots, block->offset);
  if (steps > kTag) return false;
  slots[(home + steps) & (slots.size() - 1)] = nodes_.number(block) << kTagBits | (home & kTag);
  return true;
}

// To twice the slots, or to as many as bring every block near its home.
void BlockTable::grow() {
  const int before = table_shift_;
  std::vector<uint32_t> slots;
  try {
    do {
      slots.assign(uint64_t{2} << (64 - table_shift_), 0);
      --table_shift_;
    } while (!std::all_of(slots_.begin(), slots_.end(),
                          [&](uint32_t slot) { return slot == 0 || put(slots, block_in(slot)); }));
  } catch (...) {
    table_shift_ = before;
    throw;
  }
  slots_ = std::move(slots);
}

void BlockTable::insert(Block* block) {
  put(slots_, block);
  ++count_;
}

// Moves later entries of the same run back into the gap, so that no marks are left behind.
void BlockTable::erase(const Block* block) {
  const uint64_t mask = slots_.size() - 1;
  uint64_t gap = home_of(block->offset);
  const uint32_t slot = nodes_.number(block) << kTagBits | (gap & kTag);
  while (slots_[gap] != slot) gap = (gap + 1) & mask;
  for (uint64_t i = (gap + 1) & mask; slots_[i] != 0; i = (i + 1) & mask) {
    const uint64_t from_home = (i - slots_[i]) & kTag;
    if (from_home < ((i - gap) & mask)) continue;
    slots_[gap] = slots_[i];
    gap = i;
  }
  slots_[gap] = 0;
  --count_;
}

}  // namespace dtr
