// Where in the heap a request goes: one class for each policy, and the one place that knows them
// all. "Adding a placement policy" in the README says how to add one.
//
// A policy says how large a block is for a request, in which order holes are tried, and from which
// end of a hole the block is cut. It decides by sizes and addresses alone: whether there is memory
// behind a hole, and whose it is, is the pool's affair (pool_place.cpp).
#pragma once

#include <cstdint>
#include <memory>

#include "any_pool.h"
#include "heap.h"

namespace dtr {

class Placement {
 public:
  virtual ~Placement() = default;

  // The size of the block for a request, both multiples of the grain.
  virtual uint64_t round(uint64_t size) const { return size; }
  // Whether it needs Heap::keep_by_address.
  virtual bool by_address() const { return false; }

  // Of one owner's holes of at least `size` bytes: the one to be tried first, and the one after a
  // hole, or nullptr. Here: by (size, offset).
  virtual Block* first(Heap& heap, Owner owner, uint64_t size) const {
    return heap.best_fit(owner, size);
  }
  virtual Block* next(Heap& heap, const Block* hole, uint64_t) const { return heap.next_fit(hole); }
  // Of two such holes of different owners: whether a comes before b.
  virtual bool before(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->offset < b->offset;
  }

  // Whether the block is cut off the high end of its hole.
  virtual bool at_high_end(int32_t) const { return false; }
};

// Throws InvalidArgument for a number that is no DTR_PLACE_... (dtr/pool.h).
std::unique_ptr<Placement> make_placement(int32_t kind);

}  // namespace dtr
