// thread_number.h: a number for each thread, which no other thread has or will have.
#pragma once

#include <atomic>
#include <cstdint>

namespace dtr {

// From 1 on.
inline uint64_t thread_number() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  return number;
}

}  // namespace dtr
