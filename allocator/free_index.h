// The free blocks of one owner, by (size, offset): finds the best fit.
//
// Blocks are binned by size, 32 bins for each power of two. Bins are in the order of size, so the
// smallest block that suffices is in the request's own bin or is the first of the next bin that
// has any. A bin's blocks are in leaves, small arrays beside the blocks: a search touches a few
// lines and no block but the one it finds. Inside a leaf there is no order, as it is read as a
// whole; a block knows its slot, so that taking it out reads nothing else. When more holes than one
// leaf holds are of about one size, the bin has several leaves, each for a range of keys.
//
// A key holds what a bin leaves open of the size, and the offset: no two blocks share one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "block.h"
#include "not_copied.h"

namespace dtr {

// The size makes three cache lines.
struct alignas(64) FreeLeaf {
  static constexpr uint32_t kSlots = 14;
  static constexpr uint32_t kFull = (1 << kSlots) - 1;
  static constexpr uint64_t kNoKey = UINT64_MAX;

  uint16_t used = 0;    // a bit per slot
  uint16_t branch = 0;  // of the first leaf of a bin that has several: which branch they are
  uint32_t blocks[kSlots];
  uint64_t keys[kSlots];  // kNoKey in unused slots
};

static_assert(sizeof(FreeLeaf) == 192, "three cache lines");

// The leaves of all owners of a heap. None is empty, so that there are as many as free blocks at
// the most: making one does not fail.
class FreeLeaves : NotCopied {
 public:
  explicit FreeLeaves(BlockNodes& nodes) : leaves_(nodes.capacity(), AddressRange::Kind::kInParts) {
    nodes.grow_with(&leaves_, sizeof(FreeLeaf));
  }

  FreeLeaf& at(uint32_t number) { return leaves_[number]; }
  const FreeLeaf& at(uint32_t number) const { return leaves_[number]; }

  // Its number, which is not 0. All slots are unused.
  uint32_t make() {
    const uint32_t number = spare_;
    if (number == 0) return fresh();
    spare_ = at(number).blocks[0];
    return number;
  }
  void drop(uint32_t number) {
    at(number).branch = 0;
    at(number).blocks[0] = spare_;
    spare_ = number;
  }

 private:
  uint32_t fresh();

  LazyArray<FreeLeaf> leaves_;
  uint32_t made_ = 1;
  uint32_t spare_ = 0;
};

class FreeIndex {
 public:
  // Of blocks in [begin, end); sizes, and offsets from begin, are multiples of grain.
  // (end - begin) / grain is at most 2^36. Keys are exact for blocks below 2^33 grains (2 TiB,
  // by 256 bytes); larger ones of one bin may be out of order, and nobody asks for one.
  FreeIndex(BlockNodes& nodes, FreeLeaves& leaves, uint64_t begin, uint64_t end, uint64_t grain);

  // After prepare(), which may throw std::bad_alloc, having changed nothing, two calls of insert()
  // do not fail.
  void prepare() {
    if (is_tight_) make_room();
  }

  void insert(Block* block) {
    const Place at = place_of(block);
    uint32_t number = bins_[at.bin];
    if (number == 0) number = first_leaf(at.bin);
    if (leaves_.at(number).branch != 0) number = leaf_in(leaves_.at(number).branch, at.key);
    if (leaves_.at(number).used == FreeLeaf::kFull) number = split(at.bin, at.key, number);
    put(number, at.key, block);
  }

  void erase(const Block* block) {
    const uint32_t number = block->place >> kSlotBits, slot = block->place & kSlotMask;
    FreeLeaf& leaf = leaves_.at(number);
    leaf.keys[slot] = FreeLeaf::kNoKey;
    leaf.used = static_cast<uint16_t>(leaf.used & ~(1U << slot));
    if (leaf.used == 0) drop(place_of(block), number);
  }

