// Where blocks begin: the first block of each cell, 1 MiB of the range, and which cells have any.
// So the block that contains an offset is found by walking over the blocks of one cell, and most
// splits and merges write one word in a small table. Which block is the first is chosen without
// branches, which would be taken as often as not.
#pragma once

#include <cstdint>

#include "bitset.h"
#include "block.h"
#include "lazy_array.h"

namespace dtr {

class BlockStarts {
 public:
  static constexpr int kCellShift = 20;

  BlockStarts(BlockNodes& nodes, uint64_t begin, uint64_t end)
      : nodes_(nodes),
        begin_(begin),
        first_(((end - begin) >> kCellShift) + 1),
        used_(((end - begin) >> kCellShift) + 1) {}

  uint64_t cells() const { return used_.size(); }
  uint64_t cell_of(uint64_t offset) const { return (offset - begin_) >> kCellShift; }
  // The first block that begins in the cell, or nullptr.
  Block* first_in(uint64_t cell) const { return first_[cell] == 0 ? nullptr : at(cell); }

  // A block begins where none did: its offset is set, and its neighbors are linked.
  void add(const Block* block) {
    const uint64_t cell = cell_of(block->offset);
    const Block* before = block->previous();
    const bool is_first = before == nullptr || cell_of(before->offset) != cell;
    if (first_[cell] == 0) used_.set(cell);
    first_[cell] = is_first ? nodes_.number(block) : first_[cell];
  }
  // A block begins where another did, before that one's offset is changed.
  void replace(const Block* block, const Block* by) {
    uint32_t& first = first_[cell_of(block->offset)];
    first = first == nodes_.number(block) ? nodes_.number(by) : first;
  }
  // A block begins no more, before its link to the next one is gone.
  void remove(const Block* block) {
    const uint64_t cell = cell_of(block->offset);
    const Block* next = block->next();
    const uint32_t other =
        next != nullptr && cell_of(next->offset) == cell ? nodes_.number(next) : 0;
    first_[cell] = first_[cell] == nodes_.number(block) ? other : first_[cell];
    if (first_[cell] == 0) used_.clear(cell);
  }

  // The block that contains an offset of the range.
  Block* containing(uint64_t offset) const {
    Block* block = at(used_.at_or_below(cell_of(offset)));
    if (block->offset > offset) return block->previous();
    while (block->end() <= offset) block = block->next();
    return block;
  }

 private:
  Block* at(uint64_t cell) const { return nodes_.at(first_[cell]); }

  BlockNodes& nodes_;
  uint64_t begin_;
  LazyArray<uint32_t> first_;  // by cell, a block's number
  Bitset used_;
};

}  // namespace dtr
