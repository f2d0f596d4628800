#include "caching.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace dtr::fragment {

namespace {

constexpr uint64_t kGrain = 512;
constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kSmallest = kMib;  // the largest small request
constexpr uint64_t kSmallSegment = 2 * kMib;
constexpr uint64_t kLargeSegment = 20 * kMib;
constexpr uint64_t kOwnSegment = 10 * kMib;  // requests from here on get one of their own size
constexpr uint64_t kSegmentGrain = 2 * kMib;

int log2_floor(uint64_t value) { return 63 - __builtin_clzll(value); }

void check(const dtr_fragment_options& options) {
  require_between("expandable", options.expandable, 0, 1);
  require_between("budget_is_fraction", options.budget_is_fraction, 0, 1);
  require_between("ties_by_address", options.ties_by_address, 0, 1);
  if (options.max_split_bytes != 0 && options.max_split_bytes < kLargeSegment)
    invalid("max_split_bytes", std::to_string(options.max_split_bytes),
            "20 MiB or more, or 0 for no limit");
  const uint64_t divisions = options.roundup_power2_divisions;
  if ((divisions & (divisions - 1)) != 0)
    invalid("roundup_power2_divisions", std::to_string(divisions), "powers of two, or 0 for none");
  if (!(options.collect_threshold >= 0 && options.collect_threshold < 1))
    invalid("collect_threshold", std::to_string(options.collect_threshold),
            "from 0 (never) to below 1");
}

dtr_fragment_options with_defaults(dtr_fragment_options options) {
  if (options.max_split_bytes == 0) options.max_split_bytes = UINT64_MAX;
  if (options.max_unsplit_rounding_bytes == 0) options.max_unsplit_rounding_bytes = kLargeSegment;
  return options;
}

}  // namespace

CachingModel::CachingModel(const dtr_fragment_options& options, uint32_t count)
    : options_(with_defaults(options)),
      device_(options.budget_bytes, options.segment_addresses, options.segment_address_count),
      live_(count),
      next_range_(uint64_t{1} << 46) {}

CachingModel::Block* CachingModel::new_block(uint64_t address, uint64_t size, uint64_t stream,
                                             Pool* pool) {
  Block* block;
  if (spare_.empty()) {
    block = &nodes_.emplace_back();
  } else {
    block = spare_.back();
    spare_.pop_back();
    *block = Block{};
  }
  block->address = address;
  block->size = size;
  block->stream = stream;
  block->pool = pool;
  return block;
}

CachingModel::Block* CachingModel::piece_of(const Block* block, uint64_t address, uint64_t size) {
  Block* piece = new_block(address, size, block->stream, block->pool);
  piece->range = block->range;
  piece->age = block->age;
  return piece;
}

uint64_t CachingModel::rounded(uint64_t size) const {
  if (size < kGrain) return kGrain;
  if (options_.roundup_power2_divisions <= 1 || size <= kGrain * options_.roundup_power2_divisions)
    return round_up(size, kGrain);
  if ((size & (size - 1)) == 0) return size;
  const uint64_t floor = uint64_t{1} << log2_floor(size);
  const uint64_t step = floor >> log2_floor(options_.roundup_power2_divisions);
  return step == 0 ? floor << 1 : round_up(size, step);
}

uint64_t CachingModel::segment_bytes(uint64_t size) const {
  if (size <= kSmallest) return kSmallSegment;
  if (size < kOwnSegment) return kLargeSegment;
  return round_up(size, kSegmentGrain);
}

bool CachingModel::may_split(const Block* block, uint64_t size) const {
  const uint64_t rest = block->size - size;
  if (block->pool->small || options_.expandable) return rest >= kGrain;
  return size < options_.max_split_bytes && rest > kSmallest;
}

