// Blocks by the offset at which they begin: open addressing, at most half full.
//
// A slot is one word: the block's number, and in the low six bits those of the slot in which a
// search for it begins. As no block lies 64 slots or more from there, the word says where that is:
// a search looks at few other blocks, and erasing moves entries without looking at any.
#pragma once

#include <cstdint>
#include <vector>

#include "block.h"

namespace dtr {

class BlockTable {
 public:
  // Offsets are multiples of `unit`, a power of two.
  BlockTable(BlockNodes& nodes, uint64_t unit)
      : nodes_(nodes), unit_shift_(__builtin_ctzll(unit)) {}

  uint64_t count() const { return count_; }

  // The block that begins at the offset, or nullptr.
  Block* find(uint64_t offset) const {
    const uint64_t home = home_of(offset), mask = slots_.size() - 1;
    for (uint64_t i = home; slots_[i] != 0; i = (i + 1) & mask) {
      if ((slots_[i] & kTag) != (home & kTag)) continue;
      Block* block = block_in(slots_[i]);
      if (block->offset == offset) return block;
    }
    return nullptr;
  }

  // Makes room for a block at this offset, so that insert() cannot fail. May throw
  // std::bad_alloc, having changed nothing.
  void prepare(uint64_t offset) {
    while ((count_ + 1) * 2 > slots_.size() || steps_to_gap(slots_, offset) > kTag) grow();
  }
  void insert(Block* block);
  void erase(const Block* block);

 private:
  static constexpr uint32_t kTag = 63;
  static constexpr int kTagBits = 6;

  Block* block_in(uint32_t slot) const { return nodes_.at(slot >> kTagBits); }
  uint64_t home_of(uint64_t offset) const {
    return (offset >> unit_shift_) * 0x9e3779b97f4a7c15ULL >> table_shift_;
  }
  uint64_t steps_to_gap(const std::vector<uint32_t>& slots, uint64_t offset) const {
    const uint64_t home = home_of(offset), mask = slots.size() - 1;
    uint64_t steps = 0;
    while (slots[(home + steps) & mask] != 0) ++steps;
    return steps;
  }
  bool put(std::vector<uint32_t>& slots, Block* block) const;
  void grow();

  static constexpr int kFirstBits = 8;
  BlockNodes& nodes_;
  int unit_shift_;
  int table_shift_ = 64 - kFirstBits;
  uint64_t count_ = 0;
  std::vector<uint32_t> slots_ = std::vector<uint32_t>(uint64_t{1} << kFirstBits);
};

}  // namespace dtr
