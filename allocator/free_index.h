// The free blocks of one owner, by (size, offset): finds the best fit.
//
// Blocks are binned by size, 32 bins for each power of two. Bins are in the order of size, so the
// smallest block that suffices is in the request's own bin or is the first of the next bin that
// has any. A bin is an array beside the blocks: a search touches a few lines and no block but the
// one it finds. When more holes than one leaf holds are of about one size, the bin has several
// leaves, each for a range of keys; inside a leaf there is no order, as it is read as a whole.
//
// A key holds what a bin leaves open of the size, and the offset: no two blocks share one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block.h"

namespace dtr {

class FreeIndex {
 public:
  // Of blocks in [begin, end); sizes, and offsets from begin, are multiples of grain.
  // (end - begin) / grain is at most 2^35, so that keys are exact.
  FreeIndex(BlockNodes& nodes, uint64_t begin, uint64_t end, uint64_t grain);

  // After prepare(), which may throw std::bad_alloc, having changed nothing, two calls of insert()
  // do not fail.
  void prepare() {
    if (spares_[1] == nullptr || tight_ != nullptr) make_room();
  }
  void insert(Block* block);
  void erase(const Block* block);

  // The first block in the order (size, offset) that is not below the given key, or nullptr.
  // Sizes that are no multiples of the grain are rounded up; offset 0 is the first there is.
  Block* at_least(uint64_t size, uint64_t offset = 0) const;
  // The block after this one in that order, or nullptr.
  Block* after(const Block* block) const { return at_least(block->size, block->offset + unit()); }
  // The block before one of them in that order, or nullptr; the last of all.
  Block* before(const Block* block) const;
  Block* largest() const;

  // The number of blocks, after checking order and bins; `broken` says what is wrong.
  uint64_t check(std::string* broken) const;

 private:
  static constexpr int kBinBits = 5;  // bins for each power of two, as a power of two
  static constexpr int kBins = 32 << kBinBits;
  static constexpr int kWords = kBins / 64;
  static constexpr uint32_t kLeafBlocks = 32;

  struct alignas(64) Leaf {
    uint64_t keys[kLeafBlocks];
    uint32_t blocks[kLeafBlocks];  // their numbers
    uint32_t count = 0;
    uint64_t low = 0;  // the first key that belongs here
    // Of a bin's first leaf: the others, in order; none of them is empty.
    std::vector<std::unique_ptr<Leaf>> others;
  };
  struct Place {
    int bin;
    uint64_t key;
  };

  uint64_t unit() const { return uint64_t{1} << shift_; }
  // Sizes below 32 units have a bin each.
  Place place_of(uint64_t units, uint64_t offset) const {
    const uint64_t low = (offset - begin_) >> shift_;
    if (units >> kBinBits == 0) return {static_cast<int>(units), low};
    const int finer = 63 - __builtin_clzll(units) - kBinBits;  // bits below those of the bin
    const int bin = static_cast<int>(units >> finer) + (finer << kBinBits);
    return {bin, (units & ((uint64_t{1} << finer) - 1)) << offset_bits_ | low};
  }
  Place place_of(const Block* block) const {
    return place_of(block->size >> shift_, block->offset);
  }

  int next_bin(int bin) const;      // the first used bin from this one on, or -1
  int previous_bin(int bin) const;  // the last used bin up to this one, or -1
  Block* first_in(int bin) const;
  Block* last_in(int bin) const;
  static const Leaf* last_leaf(const Leaf* first) {
    return first->others.empty() ? first : first->others.back().get();
  }
  // The index of the least key from this one on, or of the greatest below it; count if none.
  static uint32_t least_from(const Leaf* leaf, uint64_t key);
  static uint32_t greatest_below(const Leaf* leaf, uint64_t key);
  Leaf* leaf_for(int bin, uint64_t key, size_t* number) const;
  void split(int bin, size_t number, Leaf* leaf);
  void drop(int bin, size_t number);
  void make_room();
  std::unique_ptr<Leaf> spare();

  BlockNodes& nodes_;
  uint64_t begin_;
  int shift_;
  int offset_bits_;
  std::array<std::unique_ptr<Leaf>, kBins> bins_;        // nullptr: never used
  std::array<uint64_t, kWords> used_{};                  // a bit per bin: it has blocks
  uint64_t used_words_ = 0;                              // a bit per word of used_
  std::array<std::unique_ptr<Leaf>, 2> spares_;          // the second only with the first
  std::vector<std::unique_ptr<Leaf>>* tight_ = nullptr;  // has no room for one more
};

}  // namespace dtr