uint64_t CachingModel::allocate(uint32_t id, uint64_t size, uint64_t stream) {
  size = rounded(size);
  Pool& pool = size <= kSmallest ? small_ : large_;
  const bool collects = options_.collect_threshold > 0 && options_.budget_is_fraction &&
                        options_.budget_bytes != kUnlimited;
  if (collects) ++pool.searches;
  Block* block = find_free(pool, size, stream);
  if (block == nullptr) {
    if (collects) collect();
    block = new_segment(pool, size, stream);
    if (block == nullptr && give_back_oversize(pool, size, stream))
      block = new_segment(pool, size, stream);
    if (block == nullptr) {
      give_back_cached(large_);
      give_back_cached(small_);
      block = new_segment(pool, size, stream);
    }
    if (block == nullptr) return kNoPlace;
  }
  if (may_split(block, size)) block = take_front(block, size);
  block->used = true;
  used_ += block->size;
  live_[id] = block;
  return block->address;
}

CachingModel::Block* CachingModel::find_free(Pool& pool, uint64_t size, uint64_t stream) {
  Block key;
  key.stream = stream;
  key.size = size;
  auto at = pool.free.lower_bound(&key);
  if (at == pool.free.end() || (*at)->stream != stream) return nullptr;
  if (options_.expandable) {
    // A block that more could be mapped behind counts as the size it could grow to.
    const auto could_be = [](const Block* block) {
      const Block* next = block->next;
      return block->size + (next != nullptr && !next->mapped ? next->size : 0);
    };
    for (auto next = std::next(at);
         next != pool.free.end() && (*next)->stream == stream && could_be(*next) < could_be(*at);
         ++next)
      at = next;
  }
  Block* block = *at;
  if (size < options_.max_split_bytes && block->size >= options_.max_split_bytes) return nullptr;
  if (size >= options_.max_split_bytes && block->size >= size + options_.max_unsplit_rounding_bytes)
    return nullptr;
  pool.free.erase(at);
  return block;
}

CachingModel::Block* CachingModel::new_segment(Pool& pool, uint64_t size, uint64_t stream) {
  const uint64_t bytes = segment_bytes(size);
  // A limit of the allocator's own is compared with what a plain segment would take.
  if (options_.budget_is_fraction && !device_.has(bytes)) return nullptr;
  if (options_.expandable) return expand(pool, size, stream);
  const uint64_t address = device_.take(bytes);
  if (address == kNoPlace) return nullptr;
  note_segment(address, bytes, true);
  Block* block = new_block(address, bytes, stream, &pool);
  block->age = next_age();
  return segments_[address] = block;
}

CachingModel::Block* CachingModel::take_front(Block* block, uint64_t size) {
  Block* front = cut_before(block, size);
  enter(block);
  return front;
}

void CachingModel::set_previous(Block* block, Block* previous) {
  block->previous = previous;
  if (previous != nullptr)
    previous->next = block;
  else if (block->range != nullptr)
    range_blocks_[block->range->base] = block;
  else
    segments_[block->address] = block;
}

void CachingModel::set_next(Block* block, Block* next) {
  block->next = next;
  if (next != nullptr) next->previous = block;
}

CachingModel::Block* CachingModel::cut_before(Block* block, uint64_t size) {
  Block* front = piece_of(block, block->address, size);
  set_previous(front, block->previous);
  set_next(front, block);
  block->address += size;
  block->size -= size;
  return front;
}

CachingModel::Block* CachingModel::cut_behind(Block* block, uint64_t size) {
  block->size -= size;
  Block* rest = piece_of(block, block->address + block->size, size);
  set_next(rest, block->next);
  set_next(block, rest);
  return rest;
}

void CachingModel::enter(Block* block) {
  block->since = block->pool->searches;
  block->pool->free.insert(block);
}

void CachingModel::free(uint32_t id) {
  Block* block = live_[id];
  block->used = false;
  used_ -= block->size;
  merge(block, block->previous);
  merge(block, block->next);
  enter(block);
}

