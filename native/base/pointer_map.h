// pointer_map.h: a hash map from addresses to objects: linear probing, deletion
// by backward shift, so that no tombstones pile up over millions of steps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace dtr {

template <typename T>
class PointerMap {
 public:
  PointerMap() : slots_(1024) {}

  T* find(const void* key) const {
    for (size_t i = home(key);; i = next(i)) {
      if (slots_[i].key == key) return slots_[i].value;
      if (!slots_[i].key) return nullptr;
    }
  }

  // Has the slot of the key brought near, for a find() soon.
  void fetch(const void* key) const { __builtin_prefetch(&slots_[home(key)]); }

  // Adds or replaces; returns what it replaced, or null. key is not null.
  T* insert(const void* key, T* value) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    size_t i = home(key);
    while (slots_[i].key && slots_[i].key != key) i = next(i);
    if (!slots_[i].key) ++size_;
    slots_[i].key = key;
    return std::exchange(slots_[i].value, value);
  }

  // Returns what was there, or null.
  T* erase(const void* key) {
    size_t hole = home(key);
    while (slots_[hole].key != key) {
      if (!slots_[hole].key) return nullptr;
      hole = next(hole);
    }
    T* value = slots_[hole].value;
    --size_;
    // Every later entry of the run whose home does not lie between the hole and
    // itself moves into the hole, so that find() never meets a gap too early.
    for (size_t i = next(hole); slots_[i].key; i = next(i)) {
      const size_t wanted = home(slots_[i].key);
      const bool between =
          hole <= i ? (hole < wanted && wanted <= i) : (hole < wanted || wanted <= i);
      if (!between) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole] = {};
    return value;
  }

  size_t size() const { return size_; }

  template <typename F>
  void for_each(F&& visit) const {
    for (const Slot& slot : slots_)
      if (slot.key) visit(slot.key, slot.value);
  }

  // Whether one of them passes the test; none is tested after that.
  template <typename F>
  bool any_of(F&& passes) const {
    return std::ranges::any_of(
        slots_, [&](const Slot& slot) { return slot.key && passes(slot.key, slot.value); });
  }

  void clear() {
    slots_.assign(1024, {});
    size_ = 0;
  }

 private:
  struct Slot {
    const void* key = nullptr;
    T* value = nullptr;
  };

  size_t home(const void* key) const {
    // Addresses share their low bits; the multiplication spreads the others upward.
    const uint64_t mixed = reinterpret_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull;
    return (mixed >> 32) & (slots_.size() - 1);
  }
  size_t next(size_t i) const { return (i + 1) & (slots_.size() - 1); }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const Slot& slot : old)
      if (slot.key) insert(slot.key, slot.value);
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace dtr
