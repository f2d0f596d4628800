// A block: one piece of the address range, free or not. The heap's nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "lazy_array.h"
#include "not_copied.h"

namespace dtr {

// Who may reuse a free block at once. 0: everybody. Otherwise the index of the stream that freed
// it, whose work up to the block's point may still be running (streams.h).
using Owner = uint32_t;
constexpr Owner kIdle = 0;
constexpr Owner kMostOwners = 1 << 16;

// The first three are numbered as in dtr/pool.h (DTR_BLOCK_...).
enum class BlockState : uint8_t {
  kFree,     // in its owner's free index
  kInUse,    // belongs to the caller
  kPending,  // given back by the caller, but other streams' recorded work may still use it
  kAbsent,   // addresses that nobody may have; of whole chunks
};

// Half a cache line: what a heap of thousands of blocks costs is the lines that it touches. So
// neighbors are named by their distance, and what is seldom needed is in a BlockDetail.
struct alignas(32) Block {
  uint64_t offset = 0;  // from the start of the reservation
  uint64_t size = 0;
  int32_t to_previous = 0;  // by address; in blocks from this one, 0: there is none
  int32_t to_next = 0;
  union {
    uint32_t slack = 0;  // of one that is not free: what is unused of size
    uint32_t place;      // of a free one: where in the free index it is
  };
  uint16_t owner = kIdle;
  BlockState state = BlockState::kFree;
  bool has_stream = false;  // of one that is not free: its stream is not 0

  uint64_t end() const { return offset + size; }
  uint64_t requested() const { return size - slack; }
  Block* previous() { return to_previous == 0 ? nullptr : this + to_previous; }
  Block* next() { return to_next == 0 ? nullptr : this + to_next; }
  const Block* previous() const { return to_previous == 0 ? nullptr : this + to_previous; }
  const Block* next() const { return to_next == 0 ? nullptr : this + to_next; }
};

static_assert(sizeof(Block) == 32, "two blocks are one cache line");

struct BlockDetail {
  // Of a free block with an owner:
  uint64_t point = 0;      // when that stream freed it
  Block* older = nullptr;  // among the free blocks of the same owner, by point
  Block* newer = nullptr;
  // Of one that is not free and has_stream: that it was allocated for.
  uint64_t stream = 0;
};

// The blocks of one heap, in one array, so that a number of 25 bits names one. Number 0 is none.
class BlockNodes : NotCopied {
 public:
  static constexpr uint64_t kMost = 1 << 25;

  explicit BlockNodes(uint64_t most_blocks)
      : capacity_(std::min(most_blocks + 1, kMost)),
        blocks_(capacity_, AddressRange::Kind::kInParts),
        details_(capacity_, AddressRange::Kind::kInParts) {}

  // An array in parts that may be used as far as there are blocks: it has element 0, and one more
  // for each block that was made. It lives as long.
  void grow_with(LazyBytes* array, uint64_t element_bytes) {
    beside_.emplace_back(array, element_bytes);
  }

  uint64_t capacity() const { return capacity_; }
  Block* at(uint32_t number) { return &blocks_[number]; }
  uint32_t number(const Block* block) const { return static_cast<uint32_t>(block - &blocks_[0]); }
  BlockDetail& detail(const Block* block) { return details_[number(block)]; }
  const BlockDetail& detail(const Block* block) const { return details_[number(block)]; }

  // The one dropped last, or a new one; std::bad_alloc if there are too many.
  Block* make() {
    Block* block = spare_;
    if (block != nullptr) {
      spare_ = block->next();
    } else {
      if (made_ == ready_) make_ready(1);
      block = at(made_++);
    }
    *block = Block{};
    return block;
  }
  // So that four calls of make() do not fail. May throw std::bad_alloc, having changed nothing.
  void prepare() {
    uint64_t lacking = 4;
    for (const Block* spare = spare_; spare != nullptr && lacking > 0; spare = spare->next())
      --lacking;
    if (made_ + lacking > ready_) make_ready(lacking);
  }
  void drop(Block* block) {
    block->to_next = spare_ == nullptr ? 0 : static_cast<int32_t>(spare_ - block);
    spare_ = block;
  }

 private:
  static constexpr uint64_t kMore = 4096;

  void make_ready(uint64_t count) {
    if (made_ + count > capacity_) throw std::bad_alloc();
    const uint64_t ready = std::min(made_ + kMore, capacity_);
    blocks_.reach(ready * sizeof(Block));
    details_.reach(ready * sizeof(BlockDetail));
    for (auto [array, bytes] : beside_) array->reach(ready * bytes);
    ready_ = ready;
  }

  uint64_t capacity_;
  LazyArray<Block> blocks_;
  LazyArray<BlockDetail> details_;
  std::vector<std::pair<LazyBytes*, uint64_t>> beside_;
  uint64_t ready_ = 1;  // numbers below it may be used
  uint32_t made_ = 1;
  Block* spare_ = nullptr;
};

}  // namespace dtr
