// ends.h: which end of the heap an allocation wishes for, where the placement is two-ended (Zhang
// et al., Coop, NeurIPS 2023: cheap and dear tensors at two ends of the heap).
//
// What makes a request dear is the cost of its op over the bytes of the request, the density. A
// request of the median density or above it goes to the low end; what is below, to the high end.
// To the low end go also those that nothing is known of, or that become constants: allocations
// outside of an operator, or of one that cannot be repeated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtr {

class Engine;

// What calls cost, by a hash of operator and arguments: the sizes of the results, which the
// signature has, too, are not known before the op has run. Two hashes may share a place; then the
// later call has it. The engine's mutex guards it.
class KnownCalls {
 public:
  // 0: not known.
  int64_t find(uint64_t hash) const {
    if (places_.empty()) return 0;
    const Place& place = places_[hash % places_.size()];
    return place.hash == hash ? place.cost_ns : 0;
  }
  void put(uint64_t hash, int64_t cost_ns) {
    if (places_.empty()) places_.resize(kPlaces);
    places_[hash % places_.size()] = {hash, cost_ns};
  }

 private:
  static constexpr size_t kPlaces = 16384;
  struct Place {
    uint64_t hash = 0;
    int64_t cost_ns = 0;
  };
  std::vector<Place> places_;
};

// A running median of densities, as their binary logarithm: each reading moves it a step towards
// itself, the first ones a longer step. The same readings in the same order give the same medians;
// two threads at once may lose a reading, no more.
class MedianDensity {
 public:
  // Whether the reading, cost over bytes, is below the median of those before it (the first is
  // not); then counts it. Both above 0.
  bool is_below(double cost_ns, double bytes);

 private:
  std::atomic<uint64_t> readings_{0};
  std::atomic<double> log2_{0};
};

// What is known of the operator that runs on this thread, for the requests that it makes.
struct Running {
  const Engine* engine = nullptr;  // null: no operator, or what it makes becomes constant
  int64_t cost_ns = 0;             // 0: not known; then it is judged by its bytes
  uint64_t input_bytes = 0;
};

}  // namespace dtr
