// caching.h: a model of PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp).
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
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "device.h"
#include "model.h"

namespace dtr::fragment {

class CachingModel final : public Model {
 public:
  CachingModel(const dtr_fragment_options& options, uint32_t count);

  uint64_t allocate(uint32_t id, uint64_t size, uint64_t stream) override;
  void free(uint32_t id) override;
  uint64_t reserved_bytes() const override { return device_.held_bytes(); }
  uint64_t used_bytes() const override { return used_; }
  std::vector<dtr_fragment_block> blocks() override;

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
      if (a->stream != b->stream) return a->stream < b->stream;
      if (a->size != b->size) return a->size < b->size;
      if (a->age != b->age) return a->age < b->age;
      return a->address < b->address;
    }
  };
  struct ByAddress {
    bool operator()(const Block* a, const Block* b) const {
      if (a->stream != b->stream) return a->stream < b->stream;
      return a->address < b->address;
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

  uint64_t rounded(uint64_t size) const;
  uint64_t segment_bytes(uint64_t size) const;
  bool may_split(const Block* block, uint64_t size) const;
  Block* find_free(Pool& pool, uint64_t size, uint64_t stream);
  Block* new_segment(Pool& pool, uint64_t size, uint64_t stream);
  Block* take_front(Block* block, uint64_t size);
  void enter(Block* block);
  void merge(Block* block, Block* neighbor);
  void set_previous(Block* block, Block* previous);
  void set_next(Block* block, Block* next);
  bool give_back_oversize(Pool& pool, uint64_t size, uint64_t stream);
  void give_back_cached(Pool& pool);
  void give_back(Block* block);
  void collect();

  // caching_expandable.cpp
  Block* expand(Pool& pool, uint64_t size, uint64_t stream);
  Block* find_expandable(Pool& pool, uint64_t size, uint64_t stream);
  bool map(Block* block, uint64_t size);
  void unmap(Block* block);
  void drop_range(Block* block);

  Block* new_block(uint64_t address, uint64_t size, uint64_t stream, Pool* pool);
  // Further blocks of the same segment, directly before a block or behind it.
  Block* cut_before(Block* block, uint64_t size);
  Block* cut_behind(Block* block, uint64_t size);
  Block* piece_of(const Block* block, uint64_t address, uint64_t size);
  uint64_t next_age() { return options_.ties_by_address ? 0 : ++segments_ever_; }
  void drop_block(Block* block) { spare_.push_back(block); }

  const dtr_fragment_options options_;  // with the defaults in place of zeros

  Device device_;
  Pool small_{true, {}, {}};
  Pool large_{false, {}, {}};
  uint64_t used_ = 0;
  uint64_t segments_ever_ = 0;
  std::vector<Block*> live_;             // by id
  std::map<uint64_t, Block*> segments_;  // first blocks, by address; not expandable ones
  std::vector<std::unique_ptr<Range>> ranges_;
  std::map<uint64_t, Block*> range_blocks_;  // any block of each range, by its base
  uint64_t next_range_;
  std::deque<Block> nodes_;
  std::vector<Block*> spare_;
};

}  // namespace dtr::fragment
