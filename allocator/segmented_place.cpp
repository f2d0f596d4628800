// How a request finds its place among segments, and how segments come and go: see
// segmented_pool.h.
#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "errors.h"
#include "segmented_pool.h"

namespace dtr {

namespace {

using Lock = std::lock_guard<PoolMutex>;

constexpr uint64_t kSmallRequest = 2048;  // unless options say otherwise

uint64_t round_to(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

uint64_t SegmentedPool::allocate(uint64_t size_bytes, uint64_t stream) {
  const uint64_t small = options_.small_bytes == 0 ? kSmallRequest : options_.small_bytes;
  return place({size_bytes, stream, 0, size_bytes <= small});
}

uint64_t SegmentedPool::arena_allocate(uint64_t arena, uint64_t size_bytes, uint64_t stream) {
  {
    Lock lock(mutex_);
    arenas_.require_open(arena);
  }
  return place({size_bytes, stream, arena, false});
}

uint64_t SegmentedPool::place(const Request& request) {
  if (request.size == 0) return 0;
  int idle_answers = 0;
  for (bool last = false;;) {
    {
      Lock lock(mutex_);
      refusal_.clear();
      // No device has 2^48 bytes, and rounding up must not wrap around.
      const bool possible = request.size <= budget_ && request.size >> 48 == 0;
      if (possible) {
        const uint64_t address = try_place(request, last);
        if (address != 0) return address;
      }
      if (last || !possible) {
        ++counts_.out_of_memory_errors;
        events_.add(EventKind::kOutOfMemory, 0, request.size, request.stream);
        throw OutOfMemory(out_of_memory_message(request));
      }
    }
    const uint64_t needed = request.is_small ? least_ : in_grains(request.size);
    last = ask_room(needed, request.stream, &idle_answers) == Room::kNone;
  }
}

uint64_t SegmentedPool::try_place(const Request& request, bool last) {
  uint64_t address = try_segments(request, false);
  if (address == 0) {
    Segment* segment = add_segment(request);
    if (segment != nullptr) address = try_in(*segment, request, false);
  }
  if (address == 0 && last) address = try_segments(request, true);
  return address;
}

uint64_t SegmentedPool::try_segments(const Request& request, bool last) {
  // A small request takes what the others' segments have only when all else failed.
  for (bool small : {request.is_small, false}) {
    if (small != request.is_small && !last) break;
    for (auto& [start, segment] : segments_) {
      if (segment.is_small != small) continue;
      uint64_t address = try_in(segment, request, last);
      if (address == 0 && segment.pool->settle_closed_arenas()) {
        address = try_in(segment, request, last);
      }
      if (address != 0) return address;
    }
    if (!request.is_small) break;
  }
  return 0;
}

// Whatever lies in a segment is packed: its memory goes back only when nothing does.
uint64_t SegmentedPool::try_outside(uint64_t size_bytes, uint64_t stream, uint64_t begin,
                                    uint64_t end, bool) {
  Lock lock(mutex_);
  for (auto& [start, segment] : segments_) {
    if (segment.is_small) continue;
    const PoolStats before = segment.pool->counts();
    const uint64_t address = segment.pool->try_outside(size_bytes, stream, begin, end, false);
    if (address == 0) continue;
    count_change(before, segment.pool->counts());
    events_.add(EventKind::kAllocate, address, size_bytes, stream);
    return address;
  }
  return 0;
}

bool SegmentedPool::follow_uses(uint64_t address, uint64_t stream) {
  return in_use_at(address, "copy").pool->follow_uses(address, stream);
}

uint64_t SegmentedPool::try_in(Segment& segment, const Request& request, bool last) {
  uint64_t arena = 0;
  if (request.arena != 0) {
    auto known = segment.arenas.find(request.arena);
    if (known == segment.arenas.end()) {
      segment.arenas.reserve(segment.arenas.size() + 1);
      known = segment.arenas.emplace(request.arena, segment.pool->arena_open()).first;
    }
    arena = known->second;
  }
  const PoolStats before = segment.pool->counts();
  const uint64_t address = segment.pool->try_once(request.size, request.stream, arena, last);
  if (address != 0) {
    count_change(before, segment.pool->counts());
    events_.add(EventKind::kAllocate, address, request.size, request.stream);
  }
  return address;
}

uint64_t SegmentedPool::room_for_segments() const {
  const uint64_t budget = std::min(budget_, lowering_);
  return budget > mapped_ ? (budget - mapped_) / kSegmentUnit * kSegmentUnit : 0;
}

// Of the least size, of what the budget leaves, or of the request's own: the first that the budget
// and the driver allow. nullptr: none.
SegmentedPool::Segment* SegmentedPool::add_segment(const Request& request) {
  const uint64_t own = round_to(request.size, kSegmentUnit);
  if (room_for_segments() < own) give_back_empty(own - room_for_segments());
  if (room_for_segments() < own) return nullptr;
  const uint64_t wanted = std::max(own, std::min(least_, room_for_segments()));
  Segment* segment = make_segment(wanted, request.is_small);
  if (segment == nullptr && wanted != own) segment = make_segment(own, request.is_small);
  if (segment == nullptr && give_back_empty(own)) segment = make_segment(own, request.is_small);
  return segment;
}

// nullptr if the driver has no memory.
SegmentedPool::Segment* SegmentedPool::make_segment(uint64_t size_bytes, bool is_small) {
  PoolOptions options = options_;
  options.budget_bytes = options.reserve_bytes = size_bytes;
  options.slab_bytes = is_small ? size_bytes : 0;
  std::unique_ptr<Pool> pool;
  try {
    pool = std::make_unique<Pool>(driver_, options);
  } catch (const DriverError& error) {
    if (!error.out_of_memory) throw;
    refusal_ = error.what();
    return nullptr;
  }
  // So that an arena can be opened in it at any time, and that is_idle() knows all.
  pool->make_idle_safe();
  const uint64_t start = pool->first_address();
  auto added = segments_.emplace(start, Segment{std::move(pool), size_bytes, is_small, {}}).first;
  mapped_ += size_bytes;
  peak_mapped_ = std::max(peak_mapped_, mapped_);
  ++counts_.mapped_chunks;
  events_.add(EventKind::kSegmentAllocate, start, size_bytes);
  return &added->second;
}

// Empty segments go back until so many bytes did. Waits for the work on them. Whether any went.
bool SegmentedPool::give_back_empty(uint64_t wanted_bytes) {
  const uint64_t before = mapped_;
  for (auto at = segments_.begin(); at != segments_.end() && before - mapped_ < wanted_bytes;) {
    auto segment = at++;
    Pool& pool = *segment->second.pool;
    if (pool.counts().live_blocks != 0) continue;
    pool.settle_closed_arenas();
    if (pool.is_empty()) give_back(segment);
  }
  return mapped_ != before;
}

void SegmentedPool::give_back(Segments::iterator segment) {
  // If the driver refuses, the segment stays, and arenas are opened in it again.
  segment->second.arenas.clear();
  segment->second.pool->close();
  mapped_ -= segment->second.size_bytes;
  ++counts_.unmapped_chunks;
  events_.add(EventKind::kSegmentFree, segment->first, segment->second.size_bytes);
  segments_.erase(segment);
}

// Without waiting. What fails is tried again at the next call.
void SegmentedPool::give_back_excess() noexcept {
  if (keep_bytes_ == kNoLimit) return;
  try {
    uint64_t empty = 0;
    for (const auto& [start, segment] : segments_) {
      if (segment.pool->is_empty()) empty += segment.size_bytes;
    }
    for (auto at = segments_.begin(); at != segments_.end() && empty > keep_bytes_;) {
      auto segment = at++;
      if (!segment->second.pool->is_empty() || !segment->second.pool->is_idle()) continue;
      empty -= segment->second.size_bytes;
      give_back(segment);
    }
  } catch (const std::exception&) {
  }
}

uint64_t SegmentedPool::largest_free() {
  uint64_t largest = room_for_segments();
  for (auto& [start, segment] : segments_) {
    largest = std::max(largest, segment.pool->largest_hole());
  }
  return largest;
}

std::string SegmentedPool::out_of_memory_message(const Request& request) {
  std::string text = "out of memory: requested " + size_text(request.size) + " on stream " +
                     std::to_string(request.stream) + "; budget " + size_text(budget_) +
                     ", allocated " + size_text(counts_.allocated_bytes) + ", mapped " +
                     size_text(mapped_) + ", largest free " + size_text(largest_free()) + ", in " +
                     std::to_string(segments_.size()) + " segments";
  uint64_t withheld = 0;
  for (auto& [start, segment] : segments_) withheld += segment.pool->withheld_bytes();
  if (withheld != 0) text += ", free but kept for graphs and memory pools " + size_text(withheld);
  if (!refusal_.empty()) {
    text += kRefusedByDriver + refusal_;
  } else if (request.size > budget_) {
    text += "; the request is larger than the budget";
  }
  return text;
}

}  // namespace dtr
