// scratch.h: arrays for what lives as long as one op.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace dtr {

// An array whose elements are written anew each time. It keeps what it once had room for, and makes
// nothing zero.
template <typename T>
class Scratch {
 public:
  void clear() { size_ = 0; }
  // Beyond the old size the elements are what they were.
  void resize(size_t size) {
    if (size > elements_.size()) elements_.resize(std::max(size, 2 * elements_.size()));
    size_ = size;
  }
  size_t size() const { return size_; }
  T* data() { return elements_.data(); }
  T* begin() { return elements_.data(); }
  T* end() { return elements_.data() + size_; }
  const T* begin() const { return elements_.data(); }
  const T* end() const { return elements_.data() + size_; }
  T& operator[](size_t index) { return elements_[index]; }
  const T& operator[](size_t index) const { return elements_[index]; }
  void swap(Scratch& other) {
    elements_.swap(other.elements_);
    std::swap(size_, other.size_);
  }

 private:
  std::vector<T> elements_;
  size_t size_ = 0;
};

}  // namespace dtr
