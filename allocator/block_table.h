// Blocks by the offset at which they begin: hashed to buckets of one cache line.
//
// A slot is one word: the block's number, and in the low bits a tag from its hash, so that a search
// compares the slots of a bucket all at once and looks at few other blocks. What does not fit into
// its bucket is in one of the next, and every bucket on the way counts it: a search goes on only
// where something went by.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "block.h"

namespace dtr {

class BlockTable {
 public:
  // Offsets are multiples of `unit`, a power of two.
  BlockTable(BlockNodes& nodes, uint64_t unit)
      : nodes_(nodes), unit_shift_(__builtin_ctzll(unit)) {}

  uint64_t count() const { return count_; }

  // The block that begins at the offset, or nullptr.
  Block* find(uint64_t offset) const {
    const uint64_t hash = hash_of(offset);
    for (uint64_t at = home_of(hash);; at = (at + 1) & mask()) {
      const Bucket& bucket = buckets_[at];
      for (uint32_t found = matching(bucket, kTagMask, tag_of(hash)); found != 0;
           found &= found - 1) {
        Block* block = nodes_.at(bucket.words[__builtin_ctz(found)] >> kTagBits);
        if (block->offset != offset) continue;
        if (at == home_of(hash)) last_ = {block, at, found & (~found + 1)};
        return block;
      }
      if (passed(bucket) == 0) return nullptr;
    }
  }

  // Makes room for a block, so that insert() cannot fail. May throw std::bad_alloc, having changed
  // nothing.
  void prepare() {
    if (count_ >= most_) grow();
  }
  void insert(const Block* block) {
    last_ = {};
    put(block);
    ++count_;
  }
  void erase(const Block* block) {
    --count_;
    if (last_.block == block) {
      clear(buckets_[last_.bucket], last_.slot);
      last_ = {};
      return;
    }
    last_ = {};
    const uint64_t hash = hash_of(block->offset);
    for (uint64_t at = home_of(hash);; at = (at + 1) & mask()) {
      Bucket& bucket = buckets_[at];
      const uint32_t found = matching(bucket, UINT32_MAX, slot_of(block, hash));
      if (found != 0) return clear(bucket, found);
      bucket.words[kSlots] -= kOnePassed;
    }
  }

 private:
  static constexpr int kTagBits = 7;  // beside the 25 of a block's number
  static constexpr uint32_t kTagMask = (1 << kTagBits) - 1;
  static constexpr uint32_t kSlots = 15;
  static constexpr uint32_t kFull = (1 << kSlots) - 1;
  static constexpr uint32_t kOnePassed = 1 << kSlots;

  // Words that are compared at once.
  using Four = uint32_t __attribute__((vector_size(16)));
  // By slot; of what is behind the slots, none.
  static constexpr Four kBits[] = {{1 << 0, 1 << 1, 1 << 2, 1 << 3},
                                   {1 << 4, 1 << 5, 1 << 6, 1 << 7},
                                   {1 << 8, 1 << 9, 1 << 10, 1 << 11},
                                   {1 << 12, 1 << 13, 1 << 14, 0}};

  // Behind the slots: a bit for each that is used, and how many blocks went by.
  struct alignas(64) Bucket {
    union {
      uint32_t words[kSlots + 1];
      Four fours[(kSlots + 1) / 4];
    };
  };

  // What find() found last in its own bucket; nothing once any block has come or gone.
  struct Last {
    const Block* block = nullptr;
    uint64_t bucket = 0;
    uint32_t slot = 0;  // a bit
  };

  uint64_t mask() const { return buckets_.size() - 1; }
  uint64_t hash_of(uint64_t offset) const {
    return (offset >> unit_shift_) * 0x9e3779b97f4a7c15ULL;
  }
  uint64_t home_of(uint64_t hash) const { return hash >> home_shift_; }
  // Not 0, as a slot's is that is not used.
  static uint32_t tag_of(uint64_t hash) { return (hash >> 24 & (kTagMask >> 1)) << 1 | 1; }
  uint32_t slot_of(const Block* block, uint64_t hash) const {
    return nodes_.number(block) << kTagBits | tag_of(hash);
  }
  static uint32_t passed(const Bucket& bucket) { return bucket.words[kSlots] >> kSlots; }
  // A bit for each slot whose word is the given one, as far as the mask goes.
  static uint32_t matching(const Bucket& bucket, uint32_t mask, uint32_t word) {
    Four found{};
    for (int i = 0; i < 4; ++i)
      found |= reinterpret_cast<Four>((bucket.fours[i] & mask) == word) & kBits[i];
    return found[0] | found[1] | found[2] | found[3];
  }
  static void clear(Bucket& bucket, uint32_t slot) {
    bucket.words[__builtin_ctz(slot)] = 0;
    bucket.words[kSlots] &= ~slot;
  }
  void put(const Block* block) {
    const uint64_t hash = hash_of(block->offset);
    uint64_t at = home_of(hash);
    for (; (buckets_[at].words[kSlots] & kFull) == kFull; at = (at + 1) & mask())
      buckets_[at].words[kSlots] += kOnePassed;
    Bucket& bucket = buckets_[at];
    const auto slot = static_cast<uint32_t>(__builtin_ctz(~bucket.words[kSlots]));
    bucket.words[slot] = slot_of(block, hash);
    bucket.words[kSlots] |= 1U << slot;
  }
  void grow() {
    std::vector<Bucket> before(2 * buckets_.size());
    std::swap(before, buckets_);
    --home_shift_;
    most_ *= 2;
    last_ = {};
    for (const Bucket& bucket : before)
      for (uint32_t used = bucket.words[kSlots] & kFull; used != 0; used &= used - 1)
        put(nodes_.at(bucket.words[__builtin_ctz(used)] >> kTagBits));
  }

  static constexpr int kFirstBits = 4;
  BlockNodes& nodes_;
  int unit_shift_;
  int home_shift_ = 64 - kFirstBits;
  uint64_t count_ = 0;
  uint64_t most_ = kSlots / 2 << kFirstBits;  // blocks in these buckets
  mutable Last last_;
  std::vector<Bucket> buckets_ = std::vector<Bucket>(uint64_t{1} << kFirstBits);
};

}  // namespace dtr
