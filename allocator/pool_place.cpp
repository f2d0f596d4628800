// How a request finds its place, and how a place becomes free again: the steps of pool.h.
#include <algorithm>
#include <exception>

#include "errors.h"
#include "pool.h"

namespace dtr {

uint64_t Pool::limit_chunks() const { return std::min(budget_, lowering_) / chunk_; }

uint64_t Pool::largest_free() {
  uint64_t best = 0;
  for (Owner owner = 0; owner < large_.owners(); ++owner) {
    const Block* hole = streams_.withheld(owner) ? nullptr : large_.largest(owner);
    if (hole != nullptr) best = std::max(best, hole->size);
  }
  return best;
}

Pool::Place Pool::place_at(uint64_t offset) const {
  Place place;
  if (offset >= small_.begin()) {
    place.slab = slabs_.find(offset, &place.index);
    if (place.slab == nullptr || !place.slab->is_used(place.index)) return {};
    place.start = place.slab->offset_of(place.index);
    place.size = place.slab->object_bytes;
    place.requested = place.slab->words[place.index];
    place.owner = place.slab->block->owner;
    return place;
  }
  place.block = large_.find(offset);
  if (place.block == nullptr) place.block = large_.containing(offset);
  if (place.block == nullptr) return {};
  place.start = place.block->offset;
  place.size = place.block->size;
  place.requested = place.block->requested();
  place.owner = place.block->owner;
  return place;
}

Pool::Place Pool::in_use_at(uint64_t address, const char* call) const {
  Place place;
  uint64_t offset = address - reservation_.base();
  if (contains(address)) place = place_at(offset);
  if (place.in_use() && place.start == offset && !streams_.pending(offset)) return place;

  std::string text = std::string(call) + ": address " + address_text(address);
  if (!contains(address)) {
    text += " is not in this pool";
  } else if (!place.in_use() || streams_.pending(place.start)) {
    text += " is in no block in use (freed twice?)";
  } else {
    text +=
        " is inside the block that starts at " + address_text(reservation_.base() + place.start);
  }
  throw InvalidArgument(text + "; allowed: the start of a block in use");
}

// Of a block for a request. What the budget holds is not refused because of its class.
uint64_t Pool::rounded_size(uint64_t size) const {
  const uint64_t exact = in_grains(size);
  const uint64_t rounded = placement_->round(exact);
  return rounded <= chunks_.number(budget_) * chunk_ && rounded <= large_.end() ? rounded : exact;
}

uint64_t Pool::try_allocate(uint64_t size, uint64_t stream, uint64_t arena, bool last) {
  const bool of_arena = arena != kNoArena;
  Owner owner = of_arena ? arenas_.owner_of(arena, stream) : streams_.owner_of(stream);
  if (last) {
    aliased_.wait();
    settle_all();
  } else {
    poll();
  }
  uint64_t offset;
  uint64_t rounded;
  const bool small = !of_arena && slabs_.is_small(size);
  if (small) {
    offset = try_small(size, stream, owner);
    rounded = slabs_.round(size);
  } else {
    offset = Slabs::kNone;
    rounded = rounded_size(size);
  }
  if (offset == Slabs::kNone && (!small || last)) {
    // A small request that its own region cannot serve takes what the large heap has.
    rounded = rounded_size(size);
    Block* block = find_place(large_, rounded, stream, owner);
    if (block == nullptr) return Slabs::kNone;
    block->slack = static_cast<uint32_t>(rounded - size);
    offset = block->offset;
    if (of_arena) arenas_.took(owner);
  }
  if (offset == Slabs::kNone) return Slabs::kNone;
  count_allocation(offset, rounded, size, stream);
  return offset;
}

void Pool::count_allocation(uint64_t offset, uint64_t rounded, uint64_t size, uint64_t stream) {
  counts_.allocated_bytes += rounded;
  counts_.requested_bytes += size;
  counts_.peak_allocated_bytes = std::max(counts_.peak_allocated_bytes, counts_.allocated_bytes);
  counts_.peak_requested_bytes = std::max(counts_.peak_requested_bytes, counts_.requested_bytes);
  counts_.ever_allocated_bytes += rounded;
  counts_.ever_requested_bytes += size;
  ++counts_.live_blocks;
  counts_.peak_live_blocks = std::max(counts_.peak_live_blocks, counts_.live_blocks);
  ++counts_.allocations;
  events_.add(DTR_EVENT_ALLOCATE, reservation_.base() + offset, size, stream);
  note_unused();
}

// Where nothing serves, pending blocks do: their own streams wait for those that still use them, on
// the device. Evicting something else instead would cost more, and might end up pending as well.
uint64_t Pool::attempt(uint64_t size, uint64_t stream, uint64_t arena, bool last) {
  const uint64_t offset = try_allocate(size, stream, arena, last);
  if (offset != Slabs::kNone || !streams_.hurry()) return offset;
  release_settled();
  return try_allocate(size, stream, arena, last);
}

// Blocks are whole in mapped chunks, so that no more is allocated than mapped.
void Pool::note_unused() {
  const uint64_t unused = chunks_.mapped_bytes() - counts_.allocated_bytes;
  counts_.peak_unused_bytes = std::max(counts_.peak_unused_bytes, unused);
}

uint64_t Pool::try_small(uint64_t size, uint64_t stream, Owner owner) {
  uint64_t offset = slabs_.take(size, owner);
  if (offset != Slabs::kNone) return offset;
  Block* block = find_place(small_, slabs_.slab_bytes(), stream, owner);
  if (block == nullptr) return Slabs::kNone;
  slabs_.add(block, size);
  return slabs_.take(size, owner);
}

Block* Pool::find_place(Heap& heap, uint64_t size, uint64_t stream, Owner owner) {
  Block* block = try_holes(heap, size, owner);
  if (block == nullptr && release_empty_slabs()) block = try_holes(heap, size, owner);
  if (block == nullptr) return nullptr;
  block->owner = static_cast<uint16_t>(owner);
  heap.set_stream(block, stream);
  return block;
}

Block* Pool::first_hole(Heap& heap, uint64_t size, Owner owner) const {
  const Placement& placement = placement_in(heap);
  Block* hole = placement.first(heap, kIdle, size);
  if (owner == kIdle) return hole;
  Block* own = placement.first(heap, owner, size);
  return own != nullptr && (hole == nullptr || placement.before(own, hole)) ? own : hole;
}

// A block in the first hole, if there is memory behind it already: nearly always. Else nullptr.
Block* Pool::take_ready(Heap& heap, uint64_t size, Owner owner) {
  Block* hole = first_hole(heap, size, owner);
  if (hole == nullptr) return nullptr;
  const bool high = placement_in(heap).at_high_end(hint_);
  const uint64_t begin = high ? hole->end() - size : hole->offset;
  return chunks_.all_mapped(begin, begin + size) ? heap.take(hole, size, high) : nullptr;
}

Block* Pool::try_holes(Heap& heap, uint64_t size, Owner owner) {
  if (Block* block = take_ready(heap, size, owner)) return block;
  allot();
  const Placement& placement = placement_in(heap);
  const bool high = placement.at_high_end(hint_);
  if (Block* hole = first_hole(heap, size, owner)) {
    const uint64_t begin = high ? hole->end() - size : hole->offset;
    if (map_under(begin, begin + size)) return heap.take(hole, size, high);
    // What the driver refuses counts as used up: only memory that is there may be a place.
    withdraw(kNoLimit, {0, 0}, false);
    if (Block* block = take_ready(heap, size, owner)) return block;
  }
  for (Owner other = 1; other < streams_.owners(); ++other) {
    if (other == owner || streams_.withheld(other)) continue;
    Block* hole = placement.first(heap, other, size);
    if (hole == nullptr) continue;
    if (!streams_.may_wait(owner)) break;
    streams_.wait(owner, {other, heap.point_of(hole)});
    return heap.take(hole, size, high);
  }
  if (Block* hole = join_neighbors(heap, size, owner)) return heap.take(hole, size, high);
  // A chunk for slabs lies where large blocks do not, so that one goes there or none.
  if (!remaps_ && &heap == &large_) return nullptr;
  if (!has_bytes(size)) return nullptr;
  bool aliased = false;
  const Stretch stretch = find_stretch(heap, size, &aliased);
  if (stretch.lacking != kNoLimit)
    return remap(heap, stretch) ? heap.take_at(heap.block_at(stretch.begin), stretch.begin, size)
                                : nullptr;
  if (!aliased) return nullptr;
  aliased_.wait();
  return try_holes(heap, size, owner);
}

// The lowest run of free neighbors of several owners that is large enough: the owner's stream waits for
// the others, and then all are its own, one hole. nullptr if there is none.
Block* Pool::join_neighbors(Heap& heap, uint64_t size, Owner owner) {
  bool any = false;
  for (Owner other = 1; other < heap.owners(); ++other)
    any = any || (heap.largest(other) != nullptr && !streams_.withheld(other));
  if (!any || !streams_.may_wait(owner)) return nullptr;
  Block *first = nullptr, *last = heap.first();
  for (uint64_t bytes = 0; last != nullptr; last = last->next()) {
    if (last->state != BlockState::kFree || streams_.withheld(last->owner)) {
      first = nullptr;
      bytes = 0;
      continue;
    }
    if (first == nullptr) first = last;
    bytes += last->size;
    for (; bytes - first->size >= size; first = first->next()) bytes -= first->size;
    if (bytes >= size) break;
  }
  if (last == nullptr) return nullptr;
  const uint64_t begin = first->offset, end = begin + size;
  if (!map_under(begin, end)) return nullptr;
  for (const Block* block = first; block != nullptr && block->offset < end; block = block->next())
    if (block->owner != kIdle && block->owner != owner)
      streams_.wait(owner, {block->owner, heap.point_of(block)});
  const Fence fence = streams_.freed(owner);
  for (uint64_t at = begin; at < end;) {
    Block* block = heap.block_at(at);
    const uint64_t stop = std::min(block->end(), end);
    if (block->owner != owner) heap.release(heap.take(block, stop - at), fence.owner, fence.point);
    at = stop;
  }
  return heap.block_at(begin);
}

// False if the driver has no more memory.
bool Pool::map_under(uint64_t begin, uint64_t end) {
  try {
    chunks_.map(chunks_.around(begin, end));
    return true;
  } catch (const DriverError& error) {
    if (!error.out_of_memory) throw;
    refusal_ = error.what();
    return false;
  }
}

// Where the fewest chunks are absent, and among such stretches at the smallest absent block. lacking
// is kNoLimit if there is no place; *aliased says whether there are some that show old memory.
Pool::Stretch Pool::find_stretch(const Heap& heap, uint64_t size, bool* aliased) const {
  Stretch best{0, 0, kNoLimit, 0};
  if (fixed_) return best;
  const bool high = placement_in(heap).at_high_end(hint_);
  const Block* best_absent = nullptr;
  heap.for_each_absent([&](const Block* absent) {
    const bool wins_ties =
        best_absent == nullptr ||
        std::pair(absent->size, absent->offset) < std::pair(best_absent->size, best_absent->offset);
    const uint64_t most = best.lacking - (wins_ties ? 0 : 1);
    // From a free neighbor on, away from it.
    const Block* block = high ? absent->next() : absent->previous();
    if (!Heap::is_open(block)) block = absent;
    const uint64_t low = block->offset, top = block->end();
    uint64_t lacking = 0, loose = 0, found = 0;
    for (; Heap::is_open(block) && found < size && lacking <= most;
         block = high ? block->previous() : block->next()) {
      const uint64_t part = std::min(block->size, size - found);
      const uint64_t begin = high ? block->end() - part : block->offset;
      if (Heap::is_absent(block))
        lacking += chunks_.count(chunks_.around(begin, begin + part));
      else
        loose += chunks_.whole_under(begin, begin + part, block->offset, block->end());
      found += part;
    }
    if (found < size || lacking > most) return;
    const uint64_t begin = high ? top - size : low;
    if (aliased_.any_in(chunks_.number(begin), chunks_.number(begin + size - 1) + 1)) {
      *aliased = true;
    } else {
      best = {begin, begin + size, lacking, loose};
      best_absent = absent;
    }
  });
  return best;
}

// Gives the absent addresses of a stretch memory: that of chunks elsewhere which no block touches,
// or what the driver has. False if there are not so many, or the driver refuses.
bool Pool::remap(Heap& heap, const Stretch& stretch) {
  const Chunks::Run kept = chunks_.around(stretch.begin, stretch.end);
  if (stretch.lacking + stretch.loose > loose_chunks()) return false;
  uint64_t count = stretch.lacking - withdraw(stretch.lacking, kept, false);
  if (count > 0) {
    ++counts_.remaps;
    Driver::Event event = driver_->can_alias() ? streams_.mark_old_work() : nullptr;
    if (event == nullptr) {
      settle_old_work();
      withdraw(count, kept, true);
    } else {
      alias(heap, count, kept, event);
    }
  }
  fill(heap, kept.begin, kept.end, kNoLimit);
  return map_under(stretch.begin, stretch.end);
}

// Shows the memory of so many chunks elsewhere in absent ones of `kept`. What was moved before a
// failure is moved.
void Pool::alias(Heap& heap, uint64_t count, Chunks::Run kept, Driver::Event event) {
  std::vector<uint64_t> moved;
  struct Noted {
    AliasedChunks& aliased;
    std::vector<uint64_t>& moved;
    Driver::Event event;
    ~Noted() { aliased.add(std::move(moved), event); }
  } noted{aliased_, moved, event};
  moved.reserve(count);
  uint64_t to = kept.begin;
  for (const Chunks::Run& run : loose_runs(count, kept, true)) {
    for (uint64_t from = run.end; from > run.begin;) {
      from -= chunk_;
      while (!Heap::is_absent(heap.block_at(to))) to = heap.block_at(to)->end();
      Heap& other = heap_at(from);
      heap.prepare();
      other.prepare();
      chunks_.move(from, to);
      moved.push_back(chunks_.number(from));
      other.empty(from, from + chunk_);
      heap.fill(to, to + chunk_);
    }
  }
}

uint64_t Pool::loose_chunks() const { return allotted_ - chunks_.touched(); }

bool Pool::has_bytes(uint64_t size) const {
  return allotted_ * chunk_ >= counts_.allocated_bytes + size;
}

// Absent addresses of [begin, end), up to so many chunks, the lowest first, are free for everybody.
// Returns how many.
uint64_t Pool::fill(Heap& heap, uint64_t begin, uint64_t end, uint64_t count) {
  uint64_t done = 0;
  for (uint64_t at = begin; at < end && done < count;) {
    const Block* block = heap.block_at(at);
    const uint64_t stop = std::min(block->end(), end);
    if (!Heap::is_absent(block)) {
      at = stop;
      continue;
    }
    const uint64_t chunks = std::min(chunks_.number(stop - at), count - done);
    heap.prepare();
    heap.fill(at, at + chunks * chunk_);
    allotted_ += chunks;
    done += chunks;
    at += chunks * chunk_;
  }
  return done;
}

// As many addresses as the budget has bytes; later, if some of them still show old memory.
void Pool::allot() {
  const uint64_t limit = limit_chunks();
  if (allotted_ >= limit || allotted_ == chunks_.number(reservation_.size())) return;
  aliased_.poll();
  if (!aliased_.empty()) return;
  for (Heap* heap : {&large_, &small_}) fill(*heap, heap->begin(), heap->end(), limit - allotted_);
}

// Of the chunks that no block touches, none of `kept`: up to so many that are mapped, or are not,
// the highest first.
std::vector<Chunks::Run> Pool::loose_runs(uint64_t count, Chunks::Run kept, bool mapped) const {
  std::vector<Chunks::Run> runs;
  const auto add = [&](uint64_t begin, uint64_t end) {
    if (begin >= end || count == 0) return;
    const uint64_t chunks = std::min(count, chunks_.number(end - begin));
    runs.push_back({end - chunks * chunk_, end});
    count -= chunks;
  };
  const auto look_at = [&](uint64_t begin, uint64_t end) {
    while (begin < end && count > 0) {
      const Chunks::Run last = chunks_.last_mapped({begin, end});
      const uint64_t behind = last.empty() ? begin : last.end;
      if (!mapped) add(behind, end);
      if (mapped) add(last.begin, last.end);
      end = last.empty() ? begin : last.begin;
    }
  };
  for (const Heap* heap : {&small_, &large_}) {
    const Block* block = heap->last();
    for (; block != nullptr && count > 0; block = block->previous()) {
      if (!Heap::is_open(block) || Heap::is_absent(block)) continue;
      const Chunks::Run whole = chunks_.inside(block->offset, block->end());
      if (kept.empty()) {
        look_at(whole.begin, whole.end);
      } else {
        look_at(std::max(whole.begin, kept.end), whole.end);
        look_at(whole.begin, std::min(whole.end, kept.begin));
      }
    }
  }
  return runs;
}

// Such chunks become absent; no work may use those that are mapped. Returns how many. If the driver
// refuses (DriverError), those before are absent.
uint64_t Pool::withdraw(uint64_t count, Chunks::Run kept, bool mapped) {
  uint64_t done = 0;
  for (const Chunks::Run& run : loose_runs(count, kept, mapped)) {
    Heap& heap = heap_at(run.begin);
    heap.prepare();
    if (mapped) chunks_.unmap(run);
    heap.empty(run.begin, run.end);
    allotted_ -= chunks_.count(run);
    done += chunks_.count(run);
  }
  return done;
}

// Memory that no work may use goes back to the driver. Returns how many chunks.
uint64_t Pool::give_back(uint64_t count) {
  uint64_t done = 0;
  for (const Chunks::Run& run : loose_runs(count, {0, 0}, true)) {
    chunks_.unmap(run);
    done += chunks_.count(run);
  }
  return done;
}

// Idle memory may be unmapped afterwards.
void Pool::settle_old_work() {
  streams_.settle_old_work();
  aliased_.wait();
}

void Pool::poll() {
  aliased_.poll();
  if (streams_.poll()) release_settled();
}

// Brings heaps and slabs up to what streams_ knows to be complete.
void Pool::release_settled() {
  for (Owner owner = 1; owner < streams_.owners(); ++owner) {
    large_.settle(owner, streams_.completed(owner));
    small_.settle(owner, streams_.completed(owner));
  }
  for (const Retired& retired : streams_.take_done()) {
    Place place = place_at(retired.offset);
    if (place.slab != nullptr) {
      slabs_.release(place.slab, place.index);
      continue;
    }
    Fence home = retired.home;
    if (home.owner != kIdle && home.point <= streams_.completed(home.owner)) home = {};
    large_.release(place.block, home.owner, home.point);
  }
}

void Pool::finish_waiting() {
  streams_.synchronize();
  release_settled();
}

// Waits for all streams, and makes idle whatever no block in use touches. Empty slabs get their
// fences in between, so it takes two waits.
void Pool::settle_all() {
  finish_waiting();
  if (release_empty_slabs()) finish_waiting();
  settle_arenas();
}

// A block that was filled cannot stay in use.
void Pool::release(const Place& place) {
  if (place.slab == nullptr) {
    Fence fence = poison_ ? streams_.freed_in_any_case(place.owner) : streams_.freed(place.owner);
    large_.release(place.block, fence.owner, fence.point);
    return;
  }
  slabs_.release(place.slab, place.index);
  if (!slabs_.is_surplus(place.slab)) return;
  try {
    release_slab(place.slab);
  } catch (const DriverError&) {
    // No event for the slab's chunk: it stays an empty slab, and the object is free all the same.
  }
}

// Before the block is free, on its own stream: behind all work that uses it, and before whatever
// uses it next. A stream that is being captured would make it a part of its graph.
void Pool::poison(const Place& place) {
  uint64_t stream = 0;
  if (place.owner != kIdle) {
    if (!streams_.may_wait(place.owner) || !streams_.await_uses(place.start, place.owner)) return;
    stream = streams_.stream_of(place.owner);
  }
  driver_->fill(reservation_.base() + place.start, 0xFF, place.size, stream);
}

// What fails is tried again at the next call.
void Pool::give_back_excess() noexcept {
  try {
    poll();
    const uint64_t batch = std::max<uint64_t>(keep_chunks_ / 4, 1);
    const uint64_t idle = chunks_.mapped() - chunks_.touched();
    if (idle >= keep_chunks_ + batch) give_back(idle - keep_chunks_);
  } catch (const std::exception&) {
  }
}

void Pool::release_slab(Slab* slab) {
  Fence fence = streams_.freed(slab->block->owner);
  small_.release(slabs_.remove(slab), fence.owner, fence.point);
}

bool Pool::release_empty_slabs() {
  if (slabs_.empty() == 0) return false;
  for (const auto& slab : slabs_.slabs())
    if (slab != nullptr && slab->live == 0) release_slab(slab.get());
  return true;
}

}  // namespace dtr
