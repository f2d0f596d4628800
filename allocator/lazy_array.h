// A zeroed array that takes memory only where it has been written: metadata for an address range
// far larger than what is ever mapped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>

#include "address_space.h"
#include "grain.h"

namespace dtr {

// The array without a type.
class LazyBytes {
 public:
  LazyBytes(uint64_t bytes, AddressRange::Kind kind) : range_(bytes, kStep, kind) {}

  // Of an array in parts: the first so many bytes may be used from now on. May throw
  // std::bad_alloc.
  void reach(uint64_t bytes) {
    if (bytes <= reached_) return;
    const uint64_t end = std::min(round_up(bytes, kStep), range_.size());
    if (!range_.hold(reached_, end)) throw std::bad_alloc();
    reached_ = end;
  }

 protected:
  AddressRange range_;

 private:
  static constexpr uint64_t kStep = uint64_t{1} << 18;
  uint64_t reached_ = 0;
};

template <typename T>
class LazyArray : public LazyBytes {
 public:
  explicit LazyArray(uint64_t count, AddressRange::Kind kind = AddressRange::Kind::kWhole)
      : LazyBytes(count * sizeof(T), kind), data_(reinterpret_cast<T*>(range_.base())) {}

  T& operator[](uint64_t i) { return data_[i]; }
  const T& operator[](uint64_t i) const { return data_[i]; }

 private:
  T* data_;
};

}  // namespace dtr
