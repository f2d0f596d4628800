// dealloc.h: the deallocation policies by name; what they do stands in dealloc.cpp.
#pragma once

#include <cstdint>
#include <cstring>

namespace dtr {

// What becomes of the memory of a storage that the framework dropped while others depend on it.
enum class Dealloc : uint8_t {
  eager,   // it goes at once, as an eviction
  banish,  // it goes for good as soon as nobody could miss it, and stays evictable until then
  ignore   // it stays until it is chosen for eviction, or nothing depends on it
};

// No name means eager.
inline bool dealloc_from_name(const char* name, Dealloc* out) {
  if (!name || std::strcmp(name, "eager") == 0)
    *out = Dealloc::eager;
  else if (std::strcmp(name, "banish") == 0)
    *out = Dealloc::banish;
  else if (std::strcmp(name, "ignore") == 0)
    *out = Dealloc::ignore;
  else
    return false;
  return true;
}

}  // namespace dtr
