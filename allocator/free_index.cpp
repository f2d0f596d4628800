#include "free_index.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace dtr {

FreeIndex::FreeIndex(BlockNodes& nodes, uint64_t begin, uint64_t end, uint64_t grain)
    : nodes_(nodes),
      begin_(begin),
      shift_(__builtin_ctzll(grain)),
      offset_bits_(64 - __builtin_clzll(((end - begin) >> shift_) | 1)) {
  if ((end - begin) >> shift_ > uint64_t{1} << 35) {
    throw InvalidArgument("a heap of " + size_text(end - begin) + " with a grain of " +
                          size_text(grain) + "; allowed: at most 2^35 grains");
  }
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

int FreeIndex::previous_bin(int bin) const {
  if (bin < 0) return -1;
  int word = bin / 64;
  uint64_t bits = used_[word] & (~uint64_t{0} >> (63 - bin % 64));
  if (bits == 0) {
    uint64_t words = used_words_ & ~(~uint64_t{0} << word);
    if (words == 0) return -1;
    word = 63 - __builtin_clzll(words);
    bits = used_[word];
  }
  return word * 64 + 63 - __builtin_clzll(bits);
}

uint32_t FreeIndex::least_from(const Leaf* leaf, uint64_t key) {
  uint32_t found = leaf->count;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < leaf->count; ++i) {
    const bool better = leaf->keys[i] >= key && leaf->keys[i] <= least;
    found = better ? i : found;
    least = better ? leaf->keys[i] : least;
  }
  return found;
}

uint32_t FreeIndex::greatest_below(const Leaf* leaf, uint64_t key) {
  uint32_t found = leaf->count;
  uint64_t greatest = 0;
  for (uint32_t i = 0; i < leaf->count; ++i) {
    const bool better = leaf->keys[i] < key && leaf->keys[i] >= greatest;
    found = better ? i : found;
    greatest = better ? leaf->keys[i] : greatest;
  }
  return found;
}

// The leaf of a bin where the key belongs, and its number: 0 is the first one's.
FreeIndex::Leaf* FreeIndex::leaf_for(int bin, uint64_t key, size_t* number) const {
  Leaf* first = bins_[bin].get();
  *number = 0;
  if (first->others.empty()) return first;
  const auto above =
      std::partition_point(first->others.begin(), first->others.end(),
                           [&](const std::unique_ptr<Leaf>& leaf) { return leaf->low <= key; });
  *number = static_cast<size_t>(above - first->others.begin());
  return *number == 0 ? first : first->others[*number - 1].get();
}

void FreeIndex::make_room() {
  for (auto& spare : spares_) {
    if (spare != nullptr) continue;
    auto leaf = std::make_unique<Leaf>();
    leaf->others.reserve(1);
    spare = std::move(leaf);
  }
  if (tight_ != nullptr) tight_->reserve(2 * tight_->size());
  tight_ = nullptr;
}

std::unique_ptr<FreeIndex::Leaf> FreeIndex::spare() {
  return std::move(spares_[1] != nullptr ? spares_[1] : spares_[0]);
}

void FreeIndex::insert(Block* block) {
  const Place at = place_of(block);
  used_[at.bin / 64] |= uint64_t{1} << (at.bin % 64);
  used_words_ |= uint64_t{1} << (at.bin / 64);
  if (bins_[at.bin] == nullptr) bins_[at.bin] = spare();
  size_t number;
  Leaf* leaf = leaf_for(at.bin, at.key, &number);
  if (leaf->count == kLeafBlocks) {
    split(at.bin, number, leaf);
    leaf = leaf_for(at.bin, at.key, &number);
  }
  leaf->keys[leaf->count] = at.key;
  leaf->blocks[leaf->count++] = nodes_.number(block);
}

// The upper half of a full leaf becomes a leaf of its own.
void FreeIndex::split(int bin, size_t number, Leaf* leaf) {
  constexpr uint32_t kHalf = kLeafBlocks / 2;
  std::array<std::pair<uint64_t, uint32_t>, kLeafBlocks> all;
  for (uint32_t i = 0; i < kLeafBlocks; ++i) all[i] = {leaf->keys[i], leaf->blocks[i]};
  std::sort(all.begin(), all.end());
  std::unique_ptr<Leaf> upper = spare();
  for (uint32_t i = 0; i < kLeafBlocks; ++i) {
    Leaf* to = i < kHalf ? leaf : upper.get();
    to->keys[i % kHalf] = all[i].first;
    to->blocks[i % kHalf] = all[i].second;
  }
  leaf->count = upper->count = kHalf;
  upper->low = upper->keys[0];
  auto& others = bins_[bin]->others;
  others.insert(others.begin() + static_cast<ptrdiff_t>(number), std::move(upper));
  if (others.size() == others.capacity()) tight_ = &others;
}

