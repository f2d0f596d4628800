// What a request lacks, and which blocks lie beside each other: for those who make room.
#include <algorithm>
#include <mutex>

#include "pool.h"

namespace dtr {

namespace {

// How many holes, from the best fit up, are looked at: the largest is the last resort.
constexpr int kHoles = 8;

}  // namespace

// Chunks that no block touches, mapped or not, may come to lie under any address. So a request has
// its place where a hole is as large, if under the low end of it there are no more such chunks than
// the budget has; and it lacks what it would take more in the hole where that is least.
RoomInfo Pool::room_info(uint64_t size) {
  std::lock_guard<PoolMutex> lock(mutex_);
  RoomInfo info{};
  info.base = reservation_.base();
  info.chunk_bytes = chunk_;
  const uint64_t limit = limit_chunks();
  const uint64_t touched = chunks_.mapped() - chunks_.idle();
  info.spare_chunks = limit > touched ? limit - touched : 0;
  info.lacking_chunks = kNoLimit;
  info.fixed = fixed_ ? 1 : 0;
  info.in_one_piece = lowering_ == kNoLimit ? 1 : 0;
  const auto look_at = [&](const Block* hole) {
    const uint64_t begin = hole->offset / chunk_ * chunk_;
    const uint64_t end = hole->offset + size;
    // An untouched chunk that the hole has a part of is wholly in it.
    uint64_t taken = (end - 1) / chunk_ + 1 - begin / chunk_;
    if (begin < hole->offset) --taken;
    if ((end - 1) / chunk_ * chunk_ + chunk_ > hole->end() && taken > 0) --taken;
    info.lacking_chunks =
        std::min(info.lacking_chunks, taken > info.spare_chunks ? taken - info.spare_chunks : 0);
  };
  int holes = 0;
  for (const Block* hole = large_.best_fit(kIdle, size); hole != nullptr && holes < kHoles;
       hole = large_.next_fit(hole), ++holes)
    look_at(hole);
  if (const Block* largest = large_.largest(kIdle); largest != nullptr && largest->size >= size)
    look_at(largest);
  return info;
}

uint64_t Pool::free_beside(uint64_t address) {
  std::lock_guard<PoolMutex> lock(mutex_);
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

uint64_t Pool::run(uint64_t address, RunBlock* blocks, uint64_t capacity) {
  std::lock_guard<PoolMutex> lock(mutex_);
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
    RunState state = RunState::kNobody;
    if (block->state == BlockState::kInUse) state = RunState::kInUse;
    if (block->state == BlockState::kFree && !streams_.withheld(block->owner))
      state = block->owner == kIdle ? RunState::kFree : RunState::kSettling;
    blocks[count++] = {reservation_.base() + block->offset, block->size, state, 0};
  }
  return count;
}

}  // namespace dtr
