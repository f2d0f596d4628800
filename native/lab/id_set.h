// id_set.h: a set of small numbers as bits, from the word of the least to that of the greatest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtr {

class IdSet {
 public:
  bool has(uint32_t id) const {
    const size_t at = size_t{id >> 6} - first_;  // wraps around below the first
    return at < words_.size() && (words_[at] >> (id & 63) & 1);
  }
  bool add(uint32_t id) {
    cover(id >> 6, (id >> 6) + 1);
    uint64_t& word = words_[(id >> 6) - first_];
    const uint64_t bit = uint64_t{1} << (id & 63);
    if (word & bit) return false;
    word |= bit;
    return true;
  }
  bool remove(uint32_t id) {
    if (!has(id)) return false;
    words_[(id >> 6) - first_] &= ~(uint64_t{1} << (id & 63));
    return true;
  }
  void clear() { words_.clear(); }

  // In ascending order.
  template <typename F>
  void for_each(F&& visit) const {
    for (size_t at = 0; at < words_.size(); ++at) each_bit(words_[at], first_ + at, visit);
  }
  // Adds all of the other set; visits those that were not here.
  template <typename F>
  void add_all(const IdSet& other, F&& visit) {
    if (&other == this || other.words_.empty()) return;
    cover(other.first_, other.first_ + other.words_.size());
    uint64_t* const into = words_.data() + (other.first_ - first_);
    for (size_t at = 0; at < other.words_.size(); ++at) {
      const uint64_t fresh = other.words_[at] & ~into[at];
      if (!fresh) continue;
      into[at] |= fresh;
      each_bit(fresh, other.first_ + at, visit);
    }
  }

 private:
  template <typename F>
  static void each_bit(uint64_t word, size_t index, F& visit) {
    for (; word; word &= word - 1)
      visit(static_cast<uint32_t>(index * 64 + static_cast<size_t>(__builtin_ctzll(word))));
  }
  void cover(size_t first, size_t end) {
    if (words_.empty()) {
      first_ = first;
      words_.resize(end - first);
      return;
    }
    if (first < first_) {
      // Some more than asked for, so that growing downward stays cheap on average.
      const size_t more = std::min(first_, first_ - first + words_.size() / 2);
      words_.insert(words_.begin(), more, 0);
      first_ -= more;
    }
    if (end > first_ + words_.size()) words_.resize(end - first_);
  }
  size_t first_ = 0;  // index of the first word
  std::vector<uint64_t> words_;
};

}  // namespace dtr
