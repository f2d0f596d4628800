// An address-ordered heap with immediate coalescing.
//
// It manages [begin, end) of a reservation without ever touching that memory: blocks are nodes
// outside of it. It knows streams only as owners of free blocks, and physical memory only as
// chunks that it touches and untouches. Addresses that nobody may have are absent blocks: in the
// beginning all of them.
//
// Rules, checked by check():
//   H1  Blocks tile the range: the first begins at begin(), each next one where the previous
//       ends, the last ends at end(). Sizes and offsets are multiples of the grain, none is 0.
//   H2  Free blocks are exactly the members of the free index of their owner, each once; absent
//       ones likewise of an index of their own.
//   H3  No two neighbors are free and of the same owner, or both absent: they would have been
//       merged.
//   H4  Blocks in use or pending are exactly those that find() finds by their offset.
//   H5  The free blocks of a stream, oldest first, are in the order of their points.
//   H6  Absent blocks are of whole chunks, none of which has memory (the pool checks this rule).
//   H7  Every offset is known to lie in the block that contains it, and no hole is larger than the
//       bound of its cell.
//
// Cost: a search, a take and a release are O(log free blocks), and nearly always touch a few lines
// of the free index, the blocks themselves and their neighbors; find is O(1); containing
// walks over the blocks of one cell, 1 MiB of the range. Nodes come from a free list: no allocation
// in the steady state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block.h"
#include "block_starts.h"
#include "block_table.h"
#include "chunks.h"
#include "free_index.h"
#include "max_tree.h"
#include "not_copied.h"
#include "openings.h"

namespace dtr {

class Heap : NotCopied {
 public:
  // Of no bytes too. Offsets begin and end, and the sizes given to take(), are multiples of grain;
  // begin and end are where chunks begin.
  Heap(Chunks& chunks, uint64_t begin, uint64_t end, uint64_t grain);

  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }

  // The best fit among the free blocks of one owner, or nullptr; then the next best.
  Block* best_fit(Owner owner, uint64_t size) const;
  Block* next_fit(const Block* hole) const;

  // The lowest free block of one owner of at least `size` bytes, or nullptr. Needs
  // keep_by_address(), which is called before the heap is used: each cell then has a bound of its
  // holes' sizes (max_tree.h).
  Block* lowest_fit(Owner owner, uint64_t size);
  void keep_by_address();
  Block* largest(Owner owner) const { return owners_[owner]->index.largest(); }

  // Cuts `size` bytes off the low end (or the high end) of a free block and returns them as a
  // block in use. Throws only std::bad_alloc, having changed nothing.
  Block* take(Block* hole, uint64_t size, bool high = false);
  // The same at an offset inside of the hole, a multiple of the grain.
  Block* take_at(Block* hole, uint64_t offset, uint64_t size);

  // Makes a block in use (or pending) free, for everybody or, for an owner, from a point on;
  // merges it with its neighbors.
  void release(Block* block, Owner owner, uint64_t point);

  // All work of the owner up to this point is done: its blocks become free for everybody.
  void settle(Owner owner, uint64_t point);

  // Chunks of one absent block are free for everybody from now on; or chunks of one free block are
  // absent. After prepare(), which may throw std::bad_alloc, neither fails.
  void prepare() {
    nodes_.prepare();
    owners_[kIdle]->index.prepare();
    absent_.prepare();
  }
  void fill(uint64_t begin, uint64_t end);
  void empty(uint64_t begin, uint64_t end);
  // Calls visit(block) for each absent block, in no order.
  template <typename Visit>
  void for_each_absent(Visit&& visit) const {
    absent_.for_each(visit);
  }
  // Or nullptr.
  const Block* largest_absent() const { return absent_.largest(); }
  static bool is_absent(const Block* block) {
    return block != nullptr && block->state == BlockState::kAbsent;
  }
  // Free for everybody, or absent.
  static bool is_open(const Block* block) {
    return block != nullptr && (block->state == BlockState::kAbsent ||
                                (block->state == BlockState::kFree && block->owner == kIdle));
  }

  // Where the last block that is not free for everybody ends; begin() if there is none.
  uint64_t used_end() const;

  // The block in use or pending that begins at the offset, or that contains it; or nullptr.
  Block* find(uint64_t offset) const { return used_.find(offset); }
  Block* containing(uint64_t offset) const;
  // That contains it, whatever it is.
  Block* block_at(uint64_t offset) const { return starts_.containing(offset); }

