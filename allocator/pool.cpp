#include "pool.h"

#include <algorithm>
#include <exception>

#include "errors.h"

namespace dtr {

namespace {

constexpr uint64_t kDefaultSmall = 2048;
// The share of the reservation that is for slabs.
constexpr uint64_t kSmallShare = 8;
constexpr uint64_t kLeastObjects = 32;  // of the largest size that a slab of less than a chunk has

// Of a request that was still not served, until it waits for the device.
constexpr int kAnswersBeforeWait = 256;

uint64_t chosen_chunk(const PoolOptions& options, const DriverTraits& traits) {
  uint64_t unit = traits.granularity;
  if (options.chunk_bytes == 0) return traits.default_chunk;
  if (options.chunk_bytes % unit != 0 || options.chunk_bytes > uint64_t{1} << 40)
    invalid(
        "chunk_bytes", options.chunk_bytes,
        "0 (the default), or a multiple of the granularity, " + size_text(unit) + ", up to 1 TiB");
  return options.chunk_bytes;
}

void require_chunk(uint64_t budget, uint64_t chunk) {
  if (budget < chunk)
    invalid("budget_bytes", budget,
            "at least one chunk, " + size_text(chunk) + ", or UINT64_MAX for no limit");
}

uint64_t chosen_reserve(const PoolOptions& options, const DriverTraits& traits, uint64_t chunk) {
  constexpr uint64_t kMost = uint64_t{1} << 44;
  require_chunk(options.budget_bytes, chunk);
  uint64_t least = 16 * chunk;
  if (options.reserve_bytes == 0) {
    uint64_t reserve = std::max(traits.default_reserve, least);
    // Room enough that fragmentation of addresses never decides.
    if (options.budget_bytes < kMost / 4) reserve = std::max(reserve, 4 * options.budget_bytes);
    return round_up(reserve, chunk);
  }
  if (options.reserve_bytes < least || options.reserve_bytes > kMost)
    invalid("reserve_bytes", options.reserve_bytes,
            "0 (the default), or from 16 chunks, " + size_text(least) + ", to " + size_text(kMost));
  return round_up(options.reserve_bytes, chunk);
}

// Slabs for sizes by class, where there are slabs for large ones.
bool uses_classes(const PoolOptions& options) {
  return options.placement == DTR_PLACE_SIZE_CLASSES && !options.fixed;
}

uint64_t chosen_small(const PoolOptions& options, const DriverTraits& traits, uint64_t chunk) {
  uint64_t small = options.small_bytes == 0 ? kDefaultSmall : options.small_bytes;
  if (uses_classes(options) && options.small_bytes == 0) small = std::max(small, chunk / 8);
  if (small % traits.alignment != 0 || small > chunk / 2)
    invalid("small_bytes", small,
            "0 (the default, " + size_text(kDefaultSmall) + "), or a multiple of the alignment, " +
                size_text(traits.alignment) + ", up to half a chunk");
  if (options.fixed) return 0;
  return small;
}

// Of one size class of one stream. Many share a chunk, so that the first object of a size does not
// cost a whole one; and each has room for many objects.
uint64_t slab_bytes(const PoolOptions& options, const DriverTraits& traits, uint64_t chunk) {
  const uint64_t least = kLeastObjects * chosen_small(options, traits, chunk);
  uint64_t bytes = chunk;
  while (bytes % 2 == 0 && bytes / 2 >= least && bytes / 2 % kGrain == 0) bytes /= 2;
  return bytes;
}

uint64_t chosen_keep(const PoolOptions& options, uint64_t chunk) {
  return options.keep_bytes == 0 || options.keep_bytes == kNoLimit ? kNoLimit
                                                                   : options.keep_bytes / chunk;
}

bool chosen_poison(const PoolOptions& options, const Driver& driver) {
  if (options.poison == 0) return false;
  if (!driver.has_contents())
    invalid("poison", options.poison,
            "0, as driver '" + driver.traits().name + "' has no contents");
  if (options.poison != 1) invalid("poison", options.poison, "0, or 1");
  return true;
}

bool chosen_fixed(const PoolOptions& options) {
  if (options.fixed == 0 || options.fixed == 1) return options.fixed == 1;
  invalid("fixed", options.fixed, "0, 1");
}

uint64_t slab_region(const PoolOptions& options, uint64_t reserve, uint64_t chunk) {
  return options.fixed ? reserve : reserve - round_up(reserve / kSmallShare, chunk);
}

}  // namespace

Pool::Pool(const PoolOptions& options)
    : AnyPool(make_driver(options.driver, options.device), options.budget_bytes),
      chunk_(chosen_chunk(options, driver_->traits())),
      reservation_(*driver_, chosen_reserve(options, driver_->traits(), chunk_), chunk_),
      chunks_(*driver_, reservation_, chunk_, events_),
      aliased_(*driver_, reservation_.base(), chunk_, reservation_.size() / chunk_),
      large_(chunks_, 0, slab_region(options, reservation_.size(), chunk_), kGrain),
      small_(chunks_, large_.end(), reservation_.size(),
             slab_bytes(options, driver_->traits(), chunk_)),
      slabs_(small_.begin(), small_.end(), slab_bytes(options, driver_->traits(), chunk_),
             driver_->traits().alignment, chosen_small(options, driver_->traits(), chunk_),
             uses_classes(options)),
      streams_(*driver_),
      arenas_(streams_),
      keep_chunks_(chosen_keep(options, chunk_)),
      poison_(chosen_poison(options, *driver_)),
      fixed_(chosen_fixed(options)),
      placement_(make_placement(options.placement)) {
  if (placement_->by_address()) large_.keep_by_address();
  allot();
  if (keep_chunks_ != kNoLimit) streams_.make_idle_safe();
  first_ = reservation_.base();
  span_ = reservation_.size();
  counts_.total_bytes = driver_->traits().total_bytes;
  counts_.chunk_bytes = chunk_;
}

void Pool::close() {
  Lock lock(mutex_);
  require_no_blocks();
  work_.close();
  arenas_.close_all();
  settle_all();
  if (streams_.withholds())
    throw StateError(
        "a stream of the pool's device is being captured into a graph; end the "
        "capture before the pool is destroyed");
  settle_old_work();
  give_back(kNoLimit);
  streams_.close();
  reservation_.close();
}

uint64_t Pool::place(uint64_t size_bytes, uint64_t stream, uint64_t arena, int32_t hint) {
  if (size_bytes == 0) return 0;
  int idle_answers = 0;
  uint64_t rounded;
  int32_t answer = DTR_ROOM_IS_FREED;
  bool last = false;
  for (int answers = 0;; ++answers) {
    // What was freed may be no place while work of several streams is under way, and whoever makes
    // room by moving blocks could go on for as long as that work takes.
    const bool waits = last || (answers > 0 && answers % kAnswersBeforeWait == 0);
    {
      Lock lock(mutex_);
      hint_ = hint;
      remaps_ = waits || answer == DTR_ROOM_BY_REMAP || !has_room();
      uint64_t offset = arena == kNoArena ? place_plain(size_bytes, stream) : Slabs::kNone;
      if (offset != Slabs::kNone) return reservation_.base() + offset;
      rounded = rounded_size(size_bytes);
      refusal_.clear();
      const bool possible = is_possible(size_bytes);
      if (possible) {
        offset = attempt(size_bytes, stream, arena, waits);
        if (offset == Slabs::kNone && settle_arenas())
          offset = try_allocate(size_bytes, stream, arena, waits);
      }
      if (offset != Slabs::kNone) {
        if (keep_chunks_ != kNoLimit) give_back_excess();
        return reservation_.base() + offset;
      }
      if (last || !possible) {
        if (hint != DTR_HINT_WORKSPACE) {
          ++counts_.out_of_memory_errors;
          events_.add(DTR_EVENT_OUT_OF_MEMORY, 0, size_bytes, stream);
        }
        throw OutOfMemory(out_of_memory_message(size_bytes, stream));
      }
    }
    // A small request lacks a chunk for a slab, whatever its own size.
    bool small = arena == kNoArena && slabs_.is_small(size_bytes);
    uint64_t needed = small ? chunk_ : rounded;
    answer = ask_room(needed, stream, &idle_answers);
    last = answer == DTR_ROOM_IS_NONE;
  }
}

// The same where memory is already: nearly always. kNone: it is not.
uint64_t Pool::place_plain(uint64_t size_bytes, uint64_t stream) {
  if (size_bytes > large_.end() || keep_chunks_ != kNoLimit) return Slabs::kNone;
  poll();
  const Owner owner = streams_.owner_of(stream);
  if (slabs_.is_small(size_bytes)) {
    const uint64_t offset = slabs_.take(size_bytes, owner);
    if (offset != Slabs::kNone)
      count_allocation(offset, slabs_.round(size_bytes), size_bytes, stream);
    return offset;
  }
  Block* block = take_ready(large_, rounded_size(size_bytes), owner);
  if (block == nullptr) return Slabs::kNone;
  return hand_out(block, size_bytes, stream, owner);
}

// Of a block of the large heap that was taken for a request: what becomes of it. Returns its
// offset.
uint64_t Pool::hand_out(Block* block, uint64_t size_bytes, uint64_t stream, Owner owner) {
  block->owner = static_cast<uint16_t>(owner);
  large_.set_stream(block, stream);
  block->slack = static_cast<uint32_t>(block->size - size_bytes);
  count_allocation(block->offset, block->size, size_bytes, stream);
  return block->offset;
}

bool Pool::is_possible(uint64_t size) const {
  const uint64_t most = std::min(chunks_.number(budget_) * chunk_, large_.end());
  return size <= most && in_grains(size) <= most;
}

uint64_t Pool::try_allocate(uint64_t size_bytes, uint64_t stream) {
  if (size_bytes == 0) return 0;
  Lock lock(mutex_);
  hint_ = DTR_HINT_NONE;
  remaps_ = !has_room();
  if (!is_possible(size_bytes) && !slabs_.is_small(size_bytes)) return 0;
  const uint64_t offset = attempt(size_bytes, stream, kNoArena, false);
  return offset == Slabs::kNone ? 0 : reservation_.base() + offset;
}

std::string Pool::out_of_memory_message(uint64_t size, uint64_t stream) {
  std::string text = "out of memory: requested " + size_text(size) + " on stream " +
                     std::to_string(stream) + "; budget " + size_text(budget_) + ", allocated " +
                     size_text(counts_.allocated_bytes) + ", mapped " +
                     size_text(chunks_.mapped_bytes()) + ", largest free " +
                     size_text(largest_free());
  if (streams_.pending_count() != 0)
    text += ", blocks waiting for other streams " + std::to_string(streams_.pending_count());
  if (uint64_t withheld = withheld_bytes(); withheld != 0)
    text += ", free but kept for graphs and memory pools " + size_text(withheld);
  if (!refusal_.empty())
    text += kRefusedByDriver + refusal_;
  else if (size > budget_)
    text += "; the request is larger than the budget";
  else if (size > large_.end())
    text += "; the request is larger than the reserved address range, " + size_text(large_.end());
  return text;
}

void Pool::free(uint64_t address) {
  if (address == 0) return;
  Lock lock(mutex_);
  if (free_plain(address)) return;
  Place place = in_use_at(address, "free");
  const Owner owner = place.owner;
  const bool of_arena = arenas_.owns(owner);
  if (of_arena)
    place.owner = home_of_freed(place);
  else if (poison_)
    poison(place);
  if (!streams_.has_uses(place.start)) {
    release(place);
  } else if (streams_.withheld(place.owner)) {
    release(place);
    streams_.forget_uses(place.start);
  } else {
    streams_.retire(place.start, place.owner);
    if (place.block != nullptr) place.block->state = BlockState::kPending;
  }
  if (of_arena) {
    arenas_.gave(owner);
    if (!arenas_.is_open(owner)) arenas_.forget_done();
  }
  count_free(address, place.size, place.requested);
  if (keep_chunks_ != kNoLimit) give_back_excess();
}

void Pool::count_free(uint64_t address, uint64_t size, uint64_t requested) {
  counts_.allocated_bytes -= size;
  counts_.requested_bytes -= requested;
  --counts_.live_blocks;
  ++counts_.frees;
  events_.add(DTR_EVENT_FREE, address, size);
  note_unused();
}

// The same as free(), for a block with nothing special about it: nearly always.
bool Pool::free_plain(uint64_t address) {
  if (poison_ || streams_.has_any_uses() || arenas_.own_any() || keep_chunks_ != kNoLimit)
    return false;
  const uint64_t offset = address - reservation_.base();
  if (offset >= large_.end()) {
    const Place place = contains(address) ? place_at(offset) : Place{};
    if (!place.in_use() || place.start != offset || streams_.pending(offset)) return false;
    release(place);
    count_free(address, place.size, place.requested);
    return true;
  }
  Block* block = large_.find(offset);
  if (block == nullptr || block->state != BlockState::kInUse) return false;
  const uint64_t size = block->size, requested = block->requested();
  const Fence fence = streams_.freed(block->owner);
  large_.release(block, fence.owner, fence.point);
  count_free(address, size, requested);
  return true;
}

void Pool::record_stream(uint64_t address, uint64_t stream) {
  Lock lock(mutex_);
  Place place = in_use_at(address, "record_stream");
  if (place.owner != kIdle && streams_.stream_of(place.owner) == stream) return;
  Owner user = streams_.owner_of(stream);
  if (user != kIdle) streams_.record_use(place.start, user);
}

void Pool::check_budget(uint64_t budget_bytes) const { require_chunk(budget_bytes, chunk_); }

uint64_t Pool::shrink(uint64_t budget_bytes, bool last) {
  if (last) settle_all();
  poll();
  if (fixed_) return shrink_fixed(budget_bytes);
  if (budget_bytes >= budget_) return allotted_ * chunk_;
  const uint64_t allowed = budget_bytes / chunk_;
  const auto above = [&] { return allotted_ > allowed ? allotted_ - allowed : 0; };
  if (loose_chunks() < above()) release_empty_slabs();
  if (loose_chunks() < above()) settle_arenas();
  // As far as no block touches them, the addresses that stay are the lowest, as in a new pool: what
  // was remapped under another budget leaves no gaps. grow() takes those that are absent.
  withdraw(kNoLimit, {0, 0}, false);
  settle_old_work();
  withdraw(kNoLimit, {0, fixed_end(budget_bytes)}, true);
  withdraw(above(), {0, 0}, true);
  return allotted_ * chunk_;
}

// What fails is done when a request needs it.
void Pool::grow() noexcept {
  try {
    allot();
  } catch (const std::exception&) {
  }
}

uint64_t Pool::fixed_end(uint64_t budget_bytes) const {
  return std::min(budget_bytes / chunk_ * chunk_, large_.end());
}

// What is taken of the budget are the addresses up to the highest that is in use.
uint64_t Pool::shrink_fixed(uint64_t budget_bytes) {
  const uint64_t end = fixed_end(budget_bytes);
  if (end < large_.used_end()) settle_arenas();
  if (end < large_.used_end()) return round_up(large_.used_end(), chunk_);
  withdraw(kNoLimit, {0, end}, false);
  settle_old_work();
  withdraw(kNoLimit, {0, end}, true);
  return end;
}

uint64_t Pool::trim() {
  Lock lock(mutex_);
  settle_all();
  settle_old_work();
  const uint64_t returned = give_back(kNoLimit) * chunk_;
  // What has no memory may as well be the lowest addresses.
  withdraw(kNoLimit, {0, 0}, false);
  allot();
  return returned;
}

uint64_t Pool::block_bytes(uint64_t address) {
  Lock lock(mutex_);
  Place place = place_at(address - reservation_.base());
  bool starts = place.in_use() && place.start + reservation_.base() == address;
  return starts && !streams_.pending(place.start) ? place.size : 0;
}

uint64_t Pool::block_start(uint64_t address) {
  Lock lock(mutex_);
  Place place = place_at(address - reservation_.base());
  if (!place.in_use() || streams_.pending(place.start)) return 0;
  return reservation_.base() + place.start;
}

PoolStats Pool::stats() {
  Lock lock(mutex_);
  PoolStats stats = counts_;
  stats.budget_bytes = budget_;
  stats.reserved_bytes = chunks_.mapped_bytes();
  stats.peak_reserved_bytes = chunks_.peak_mapped() * chunk_;
  stats.largest_free_bytes = largest_free();
  stats.mapped_chunks = chunks_.maps();
  stats.unmapped_chunks = chunks_.unmaps();
  stats.host_waits = driver_->host_waits();
  stats.host_wait_ns = driver_->host_wait_ns();
  return stats;
}

void Pool::log_present() {
  const uint64_t base = reservation_.base();
  chunks_.for_each_mapped([&](Chunks::Run run) {
    events_.add(DTR_EVENT_SEGMENT_ALLOCATE, base + run.begin, run.end - run.begin);
  });
  for (const BlockInfo& block : walk()) {
    if (block.state != DTR_BLOCK_IN_USE) continue;
    events_.add(DTR_EVENT_ALLOCATE, block.address, block.requested_bytes, block.stream);
  }
}

void Pool::reset_peak() {
  Lock lock(mutex_);
  counts_.peak_allocated_bytes = counts_.allocated_bytes;
  counts_.peak_requested_bytes = counts_.requested_bytes;
  counts_.peak_live_blocks = counts_.live_blocks;
  counts_.peak_unused_bytes = 0;
  counts_.peak_beyond_bytes = counts_.beyond_bytes;
  note_unused();
  chunks_.reset_peak();
}

}  // namespace dtr
