// What a pool shows of itself, and how it checks that.
#include <algorithm>
#include <unordered_map>

#include "pool.h"

namespace dtr {

std::vector<BlockInfo> Pool::snapshot() {
  Lock lock(mutex_);
  poll();
  return walk();
}

std::vector<BlockInfo> Pool::mapped_snapshot() {
  std::vector<BlockInfo> mapped;
  const uint64_t base = reservation_.base();
  for (const BlockInfo& block : snapshot()) {
    if (block.state != DTR_BLOCK_FREE) {
      mapped.push_back(block);
      continue;
    }
    const uint64_t begin = block.address - base, end = begin + block.size_bytes;
    Chunks::Run run = chunks_.around(begin, end);
    for (const uint64_t stop = run.end; !(run = chunks_.first_mapped(run)).empty();
         run = {run.end, stop}) {
      BlockInfo piece = block;
      piece.address = base + std::max(begin, run.begin);
      piece.size_bytes = std::min(end, run.end) - std::max(begin, run.begin);
      mapped.push_back(piece);
    }
  }
  return mapped;
}

std::vector<BlockInfo> Pool::walk() const {
  std::vector<BlockInfo> blocks;
  uint64_t base = reservation_.base();
  auto add_block = [&](const Heap& heap, const Block* block) {
    if (Heap::is_absent(block)) return;
    bool free = block->state == BlockState::kFree;
    bool in_use = block->state == BlockState::kInUse;
    blocks.push_back({base + block->offset, block->size, in_use ? block->requested() : 0,
                      free ? 0 : heap.stream_of(block), static_cast<int32_t>(block->state),
                      &heap == &small_, arena_of(block)});
  };
  for (const Block* block = large_.first(); block != nullptr; block = block->next())
    add_block(large_, block);
  for (const Block* block = small_.first(); block != nullptr; block = block->next()) {
    uint32_t index = 0;
    const Slab* slab = slabs_.find(block->offset, &index);
    if (slab == nullptr || block->state == BlockState::kFree || Heap::is_absent(block)) {
      add_block(small_, block);
      continue;
    }
    // Objects in use one by one; the rest between them as free blocks.
    uint64_t at = block->offset;
    auto add_free = [&](uint64_t to) {
      if (at < to)
        blocks.push_back({base + at, to - at, 0, small_.stream_of(block), DTR_BLOCK_FREE, true, 0});
      at = to;
    };
    for (uint32_t i = 0; i < slab->fresh; ++i) {
      if (!slab->is_used(i)) continue;
      uint64_t offset = slab->offset_of(i);
      add_free(offset);
      bool pending = streams_.pending(offset);
      blocks.push_back({base + offset, slab->object_bytes, pending ? 0 : slab->words[i],
                        small_.stream_of(block), pending ? DTR_BLOCK_WITHHELD : DTR_BLOCK_IN_USE,
                        true, 0});
      at = offset + slab->object_bytes;
    }
    add_free(block->end());
  }
  return blocks;
}

std::string Pool::check_invariants() {
  Lock lock(mutex_);
  for (const std::string& broken :
       {large_.check(), small_.check(), chunks_.check(), slabs_.check(), check_touched(),
        check_counts(), check_arenas(), check_fixed()}) {
    if (!broken.empty()) return broken;
  }
  return "";
}

// C2, C3, H6 and T1, and how many chunks are not absent.
std::string Pool::check_touched() const {
  uint64_t touched = 0, last_touched = UINT64_MAX, absent = 0;
  for (const Heap* heap : {&large_, &small_}) {
    for (const Block* block = heap->first(); block != nullptr; block = block->next()) {
      const std::string where = " at offset " + std::to_string(block->offset);
      const Chunks::Run run = chunks_.around(block->offset, block->end());
      if (Heap::is_absent(block)) {
        if (run.begin != block->offset || run.end != block->end() || chunks_.mapped_in(run) > 0)
          return "H6: an absent block lies over mapped chunks, or parts of some," + where;
        absent += chunks_.count(run);
      }
      if (Heap::is_open(block)) continue;
      if (chunks_.mapped_in(run) != chunks_.count(run))
        return "C2: a block in use lies over a chunk that is not mapped" + where;
      const uint64_t first = chunks_.number(run.begin), last = chunks_.number(run.end) - 1;
      touched += last - first + (first == last_touched ? 0 : 1);
      last_touched = last;
    }
  }
  if (touched != chunks_.touched()) return "C3: the touched chunks are miscounted";
  if (absent + allotted_ != chunks_.number(reservation_.size()))
    return "P1: the chunks that are not absent are miscounted";
  for (uint64_t chunk = 0; !aliased_.empty() && chunk < reservation_.size() / chunk_; ++chunk)
    if (aliased_.test(chunk) && !Heap::is_absent(heap_at(chunk * chunk_).block_at(chunk * chunk_)))
      return "T1: chunk " + std::to_string(chunk) + " is aliased and not absent";
  return "";
}

std::string Pool::check_arenas() const {
  std::unordered_map<Owner, uint64_t> live;
  for (const Block* block = small_.first(); block != nullptr; block = block->next())
    if (arenas_.owns(block->owner)) return "P3: an arena owns a block of the slabs' region";
  for (const Block* block = large_.first(); block != nullptr; block = block->next()) {
    if (!arenas_.owns(block->owner)) continue;
    if (block->state == BlockState::kInUse) ++live[block->owner];
    if (block->state == BlockState::kFree &&
        large_.point_of(block) <= streams_.completed(block->owner))
      return "P3: a free block of an arena is settled, and the arena still owns it";
  }
  for (Owner owner = 1; owner < streams_.owners(); ++owner)
    if (arenas_.owns(owner) && arenas_.live(owner) != live[owner])
      return "P3: the blocks in use of an arena's owner are miscounted";
  return "";
}

std::string Pool::check_fixed() const {
  for (const Block* block = large_.first(); fixed_ && block != nullptr; block = block->next())
    if (!Heap::is_absent(block) && block->end() > fixed_end(budget_))
      return "P4: a fixed pool has addresses above its budget";
  return "";
}

std::string Pool::check_counts() const {
  if (allotted_ > budget_ / chunk_) return "P1: more addresses than the budget";
  uint64_t allocated = 0, requested = 0, live = 0, pending = 0;
  for (const BlockInfo& block : walk()) {
    pending += block.state == DTR_BLOCK_WITHHELD;
    if (block.state != DTR_BLOCK_IN_USE) continue;
    allocated += block.size_bytes;
    requested += block.requested_bytes;
    ++live;
  }
  if (allocated != counts_.allocated_bytes) return "P2: allocated_bytes is wrong";
  if (requested != counts_.requested_bytes) return "P2: requested_bytes is wrong";
  if (live != counts_.live_blocks) return "P2: live_blocks is wrong";
  if (live != counts_.allocations - counts_.frees) return "P2: allocations less frees are not live";
  if (pending != streams_.pending_count()) return "P2: the pending blocks are miscounted";
  if (counts_.peak_allocated_bytes < allocated) return "P2: peak_allocated_bytes is too low";
  if (chunks_.peak_mapped() < chunks_.mapped()) return "P2: peak_reserved_bytes is too low";
  return "";
}

}  // namespace dtr
