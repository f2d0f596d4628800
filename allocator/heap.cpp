#include "heap.h"

#include <utility>

#include "errors.h"

namespace dtr {

namespace {

// The power of two in it.
uint64_t grain_unit(uint64_t grain) { return grain & (~grain + 1); }

}  // namespace

Heap::Heap(Chunks& chunks, uint64_t begin, uint64_t end, uint64_t grain)
    : chunks_(chunks),
      begin_(begin),
      end_(end),
      grain_(grain),
      nodes_((end - begin) / grain),
      leaves_(nodes_),
      absent_(nodes_, leaves_, begin, end, grain),
      used_(nodes_, grain_unit(grain)),
      starts_(nodes_, begin, end) {
  owned(kIdle);
  if (begin == end) return;
  prepare();
  Block* block = nodes_.make();
  block->offset = begin;
  block->size = end - begin;
  link(nullptr, block);
  link(block, nullptr);
  starts_.add(block);
  join(block, BlockState::kAbsent);
}

Heap::OwnerBlocks& Heap::first_owned(Owner owner) {
  if (owner >= kMostOwners)
    throw StateError("more than " + std::to_string(kMostOwners) +
                     " streams have used memory of one pool");
  while (owner >= owners_.size()) {
    auto blocks = std::make_unique<OwnerBlocks>(*this);
    if (by_address_) blocks->by_cell = std::make_unique<MaxTree>(starts_.cells());
    owners_.push_back(std::move(blocks));
  }
  return *owners_[owner];
}

// Nearly always the newest; a pending block that is done late may be older.
void Heap::enter_by_age(OwnerBlocks& blocks, Block* block) {
  BlockDetail& detail = nodes_.detail(block);
  Block* before = blocks.newest;
  while (before != nullptr && point_of(before) > detail.point) before = nodes_.detail(before).older;
  Block* after = before != nullptr ? nodes_.detail(before).newer : blocks.oldest;
  detail.older = before;
  detail.newer = after;
  (before != nullptr ? nodes_.detail(before).newer : blocks.oldest) = block;
  (after != nullptr ? nodes_.detail(after).older : blocks.newest) = block;
}

void Heap::leave_by_age(OwnerBlocks& blocks, const Block* block) {
  const BlockDetail& detail = nodes_.detail(block);
  (detail.older != nullptr ? nodes_.detail(detail.older).newer : blocks.oldest) = detail.newer;
  (detail.newer != nullptr ? nodes_.detail(detail.newer).older : blocks.newest) = detail.older;
}

Block* Heap::best_fit(Owner owner, uint64_t size) const {
  return owner < owners_.size() ? owners_[owner]->index.at_least(size) : nullptr;
}

Block* Heap::next_fit(const Block* hole) const { return owners_[hole->owner]->index.after(hole); }

void Heap::keep_by_address() {
  by_address_ = true;
  for (auto& blocks : owners_) {
    blocks->by_cell = std::make_unique<MaxTree>(starts_.cells());
    for (const Block* hole = blocks->index.at_least(0); hole != nullptr;
         hole = blocks->index.after(hole))
      note_size(*blocks, hole);
  }
}

Block* Heap::lowest_fit(Owner owner, uint64_t size) {
  if (owner >= owners_.size() || begin_ == end_) return nullptr;
  MaxTree& by_cell = *owners_[owner]->by_cell;
  uint64_t cell = starts_.cell_of(begin_);
  while ((cell = by_cell.find(cell, size)) != MaxTree::kNone) {
    uint64_t largest = 0;
    for (Block* block = starts_.first_in(cell);
         block != nullptr && starts_.cell_of(block->offset) == cell; block = block->next()) {
      if (block->state != BlockState::kFree || block->owner != owner) continue;
      if (block->size >= size) return block;
      largest = std::max(largest, block->size);
    }
    by_cell.lower(cell, largest);
    if (++cell == starts_.cells()) break;
  }
  return nullptr;
}

// take(), for a part of a hole that was [hole_begin, hole_end).
inline Block* Heap::cut(Block* hole, uint64_t size, bool high, uint64_t hole_begin,
                        uint64_t hole_end) {
  used_.prepare();
  const Owner hole_owner = hole->owner;
  Block* block = hole;
  if (hole->size == size) {
    leave(hole);
  } else {
    owners_[hole->owner]->index.prepare();
    block = nodes_.make();
    block->size = size;
    if (high) {
      block->offset = hole->end() - size;
      link(block, hole->next());
      link(hole, block);
      shrink(hole, hole->offset, hole->size - size);
      starts_.add(block);
    } else {
      block->offset = hole->offset;
      link(hole->previous(), block);
      link(block, hole);
      starts_.replace(hole, block);
      shrink(hole, hole->offset + size, hole->size - size);
      starts_.add(hole);
    }
  }
  block->state = BlockState::kInUse;
  block->slack = 0;
  block->has_stream = false;
  used_.insert(block);
  // Those of a stream's hole are touched all along.
  if (hole_owner == kIdle) chunks_.touch(block->offset, block->end(), hole_begin, hole_end);
  return block;
}

Block* Heap::take(Block* hole, uint64_t size, bool high) {
  return cut(hole, size, high, hole->offset, hole->end());
}

Block* Heap::take_at(Block* hole, uint64_t offset, uint64_t size) {
  if (offset == hole->offset) return take(hole, size);
  if (offset + size == hole->end()) return take(hole, size, true);
  const uint64_t hole_begin = hole->offset, hole_end = hole->end();
  owners_[hole->owner]->index.prepare();
  Block* rest = nodes_.make();
  rest->offset = offset + size;
  rest->size = hole->end() - rest->offset;
  rest->owner = hole->owner;
  if (rest->owner != kIdle) nodes_.detail(rest).point = point_of(hole);
  link(rest, hole->next());
  link(hole, rest);
  shrink(hole, hole->offset, rest->offset - hole->offset);
  starts_.add(rest);
  enter(rest);
  try {
    return cut(hole, size, true, hole_begin, hole_end);
  } catch (...) {
    leave(rest);
    leave(hole);
    merge(hole, rest);
    enter(hole);
    throw;
  }
}

void Heap::release(Block* block, Owner owner, uint64_t point) {
  Block* next = block->next();
  Block* previous = block->previous();
  if (previous != nullptr) __builtin_prefetch(previous);
  owned(owner).index.prepare();
  used_.erase(block);
  const uint64_t begin = block->offset, end = block->end();
  block->owner = static_cast<uint16_t>(owner);
  if (owner != kIdle) nodes_.detail(block).point = point;
  auto mergeable = [&](const Block* other) {
    return other != nullptr && other->state == BlockState::kFree && other->owner == owner;
  };
  if (mergeable(next)) {
    leave(next);
    merge(block, next);
  }
  if (mergeable(previous)) {
    leave(previous);
    block = merge(previous, block);
  }
  enter(block);
  openings_.note(block);
  if (owner == kIdle) chunks_.untouch(begin, end, block->offset, block->end());
}

void Heap::settle(Owner owner, uint64_t point) {
  if (owner >= owners_.size()) return;
  OwnerBlocks& blocks = *owners_[owner];
  while (blocks.oldest != nullptr && point_of(blocks.oldest) <= point) {
    owners_[kIdle]->index.prepare();
    Block* block = blocks.oldest;
    leave(block);
    const uint64_t begin = block->offset, end = block->end();
    block = join(block, BlockState::kFree);
    openings_.note(block);
    chunks_.untouch(begin, end, block->offset, block->end());
  }
}

// Of a block that is in no index: it is free for everybody from now on, or absent, and one with its
// neighbors that are. The index is prepared.
Block* Heap::join(Block* block, BlockState state) {
  block->owner = kIdle;
  block->state = state;
  for (Block* other : {block->next(), block->previous()}) {
    if (other == nullptr || other->state != state || other->owner != kIdle) continue;
    index_of(other).erase(other);
    block = other->offset < block->offset ? merge(other, block) : merge(block, other);
  }
  index_of(block).insert(block);
  if (state == BlockState::kFree) note_size(*owners_[kIdle], block);
  return block;
}

// Takes [begin, end) out of a block that is free for everybody, or absent; what is left on both
// sides stays that.
Block* Heap::carve(uint64_t begin, uint64_t end) {
  Block* block = starts_.containing(begin);
  FreeIndex& index = index_of(block);
  index.erase(block);
  const auto cut_at = [&](uint64_t offset) {
    Block* high = nodes_.make();
    high->offset = offset;
    high->size = block->end() - offset;
    high->state = block->state;
    block->size = offset - block->offset;
    link(high, block->next());
    link(block, high);
    starts_.add(high);
    return high;
  };
  if (end < block->end()) index.insert(cut_at(end));
  if (begin == block->offset) return block;
  Block* high = cut_at(begin);
  index.insert(block);
  return high;
}

void Heap::fill(uint64_t begin, uint64_t end) {
  openings_.note(join(carve(begin, end), BlockState::kFree));
}

void Heap::empty(uint64_t begin, uint64_t end) { join(carve(begin, end), BlockState::kAbsent); }

uint64_t Heap::used_end() const {
  const Block* block = last_;
  while (is_open(block)) block = block->previous();
  return block == nullptr ? begin_ : block->end();
}

Block* Heap::containing(uint64_t offset) const {
  if (offset < begin_ || offset >= end_) return nullptr;
  Block* block = starts_.containing(offset);
  return block->state == BlockState::kInUse || block->state == BlockState::kPending ? block
                                                                                    : nullptr;
}

std::string Heap::check() const {
  std::string broken;
  uint64_t at = begin_, used = 0, absent = 0;
  std::vector<uint64_t> free(owners_.size(), 0);
  const Block* previous = nullptr;
  for (const Block* block = first_; block != nullptr; block = block->next()) {
    std::string where = " at offset " + std::to_string(block->offset);
    if (block->offset != at || block->previous() != previous)
      return "H1: blocks do not tile" + where;
    if (block->size == 0 || block->size % grain_ != 0) return "H1: wrong size of block" + where;
    if (block->state == BlockState::kFree) {
      if (block->owner >= owners_.size()) return "H2: unknown owner of block" + where;
      ++free[block->owner];
      if (owners_[block->owner]->index.at_least(block->size, block->offset) != block)
        return "H2: a free index lacks the block" + where;
      if (previous != nullptr && previous->state == BlockState::kFree &&
          previous->owner == block->owner)
        return "H3: two free neighbors are not merged" + where;
      const MaxTree* by_cell = owners_[block->owner]->by_cell.get();
      if (by_cell != nullptr && by_cell->bound(starts_.cell_of(block->offset)) < block->size)
        return "H7: the bound of a cell is too low" + where;
    } else if (block->state == BlockState::kAbsent) {
      ++absent;
      if (absent_.at_least(block->size, block->offset) != block)
        return "H2: the absent index lacks the block" + where;
      if (previous != nullptr && previous->state == BlockState::kAbsent)
        return "H3: two absent neighbors are not merged" + where;
    } else {
      ++used;
      if (find(block->offset) != block) return "H4: a block in use is not found" + where;
    }
    if (starts_.containing(block->offset) != block || starts_.containing(block->end() - 1) != block)
      return "H7: another block is said to be" + where;
    at = block->end();
    previous = block;
  }
  if (previous != last_) return "H1: the last block is another";
  if (at != end_) return "H1: the last block does not end where the heap does";
  if (used != used_.count()) return "H4: the blocks in use are miscounted";
  if (absent_.check(&broken) != absent && broken.empty())
    broken = "the absent index holds a block that is not absent";
  if (!broken.empty()) return "H2: " + broken;
  for (uint32_t owner = 0; owner < owners_.size(); ++owner) {
    if (owners_[owner]->index.check(&broken) != free[owner] && broken.empty())
      broken = "a free index holds a block that is not free";
    if (!broken.empty()) return "H2: " + broken;
    uint64_t point = 0, listed = 0;
    for (const Block* block = owners_[owner]->oldest; block != nullptr;
         block = nodes_.detail(block).newer) {
      if (point_of(block) < point) return "H5: the free blocks of a stream are out of order";
      point = point_of(block);
      ++listed;
    }
    if (listed != (owner == kIdle ? 0 : free[owner]))
      return "H5: the free blocks of a stream are not all listed";
  }
  return "";
}

}  // namespace dtr
