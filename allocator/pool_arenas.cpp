// A pool's arenas; see arenas.h.

#include "open_arenas.h"
#include "pool.h"

namespace dtr {

uint64_t Pool::arena_open() {
  Lock lock(mutex_);
  // An arena takes idle memory for streams that cannot be made to wait for anything.
  streams_.make_idle_safe();
  return arenas_.open();
}

uint64_t Pool::arena_allocate(uint64_t arena, uint64_t size_bytes, uint64_t stream) {
  {
    Lock lock(mutex_);
    arenas_.require_open(arena);
  }
  return place(size_bytes, stream, arena, DTR_HINT_NONE);
}

void Pool::arena_allocate_at(uint64_t arena, uint64_t address, uint64_t size_bytes,
                             uint64_t stream) {
  Lock lock(mutex_);
  const Owner owner = arenas_.owner_of(arena, stream);
  const uint64_t at = address - reservation_.base();
  Block* hole = contains(address) && at < large_.end() ? large_.block_at(at) : nullptr;
  if (hole == nullptr || hole->state != BlockState::kFree || hole->owner != owner ||
      at % kGrain != 0 || size_bytes == 0 || !is_possible(size_bytes) ||
      hole->end() - at < rounded_size(size_bytes))
    throw_not_freed_in_arena(address, stream);
  hand_out(large_.take_at(hole, at, rounded_size(size_bytes)), size_bytes, stream, owner);
  arenas_.took(owner);
}

void Pool::arena_close(uint64_t arena) {
  Lock lock(mutex_);
  arenas_.close(arena);
  arenas_.forget_done();
}

// Whether it made the free blocks of closed arenas everybody's. Waits on the host.
bool Pool::settle_arenas() {
  if (!streams_.withholds() || !streams_.device_done()) return false;
  release_settled();
  arenas_.forget_done();
  return true;
}

// Of a block of an arena: a plain block once that is closed. What other streams use is set apart
// while it is open: no event may say when they are done.
Owner Pool::home_of_freed(const Place& place) {
  if (!arenas_.is_open(place.owner)) return streams_.owner_of(streams_.stream_of(place.owner));
  return streams_.has_uses(place.start) ? arenas_.apart_of(place.owner) : place.owner;
}

uint64_t Pool::arena_of(const Block* block) const {
  if (!streams_.withheld(block->owner)) return kNoArena;
  const bool is_open = arenas_.owns(block->owner) && arenas_.is_open(block->owner);
  return is_open ? arenas_.arena_of(block->owner) : UINT64_MAX;
}

uint64_t Pool::withheld_bytes() const {
  uint64_t bytes = 0;
  for (const Heap* heap : {&large_, &small_}) {
    for (Owner owner = 1; owner < heap->owners(); ++owner) {
      if (!streams_.withheld(owner)) continue;
      for (const Block* hole = heap->best_fit(owner, 0); hole != nullptr;
           hole = heap->next_fit(hole))
        bytes += hole->size;
    }
  }
  return bytes;
}

}  // namespace dtr
