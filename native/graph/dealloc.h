// dealloc.h: the deallocation policies by name; what they do stands in dead_storages.h.
#pragma once

#include <cstdint>
#include <cstring>

namespace dtr {

// What becomes of the memory of a storage that the framework dropped while others depend on it.
enum class Dealloc : uint8_t {
  eager,     // it goes at once, as an eviction
  banish,    // it goes for good as soon as nobody could miss it, and stays evictable until then
  ignore,    // it stays until it is chosen for eviction, or nothing depends on it
  lazy,      // likewise, but a constant goes as under eager
  automatic  // as under lazy while that pays, else as under eager
};

// By their numbers, which are those of DTR_DEALLOC_...
constexpr const char* kDeallocNames[] = {"eager", "banish", "ignore", "lazy", "auto"};

// No name means eager.
inline bool dealloc_from_name(const char* name, Dealloc* out) {
  uint8_t number = 0;
  for (const char* known : kDeallocNames) {
    if (!name || std::strcmp(name, known) == 0) {
      *out = static_cast<Dealloc>(number);
      return true;
    }
    ++number;
  }
  return false;
}

}  // namespace dtr
