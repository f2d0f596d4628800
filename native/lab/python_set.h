// python_set.h: a set of small numbers that is walked in the order of a CPython set.
//
// Only for logs whose storages depend on one another in circles (regions.h): there simrd's
// outcome depends on the order in which Python walks a set of ints, and so on its hash table.
// As in CPython 3.11: open addressing in runs of ten slots; a removed key leaves a mark, and a new
// one takes the last mark that its search came across.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtr {

class PythonSet {
 public:
  PythonSet() : table_(kLeast, kUnused) {}

  void clear() {
    table_.assign(kLeast, kUnused);
    fill_ = used_ = 0;
  }
  bool add(uint32_t key) {
    size_t at = 0, removed = SIZE_MAX;
    if (find(key, &at, &removed)) return false;
    ++used_;
    if (removed != SIZE_MAX) {
      table_[removed] = key;
      return true;
    }
    table_[at] = key;
    ++fill_;
    if (fill_ * 5 >= mask() * 3) resize(used_ > 50000 ? used_ * 2 : used_ * 4);
    return true;
  }
  bool remove(uint32_t key) {
    size_t at = 0, removed = 0;
    if (!find(key, &at, &removed)) return false;
    table_[at] = kRemoved;
    --used_;
    return true;
  }
  // set.update(other)
  void add_all(const PythonSet& other) {
    if (&other == this || other.used_ == 0) return;
    if ((fill_ + other.used_) * 5 >= mask() * 3) resize((used_ + other.used_) * 2);
    if (fill_ == 0 && mask() == other.mask() && other.fill_ == other.used_) {
      *this = other;
      return;
    }
    const bool empty = fill_ == 0;
    other.for_each([&](uint32_t key) {
      if (empty)
        insert_new(key);
      else
        add(key);
    });
    if (empty) fill_ = used_ = other.used_;
  }
  template <typename F>
  void for_each(F&& visit) const {
    for (const int64_t key : table_)
      if (key >= 0) visit(static_cast<uint32_t>(key));
  }

 private:
  static constexpr size_t kLeast = 8;
  static constexpr size_t kRun = 9;
  static constexpr int64_t kUnused = -1;
  static constexpr int64_t kRemoved = -2;

  size_t mask() const { return table_.size() - 1; }
  // True and where the key is, or false and the unused slot at which the search ended.
  // *removed: the last slot of a removed key that it passed; unchanged if there was none.
  bool find(uint32_t key, size_t* at, size_t* removed) const {
    size_t perturb = key;
    size_t i = key & mask();
    while (true) {
      const size_t end = i + kRun <= mask() ? i + kRun : i;
      for (size_t j = i; j <= end; ++j) {
        *at = j;
        if (table_[j] == kUnused) return false;
        if (table_[j] == static_cast<int64_t>(key)) return true;
        if (table_[j] == kRemoved) *removed = j;
      }
      perturb >>= 5;
      i = (i * 5 + 1 + perturb) & mask();
    }
  }
  void insert_new(uint32_t key) {
    size_t at = 0, removed = 0;
    find(key, &at, &removed);
    table_[at] = key;
  }
  void resize(size_t least) {
    size_t size = kLeast;
    while (size <= least) size *= 2;
    std::vector<int64_t> old(size, kUnused);
    old.swap(table_);
    for (const int64_t key : old)
      if (key >= 0) insert_new(static_cast<uint32_t>(key));
    fill_ = used_;
  }
  std::vector<int64_t> table_;
  size_t fill_ = 0;  // used, or once used
  size_t used_ = 0;
};

}  // namespace dtr
