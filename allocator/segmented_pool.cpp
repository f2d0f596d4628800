#include "segmented_pool.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "errors.h"

namespace dtr {

namespace {

using Lock = std::lock_guard<PoolMutex>;

constexpr uint64_t kDefaultLeastSegment = 20 << 20;

uint64_t chosen_least(const PoolOptions& options) {
  const uint64_t unit = SegmentedPool::kSegmentUnit;
  if (options.chunk_bytes == 0) return kDefaultLeastSegment;
  if (options.chunk_bytes % unit != 0 || options.chunk_bytes > uint64_t{1} << 40) {
    throw InvalidArgument("chunk_bytes is " + std::to_string(options.chunk_bytes) +
                          "; allowed: 0 (the default), or a multiple of " + size_text(unit) +
                          ", up to 1 TiB");
  }
  return options.chunk_bytes;
}

}  // namespace

SegmentedPool::SegmentedPool(std::shared_ptr<Driver> driver, const PoolOptions& options)
    : AnyPool(std::move(driver), options.budget_bytes),
      options_(options),
      least_(chosen_least(options)),
      keep_bytes_(options.keep_bytes == 0 ? kNoLimit : options.keep_bytes) {
  check_budget(budget_);
  if (options.reserve_bytes != 0) {
    throw InvalidArgument("reserve_bytes is " + std::to_string(options.reserve_bytes) +
                          "; allowed: 0, as segments are not reserved");
  }
  if (options.fixed != 0) {
    throw InvalidArgument("fixed is " + std::to_string(options.fixed) +
                          "; allowed: 0, as segments lie anywhere");
  }
  options_.chunk_bytes = 0;
  options_.keep_bytes = 0;
  // What is wrong with the options of a segment shows now.
  const DriverTraits& traits = driver_->traits();
  if (options.small_bytes % traits.alignment != 0 ||
      options.small_bytes > traits.default_chunk / 2) {
    throw InvalidArgument("small_bytes is " + std::to_string(options.small_bytes) +
                          "; allowed: 0 (the default), or a multiple of the alignment, " +
                          size_text(traits.alignment) + ", up to " +
                          size_text(traits.default_chunk / 2));
  }
  if (options.poison != 0 && options.poison != 1) {
    throw InvalidArgument("poison is " + std::to_string(options.poison) + "; allowed: 0, or 1");
  }
  // Segments lie anywhere.
  first_ = 0;
  span_ = UINT64_MAX;
  counts_.total_bytes = traits.total_bytes;
  counts_.chunk_bytes = least_;
}

void SegmentedPool::check_budget(uint64_t budget_bytes) const {
  if (budget_bytes >= kSegmentUnit) return;
  throw InvalidArgument("budget_bytes is " + std::to_string(budget_bytes) +
                        "; allowed: at least one chunk, " + size_text(kSegmentUnit) +
                        ", or UINT64_MAX for no limit");
}

void SegmentedPool::close() {
  Lock lock(mutex_);
  require_no_blocks();
  work_.close();
  arenas_.close_all();
  while (!segments_.empty()) give_back(segments_.begin());
}

const SegmentedPool::Segment* SegmentedPool::segment_at(uint64_t address) const {
  auto next = segments_.upper_bound(address);
  if (next == segments_.begin()) return nullptr;
  const auto& [start, segment] = *std::prev(next);
  return address - start < segment.size_bytes ? &segment : nullptr;
}

bool SegmentedPool::owns(uint64_t address) const {
  Lock lock(mutex_);
  return segment_at(address) != nullptr;
}

bool SegmentedPool::spans(uint64_t address, uint64_t size_bytes) const {
  const Segment* segment = segment_at(address);
  if (segment == nullptr) return false;
  const uint64_t before = address - segment->pool->first_address();
  return size_bytes <= segment->size_bytes - before;
}

const SegmentedPool::Segment& SegmentedPool::in_use_at(uint64_t address, const char* call) {
  const Segment* segment = segment_at(address);
  if (segment != nullptr) return *segment;
  throw InvalidArgument(std::string(call) + ": address " + address_text(address) +
                        " is not in this pool; allowed: the start of a block in use");
}

void SegmentedPool::count_change(const PoolStats& before, const PoolStats& after) {
  for (uint64_t PoolStats::* field :
       {&PoolStats::allocated_bytes, &PoolStats::requested_bytes, &PoolStats::live_blocks,
        &PoolStats::allocations, &PoolStats::frees, &PoolStats::ever_allocated_bytes,
        &PoolStats::ever_requested_bytes}) {
    counts_.*field += after.*field - before.*field;
  }
  PoolStats& now = counts_;
  now.peak_allocated_bytes = std::max(now.peak_allocated_bytes, now.allocated_bytes);
  now.peak_requested_bytes = std::max(now.peak_requested_bytes, now.requested_bytes);
  now.peak_live_blocks = std::max(now.peak_live_blocks, now.live_blocks);
  now.peak_unused_bytes = std::max(now.peak_unused_bytes, mapped_ - now.allocated_bytes);
}

void SegmentedPool::free(uint64_t address) {
  if (address == 0) return;
  Lock lock(mutex_);
  Pool& pool = *in_use_at(address, "free").pool;
  const PoolStats before = pool.counts();
  pool.free(address);
  count_change(before, pool.counts());
  events_.add(EventKind::kFree, address, before.allocated_bytes - pool.counts().allocated_bytes);
  give_back_excess();
}

void SegmentedPool::record_stream(uint64_t address, uint64_t stream) {
  Lock lock(mutex_);
  in_use_at(address, "record_stream").pool->record_stream(address, stream);
}

uint64_t SegmentedPool::arena_open() {
  Lock lock(mutex_);
  // Segments open it when it first takes something there, which may be while a stream is captured.
  for (auto& [start, segment] : segments_) segment.pool->make_idle_safe();
  return arenas_.open();
}

void SegmentedPool::arena_close(uint64_t arena) {
  Lock lock(mutex_);
  arenas_.close(arena);
  for (auto& [start, segment] : segments_) {
    auto inside = segment.arenas.find(arena);
    if (inside == segment.arenas.end()) continue;
    segment.pool->arena_close(inside->second);
    segment.arenas.erase(inside);
  }
}

// What is empty is waited for at once, so the last try has nothing more to do.
uint64_t SegmentedPool::shrink(uint64_t budget_bytes, bool) {
  if (mapped_ > budget_bytes) give_back_empty(mapped_ - budget_bytes);
  return mapped_;
}

uint64_t SegmentedPool::trim() {
  Lock lock(mutex_);
  const uint64_t before = mapped_;
  give_back_empty(mapped_);
  return before - mapped_;
}

uint64_t SegmentedPool::block_bytes(uint64_t address) {
  Lock lock(mutex_);
  const Segment* segment = segment_at(address);
  return segment == nullptr ? 0 : segment->pool->block_bytes(address);
}

uint64_t SegmentedPool::block_start(uint64_t address) {
  Lock lock(mutex_);
  const Segment* segment = segment_at(address);
  return segment == nullptr ? 0 : segment->pool->block_start(address);
}

uint64_t SegmentedPool::free_beside(uint64_t address) {
  Lock lock(mutex_);
  const Segment* segment = segment_at(address);
  return segment == nullptr ? 0 : segment->pool->free_beside(address);
}

PoolStats SegmentedPool::stats() {
  Lock lock(mutex_);
  PoolStats stats = counts_;
  stats.budget_bytes = budget_;
  stats.reserved_bytes = mapped_;
  stats.peak_reserved_bytes = peak_mapped_;
  stats.largest_free_bytes = largest_free();
  stats.host_waits = driver_->host_waits();
  return stats;
}

void SegmentedPool::reset_peak() {
  Lock lock(mutex_);
  counts_.peak_allocated_bytes = counts_.allocated_bytes;
  counts_.peak_requested_bytes = counts_.requested_bytes;
  counts_.peak_live_blocks = counts_.live_blocks;
  counts_.peak_unused_bytes = mapped_ - counts_.allocated_bytes;
  peak_mapped_ = mapped_;
}

void SegmentedPool::log_present() {
  for (auto& [start, segment] : segments_) {
    events_.add(EventKind::kSegmentAllocate, start, segment.size_bytes);
    for (const BlockInfo& block : segment.pool->snapshot()) {
      if (block.state != BlockState::kInUse) continue;
      events_.add(EventKind::kAllocate, block.address, block.requested_bytes, block.stream);
    }
  }
}

std::vector<BlockInfo> SegmentedPool::snapshot() {
  Lock lock(mutex_);
  std::vector<BlockInfo> blocks;
  for (auto& [start, segment] : segments_) {
    const std::vector<BlockInfo> inside = segment.pool->snapshot();
    blocks.insert(blocks.end(), inside.begin(), inside.end());
  }
  return blocks;
}

std::string SegmentedPool::check_invariants() {
  Lock lock(mutex_);
  uint64_t bytes = 0, allocated = 0, requested = 0, live = 0;
  for (auto& [start, segment] : segments_) {
    const std::string broken = segment.pool->check_invariants();
    if (!broken.empty()) return broken + " (in the segment at " + address_text(start) + ")";
    const PoolStats& of = segment.pool->counts();
    bytes += segment.size_bytes;
    allocated += of.allocated_bytes;
    requested += of.requested_bytes;
    live += of.live_blocks;
  }
  if (bytes != mapped_) return "G1: the segments' bytes are miscounted";
  if (bytes > budget_) return "G1: the segments exceed the budget";
  if (allocated != counts_.allocated_bytes) return "G2: allocated_bytes is wrong";
  if (requested != counts_.requested_bytes) return "G2: requested_bytes is wrong";
  if (live != counts_.live_blocks) return "G2: live_blocks is wrong";
  if (live != counts_.allocations - counts_.frees) return "G2: allocations less frees are not live";
  return "";
}

}  // namespace dtr
