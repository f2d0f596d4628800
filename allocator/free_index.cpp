#include "free_index.h"

namespace dtr {

namespace {

bool less(uint64_t size, uint64_t offset, const Block* block) {
  return size != block->size ? size < block->size : offset < block->offset;
}

bool less(const Block* block, uint64_t size, uint64_t offset) {
  return block->size != size ? block->size < size : block->offset < offset;
}

// Parts a treap into what is below the key and the rest.
void split(Block* tree, uint64_t size, uint64_t offset, Block** below, Block** rest) {
  while (tree != nullptr) {
    if (less(tree, size, offset)) {
      *below = tree;
      below = &tree->right;
      tree = tree->right;
    } else {
      *rest = tree;
      rest = &tree->left;
      tree = tree->left;
    }
  }
  *below = nullptr;
  *rest = nullptr;
}

// Joins two treaps, all of the first below all of the second.
Block* join(Block* low, Block* high) {
  Block* root = nullptr;
  Block** place = &root;
  while (low != nullptr && high != nullptr) {
    if (low->priority > high->priority) {
      *place = low;
      place = &low->right;
      low = low->right;
    } else {
      *place = high;
      place = &high->left;
      high = high->left;
    }
  }
  *place = low != nullptr ? low : high;
  return root;
}

Block* find_at_least(Block* tree, uint64_t size, uint64_t offset) {
  Block* best = nullptr;
  while (tree != nullptr) {
    if (less(tree, size, offset)) {
      tree = tree->right;
    } else {
      best = tree;
      tree = tree->left;
    }
  }
  return best;
}

Block* find_below(Block* tree, uint64_t size, uint64_t offset) {
  Block* best = nullptr;
  while (tree != nullptr) {
    if (less(tree, size, offset)) {
      best = tree;
      tree = tree->right;
    } else {
      tree = tree->left;
    }
  }
  return best;
}

uint64_t check_tree(const Block* tree, const Block** last, std::string* broken) {
  if (tree == nullptr) return 0;
  uint64_t count = check_tree(tree->left, last, broken);
  if (*last != nullptr && !less((*last)->size, (*last)->offset, tree)) {
    *broken = "a free index is not in the order of (size, offset)";
  }
  *last = tree;
  for (const Block* child : {tree->left, tree->right}) {
    if (child != nullptr && child->priority > tree->priority) {
      *broken = "a free index is not a heap by priority";
    }
  }
  return count + 1 + check_tree(tree->right, last, broken);
}

}  // namespace

int FreeIndex::bin_of(uint64_t size) {
  int log = 63 - __builtin_clzll(size | 1 << kBinBits);
  return (log << kBinBits) + static_cast<int>((size >> (log - kBinBits)) & ((1 << kBinBits) - 1));
}

int FreeIndex::next_bin(int bin) const {
  if (bin >= kBins) return -1;
  int word = bin / 64;
  uint64_t bits = used_[word] & (~uint64_t{0} << (bin % 64));
  if (bits == 0) {
    uint64_t words = word == 63 ? 0 : used_words_ & (~uint64_t{0} << (word + 1));
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

void FreeIndex::insert(Block* block) {
  int bin = bin_of(block->size);
  used_[bin / 64] |= uint64_t{1} << (bin % 64);
  used_words_ |= uint64_t{1} << (bin / 64);
  Block** place = &roots_[bin];
  while (*place != nullptr && (*place)->priority >= block->priority) {
    place = less(*place, block->size, block->offset) ? &(*place)->right : &(*place)->left;
  }
  Block* tree = *place;
  *place = block;
  split(tree, block->size, block->offset, &block->left, &block->right);
}

void FreeIndex::erase(Block* block) {
  int bin = bin_of(block->size);
  Block** place = &roots_[bin];
  while (*place != block) {
    place = less(*place, block->size, block->offset) ? &(*place)->right : &(*place)->left;
  }
  *place = join(block->left, block->right);
  block->left = block->right = nullptr;
  if (roots_[bin] != nullptr) return;
  used_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  if (used_[bin / 64] == 0) used_words_ &= ~(uint64_t{1} << (bin / 64));
}

Block* FreeIndex::at_least(uint64_t size, uint64_t offset) const {
  int bin = bin_of(size);
  if (Block* found = find_at_least(roots_[bin], size, offset)) return found;
  bin = next_bin(bin + 1);
  if (bin < 0) return nullptr;
  Block* tree = roots_[bin];
  while (tree->left != nullptr) tree = tree->left;
  return tree;
}

Block* FreeIndex::below(uint64_t size, uint64_t offset) const {
  int bin = bin_of(size);
  if (Block* found = find_below(roots_[bin], size, offset)) return found;
  bin = previous_bin(bin - 1);
  if (bin < 0) return nullptr;
  Block* tree = roots_[bin];
  while (tree->right != nullptr) tree = tree->right;
  return tree;
}

uint64_t FreeIndex::check(std::string* broken) const {
  uint64_t count = 0;
  const Block* last = nullptr;
  for (int bin = 0; bin < kBins; ++bin) {
    count += check_tree(roots_[bin], &last, broken);
    if (((used_[bin / 64] >> (bin % 64)) & 1) != (roots_[bin] != nullptr ? 1U : 0U)) {
      *broken = "a bin of a free index is marked wrongly";
    }
  }
  for (int word = 0; word < kBins / 64; ++word) {
    if ((used_words_ >> word & 1) != (used_[word] != 0 ? 1U : 0U)) {
      *broken = "a word of bins of a free index is marked wrongly";
    }
  }
  return count;
}

}  // namespace dtr
