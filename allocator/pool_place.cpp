// How a request finds its place, and how a place becomes free again: the steps of pool.h.
#include <algorithm>
#include <exception>

#include "errors.h"
#include "pool.h"

namespace dtr {

uint64_t Pool::limit_chunks() const { return std::min(budget_, lowering_) / chunk_; }

uint64_t Pool::unmapped_chunks() const {
  const uint64_t limit = limit_chunks();
  return limit > chunks_.mapped() ? limit - chunks_.mapped() : 0;
}

uint64_t Pool::largest_free() {
  uint64_t best = 0;
  for (Owner owner = 0; owner < large_.owners(); ++owner) {
    const Block* hole = streams_.withheld(owner) ? nullptr : large_.largest(owner);
    if (hole != nullptr) best = std::max(best, hole->size);
  }
  const uint64_t more = unmapped_chunks();
  for (const Block* absent = large_.first_absent(); absent != nullptr && more > 0;
       absent = large_.next_absent(absent)) {
    const auto [begin, end] = Heap::open_from(absent, kNoLimit, false);
    const uint64_t reach = chunks_.reach(begin, end, more);
    best = std::max(best, (reach - begin) / kGrain * kGrain);
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
    stale_.wait();
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
  count_allocation(rounded, size);
  events_.add(EventKind::kAllocate, reservation_.base() + offset, size, stream);
  return offset;
}

void Pool::count_allocation(uint64_t rounded, uint64_t size) {
  counts_.allocated_bytes += rounded;
  counts_.requested_bytes += size;
  counts_.peak_allocated_bytes = std::max(counts_.peak_allocated_bytes, counts_.allocated_bytes);
  counts_.peak_requested_bytes = std::max(counts_.peak_requested_bytes, counts_.requested_bytes);
  counts_.ever_allocated_bytes += rounded;
  counts_.ever_requested_bytes += size;
  ++counts_.live_blocks;
  counts_.peak_live_blocks = std::max(counts_.peak_live_blocks, counts_.live_blocks);
  ++counts_.allocations;
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

// A block in the first hole: nearly always. Else nullptr; also where ends are heeded and the hole
// goes on in addresses that may be mapped, as its ends are elsewhere.
Block* Pool::take_ready(Heap& heap, uint64_t size, Owner owner) {
  const Placement& placement = placement_in(heap);
  Block* hole = placement.first(heap, kIdle, size);
  if (owner != kIdle) {
    Block* own = placement.first(heap, owner, size);
    if (own != nullptr && (hole == nullptr || placement.before(own, hole))) hole = own;
  }
  if (hole == nullptr) return nullptr;
  if (placement.at_high_end(End::kHigh) && unmapped_chunks() > 0 &&
      (Heap::is_absent(hole->previous()) || Heap::is_absent(hole->next()))) {
    return nullptr;
  }
  return heap.take(hole, size, placement.at_high_end(wish_));
}

// Where the fewest chunks are absent. lacking is kNoLimit if there is no place; *stale says whether
// there are some that show old memory.
Pool::Stretch Pool::find_stretch(const Heap& heap, uint64_t size, bool* stale) const {
  const bool high = placement_in(heap).at_high_end(wish_);
  Stretch best{0, 0, kNoLimit};
  for (const Block* absent = heap.first_absent(); absent != nullptr;
       absent = heap.next_absent(absent)) {
    auto [begin, end] = Heap::open_from(absent, size, high);
    if (end - begin < size) continue;
    if (high) {
      begin = end - size;
    } else {
      end = begin + size;
    }
    const uint64_t lacking = chunks_.absent_in(begin, end);
    if (lacking >= best.lacking) continue;
    if (stale_.any_in(chunks_.number(begin), chunks_.number(end - 1) + 1)) {
      *stale = true;
    } else {
      best = {begin, end, lacking};
    }
  }
  return best;
}

Block* Pool::take_stretch(Heap& heap, const Stretch& stretch) {
  Block* hole = heap.block_at(stretch.begin);
  return heap.take_at(hole, stretch.begin, stretch.end - stretch.begin);
}

Block* Pool::try_holes(Heap& heap, uint64_t size, Owner owner) {
  if (Block* block = take_ready(heap, size, owner)) return block;
  bool stale = false;
  const Stretch stretch = find_stretch(heap, size, &stale);
  uint64_t unmapped = unmapped_chunks();
  if (stretch.lacking <= unmapped) {
    if (map_under(stretch.begin, stretch.end)) return take_stretch(heap, stretch);
    unmapped = 0;  // the driver has no more
  }
  const Placement& placement = placement_in(heap);
  const bool high = placement.at_high_end(wish_);
  for (Owner other = 0; other < streams_.owners(); ++other) {
    if (other != kIdle && (other == owner || streams_.withheld(other))) continue;
    Block* hole = placement.first(heap, other, size);
    if (hole == nullptr) continue;
    if (other != kIdle) {
      if (!streams_.may_wait(owner)) break;
      streams_.wait(owner, {other, heap.point_of(hole)});
    }
    return heap.take(hole, size, high);
  }
  if (stretch.lacking != kNoLimit) {
    const uint64_t lacking = chunks_.absent_in(stretch.begin, stretch.end);
    const uint64_t elsewhere = chunks_.idle() - chunks_.idle_in(stretch.begin, stretch.end);
    if (lacking > unmapped + elsewhere) return nullptr;
    get_chunks(lacking - unmapped, stretch.begin, stretch.end);
    return map_under(stretch.begin, stretch.end) ? take_stretch(heap, stretch) : nullptr;
  }
  if (!stale) return nullptr;
  stale_.wait();
  return try_holes(heap, size, owner);
}

// Maps what is absent under a part of a hole. If the driver is out of memory, idle chunks elsewhere
// go back to it first; false if it refuses even then.
bool Pool::map_under(uint64_t begin, uint64_t end) {
  for (bool again = false;; again = true) {
    try {
      map(begin, end);
      return true;
    } catch (const DriverError& error) {
      if (!error.out_of_memory) throw;
      refusal_ = error.what();
    }
    uint64_t absent = chunks_.absent_in(begin, end);
    if (again || chunks_.idle() - chunks_.idle_in(begin, end) < absent) return false;
    get_chunks(absent, begin, end);
  }
}

Heap& Pool::heap_at(uint64_t offset) { return offset < small_.begin() ? large_ : small_; }

// What is absent under [begin, end), which is free for everybody or absent. If the driver refuses
// half way (DriverError), what is mapped by then stays.
void Pool::map(uint64_t begin, uint64_t end) {
  Heap& heap = heap_at(begin);
  for (;;) {
    const Chunks::Run run = chunks_.first_absent(begin, end);
    if (run.begin == run.end) return;
    heap.prepare();
    chunks_.map(run);
    heap.fill(run.begin, run.end);
  }
}

// Unmaps up to `count` idle chunks, from the highest address down, none under [begin, end). Returns
// how many. If the driver refuses (DriverError), those before stay unmapped.
uint64_t Pool::give_back(uint64_t count, uint64_t begin, uint64_t end) {
  uint64_t done = 0;
  while (done < count) {
    const Chunks::Run run = chunks_.last_idle(count - done, begin, end, small_.begin());
    if (run.begin == run.end) break;
    Heap& heap = heap_at(run.begin);
    heap.prepare();
    chunks_.unmap(run);
    heap.empty(run.begin, run.end);
    done += (run.end - run.begin) / chunk_;
  }
  return done;
}

// Takes so many idle chunks elsewhere for what is absent under [begin, end): their memory is there
// then, or the driver has it to map.
void Pool::get_chunks(uint64_t count, uint64_t begin, uint64_t end) {
  ++counts_.remaps;
  Driver::Event event = driver_->can_alias() ? streams_.mark_old_work() : nullptr;
  if (event == nullptr) {
    settle_old_work();
    give_back(count, begin, end);
    return;
  }
  std::vector<uint64_t> moved;
  // What was moved before a failure is moved.
  struct Noted {
    Stale& stale;
    std::vector<uint64_t>& moved;
    Driver::Event event;
    ~Noted() { stale.add(std::move(moved), event); }
  } noted{stale_, moved, event};
  for (moved.reserve(count); moved.size() < count;) {
    const uint64_t from = chunks_.last_idle(1, begin, end, small_.begin()).begin;
    const uint64_t to = chunks_.first_absent(begin, end).begin;
    heap_at(from).prepare();
    heap_at(to).prepare();
    chunks_.move(from, to);
    moved.push_back(from / chunk_);
    heap_at(from).empty(from, from + chunk_);
    heap_at(to).fill(to, to + chunk_);
  }
}

// Idle memory may be unmapped afterwards.
void Pool::settle_old_work() {
  streams_.settle_old_work();
  stale_.wait();
}

void Pool::poll() {
  stale_.poll();
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
    if (chunks_.idle() < keep_chunks_ + batch) return;
    give_back(chunks_.idle() - keep_chunks_);
  } catch (const std::exception&) {
  }
}

void Pool::release_slab(Slab* slab) {
  Fence fence = streams_.freed(slab->block->owner);
  small_.release(slabs_.remove(slab), fence.owner, fence.point);
}

bool Pool::release_empty_slabs() {
  if (slabs_.empty() == 0) return false;
  for (const auto& slab : slabs_.slabs()) {
    if (slab != nullptr && slab->live == 0) release_slab(slab.get());
  }
  return true;
}

}  // namespace dtr
