// A place to move a block to. Unlike a request (pool.h) it takes only what is there: no room is
// asked for, nothing is remapped, nobody waits. So a move never costs more than its copy.
#include <algorithm>
#include <string>

#include "errors.h"
#include "pool.h"

namespace dtr {

namespace {

// How many holes, from the best fit up, are looked at.
constexpr int kMostHoles = 64;

}  // namespace

// The part of a hole that lies outside of [begin, end), offsets, in chunks that are touched: at its
// low end or its high one, as its inside touches none. nullptr if neither is.
Block* Pool::take_packed(Block* hole, uint64_t size, uint64_t begin, uint64_t end) {
  for (const uint64_t at : {hole->offset, hole->end() - size}) {
    if (at < end && at + size > begin) continue;
    if (chunks_.whole_under(at, at + size, hole->offset, hole->end()) > 0) continue;
    return large_.take_at(hole, at, size);
  }
  return nullptr;
}

// The part of a hole that lies outside of [begin, end), offsets: its low end, or what begins at
// end; nullptr if neither is large enough, or the driver has no memory for it.
Block* Pool::take_outside(Block* hole, uint64_t size, uint64_t begin, uint64_t end) {
  uint64_t at = hole->offset;
  if (at < end && at + size > begin) at = std::max(at, end);
  if (at > hole->end() || hole->end() - at < size) return nullptr;
  return map_under(at, at + size) ? large_.take_at(hole, at, size) : nullptr;
}

uint64_t Pool::try_outside(uint64_t size_bytes, uint64_t stream, uint64_t begin, uint64_t end,
                           bool packed) {
  Lock lock(mutex_);
  if (size_bytes == 0 || slabs_.is_small(size_bytes) || !is_possible(size_bytes)) return 0;
  const uint64_t size = rounded_size(size_bytes);
  // As offsets, in whole grains.
  const uint64_t base = reservation_.base();
  const auto offset_of = [&](uint64_t address) {
    return std::min(std::max(address, base) - base, reservation_.size());
  };
  begin = offset_of(begin) / kGrain * kGrain;
  end = in_grains(offset_of(end));
  poll();
  const Owner owner = streams_.owner_of(stream);
  // What settles touches its chunks for now only.
  Block* own = owner == kIdle || packed ? nullptr : large_.best_fit(owner, size);
  Block* idle = large_.best_fit(kIdle, size);
  for (int tries = 0; (own != nullptr || idle != nullptr) && tries < kMostHoles; ++tries) {
    Block*& hole = idle == nullptr || (own != nullptr && own->size <= idle->size) ? own : idle;
    Block* const next = large_.next_fit(hole);
    Block* const block =
        packed ? take_packed(hole, size, begin, end) : take_outside(hole, size, begin, end);
    if (block != nullptr) return base + hand_out(block, size_bytes, stream, owner);
    hole = next;
  }
  return 0;
}

uint64_t Pool::try_at(uint64_t size_bytes, uint64_t stream, uint64_t address,
                      std::vector<uint64_t>* in_the_way) {
  Lock lock(mutex_);
  in_the_way->clear();
  if (size_bytes == 0 || slabs_.is_small(size_bytes) || !is_possible(size_bytes)) return 0;
  const uint64_t base = reservation_.base(), size = rounded_size(size_bytes);
  const uint64_t at = address - base;
  const uint64_t limit = fixed_ ? fixed_end(budget_) : large_.end();
  if (address < base || at % kGrain != 0 || at > limit || limit - at < size) return 0;
  poll();
  allot();
  const Owner owner = streams_.owner_of(stream);
  Stretch stretch{at, at + size, 0, 0};
  bool is_open = true;
  for (const Block* block = large_.block_at(at); block != nullptr && block->offset < at + size;
       block = block->next()) {
    const uint64_t begin = std::max(block->offset, at), end = std::min(block->end(), at + size);
    if (block->state == BlockState::kInUse) in_the_way->push_back(base + block->offset);
    if (Heap::is_absent(block))
      stretch.lacking += chunks_.count(chunks_.around(begin, end));
    else if (Heap::is_open(block))
      stretch.loose += chunks_.whole_under(begin, end, block->offset, block->end());
    else
      is_open = false;
  }
  if (!in_the_way->empty()) return 0;
  Block* hole = large_.block_at(at);
  const bool is_own = hole->state == BlockState::kFree && hole->owner == owner;
  if (hole->end() >= at + size && (is_own || (is_open && !Heap::is_absent(hole)))) {
    if (!map_under(at, at + size)) return 0;
  } else {
    // Several, or none of them has memory; not of several streams.
    if (stretch.lacking + stretch.loose > loose_chunks()) release_empty_slabs();
    if (!is_open || fixed_ ||
        aliased_.any_in(chunks_.number(at), chunks_.number(at + size - 1) + 1) ||
        !remap(large_, stretch))
      return 0;
    hole = large_.block_at(at);
  }
  return base + hand_out(large_.take_at(hole, at, size), size_bytes, stream, owner);
}

void Pool::order_uses(uint64_t address, uint64_t stream) {
  Lock lock(mutex_);
  const Place place = in_use_at(address, "order_uses");
  follow_uses("order_uses", place, stream);
  if (place.owner != kIdle) work_.order(stream, streams_.stream_of(place.owner));
}

void Pool::follow_uses(const char* call, uint64_t address, uint64_t stream) {
  follow_uses(call, in_use_at(address, call), stream);
}

void Pool::follow_uses(const char* call, const Place& place, uint64_t stream) {
  const Owner owner = streams_.owner_of(stream);
  if (owner == kIdle || (streams_.may_wait(owner) && streams_.follow_uses(place.start, owner)))
    return;
  throw StateError(std::string(call) + ": stream " + std::to_string(stream) +
                   ", or another that uses the block, is being captured into a graph");
}

}  // namespace dtr
