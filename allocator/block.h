// A block: one piece of the address range, free or not. The heap's nodes.
#pragma once

#include <cstdint>

namespace dtr {

// Who may reuse a free block at once. 0: everybody. Otherwise the index of the stream that freed
// it, whose work up to the block's point may still be running (streams.h).
using Owner = uint32_t;
constexpr Owner kIdle = 0;

enum class BlockState : uint8_t {
  kFree,     // in its owner's free index
  kInUse,    // belongs to the caller
  kPending,  // given back by the caller, but other streams' recorded work may still use it
};

// The first cache line is all that allocating, freeing, searching and merging read.
struct alignas(64) Block {
  uint64_t offset = 0;  // from the start of the reservation
  uint64_t size = 0;
  Block* previous = nullptr;  // by address
  Block* next = nullptr;
  union {
    struct {  // of a free block: in the free index
      Block* left;
      Block* right;
    };
    struct {               // of any other
      uint64_t requested;  // as asked for
      uint64_t stream;     // that it was allocated for
    };
  };
  uint32_t priority = 0;  // of the free index's treap
  Owner owner = kIdle;
  BlockState state = BlockState::kFree;

  // Of a free block with an owner:
  uint64_t point = 0;      // when that stream freed it
  Block* older = nullptr;  // among the free blocks of the same owner, by point
  Block* newer = nullptr;

  Block() : left(nullptr), right(nullptr) {}
  uint64_t end() const { return offset + size; }
};

}  // namespace dtr
