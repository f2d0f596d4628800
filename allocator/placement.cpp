#include "placement.h"

#include <string>

#include "errors.h"
#include "grain.h"
#include "size_class.h"

namespace dtr {

namespace {

// Above it what rounding adds may not fit into Block::slack.
constexpr uint64_t kMostRounded = uint64_t{1} << 34;

// The smallest hole that fits, of these the lowest.
class BestFit final : public Placement {};

// The lowest hole that fits.
class FirstFit final : public Placement {
 public:
  bool by_address() const override { return true; }
  Block* first(Heap& heap, Owner owner, uint64_t size) const override {
    return heap.lowest_fit(owner, size, heap.begin());
  }
  Block* next(Heap& heap, const Block* hole, uint64_t size) const override {
    return heap.lowest_fit(hole->owner, size, hole->end());
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
  uint64_t round(uint64_t size) const override {
    return size > kMostRounded ? size : size_class(size, kGrain);
  }
};

}  // namespace

std::unique_ptr<Placement> make_placement(int32_t kind) {
  switch (kind) {
    case DTR_PLACE_BEST_FIT:
      return std::make_unique<BestFit>();
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
