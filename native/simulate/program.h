// program.h: walks an op log in the form of numbers (dtr_alloc.h, "Simulation of op logs").
//
// Every number is checked before it is used, so that a program from anywhere is either
// run or named as malformed.
#pragma once

#include <cstdint>
#include <string>

#include "errors.h"

namespace dtr {

enum class Instruction : int64_t {
  constant = 0,
  call = 1,
  mutate = 2,
  copy = 3,
  copy_from = 4,
  release = 5,
  effect = 6
};

class ProgramReader {
 public:
  ProgramReader(const int64_t* numbers, uint64_t count) : numbers_(numbers), count_(count) {}

  bool at_end() const { return at_ == count_; }

  Instruction instruction() {
    const int64_t value = number("instruction", 0, 6);
    return static_cast<Instruction>(value);
  }
  int64_t amount(const char* what) { return number(what, 0, kMost); }
  // A count of numbers that follow, each of them at least `numbers_each` long.
  uint32_t count(const char* what, uint64_t numbers_each = 1) {
    const int64_t value = number(what, 0, INT32_MAX);
    if (static_cast<uint64_t>(value) > (count_ - at_) / numbers_each)
      fail(what, value, "no more than the program has left");
    return static_cast<uint32_t>(value);
  }
  int64_t number(const char* what, int64_t least, int64_t most) {
    if (at_ == count_) fail(what, 0, "a number; the program ends here");
    const int64_t value = numbers_[at_++];
    if (value < least || value > most)
      fail(what, value, std::to_string(least) + " to " + std::to_string(most));
    return value;
  }
  [[noreturn]] void fail(const char* what, int64_t value, const std::string& allowed) const {
    throw InvalidArgument("program: " + std::string(what) + " before number " +
                          std::to_string(at_) + " is " + std::to_string(value) +
                          "; allowed: " + allowed);
  }

 private:
  // Sums of a few billion such numbers stay below 2^127, products of two below 2^124.
  static constexpr int64_t kMost = int64_t{1} << 62;
  const int64_t* numbers_;
  uint64_t count_;
  uint64_t at_ = 0;
};

}  // namespace dtr