  // The first block in the order (size, offset) that is not below the given key, or nullptr.
  // Sizes that are no multiples of the grain are rounded up; offset 0 is the first there is.
  Block* at_least(uint64_t size, uint64_t offset = 0) const;
  // The block after this one in that order, or nullptr.
  Block* after(const Block* block) const { return at_least(block->size, block->offset + unit()); }
  Block* largest() const;  // the last in that order, or nullptr
  // Calls visit(block) for each, in no order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (int bin = next_bin(0); bin >= 0; bin = next_bin(bin + 1)) {
      const FreeLeaf& first = leaves_.at(bins_[bin]);
      if (first.branch == 0)
        visit_leaf(first, visit);
      else
        for (const uint32_t leaf : branches_[first.branch].leaves)
          visit_leaf(leaves_.at(leaf), visit);
    }
  }

  // The number of blocks, after checking order and bins; `broken` says what is wrong.
  uint64_t check(std::string* broken) const;

 private:
  static constexpr int kBinBits = 5;  // bins for each power of two, as a power of two
  static constexpr int kBins = 32 << kBinBits;
  static constexpr int kWords = kBins / 64;
  static constexpr int kSlotBits = 4;  // of Block::place; above them are the leaf's
  static constexpr uint32_t kSlotMask = (1 << kSlotBits) - 1;

  // The leaves of one bin, by their keys.
  struct Branch {
    std::vector<uint64_t> lows;  // the first key that belongs to a leaf; the first one's is 0
    std::vector<uint32_t> leaves;
  };
  struct Place {
    int bin;
    uint64_t key;
  };

  uint64_t unit() const { return uint64_t{1} << shift_; }
  // Sizes below 32 units have a bin each.
  Place place_of(uint64_t units, uint64_t offset) const {
    const uint64_t low = (offset - begin_) >> shift_;
    const int log = 63 - __builtin_clzll(units | 1 << kBinBits);
    const int finer = log - kBinBits;  // bits below those of the bin
    const int bin = static_cast<int>(units >> finer) + (finer << kBinBits);
    return {bin, (units & ((uint64_t{1} << finer) - 1)) << offset_bits_ | low};
  }
  Place place_of(const Block* block) const {
    return place_of(block->size >> shift_, block->offset);
  }

  void put(uint32_t number, uint64_t key, Block* block) {
    FreeLeaf& leaf = leaves_.at(number);
    const auto slot = static_cast<uint32_t>(__builtin_ctz(~leaf.used));
    leaf.keys[slot] = key;
    leaf.blocks[slot] = nodes_.number(block);
    leaf.used = static_cast<uint16_t>(leaf.used | 1U << slot);
    block->place = number << kSlotBits | slot;
  }

  // Which of a branch's leaves the key belongs to.
  static size_t index_in(const Branch& branch, uint64_t key) {
    size_t index = 0;
    for (size_t left = branch.lows.size(); left > 1; left -= left / 2) {
      // As arithmetic: a branch here would be taken as often as not.
      index += left / 2 * static_cast<size_t>(branch.lows[index + left / 2] <= key);
    }
    return index;
  }
  uint32_t leaf_in(uint16_t branch, uint64_t key) const {
    const Branch& leaves = branches_[branch];
    return leaves.leaves[index_in(leaves, key)];
  }

  int next_bin(int bin) const;  // the first used bin from this one on, or -1
  Block* first_in(int bin) const;
  // The block of the least key from this one on; nullptr if none.
  Block* least_from(const FreeLeaf& leaf, uint64_t key) const;
  template <typename Visit>
  void visit_leaf(const FreeLeaf& leaf, Visit&& visit) const {
    for (uint32_t used = leaf.used; used != 0; used &= used - 1)
      visit(nodes_.at(leaf.blocks[__builtin_ctz(used)]));
  }
  static bool has_room(const Branch& branch) {
    return branch.lows.size() + 2 <= std::min(branch.lows.capacity(), branch.leaves.capacity());
  }
  uint32_t first_leaf(int bin);
  uint32_t split(int bin, uint64_t key, uint32_t full);
  void drop(const Place& at, uint32_t number);
  void make_room();

  BlockNodes& nodes_;
  FreeLeaves& leaves_;
  uint64_t begin_;
  int shift_;
  int offset_bits_;
  std::array<uint32_t, kBins> bins_{};    // the first leaf of each; 0: it has no blocks
  std::array<uint64_t, kWords> used_{};   // a bit per bin: it has blocks
  uint64_t used_words_ = 0;               // a bit per word of used_
  std::vector<Branch> branches_;          // by number; those of no bin have no leaves
  std::vector<uint16_t> spare_branches_;  // their numbers
  bool is_tight_ = true;                  // two calls of insert() might have to allocate
};

}  // namespace dtr
