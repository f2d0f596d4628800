// What programs that search random candidates share. Needs native/.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "policy/candidates.h"

constexpr uint64_t kGrain = 256;

struct Made : dtr::Storage {
  dtr::CandidateBounds bounds;
  double cost = 1;
};

class Draws {
 public:
  explicit Draws(unsigned seed) : random_(seed) {}

 protected:
  uint64_t below(uint64_t end) {
    return std::uniform_int_distribution<uint64_t>(0, end - 1)(random_);
  }
  // From 1 to most, each order of magnitude as often.
  double spread(double most) {
    return std::exp(std::uniform_real_distribution<>(0, std::log(most))(random_));
  }

 private:
  std::mt19937_64 random_;
};