// The neighbor becomes part of the block, if it is free as well.
void CachingModel::merge(Block* block, Block* neighbor) {
  if (neighbor == nullptr || neighbor->used || neighbor->mapped != block->mapped) return;
  if (neighbor->mapped)
    neighbor->pool->free.erase(neighbor);
  else
    neighbor->pool->unmapped.erase(neighbor);
  if (block->previous == neighbor) {
    block->address = neighbor->address;
    set_previous(block, neighbor->previous);
  } else {
    set_next(block, neighbor->next);
  }
  block->size += neighbor->size;
  drop_block(neighbor);
}

void CachingModel::give_back(Block* block) {
  note_segment(block->address, block->size, false);
  device_.give(block->address);
  segments_.erase(block->address);
  block->pool->free.erase(block);
  drop_block(block);
}

// Oversize blocks of the stream, as many as the request needs, the largest first; false if there
// is not that much. One that is large enough goes alone. Pages of an expandable segment do not go
// here.
bool CachingModel::give_back_oversize(Pool& pool, uint64_t size, uint64_t stream) {
  if (options_.max_split_bytes == UINT64_MAX || options_.expandable) return false;
  Block key;
  key.stream = stream;
  key.size = std::max(size, options_.max_split_bytes);
  auto at = pool.free.lower_bound(&key);
  if (at != pool.free.end() && (*at)->stream == stream) {
    give_back(*at);
    return true;
  }
  uint64_t given = 0;
  while (at != pool.free.begin() && given < key.size) {
    Block* block = *--at;
    if (block->size < options_.max_split_bytes || block->stream != stream) break;
    given += block->size;
    at = std::next(at);
    give_back(block);
  }
  return given >= key.size;
}

// Every segment, or whole page of an expandable one, that no block in use lies in.
void CachingModel::give_back_cached(Pool& pool) {
  std::vector<Block*> expandable;
  for (auto at = pool.free.begin(); at != pool.free.end();) {
    Block* block = *at++;
    if (block->range != nullptr)
      expandable.push_back(block);  // unmapping changes the set
    else if (!block->is_split())
      give_back(block);
  }
  for (Block* block : expandable) {
    unmap(block);
    if (!block->is_split()) drop_range(block);
  }
}

// Segments that were not of use for long; none that is expandable.
void CachingModel::collect() {
  if (options_.expandable) return;
  const auto limit = static_cast<uint64_t>(options_.collect_threshold *
                                           static_cast<double>(options_.budget_bytes));
  if (device_.held_bytes() <= limit) return;
  const uint64_t wanted = device_.held_bytes() - limit;
  uint64_t ages = 0, candidates = 0, given = 0;
  const auto age = [this](const Block* block) { return large_.searches - block->since; };
  for (const Block* block : large_.free) {
    if (block->is_split()) continue;
    ages += age(block);
    ++candidates;
  }
  for (bool more = true; more && given < wanted && candidates > 0;) {
    const double average = static_cast<double>(ages) / static_cast<double>(candidates);
    more = false;
    for (auto at = large_.free.begin(); at != large_.free.end();) {
      Block* block = *at++;
      if (block->is_split() || static_cast<double>(age(block)) < average) continue;
      more = true;
      given += block->size;
      ages -= age(block);
      --candidates;
      give_back(block);
    }
  }
}

std::vector<dtr_fragment_block> CachingModel::blocks() {
  std::vector<dtr_fragment_block> all;
  const auto walk = [&](const Block* block) {
    for (; block != nullptr; block = block->next)
      if (block->mapped)
        all.push_back({block->address, block->size, block->stream, block->used ? 1 : 0, 0});
  };
  for (const auto& [address, first] : segments_) walk(first);
  for (const auto& [base, first] : range_blocks_) walk(first);
  return all;
}

std::unique_ptr<Model> make_caching(const dtr_fragment_options& options, uint32_t count) {
  check(options);
  return std::make_unique<CachingModel>(options, count);
}

}  // namespace dtr::fragment
