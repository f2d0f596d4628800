// layout.cpp: see layout.h.
#include "layout.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dtr {

namespace {

// Each time those that found no place go first.
constexpr int kRounds = 12;

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
               uint64_t limit, uint64_t step_length) {
  const auto length = [&](const Lifetime& of) {
    return of.end >= of.begin ? of.end - of.begin : of.end + step_length - of.begin;
  };
  Solver solver(lifetimes, obstacles, limit);
  Layout best;
  best.missing_bytes = UINT64_MAX;
  std::vector<uint32_t> order(lifetimes.size());
  const auto attempt = [&](auto&& weight) {
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return weight(lifetimes[a]) > weight(lifetimes[b]);
    });
    for (int round = 0; round < kRounds; ++round) {
      Layout layout = solver.place_all(order);
      std::stable_partition(order.begin(), order.end(),
                            [&](uint32_t i) { return layout.addresses[i] == Layout::kNowhere; });
      if (layout.missing_bytes < best.missing_bytes) best = std::move(layout);
      if (best.missing_bytes == 0) return;
    }
  };
  const auto size = [](const Lifetime& of) { return static_cast<double>(of.size_bytes); };
  const auto time = [&](const Lifetime& of) { return static_cast<double>(length(of) + 1); };
  attempt(size);
  if (best.missing_bytes > 0) attempt([&](const Lifetime& of) { return size(of) * time(of); });
  if (best.missing_bytes > 0) attempt(time);
  return best;
}

}  // namespace dtr
