#include "heap.h"

#include <algorithm>

#include "errors.h"

namespace dtr {

namespace {

constexpr uint64_t kNodesAtOnce = 256;
constexpr int kFirstTableBits = 8;

}  // namespace

Heap::Heap(Chunks& chunks, uint64_t begin, uint64_t end, uint64_t grain)
    : chunks_(chunks),
      begin_(begin),
      end_(end),
      grain_(grain),
      table_(uint64_t{1} << kFirstTableBits),
      table_shift_(64 - kFirstTableBits),
      starts_((end - begin) / grain) {
  owned(kIdle);
  if (begin == end) return;
  first_ = last_ = new_node();
  first_->offset = begin;
  first_->size = end - begin;
  enter(first_);
}

Heap::OwnerBlocks& Heap::owned(Owner owner) {
  while (owner >= owners_.size()) owners_.push_back(std::make_unique<OwnerBlocks>());
  return *owners_[owner];
}

Block* Heap::new_node() {
  if (spare_ == nullptr) {
    nodes_.push_back(std::make_unique<Block[]>(kNodesAtOnce));
    for (uint64_t i = 0; i < kNodesAtOnce; ++i) {
      nodes_.back()[i].next = spare_;
      spare_ = &nodes_.back()[i];
    }
  }
  Block* block = spare_;
  spare_ = block->next;
  *block = Block{};
  // xorshift: treap priorities need only be unrelated to sizes and addresses.
  random_ ^= random_ << 13;
  random_ ^= random_ >> 17;
  random_ ^= random_ << 5;
  block->priority = random_;
  return block;
}

void Heap::drop_node(Block* block) {
  block->next = spare_;
  spare_ = block;
}

void Heap::enter(Block* block) {
  OwnerBlocks& blocks = owned(block->owner);
  block->state = BlockState::kFree;
  blocks.index.insert(block);
  if (block->owner == kIdle) return;
  chunks_.touch(block->offset, block->end());
  // Nearly always the newest; a pending block that is done late may be older.
  Block* before = blocks.newest;
  while (before != nullptr && before->point > block->point) before = before->older;
  block->older = before;
  block->newer = before != nullptr ? before->newer : blocks.oldest;
  (before != nullptr ? before->newer : blocks.oldest) = block;
  (block->newer != nullptr ? block->newer->older : blocks.newest) = block;
}

void Heap::leave(Block* block) {
  OwnerBlocks& blocks = *owners_[block->owner];
  blocks.index.erase(block);
  if (block->owner == kIdle) return;
  chunks_.untouch(block->offset, block->end());
  (block->older != nullptr ? block->older->newer : blocks.oldest) = block->newer;
  (block->newer != nullptr ? block->newer->older : blocks.newest) = block->older;
  block->older = block->newer = nullptr;
}

// What leave() and enter() would do, keeping the place among the owner's blocks: the point is
// the same.
void Heap::shrink(Block* hole, uint64_t size) {
  FreeIndex& index = owners_[hole->owner]->index;
  index.erase(hole);
  if (hole->owner != kIdle) chunks_.untouch(hole->offset, hole->end());
  hole->offset += size;
  hole->size -= size;
  index.insert(hole);
  if (hole->owner != kIdle) chunks_.touch(hole->offset, hole->end());
}

Block* Heap::best_fit(Owner owner, uint64_t size) const {
  return owner < owners_.size() ? owners_[owner]->index.at_least(size) : nullptr;
}

Block* Heap::next_fit(const Block* hole) const { return owners_[hole->owner]->index.after(hole); }

void Heap::grow_table() {
  if ((used_ + 1) * 2 <= table_.size()) return;
  std::vector<Slot> old(table_.size() * 2);
  old.swap(table_);
  --table_shift_;
  for (const Slot& slot : old) {
    if (slot.block != nullptr) table_insert(slot.block);
  }
}

Block* Heap::take_at(Block* hole, uint64_t offset, uint64_t size) {
  if (offset == hole->offset) return take(hole, size);
  grow_table();
  Block* high = new_node();
  leave(hole);
  high->offset = offset;
  high->size = hole->end() - offset;
  high->owner = hole->owner;
  high->point = hole->point;
  high->previous = hole;
  high->next = hole->next;
  (high->next != nullptr ? high->next->previous : last_) = high;
  hole->next = high;
  hole->size = offset - hole->offset;
  enter(hole);
  enter(high);
  return take(high, size);
}

Block* Heap::take(Block* hole, uint64_t size) {
  grow_table();
  Block* block = hole;
  if (hole->size == size) {
    leave(hole);
  } else {
    block = new_node();
    block->offset = hole->offset;
    block->size = size;
    block->previous = hole->previous;
    block->next = hole;
    (block->previous != nullptr ? block->previous->next : first_) = block;
    hole->previous = block;
    shrink(hole, size);
  }
  block->state = BlockState::kInUse;
  block->requested = block->stream = 0;
  chunks_.touch(block->offset, block->end());
  table_insert(block);
  starts_.set((block->offset - begin_) / grain_);
  ++used_;
  return block;
}

// Both have left their index; the high one's node is dropped.
Block* Heap::merge(Block* low, Block* high) {
  low->size += high->size;
  low->point = std::max(low->point, high->point);
  low->next = high->next;
  (low->next != nullptr ? low->next->previous : last_) = low;
  drop_node(high);
  return low;
}

void Heap::release(Block* block, Owner owner, uint64_t point) {
  owned(owner);
  table_erase(block->offset);
  starts_.clear((block->offset - begin_) / grain_);
  --used_;
  chunks_.untouch(block->offset, block->end());
  block->owner = owner;
  block->point = point;
  auto mergeable = [&](const Block* other) {
    return other != nullptr && other->state == BlockState::kFree && other->owner == owner;
  };
  if (mergeable(block->next)) {
    leave(block->next);
    merge(block, block->next);
  }
  if (mergeable(block->previous)) {
    leave(block->previous);
    block = merge(block->previous, block);
  }
  enter(block);
}

void Heap::settle(Owner owner, uint64_t point) {
  if (owner >= owners_.size()) return;
  OwnerBlocks& blocks = *owners_[owner];
  while (blocks.oldest != nullptr && blocks.oldest->point <= point) {
    Block* block = blocks.oldest;
    leave(block);
    block->owner = kIdle;
    block->point = 0;
    for (Block* other : {block->next, block->previous}) {
      if (other == nullptr || other->state != BlockState::kFree || other->owner != kIdle) continue;
      leave(other);
      block = other->offset < block->offset ? merge(other, block) : merge(block, other);
    }
    enter(block);
  }
}

uint64_t Heap::used_end() const {
  const bool is_free =
      last_ != nullptr && last_->state == BlockState::kFree && last_->owner == kIdle;
  return is_free ? last_->offset : end_;
}

bool Heap::resize(uint64_t end) {
  if (end < used_end()) return false;
  if (end == end_) return true;
  if (used_end() != end_) {
    Block* block = last_;
    leave(block);
    if (block->offset == end) {
      last_ = block->previous;
      (last_ != nullptr ? last_->next : first_) = nullptr;
      drop_node(block);
    } else {
      block->size = end - block->offset;
      enter(block);
    }
  } else {
    Block* block = new_node();
    block->offset = end_;
    block->size = end - end_;
    block->previous = last_;
    (last_ != nullptr ? last_->next : first_) = block;
    last_ = block;
    enter(block);
  }
  end_ = end;
  return true;
}

Block* Heap::find(uint64_t offset) const {
  uint64_t mask = table_.size() - 1;
  for (uint64_t i = slot_of(offset);; i = (i + 1) & mask) {
    if (table_[i].block == nullptr) return nullptr;
    if (table_[i].offset == offset) return table_[i].block;
  }
}

Block* Heap::containing(uint64_t offset) const {
  if (offset < begin_ || offset >= end_) return nullptr;
  uint64_t start = starts_.at_or_below((offset - begin_) / grain_);
  if (start == Bitset::kNone) return nullptr;
  Block* block = find(begin_ + start * grain_);
  return block != nullptr && offset < block->end() ? block : nullptr;
}

uint64_t Heap::largest_free_of(Owner owner, uint64_t absent, uint64_t above) const {
  uint64_t best = above;
  const FreeIndex& index = owners_[owner]->index;
  Block* hole = index.below(UINT64_MAX);
  while (hole != nullptr && hole->size > best) {
    uint64_t reach = chunks_.reach(hole->offset, hole->end(), absent);
    best = std::max(best, (reach - hole->offset) / grain_ * grain_);
    hole = index.below(hole->size, hole->offset);
  }
  return best;
}

void Heap::table_insert(Block* block) {
  uint64_t mask = table_.size() - 1;
  uint64_t i = slot_of(block->offset);
  while (table_[i].block != nullptr) i = (i + 1) & mask;
  table_[i] = {block->offset, block};
}

// Moves later entries of the same run back into the gap, so that no marks are left behind.
void Heap::table_erase(uint64_t offset) {
  uint64_t mask = table_.size() - 1;
  uint64_t gap = slot_of(offset);
  while (table_[gap].offset != offset || table_[gap].block == nullptr) gap = (gap + 1) & mask;
  for (uint64_t i = (gap + 1) & mask; table_[i].block != nullptr; i = (i + 1) & mask) {
    uint64_t home = slot_of(table_[i].offset);
    if (((i - home) & mask) >= ((i - gap) & mask)) {
      table_[gap] = table_[i];
      gap = i;
    }
  }
  table_[gap] = {0, nullptr};
}

std::string Heap::check() const {
  std::string broken;
  uint64_t at = begin_, used = 0;
  std::vector<uint64_t> free(owners_.size(), 0);
  const Block* previous = nullptr;
  for (const Block* block = first_; block != nullptr; block = block->next) {
    std::string where = " at offset " + std::to_string(block->offset);
    if (block->offset != at || block->previous != previous) return "H1: blocks do not tile" + where;
    if (block->size == 0 || block->size % grain_ != 0) return "H1: wrong size of block" + where;
    if (block->state == BlockState::kFree) {
      if (block->owner >= owners_.size()) return "H2: unknown owner of block" + where;
      ++free[block->owner];
      if (owners_[block->owner]->index.at_least(block->size, block->offset) != block) {
        return "H2: a free index lacks the block" + where;
      }
      if (previous != nullptr && previous->state == BlockState::kFree &&
          previous->owner == block->owner) {
        return "H3: two free neighbors are not merged" + where;
      }
    } else {
      ++used;
      if (find(block->offset) != block || !starts_.test((block->offset - begin_) / grain_)) {
        return "H4: a block in use is not found" + where;
      }
    }
    at = block->end();
    previous = block;
  }
  if (previous != last_) return "H1: the last block is another";
  if (at != end_) return "H1: the last block does not end where the heap does";
  if (used != used_ || used != starts_.count()) {
    return "H4: the blocks in use are miscounted";
  }
  for (uint32_t owner = 0; owner < owners_.size(); ++owner) {
    if (owners_[owner]->index.check(&broken) != free[owner] && broken.empty()) {
      broken = "a free index holds a block that is not free";
    }
    if (!broken.empty()) return "H2: " + broken;
    uint64_t point = 0, listed = 0;
    for (const Block* block = owners_[owner]->oldest; block != nullptr; block = block->newer) {
      if (block->point < point) return "H5: the free blocks of a stream are out of order";
      point = block->point;
      ++listed;
    }
    if (listed != (owner == kIdle ? 0 : free[owner])) {
      return "H5: the free blocks of a stream are not all listed";
    }
  }
  return "";
}

}  // namespace dtr
