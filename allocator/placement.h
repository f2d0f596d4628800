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
#include "errors.h"
#include "grain.h"
#include "heap.h"
#include "size_class.h"

namespace dtr {

// As it is: the smallest hole that fits, of these the lowest.
class Placement {
 public:
  virtual ~Placement() = default;

  // The size of the block for a request, both multiples of the grain.
  virtual uint64_t round(uint64_t size) const { return size; }
  // Whether it needs Heap::keep_by_address.
  virtual bool by_address() const { return false; }

  // Of one owner's holes of at least `size` bytes: the one to be tried first, or nullptr. Here: by
  // (size, offset).
  virtual Block* first(Heap& heap, Owner owner, uint64_t size) const {
    return heap.best_fit(owner, size);
  }
  // Of two such holes of different owners: whether a comes before b.
  virtual bool before(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->offset < b->offset;
  }

  // Whether the block is cut off the high end of its hole.
  virtual bool at_high_end(int32_t) const { return false; }
};

// The lowest hole that fits.
class FirstFit final : public Placement {
 public:
  bool by_address() const override { return true; }
  Block* first(Heap& heap, Owner owner, uint64_t size) const override {
    return heap.lowest_fit(owner, size);
  }
  bool before(const Block* a, const Block* b) const override { return a->offset < b->offset; }
};

// The best fit; what is cheap to recompute is cut off its high end and everything else off its low
// end, so that neighbors are alike and what is evicted together lies together (Zhang et al., Coop,
// NeurIPS 2023).
class TwoEnded final : public Placement {
 public:
  bool at_high_end(int32_t hint) const override { return hint == DTR_HINT_CHEAP; }
};

// The best fit of sizes rounded to classes: a hole that a block left is one into which the next of
// its class fits exactly. Small ones share slabs (Pool). Costs up to an eighth of each block.
class SizeClasses final : public Placement {
 public:
  // Above it what rounding adds may not fit into Block::slack.
  static constexpr uint64_t kMostRounded = uint64_t{1} << 34;
  uint64_t round(uint64_t size) const override {
    return size > kMostRounded ? size : size_class(size, kGrain);
  }
};

// Throws InvalidArgument for a number that is no DTR_PLACE_... (dtr/pool.h).
inline std::unique_ptr<Placement> make_placement(int32_t kind) {
  switch (kind) {
    case DTR_PLACE_BEST_FIT:
      return std::make_unique<Placement>();
    case DTR_PLACE_FIRST_FIT:
      return std::make_unique<FirstFit>();
    case DTR_PLACE_TWO_ENDED:
      return std::make_unique<TwoEnded>();
    case DTR_PLACE_SIZE_CLASSES:
      return std::make_unique<SizeClasses>();
  }
  invalid("placement", kind, "0 (best fit), 1 (first fit), 2 (two-ended), 3 (size classes)");
}

}  // namespace dtr
