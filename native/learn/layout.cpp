// layout.cpp: see layout.h.
#include "layout.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

namespace dtr {

namespace {

// Layouts that are tried: fewer of many blocks, as each looks at all pairs.
constexpr double kMostPairs = 1e8;
constexpr uint64_t kMostRounds = 150, kFewestRounds = 6;
// By how much, as a logarithm of bytes, a block that found no place is more urgent in the next.
constexpr double kLeastUrgent = 0.2, kMostUrgent = 4;

bool contains(const Lifetime& of, uint64_t time) {
  return of.begin <= of.end ? of.begin <= time && time <= of.end
                            : of.begin <= time || time <= of.end;
}

bool overlap(const Lifetime& a, const Lifetime& b) {
  return contains(a, b.begin) || contains(b, a.begin);
}

class Solver {
 public:
  Solver(const std::vector<Lifetime>& lifetimes, const std::vector<Obstacle>& obstacles,
         uint64_t limit)
      : lifetimes_(lifetimes), obstacles_(obstacles), limit_(limit) {}

  Layout place_all(const std::vector<uint32_t>& order) {
    Layout layout;
    layout.addresses.assign(lifetimes_.size(), Layout::kNowhere);
    placed_.clear();
    for (const uint32_t i : order) {
      const Lifetime& of = lifetimes_[i];
      busy_.assign(obstacles_.begin(), obstacles_.end());
      for (const auto& [other, at] : placed_)
        if (overlap(of, lifetimes_[other]))
          busy_.push_back({at, at + lifetimes_[other].size_bytes});
      std::sort(busy_.begin(), busy_.end(),
                [](const Obstacle& a, const Obstacle& b) { return a.begin < b.begin; });
      const uint64_t at = lowest_gap(busy_, of.size_bytes);
      if (at > limit_ || limit_ - at < of.size_bytes) {
        layout.missing_bytes += of.size_bytes;
        continue;
      }
      layout.addresses[i] = at;
      placed_.emplace_back(i, at);
    }
    return layout;
  }

 private:
  const std::vector<Lifetime>& lifetimes_;
  const std::vector<Obstacle>& obstacles_;
  const uint64_t limit_;
  std::vector<std::pair<uint32_t, uint64_t>> placed_;
  std::vector<Obstacle> busy_;
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
  const double pairs = static_cast<double>(count) * static_cast<double>(count);
  const auto rounds = static_cast<uint64_t>(
      std::clamp<double>(kMostPairs / std::max(pairs, 1.0), kFewestRounds, kMostRounds));
  std::minstd_rand random;  // the same each time
  Solver solver(lifetimes, obstacles, limit);
  Layout best;
  best.missing_bytes = UINT64_MAX;
  std::vector<uint32_t> order(count);
  for (uint64_t round = 0; round < rounds && best.missing_bytes > 0; ++round) {
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return urgency[a] > urgency[b]; });
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
