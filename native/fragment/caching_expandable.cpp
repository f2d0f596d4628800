// Expandable segments: address space first, pages under it as needed.
#include <algorithm>

#include "caching.h"

namespace dtr::fragment {

namespace {

constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kSmallPage = 2 * kMib;
constexpr uint64_t kLargePage = 20 * kMib;
constexpr uint64_t kUnlimitedDevice = uint64_t{1} << 42;

}  // namespace

// A free block of at least `size`, out of the pool's set, or nullptr.
CachingModel::Block* CachingModel::expand(Pool& pool, uint64_t size, uint64_t stream) {
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
CachingModel::Block* CachingModel::find_expandable(Pool& pool, uint64_t size, uint64_t stream) {
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
  range_blocks_[range->base] = block;
  return block;
}

// Maps whole pages under the front of an unmapped block, `size` bytes at least, and makes a free
// block of it. All or nothing.
bool CachingModel::map(Block* block, uint64_t size) {
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
void CachingModel::unmap(Block* block) {
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
void CachingModel::drop_range(Block* block) {
  block->pool->unmapped.erase(block);
  range_blocks_.erase(block->range->base);
  const auto found = std::find_if(ranges_.begin(), ranges_.end(),
                                  [&](const auto& range) { return range.get() == block->range; });
  ranges_.erase(found);
  drop_block(block);
}

}  // namespace dtr::fragment
