// The free blocks of one owner, by (size, offset): finds the best fit.
//
// Blocks are binned by size, 32 bins for each power of two, and each bin is a treap through
// the blocks themselves. Bins are in the order of size, so the smallest block that suffices is
// in the request's own bin or is the first of the next bin that has any. Bins keep the treaps
// shallow: a search touches a few nodes even among thousands of free blocks.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "block.h"

namespace dtr {

class FreeIndex {
 public:
  void insert(Block* block);
  void erase(Block* block);

  // The first block in the order (size, offset) that is not below the given key, or nullptr.
  Block* at_least(uint64_t size, uint64_t offset = 0) const;
  // The block after this one in that order, or nullptr.
  Block* after(const Block* block) const { return at_least(block->size, block->offset + 1); }
  // The last block below the key, or nullptr: below(UINT64_MAX) is the largest.
  Block* below(uint64_t size, uint64_t offset = 0) const;

  // The number of blocks, after checking order and bins; `broken` says what is wrong.
  uint64_t check(std::string* broken) const;

 private:
  static constexpr int kBinBits = 5;  // bins for each power of two, as a power of two
  static constexpr int kBins = 64 << kBinBits;

  static int bin_of(uint64_t size);
  int next_bin(int bin) const;      // the first used bin from this one on, or -1
  int previous_bin(int bin) const;  // the last used bin up to this one, or -1

  std::array<Block*, kBins> roots_{};
  std::array<uint64_t, kBins / 64> used_{};  // a bit per bin
  uint64_t used_words_ = 0;                  // a bit per word of used_
};

}  // namespace dtr
