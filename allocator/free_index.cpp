#include "free_index.h"

#include <utility>

#include "errors.h"

namespace dtr {

uint32_t FreeLeaves::fresh() {
  std::fill_n(at(made_).keys, FreeLeaf::kSlots, FreeLeaf::kNoKey);
  return made_++;
}

FreeIndex::FreeIndex(BlockNodes& nodes, FreeLeaves& leaves, uint64_t begin, uint64_t end,
                     uint64_t grain)
    : nodes_(nodes),
      leaves_(leaves),
      begin_(begin),
      shift_(__builtin_ctzll(grain)),
      offset_bits_(64 - __builtin_clzll(((end - begin) >> shift_) | 1)) {
  if ((end - begin) >> shift_ > uint64_t{1} << 36)
    throw InvalidArgument("a heap of " + size_text(end - begin) + " with a grain of " +
                          size_text(grain) + "; allowed: at most 2^36 grains");
}

int FreeIndex::next_bin(int bin) const {
  if (bin >= kBins) return -1;
  int word = bin / 64;
  uint64_t bits = used_[word] & (~uint64_t{0} << (bin % 64));
  if (bits == 0) {
    uint64_t words = used_words_ & (~uint64_t{0} << (word + 1));
    if (words == 0) return -1;
    word = __builtin_ctzll(words);
    bits = used_[word];
  }
  return word * 64 + __builtin_ctzll(bits);
}

// As keys wrap below the given one, what is sought is the least difference. Each half has a chain
// of its own, so that none is as long as the leaf; a branch for each key would be mispredicted.
Block* FreeIndex::least_from(const FreeLeaf& leaf, uint64_t key) const {
  constexpr uint32_t kHalf = FreeLeaf::kSlots / 2;
  const uint64_t none = FreeLeaf::kNoKey - key;
  uint64_t least = none, least_high = none;
  uint32_t found = 0, found_high = 0;
  for (uint32_t i = 0; i < kHalf; ++i) {
    const uint64_t above = leaf.keys[i] - key, above_high = leaf.keys[i + kHalf] - key;
    found = above < least ? i : found;
    least = above < least ? above : least;
    found_high = above_high < least_high ? i + kHalf : found_high;
    least_high = above_high < least_high ? above_high : least_high;
  }
  found = least_high < least ? found_high : found;
  least = least_high < least ? least_high : least;
  return least == none ? nullptr : nodes_.at(leaf.blocks[found]);
}

// Every branch has room for two more leaves, and two more branches can be made.
void FreeIndex::make_room() {
  while (spare_branches_.size() < 2) {
    // Number 0 is none.
    const size_t number = std::max<size_t>(branches_.size(), 1);
    spare_branches_.reserve(number + 1);
    branches_.resize(number + 1);
    spare_branches_.push_back(static_cast<uint16_t>(number));
  }
  for (Branch& branch : branches_) {
    if (has_room(branch)) continue;
    branch.lows.reserve(2 * branch.lows.size() + 4);
    branch.leaves.reserve(2 * branch.leaves.size() + 4);
  }
  is_tight_ = false;
}

// A bin gets its first block.
uint32_t FreeIndex::first_leaf(int bin) {
  used_[bin / 64] |= uint64_t{1} << (bin % 64);
  used_words_ |= uint64_t{1} << (bin / 64);
  return bins_[bin] = leaves_.make();
}

// The upper half of a full leaf becomes a leaf of its own. Returns where the key belongs then.
uint32_t FreeIndex::split(int bin, uint64_t key, uint32_t full) {
  uint16_t& number = leaves_.at(bins_[bin]).branch;
  if (number == 0) {
    number = spare_branches_.back();
    spare_branches_.pop_back();
    branches_[number].lows.push_back(0);
    branches_[number].leaves.push_back(full);
  }
  Branch& branch = branches_[number];
  std::array<std::pair<uint64_t, uint32_t>, FreeLeaf::kSlots> all;
  FreeLeaf& lower = leaves_.at(full);
  for (uint32_t i = 0; i < FreeLeaf::kSlots; ++i) all[i] = {lower.keys[i], lower.blocks[i]};
  std::ranges::sort(all);
  std::fill_n(lower.keys, FreeLeaf::kSlots, FreeLeaf::kNoKey);
  lower.used = 0;
  const uint32_t upper = leaves_.make();
  constexpr uint32_t kHalf = FreeLeaf::kSlots / 2;
  for (uint32_t i = 0; i < FreeLeaf::kSlots; ++i)
    put(i < kHalf ? full : upper, all[i].first, nodes_.at(all[i].second));
  const size_t index = index_in(branch, key) + 1;
  branch.lows.insert(branch.lows.begin() + static_cast<ptrdiff_t>(index), all[kHalf].first);
  branch.leaves.insert(branch.leaves.begin() + static_cast<ptrdiff_t>(index), upper);
  is_tight_ |= spare_branches_.size() < 2 || !has_room(branch);
  return key < all[kHalf].first ? full : upper;
}

// A leaf has become empty.
void FreeIndex::drop(const Place& at, uint32_t number) {
  const uint16_t branch_number = leaves_.at(bins_[at.bin]).branch;
  leaves_.drop(number);
  if (branch_number == 0) {
    bins_[at.bin] = 0;
    used_[at.bin / 64] &= ~(uint64_t{1} << (at.bin % 64));
    if (used_[at.bin / 64] == 0) used_words_ &= ~(uint64_t{1} << (at.bin / 64));
    return;
  }
  Branch& branch = branches_[branch_number];
  const auto index = static_cast<ptrdiff_t>(index_in(branch, at.key));
  branch.lows.erase(branch.lows.begin() + index);
  branch.leaves.erase(branch.leaves.begin() + index);
  branch.lows.front() = 0;
  const bool several = branch.leaves.size() > 1;
  bins_[at.bin] = branch.leaves.front();
  leaves_.at(bins_[at.bin]).branch = several ? branch_number : 0;
  if (several) return;
  branch.lows.clear();
  branch.leaves.clear();
  spare_branches_.push_back(branch_number);
}

Block* FreeIndex::at_least(uint64_t size, uint64_t offset) const {
  const uint64_t units = (size + unit() - 1) >> shift_;
  const Place at = place_of(units, std::max(offset, begin_));
  if (at.bin < kBins && bins_[at.bin] != 0) {
    const FreeLeaf& first = leaves_.at(bins_[at.bin]);
    if (first.branch == 0) {
      if (Block* block = least_from(first, at.key)) return block;
    } else {
      const Branch& branch = branches_[first.branch];
      const size_t index = index_in(branch, at.key);
      if (Block* block = least_from(leaves_.at(branch.leaves[index]), at.key)) return block;
      if (index + 1 < branch.leaves.size())
        return least_from(leaves_.at(branch.leaves[index + 1]), 0);
    }
  }
  return first_in(next_bin(at.bin + 1));
}

Block* FreeIndex::largest() const {
  if (used_words_ == 0) return nullptr;
  const int word = 63 - __builtin_clzll(used_words_);
  const uint32_t first = bins_[word * 64 + 63 - __builtin_clzll(used_[word])];
  const uint16_t branch = leaves_.at(first).branch;
  const FreeLeaf& last = leaves_.at(branch == 0 ? first : branches_[branch].leaves.back());
  uint32_t found = 0;
  uint64_t greatest = 0;
  for (uint32_t i = 0; i < FreeLeaf::kSlots; ++i) {
    if (last.keys[i] == FreeLeaf::kNoKey || last.keys[i] < greatest) continue;
    found = i;
    greatest = last.keys[i];
  }
  return nodes_.at(last.blocks[found]);
}

// nullptr of no bin.
Block* FreeIndex::first_in(int bin) const {
  return bin < 0 ? nullptr : least_from(leaves_.at(bins_[bin]), 0);
}

uint64_t FreeIndex::check(std::string* broken) const {
  uint64_t blocks = 0;
  for (int bin = 0; bin < kBins; ++bin) {
    if ((used_[bin / 64] >> (bin % 64) & 1) != (bins_[bin] != 0 ? 1U : 0U))
      *broken = "a bin of a free index is marked wrongly";
    if (bins_[bin] == 0) continue;
    Branch branch{{0}, {bins_[bin]}};
    if (const uint16_t number = leaves_.at(bins_[bin]).branch; number != 0) {
      branch = branches_[number];
      if (branch.leaves.size() < 2 || branch.leaves.size() != branch.lows.size() ||
          branch.leaves[0] != bins_[bin] || branch.lows[0] != 0) {
        *broken = "a branch of a free index is wrong";
        continue;
      }
    }
    for (size_t index = 0; index < branch.leaves.size(); ++index) {
      const FreeLeaf& leaf = leaves_.at(branch.leaves[index]);
      const uint64_t end =
          index + 1 < branch.lows.size() ? branch.lows[index + 1] : FreeLeaf::kNoKey;
      if (leaf.used == 0) *broken = "a leaf of a free index is empty";
      if (index > 0 && leaf.branch != 0) *broken = "a leaf of a free index has a branch of its own";
      for (uint32_t slot = 0; slot < FreeLeaf::kSlots; ++slot) {
        if ((leaf.used >> slot & 1) == 0) {
          if (leaf.keys[slot] != FreeLeaf::kNoKey) *broken = "an unused slot has a key";
          continue;
        }
        const Block* block = nodes_.at(leaf.blocks[slot]);
        const Place at = place_of(block);
        if (at.bin != bin || at.key != leaf.keys[slot])
          *broken = "a free index holds a block under another size or offset";
        if (at.key < branch.lows[index] || at.key >= end)
          *broken = "a block of a free index is in the wrong leaf";
        if (block->place != (branch.leaves[index] << kSlotBits | slot))
          *broken = "a free block is said to be in another slot";
        ++blocks;
      }
    }
  }
  for (int word = 0; word < kWords; ++word)
    if ((used_words_ >> word & 1) != (used_[word] != 0 ? 1U : 0U))
      *broken = "a word of bins of a free index is marked wrongly";
  return blocks;
}

}  // namespace dtr
