// address_map.h: a hash map by address that no file can slow down.
//
// The standard hash of a number is the number, so that addresses can be chosen that all fall into
// one bucket. This one starts from where this process has its code and its stack, which a file does
// not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace dtr::fragment {

class AddressHash {
 public:
  AddressHash() : seed_(reinterpret_cast<uintptr_t>(this) ^ reinterpret_cast<uintptr_t>(&kCode)) {}
  size_t operator()(uint64_t address) const {
    uint64_t mixed = (address ^ seed_) * 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 32) ^ seed_) * 0xD6E8FEB86659FD93u;
    return mixed ^ (mixed >> 32);
  }

 private:
  static constexpr char kCode = 0;
  uint64_t seed_;
};

template <typename T>
using AddressMap = std::unordered_map<uint64_t, T, AddressHash>;

}  // namespace dtr::fragment
