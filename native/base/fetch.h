// fetch.h: has cache lines brought near that are read soon.
#pragma once

#include <cstddef>

namespace dtr {

constexpr size_t kLine = 64;  // bytes

inline void fetch(const void* address, size_t lines) {
  for (size_t i = 0; i < lines; ++i)
    __builtin_prefetch(static_cast<const char*>(address) + kLine * i);
}

template <typename T>
void fetch_all(const T* record) {
  fetch(record, (sizeof(T) + kLine - 1) / kLine);
}

}  // namespace dtr
