// Small objects: slabs, parts of chunks, each with objects of one size for one stream.
//
// Slabs live in a region of their own at the far end of the reservation, so that small objects
// never pin chunks among large blocks. The region is itself a Heap whose grain is the slab: a
// slab is a block of it. This class only carves those blocks up.
//
// Rules, checked by check():
//   L1  A slab's live objects are those marked used; live <= fresh <= capacity.
//   L2  Its free list holds the other objects below fresh, each once; objects from fresh on have
//       never been handed out.
//   L3  A slab is in the list of its size and owner if and only if it has room.
//   L4  empty() is the number of slabs without live objects.
//
// Everything is O(1). Objects are found by address: (offset - begin) / slab_bytes names the slab.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block.h"
#include "size_class.h"

namespace dtr {

struct Slab {
  Block* block = nullptr;  // of the region's heap
  uint64_t object_bytes = 0;
  uint32_t capacity = 0;
  uint32_t live = 0;
  uint32_t fresh = 0;
  uint32_t free = UINT32_MAX;  // head of the free list; UINT32_MAX ends it
  Slab* previous = nullptr;    // in the list of slabs with room
  Slab* next = nullptr;
  std::vector<uint32_t> words;  // of an object in use: bytes requested; of a free one: the next
  std::vector<uint64_t> used;   // a bit per object

  bool is_used(uint32_t index) const { return used[index / 64] >> (index % 64) & 1; }
  uint64_t offset_of(uint32_t index) const { return block->offset + index * object_bytes; }
};

class Slabs {
 public:
  Slabs(uint64_t begin, uint64_t end, uint64_t slab_bytes, uint64_t alignment, uint64_t small_bytes,
        bool by_class);

  bool is_small(uint64_t size) const { return size <= small_; }
  // The size of the objects that serve a request.
  uint64_t round(uint64_t size) const {
    return by_class_ ? size_class(size, alignment_) : (size + alignment_ - 1) & ~(alignment_ - 1);
  }

  uint64_t slab_bytes() const { return slab_bytes_; }

  static constexpr uint64_t kNone = UINT64_MAX;
  // The offset of an object from a slab of the owner that has room, or kNone.
  uint64_t take(uint64_t requested, Owner owner);
  // Makes a block of the region, allocated for block->owner, a slab for objects of this size.
  void add(Block* block, uint64_t requested);

  // The slab and the object that contain an offset in the region; nullptr if there is none.
  Slab* find(uint64_t offset, uint32_t* index) const;

  void release(Slab* slab, uint32_t index);
  // True if the slab is empty and another empty one serves the same requests.
  bool is_surplus(const Slab* slab) { return slab->live == 0 && list(slab).empty > 1; }
  // Takes an empty slab apart; its block is the caller's again.
  Block* remove(Slab* slab);

  uint64_t empty() const { return empty_; }
  const std::vector<std::unique_ptr<Slab>>& slabs() const { return slabs_; }

  // Empty if all rules hold, else the broken one.
  std::string check() const;

 private:
  friend struct Corruptor;  // tests/allocator/corrupt_heap.cpp

  // The slabs of one size and owner that have room, and how many of them are empty.
  struct List {
    Slab* first = nullptr;
    uint32_t empty = 0;
  };

  List& list(uint64_t object_bytes, Owner owner);
  List& list(const Slab* slab) { return list(slab->object_bytes, slab->block->owner); }
  void link(Slab* slab);
  void unlink(Slab* slab);

  uint64_t begin_;
  uint64_t end_;
  uint64_t slab_bytes_;
  uint64_t alignment_;  // a power of two
  uint64_t small_;
  bool by_class_;
  uint64_t classes_;
  std::vector<std::unique_ptr<Slab>> slabs_;  // by place in the region; nullptr: none there
  std::vector<List> lists_;                   // by owner and size
  uint64_t empty_ = 0;
};

}  // namespace dtr
