// A zeroed array that takes memory only where it has been written: metadata for an address range
// far larger than what is ever mapped.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace dtr {

template <typename T>
class LazyArray {
 public:
  explicit LazyArray(uint64_t count) : bytes_(count * sizeof(T)) {
    if (bytes_ == 0) bytes_ = sizeof(T);
    void* data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(data);
  }
  ~LazyArray() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  LazyArray(LazyArray&& other) noexcept : data_(other.data_), bytes_(other.bytes_) {
    other.data_ = nullptr;
  }
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;

  T& operator[](uint64_t i) { return data_[i]; }
  const T& operator[](uint64_t i) const { return data_[i]; }

 private:
  T* data_;
  uint64_t bytes_;
};

}  // namespace dtr
