// fetch.h: has cache lines brought near that are read soon.
#pragma once

#include <cstddef>

namespace dtr {

inline void fetch(const void* address, size_t lines) {
  constexpr size_t kLine = 64;
  for (size_t i = 0; i < lines; ++i)
    __builtin_prefetch(static_cast<const char*>(address) + kLine * i);
}

}  // namespace dtr
