#include "layout.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <random>

namespace dtr {

namespace {

// Layouts that are tried, as long as places are: that many are looked at in all, some 0.1 s.
constexpr uint64_t kMostRounds = 150;
constexpr uint64_t kMostPlaces = 100'000'000;
// By how much, as a logarithm of bytes, a block that found no place is more urgent in the next.
constexpr double kLeastUrgent = 0.2, kMostUrgent = 4;

class Solver {
 public:
  Solver(const std::vector<Lifetime>& lifetimes, const std::vector<Obstacle>& obstacles,
         uint64_t limit)
      : lifetimes_(lifetimes), obstacles_(obstacles), limit_(limit) {}

  Layout place_all(const std::vector<uint32_t>& order) {
    Layout layout;
    layout.addresses.assign(lifetimes_.size(), Layout::kNowhere);
    placed_.clear();
    for (const Obstacle& of : obstacles_) placed_.push_back({0, UINT64_MAX, of.begin, of.end});
    for (const uint32_t i : order) {
      const Lifetime& of = lifetimes_[i];
      const uint64_t at = of.begin <= of.end ? lowest_gap<false>(of) : lowest_gap<true>(of);
      if (at > limit_ || limit_ - at < of.size_bytes) {
        layout.missing_bytes += of.size_bytes;
        continue;
      }
      layout.addresses[i] = at;
      const Placed placed{of.begin, of.end, at, at + of.size_bytes};
      const auto behind = std::ranges::upper_bound(placed_, at, {}, &Placed::address);
      if (of.begin <= of.end) {
        placed_.insert(behind, placed);
      } else {  // over the end of the step, as two
        Placed parts[] = {placed, placed};
        parts[0].begin = 0;
        parts[1].end = UINT64_MAX;
        placed_.insert(behind, std::begin(parts), std::end(parts));
      }
    }
    return layout;
  }

  uint64_t places() const { return places_; }  // looked at so far

 private:
  struct Placed {
    uint64_t begin, end;  // in use from here to here, this moment included
    uint64_t address, end_address;
  };

  // Among those in use at the same time. goes_round: it lives over the end of the step.
  template <bool goes_round>
  uint64_t lowest_gap(const Lifetime& of) {
    uint64_t at = 0;
    for (const Placed& other : placed_) {
      ++places_;
      const bool overlaps = goes_round ? (other.begin <= of.end) | (other.end >= of.begin)
                                       : (other.begin <= of.end) & (other.end >= of.begin);
      if (!overlaps) continue;
      if (other.address >= at && other.address - at >= of.size_bytes) break;
      at = std::max(at, other.end_address);
    }
    return at;
  }

  const std::vector<Lifetime>& lifetimes_;
  const std::vector<Obstacle>& obstacles_;
  const uint64_t limit_;
  std::vector<Placed> placed_;  // by address
  uint64_t places_ = 0;
};

}  // namespace

uint64_t lowest_gap(const std::vector<Obstacle>& busy, uint64_t size_bytes) {
  uint64_t at = 0;
  for (const Obstacle& of : busy) {
    if (of.begin >= at && of.begin - at >= size_bytes) break;
    at = std::max(at, of.end);
  }
  return at;
}

Layout lay_out(const std::vector<Lifetime>& lifetimes, const std::vector<Obstacle>& obstacles,
               uint64_t limit) {
  const size_t count = lifetimes.size();
  std::vector<double> urgency(count);
  for (size_t i = 0; i < count; ++i)
    urgency[i] = std::log(static_cast<double>(lifetimes[i].size_bytes));
  std::minstd_rand random;  // the same each time
  Solver solver(lifetimes, obstacles, limit);
  Layout best;
  best.missing_bytes = UINT64_MAX;
  std::vector<uint32_t> order(count);
  for (uint64_t round = 0; round < kMostRounds && best.missing_bytes > 0; ++round) {
    if (solver.places() > kMostPlaces) break;
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, std::ranges::greater(), [&](uint32_t i) { return urgency[i]; });
    Layout layout = solver.place_all(order);
    for (size_t i = 0; i < count; ++i) {
      if (layout.addresses[i] != Layout::kNowhere) continue;
      const double share = static_cast<double>(random()) / std::minstd_rand::max();
      urgency[i] += kLeastUrgent + share * (kMostUrgent - kLeastUrgent);
    }
    if (layout.missing_bytes < best.missing_bytes) best = std::move(layout);
  }
  return best;
}

}  // namespace dtr
