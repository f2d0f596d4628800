// caching.cpp: a model of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp).
//
// What it does, as found in that file and checked against snapshots of real ones (2.11, 2.13):
//   - Requests are rounded to 512 bytes, or to one of `roundup_power2_divisions` steps between two
//     powers of two. Up to 1 MiB they are small; small and large ones have a pool each.
//   - A pool's free blocks are sorted by stream, size, age of their segment and address (by stream,
//     size, address before 2.13: ties_by_address); the first that is large enough serves. Its rest
//     stays a free block if it is at least 512 bytes (small) or more than 1 MiB (large; any rest of
//     512 bytes in expandable segments).
//   - Otherwise the device gives a segment: 2 MiB for small requests, 20 MiB for large ones under
//     10 MiB, else the size rounded to 2 MiB. A freed block merges with its free neighbors.
//   - max_split_bytes: larger blocks are not split, and serve only requests that large, unless
//     they would leave max_unsplit_rounding_bytes (20 MiB) or more.
//   - If the device refuses: with max_split_bytes large cached blocks go back until there is
//     enough; else, or if that does not do, all segments with no block in use. Then once more.
//   - collect_threshold: above that share of the budget, before a new segment is asked for, whole
//     free segments of the large pool go back that have waited at least as long as the average.
//   - expandable: a segment for each stream and pool is address space for 9/8 of the device, and
//     pages (2 MiB small, 20 MiB large) are mapped under it as needed, at the lowest address
//     where the request fits. Whole free pages are unmapped where others give segments back.
//
// What it leaves out: blocks used on other streams (record_stream), whose reuse waits for events;
// private pools (CUDA graphs, MemPool); empty_cache and settings that change on the way; other
// processes on the device; callbacks that free memory; roundup_power2_divisions by size range;
// what the allocator of pinned memory does.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "device.h"
#include "model.h"