void FreeIndex::erase(const Block* block) {
  const Place at = place_of(block);
  size_t number;
  Leaf* leaf = leaf_for(at.bin, at.key, &number);
  uint32_t i = 0;
  while (leaf->keys[i] != at.key) ++i;
  const uint32_t last = --leaf->count;
  leaf->keys[i] = leaf->keys[last];
  leaf->blocks[i] = leaf->blocks[last];
  if (last == 0) drop(at.bin, number);
}

// A leaf has become empty. A bin keeps its first one.
void FreeIndex::drop(int bin, size_t number) {
  Leaf* first = bins_[bin].get();
  auto& others = first->others;
  if (others.empty()) {
    used_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
    if (used_[bin / 64] == 0) used_words_ &= ~(uint64_t{1} << (bin / 64));
    return;
  }
  if (number == 0) {
    const Leaf* second = others.front().get();
    std::copy(second->keys, second->keys + second->count, first->keys);
    std::copy(second->blocks, second->blocks + second->count, first->blocks);
    first->count = second->count;
    number = 1;
  }
  auto at = others.begin() + static_cast<ptrdiff_t>(number - 1);
  (*at)->count = 0;
  for (auto& spare : spares_) {
    if (*at != nullptr && spare == nullptr) spare = std::move(*at);
  }
  others.erase(at);
  if (tight_ == &others) tight_ = nullptr;
}

Block* FreeIndex::at_least(uint64_t size, uint64_t offset) const {
  const uint64_t units = (size + unit() - 1) >> shift_;
  const Place at = place_of(units, std::max(offset, begin_));
  int bin = at.bin;
  if (bin < kBins && used_[bin / 64] >> (bin % 64) & 1) {
    size_t number;
    const Leaf* leaf = leaf_for(bin, at.key, &number);
    const uint32_t found = least_from(leaf, at.key);
    if (found < leaf->count) return nodes_.at(leaf->blocks[found]);
    const auto& others = bins_[bin]->others;
    if (number < others.size()) {
      leaf = others[number].get();
      return nodes_.at(leaf->blocks[least_from(leaf, 0)]);
    }
  }
  return first_in(next_bin(bin + 1));
}

Block* FreeIndex::before(const Block* block) const {
  const Place at = place_of(block);
  size_t number;
  const Leaf* leaf = leaf_for(at.bin, at.key, &number);
  const uint32_t found = greatest_below(leaf, at.key);
  if (found < leaf->count) return nodes_.at(leaf->blocks[found]);
  if (number == 0) return last_in(previous_bin(at.bin - 1));
  const auto& first = bins_[at.bin];
  leaf = number == 1 ? first.get() : first->others[number - 2].get();
  return nodes_.at(leaf->blocks[greatest_below(leaf, UINT64_MAX)]);
}

Block* FreeIndex::largest() const { return last_in(previous_bin(kBins - 1)); }

// nullptr of no bin.
Block* FreeIndex::first_in(int bin) const {
  if (bin < 0) return nullptr;
  const Leaf* leaf = bins_[bin].get();
  return nodes_.at(leaf->blocks[least_from(leaf, 0)]);
}

Block* FreeIndex::last_in(int bin) const {
  if (bin < 0) return nullptr;
  const Leaf* leaf = last_leaf(bins_[bin].get());
  return nodes_.at(leaf->blocks[greatest_below(leaf, UINT64_MAX)]);
}

uint64_t FreeIndex::check(std::string* broken) const {
  uint64_t blocks = 0;
  for (int bin = 0; bin < kBins; ++bin) {
    const Leaf* first = bins_[bin].get();
    const bool used = first != nullptr && first->count != 0;
    if ((used_[bin / 64] >> (bin % 64) & 1) != (used ? 1U : 0U)) {
      *broken = "a bin of a free index is marked wrongly";
    }
    if (first == nullptr) continue;
    for (size_t number = 0; number <= first->others.size(); ++number) {
      const Leaf* leaf = number == 0 ? first : first->others[number - 1].get();
      const uint64_t end = number < first->others.size() ? first->others[number]->low : UINT64_MAX;
      if (number > 0 && leaf->count == 0) *broken = "a leaf of a free index is empty";
      for (uint32_t i = 0; i < leaf->count; ++i) {
        const Place at = place_of(nodes_.at(leaf->blocks[i]));
        if (at.bin != bin || at.key != leaf->keys[i]) {
          *broken = "a free index holds a block under another size or offset";
        }
        if ((number > 0 && at.key < leaf->low) || at.key >= end) {
          *broken = "a block of a free index is in the wrong leaf";
        }
        ++blocks;
      }
    }
  }
  for (int word = 0; word < kWords; ++word) {
    if ((used_words_ >> word & 1) != (used_[word] != 0 ? 1U : 0U)) {
      *broken = "a word of bins of a free index is marked wrongly";
    }
  }
  return blocks;
}

}  // namespace dtr
