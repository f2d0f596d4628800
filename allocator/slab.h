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
        bool by_class)
      : begin_(begin),
        end_(end),
        slab_bytes_(slab_bytes),
        alignment_(alignment),
        small_(small_bytes),
        by_class_(by_class),
        classes_(small_bytes / alignment + 1) {}

  bool is_small(uint64_t size) const { return size <= small_; }
  // The size of the objects that serve a request.
  uint64_t round(uint64_t size) const {
    return by_class_ ? size_class(size, alignment_) : (size + alignment_ - 1) & ~(alignment_ - 1);
  }

  uint64_t slab_bytes() const { return slab_bytes_; }

  static constexpr uint64_t kNone = UINT64_MAX;
  // The offset of an object from a slab of the owner that has room, or kNone.
  uint64_t take(uint64_t requested, Owner owner) {
    List& home = list(round(requested), owner);
    Slab* slab = home.first;
    if (slab == nullptr) return kNone;
    uint32_t index = slab->free;
    if (index != UINT32_MAX)
      slab->free = slab->words[index];
    else
      index = slab->fresh++;
    slab->words[index] = static_cast<uint32_t>(requested);
    slab->used[index / 64] |= uint64_t{1} << (index % 64);
    if (slab->live++ == 0) --home.empty, --empty_;
    if (slab->live == slab->capacity) unlink(slab);
    return slab->offset_of(index);
  }
  // Makes a block of the region, allocated for block->owner, a slab for objects of this size.
  void add(Block* block, uint64_t requested) {
    uint64_t place = (block->offset - begin_) / slab_bytes_;
    // The region is filled from its low end: as many places as were ever used at once.
    if (place >= slabs_.size()) slabs_.resize(place + 1);
    auto slab = std::make_unique<Slab>();
    slab->block = block;
    slab->object_bytes = round(requested);
    slab->capacity = static_cast<uint32_t>(slab_bytes_ / slab->object_bytes);
    slab->words.resize(slab->capacity);
    slab->used.resize((slab->capacity + 63) / 64);
    link(slab.get());
    slabs_[place] = std::move(slab);
    ++list(slabs_[place].get()).empty;
    ++empty_;
  }

  // The slab and the object that contain an offset in the region; nullptr if there is none.
  Slab* find(uint64_t offset, uint32_t* index) const {
    if (offset < begin_ || offset >= end_) return nullptr;
    uint64_t place = (offset - begin_) / slab_bytes_;
    if (place >= slabs_.size() || slabs_[place] == nullptr) return nullptr;
    Slab* slab = slabs_[place].get();
    uint64_t object = (offset - slab->block->offset) / slab->object_bytes;
    if (object >= slab->capacity) return nullptr;  // in the rest that no object fills
    *index = static_cast<uint32_t>(object);
    return slab;
  }

  void release(Slab* slab, uint32_t index) {
    slab->used[index / 64] &= ~(uint64_t{1} << (index % 64));
    slab->words[index] = slab->free;
    slab->free = index;
    if (slab->live-- == slab->capacity) link(slab);
    if (slab->live == 0) ++list(slab).empty, ++empty_;
  }
  // True if the slab is empty and another empty one serves the same requests.
  bool is_surplus(const Slab* slab) { return slab->live == 0 && list(slab).empty > 1; }
  // Takes an empty slab apart; its block is the caller's again.
  Block* remove(Slab* slab) {
    unlink(slab);
    --list(slab).empty;
    --empty_;
    Block* block = slab->block;
    slabs_[(block->offset - begin_) / slab_bytes_].reset();
    return block;
  }

  uint64_t empty() const { return empty_; }
  const std::vector<std::unique_ptr<Slab>>& slabs() const { return slabs_; }

  // Empty if all rules hold, else the broken one.
  std::string check() const {
    uint64_t empty = 0, with_room = 0, listed = 0;
    for (const auto& slab : slabs_) {
      if (slab == nullptr) continue;
      std::string where = " in the slab at offset " + std::to_string(slab->block->offset);
      uint32_t used = 0, free = 0;
      for (uint32_t i = 0; i < slab->capacity; ++i) {
        if (!slab->is_used(i)) continue;
        ++used;
        if (i >= slab->fresh) return "L1: an object beyond the fresh mark is used" + where;
      }
      if (used != slab->live || slab->fresh > slab->capacity) return "L1: wrong counts" + where;
      for (uint32_t i = slab->free; i != UINT32_MAX; i = slab->words[i])
        if (i >= slab->fresh || slab->is_used(i) || ++free > slab->fresh)
          return "L2: the free list is broken" + where;
      if (used + free != slab->fresh) return "L2: objects are lost" + where;
      empty += slab->live == 0;
      with_room += slab->live < slab->capacity;
    }
    for (uint64_t i = 0; i < lists_.size(); ++i) {
      const Slab* previous = nullptr;
      uint32_t empty_here = 0;
      for (const Slab* slab = lists_[i].first; slab != nullptr; slab = slab->next) {
        uint64_t home = slab->block->owner * classes_ + slab->object_bytes / alignment_;
        if (slab->previous != previous || slab->live == slab->capacity || home != i)
          return "L3: a slab is in the wrong list";
        previous = slab;
        empty_here += slab->live == 0;
        ++listed;
      }
      if (empty_here != lists_[i].empty) return "L4: empty slabs are miscounted in a list";
    }
    if (listed != with_room) return "L3: a slab with room is not listed";
    if (empty != empty_) return "L4: empty slabs are miscounted";
    return "";
  }

 private:
  friend struct Corruptor;  // tests/allocator/corrupt_heap.cpp

  // The slabs of one size and owner that have room, and how many of them are empty.
  struct List {
    Slab* first = nullptr;
    uint32_t empty = 0;
  };

  List& list(uint64_t object_bytes, Owner owner) {
    if (lists_.size() < (owner + 1) * classes_) lists_.resize((owner + 1) * classes_);
    return lists_[owner * classes_ + object_bytes / alignment_];
  }
  List& list(const Slab* slab) { return list(slab->object_bytes, slab->block->owner); }
  void link(Slab* slab) {
    List& home = list(slab);
    slab->previous = nullptr;
    slab->next = home.first;
    if (home.first != nullptr) home.first->previous = slab;
    home.first = slab;
  }
  void unlink(Slab* slab) {
    (slab->previous != nullptr ? slab->previous->next : list(slab).first) = slab->next;
    if (slab->next != nullptr) slab->next->previous = slab->previous;
  }

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