namespace dtr::fragment {

namespace {

constexpr uint64_t kGrain = 512;
constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kSmallest = kMib;  // the largest small request
constexpr uint64_t kSmallSegment = 2 * kMib;
constexpr uint64_t kLargeSegment = 20 * kMib;
constexpr uint64_t kOwnSegment = 10 * kMib;  // requests from here on get one of their own size
constexpr uint64_t kSegmentGrain = 2 * kMib;
// Of expandable segments.
constexpr uint64_t kSmallPage = 2 * kMib;
constexpr uint64_t kLargePage = 20 * kMib;
constexpr uint64_t kUnlimitedDevice = uint64_t{1} << 42;

void check(const dtr_fragment_options& options) {
  require_between("expandable", options.expandable, 0, 1);
  require_between("budget_is_fraction", options.budget_is_fraction, 0, 1);
  require_between("ties_by_address", options.ties_by_address, 0, 1);
  if (options.max_split_bytes != 0 && options.max_split_bytes < kLargeSegment)
    invalid("max_split_bytes", std::to_string(options.max_split_bytes),
            "20 MiB or more, or 0 for no limit");
  const uint64_t divisions = options.roundup_power2_divisions;
  if (divisions != 0 && !std::has_single_bit(divisions))
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

class CachingModel final : public Model {
 public:
  CachingModel(const dtr_fragment_options& options, uint32_t count)
      : options_(with_defaults(options)),
        device_(options.budget_bytes, options.segment_addresses, options.segment_address_count),
        live_(count),
        next_range_(uint64_t{1} << 46) {}

  uint64_t allocate(uint32_t id, uint64_t size, uint64_t stream) override {
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
  void free(uint32_t id) override {
    Block* block = live_[id];
    block->used = false;
    used_ -= block->size;
    merge(block, block->previous);
    merge(block, block->next);
    enter(block);
  }
  uint64_t reserved_bytes() const override { return device_.held_bytes(); }
  uint64_t used_bytes() const override { return used_; }
  std::vector<dtr_fragment_block> blocks() override {
    std::vector<dtr_fragment_block> all;
    for (const auto& [address, first] : segments_)
      for (const Block* block = first; block != nullptr; block = block->next)
        if (block->mapped)
          all.push_back({block->address, block->size, block->stream, block->used ? 1 : 0, 0});
    return all;
  }

 private:
  struct Pool;
  struct Range;  // the address range of an expandable segment
  struct Block {
    uint64_t address = 0;
    uint64_t size = 0;
    uint64_t stream = 0;
    Pool* pool = nullptr;
    Block* previous = nullptr;  // of the same segment, by address
    Block* next = nullptr;
    uint64_t age = 0;        // the number of the segment; 0 with ties_by_address
    Range* range = nullptr;  // nullptr: the device gave the segment in one piece
    uint64_t since = 0;      // the pool's searches when it became free
    bool used = false;
    bool mapped = true;
    bool is_split() const { return previous != nullptr || next != nullptr; }
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->stream, a->size, a->age, a->address) <
             std::tie(b->stream, b->size, b->age, b->address);
    }
  };
  struct ByAddress {
    bool operator()(const Block* a, const Block* b) const {
      return std::tie(a->stream, a->address) < std::tie(b->stream, b->address);
    }
  };
  struct Pool {
    bool small;
    std::set<Block*, BySize> free;
    std::set<Block*, ByAddress> unmapped;
    uint64_t searches = 0;
  };
  struct Range {
    uint64_t base, size, page;
  };

  uint64_t rounded(uint64_t size) const {
    if (size < kGrain) return kGrain;
    if (options_.roundup_power2_divisions <= 1 ||
        size <= kGrain * options_.roundup_power2_divisions)
      return round_up(size, kGrain);
    if (std::has_single_bit(size)) return size;
    const uint64_t floor = std::bit_floor(size);
    const uint64_t step = floor / options_.roundup_power2_divisions;
    return step == 0 ? floor << 1 : round_up(size, step);
  }
  uint64_t segment_bytes(uint64_t size) const {
    if (size <= kSmallest) return kSmallSegment;
    if (size < kOwnSegment) return kLargeSegment;
    return round_up(size, kSegmentGrain);
  }
  bool may_split(const Block* block, uint64_t size) const {
    const uint64_t rest = block->size - size;
    if (block->pool->small || options_.expandable) return rest >= kGrain;
    return size < options_.max_split_bytes && rest > kSmallest;
  }
  Block* find_free(Pool& pool, uint64_t size, uint64_t stream) {
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
    if (size >= options_.max_split_bytes &&
        block->size >= size + options_.max_unsplit_rounding_bytes)
      return nullptr;
    pool.free.erase(at);
    return block;
  }
  Block* new_segment(Pool& pool, uint64_t size, uint64_t stream) {
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
  Block* take_front(Block* block, uint64_t size) {
    Block* front = cut_before(block, size);
    enter(block);
    return front;
  }
  void enter(Block* block) {
    block->since = block->pool->searches;
    block->pool->free.insert(block);
  }
  // The neighbor becomes part of the block, if it is free as well.
  void merge(Block* block, Block* neighbor) {
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
  void set_previous(Block* block, Block* previous) {
    block->previous = previous;
    if (previous != nullptr)
      previous->next = block;
    else
      segments_[block->address] = block;
  }
  void set_next(Block* block, Block* next) {
    block->next = next;
    if (next != nullptr) next->previous = block;
  }
  // Oversize blocks of the stream, as many as the request needs, the largest first; false if there
  // is not that much. One that is large enough goes alone. Pages of an expandable segment do not go
  // here.
  bool give_back_oversize(Pool& pool, uint64_t size, uint64_t stream) {
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
  void give_back_cached(Pool& pool) {
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
  void give_back(Block* block) {
    note_segment(block->address, block->size, false);
    device_.give(block->address);
    segments_.erase(block->address);
    block->pool->free.erase(block);
    drop_block(block);
  }
  // Segments that were not of use for long; none that is expandable.
  void collect() {
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

  // ---- expandable segments: address space first, pages under it as needed ----

  // A free block of at least `size`, out of the pool's set, or nullptr.
  Block* expand(Pool& pool, uint64_t size, uint64_t stream) {
    Block* block = find_expandable(pool, size, stream);
    if (!block->mapped && !map(block, std::min(block->size, size))) return nullptr;
    while (block->size < size) {
      Block* next = block->next;  // unmapped; takes the block into itself
      if (!map(next, std::min(size - block->size, next->size))) return nullptr;
      block = next;
    }
    pool.free.erase(block);
    return block;
  }
  // The lowest unmapped block of the stream, or the free one before it, from which on free and
  // unmapped blocks have room for the request; in a new range if there is none.
  Block* find_expandable(Pool& pool, uint64_t size, uint64_t stream) {
    Block key;
    key.stream = stream;
    for (auto at = pool.unmapped.lower_bound(&key);
         at != pool.unmapped.end() && (*at)->stream == stream; ++at) {
      Block* first = *at;
      if (first->previous != nullptr && !first->previous->used) first = first->previous;
      uint64_t bytes = 0;
      for (const Block* block = first; block != nullptr && !block->used && bytes < size;
           block = block->next)
        bytes += block->size;
      if (bytes >= size) return first;
    }
    const uint64_t total =
        options_.budget_bytes == kUnlimited ? kUnlimitedDevice : options_.budget_bytes;
    const uint64_t page = pool.small ? kSmallPage : kLargePage;
    const uint64_t bytes = round_up(std::max(total + total / 8, size), page);
    ranges_.push_back(std::make_unique<Range>(Range{next_range_, bytes, page}));
    Range* range = ranges_.back().get();
    next_range_ += round_up(bytes, uint64_t{1} << 30);
    Block* block = new_block(range->base, range->size, stream, &pool);
    block->range = range;
    block->age = next_age();
    block->mapped = false;
    pool.unmapped.insert(block);
    return segments_[range->base] = block;
  }
  // Maps whole pages under the front of an unmapped block, `size` bytes at least, and makes a free
  // block of it. All or nothing.
  bool map(Block* block, uint64_t size) {
    const uint64_t bytes = round_up(size, block->range->page);
    if (!device_.take_bytes(bytes)) return false;
    note_segment(block->address, bytes, true);
    Pool& pool = *block->pool;
    pool.unmapped.erase(block);
    block->mapped = true;
    if (bytes < block->size) {
      Block* rest = cut_behind(block, block->size - bytes);
      rest->mapped = false;
      pool.unmapped.insert(rest);
    }
    merge(block, block->previous);
    merge(block, block->next);
    enter(block);
    return true;
  }
  // The whole pages under a free block go back; what is before and behind them stays free.
  void unmap(Block* block) {
    const Range& range = *block->range;
    const uint64_t begin = range.base + round_up(block->address - range.base, range.page);
    const uint64_t block_end = block->address + block->size;
    const uint64_t end = range.base + (block_end - range.base) / range.page * range.page;
    if (begin >= end) return;
    Pool& pool = *block->pool;
    pool.free.erase(block);
    if (begin > block->address) enter(cut_before(block, begin - block->address));
    if (block_end > end) enter(cut_behind(block, block_end - end));
    block->mapped = false;
    note_segment(begin, end - begin, false);
    device_.give_bytes(end - begin);
    merge(block, block->previous);
    merge(block, block->next);
    pool.unmapped.insert(block);
  }
  // Nothing of the range is mapped any more.
  void drop_range(Block* block) {
    block->pool->unmapped.erase(block);
    segments_.erase(block->address);
    std::erase_if(ranges_, [&](const auto& range) { return range.get() == block->range; });
    drop_block(block);
  }

  Block* new_block(uint64_t address, uint64_t size, uint64_t stream, Pool* pool) {
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
  // Further blocks of the same segment, directly before a block or behind it.
  Block* cut_before(Block* block, uint64_t size) {
    Block* front = piece_of(block, block->address, size);
    set_previous(front, block->previous);
    set_next(front, block);
    block->address += size;
    block->size -= size;
    return front;
  }
  Block* cut_behind(Block* block, uint64_t size) {
    block->size -= size;
    Block* rest = piece_of(block, block->address + block->size, size);
    set_next(rest, block->next);
    set_next(block, rest);
    return rest;
  }
  Block* piece_of(const Block* block, uint64_t address, uint64_t size) {
    Block* piece = new_block(address, size, block->stream, block->pool);
    piece->range = block->range;
    piece->age = block->age;
    return piece;
  }
  uint64_t next_age() { return options_.ties_by_address ? 0 : ++segments_ever_; }
  void drop_block(Block* block) { spare_.push_back(block); }

  const dtr_fragment_options options_;  // with the defaults in place of zeros

  Device device_;
  Pool small_{true, {}, {}};
  Pool large_{false, {}, {}};
  uint64_t used_ = 0;
  uint64_t segments_ever_ = 0;
  std::vector<Block*> live_;             // by id
  std::map<uint64_t, Block*> segments_;  // first blocks, by address
  std::vector<std::unique_ptr<Range>> ranges_;
  uint64_t next_range_;
  std::deque<Block> nodes_;
  std::vector<Block*> spare_;
};

}  // namespace

std::unique_ptr<Model> make_caching(const dtr_fragment_options& options, uint32_t count) {
  check(options);
  return std::make_unique<CachingModel>(options, count);
}

}  // namespace dtr::fragment