  // When a free block's owner freed it; for everybody's, 0.
  uint64_t point_of(const Block* block) const {
    return block->owner == kIdle ? 0 : nodes_.detail(block).point;
  }
  // The stream that a block in use was allocated for.
  uint64_t stream_of(const Block* block) const {
    return block->has_stream ? nodes_.detail(block).stream : 0;
  }
  void set_stream(Block* block, uint64_t stream) {
    block->has_stream = stream != 0;
    if (stream != 0) nodes_.detail(block).stream = stream;
  }

  // Holes that have become free, or grown: blocks that touch one may have more free bytes beside them
  // than before, and no other block has.
  Openings& openings() { return openings_; }

  Block* first() const { return first_; }
  Block* last() const { return last_; }
  uint32_t owners() const { return static_cast<uint32_t>(owners_.size()); }

  // Empty if rules H1 to H5 hold, else the broken one.
  std::string check() const;

 private:
  friend struct Corruptor;  // tests/allocator/corrupt_heap.cpp

  struct OwnerBlocks {
    explicit OwnerBlocks(Heap& heap)
        : index(heap.nodes_, heap.leaves_, heap.begin_, heap.end_, heap.grain_) {}
    FreeIndex index;
    std::unique_ptr<MaxTree> by_cell;  // nullptr: not kept by address
    Block* oldest = nullptr;
    Block* newest = nullptr;
  };

  OwnerBlocks& owned(Owner owner) {
    return owner < owners_.size() ? *owners_[owner] : first_owned(owner);
  }
  OwnerBlocks& first_owned(Owner owner);
  void note_size(OwnerBlocks& blocks, const Block* hole) {
    if (blocks.by_cell != nullptr) blocks.by_cell->raise(starts_.cell_of(hole->offset), hole->size);
  }
  // Makes two blocks neighbors; nullptr: the range ends there.
  void link(Block* low, Block* high) {
    if (low != nullptr)
      low->to_next = high == nullptr ? 0 : static_cast<int32_t>(high - low);
    else
      first_ = high;
    if (high != nullptr)
      high->to_previous = low == nullptr ? 0 : static_cast<int32_t>(low - high);
    else
      last_ = low;
  }
  // A free block into the index and the age list of its owner, and out of them.
  void enter(Block* block) {
    OwnerBlocks& blocks = *owners_[block->owner];
    block->state = BlockState::kFree;
    blocks.index.insert(block);
    note_size(blocks, block);
    if (block->owner != kIdle) enter_by_age(blocks, block);
  }
  void leave(Block* block) {
    OwnerBlocks& blocks = *owners_[block->owner];
    blocks.index.erase(block);
    if (block->owner != kIdle) leave_by_age(blocks, block);
  }
  void enter_by_age(OwnerBlocks& blocks, Block* block);
  void leave_by_age(OwnerBlocks& blocks, const Block* block);
  // What leave() and enter() would do, keeping the place among the owner's blocks: the point is
  // the same.
  void shrink(Block* hole, uint64_t offset, uint64_t size) {
    OwnerBlocks& blocks = *owners_[hole->owner];
    blocks.index.erase(hole);
    hole->offset = offset;
    hole->size = size;
    blocks.index.insert(hole);
    note_size(blocks, hole);
  }
  // Both have left their index; the high one's node is dropped.
  Block* merge(Block* low, Block* high) {
    starts_.remove(high);
    low->size += high->size;
    if (low->owner != kIdle) nodes_.detail(low).point = std::max(point_of(low), point_of(high));
    link(low, high->next());
    nodes_.drop(high);
    return low;
  }
  FreeIndex& index_of(const Block* block) {
    return block->state == BlockState::kAbsent ? absent_ : owners_[block->owner]->index;
  }
  Block* join(Block* block, BlockState state);
  Block* carve(uint64_t begin, uint64_t end);
  Block* cut(Block* hole, uint64_t size, bool high, uint64_t hole_begin, uint64_t hole_end);

  Chunks& chunks_;
  uint64_t begin_;
  uint64_t end_;
  uint64_t grain_;
  Block* first_ = nullptr;
  Block* last_ = nullptr;
  BlockNodes nodes_;
  FreeLeaves leaves_;
  FreeIndex absent_;
  std::vector<std::unique_ptr<OwnerBlocks>> owners_;
  BlockTable used_;     // blocks in use or pending
  BlockStarts starts_;  // all blocks
  bool by_address_ = false;
  Openings openings_;
};

}  // namespace dtr
