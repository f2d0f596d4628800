// What a request lacks, and which blocks lie beside each other: for those who make room.

#include "pool.h"

namespace dtr {

RoomInfo Pool::room_info(uint64_t size) {
  Lock lock(mutex_);
  RoomInfo info{};
  info.base = reservation_.base();
  info.chunk_bytes = chunk_;
  info.fixed = fixed_ ? 1 : 0;
  info.in_one_piece = lowering_ == kNoLimit ? 1 : 0;
  const Block* hole = large_.largest(kIdle);
  info.has_hole = hole != nullptr && hole->size >= size ? 1 : 0;
  return info;
}

// Chunks that no block touches may come to lie under any address.
uint64_t Pool::lacking_chunks(uint64_t size) {
  Lock lock(mutex_);
  const Block* absent = large_.largest_absent();
  // Without the bytes no remap makes the place: how many chunks lack at least is enough.
  if (!has_bytes(size) && absent != nullptr && absent->size >= size && aliased_.empty() && !fixed_)
    return chunks_.number(counts_.allocated_bytes + size - allotted_ * chunk_ - 1) + 1;
  bool aliased = false;
  const Stretch stretch = find_stretch(large_, size, &aliased);
  if (stretch.lacking == kNoLimit) return kNoLimit;
  const uint64_t taken = stretch.lacking + stretch.loose;
  const uint64_t loose = loose_chunks();
  return taken > loose ? taken - loose : 0;
}

uint64_t Pool::free_beside(uint64_t address) {
  Lock lock(mutex_);
  const Block* block = contains(address) ? large_.find(address - reservation_.base()) : nullptr;
  if (block == nullptr) return 0;
  // Blocks that several streams freed count as one.
  const auto is_free = [&](const Block* at) {
    return at != nullptr && at->state == BlockState::kFree && !streams_.withheld(at->owner);
  };
  uint64_t bytes = 0;
  for (const Block* at = block->previous(); is_free(at); at = at->previous()) bytes += at->size;
  for (const Block* at = block->next(); is_free(at); at = at->next()) bytes += at->size;
  return bytes;
}

uint64_t Pool::take_openings(dtr_opening* openings, uint64_t capacity) {
  Lock lock(mutex_);
  const uint64_t count = large_.openings().take(openings, capacity);
  if (count > capacity) return count;
  for (uint64_t i = 0; i < count; ++i) {
    openings[i].begin += reservation_.base();
    openings[i].end += reservation_.base();
  }
  return count;
}

uint64_t Pool::run(uint64_t address, RunBlock* blocks, uint64_t capacity) {
  Lock lock(mutex_);
  const Block* block = large_.first();
  if (address != 0) {
    if (!contains(address)) return 0;
    block = large_.find(address - reservation_.base());
    if (block == nullptr) return 0;
    while (block->previous() != nullptr && block->previous()->state == BlockState::kFree)
      block = block->previous();
  }
  uint64_t count = 0;
  for (; block != nullptr && count < capacity; block = block->next()) {
    int32_t state = DTR_BLOCK_WITHHELD;
    if (block->state == BlockState::kInUse) state = DTR_BLOCK_IN_USE;
    if (block->state == BlockState::kFree && !streams_.withheld(block->owner))
      state = block->owner == kIdle ? DTR_BLOCK_FREE : DTR_BLOCK_SETTLING;
    blocks[count++] = {reservation_.base() + block->offset, block->size, state, 0};
  }
  return count;
}

}  // namespace dtr
