// candidate_windows.h: where windows of a low price may begin; part of candidates.h.
//
// Three kinds of lower bounds of runs (run_floors.h), each dearer to get than the one before, are
// taken in the order of their values, the least first, as A* does: so none is looked into that is
// above the price of what is found in the end.
//   1. B2 of a block that was not opened, or B1 of the members of one that was.
//   2. The sum of the bounds of a run's members, as they are now.
//   3. The same sum with the exact prices of some members, one more each time.
// Only a run that is the least with all prices exact is worth a question to the pool.
#pragma once

#include "candidates.h"
#include "lanes.h"

namespace dtr {

template <typename Price, typename Begin>
void Candidates::search_windows(int64_t now_ns, int64_t decreased_ns, uint64_t wanted,
                                const double& limit, Price&& price_of, Begin&& begin) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (list_.empty()) return;
  const Query asked = query(now_ns, decreased_ns);
  refresh_runs(now_ns, decreased_ns);
  ++search_;
  runs_.clear();
  run_floors_.of_blocks(wanted, least_runs_.data());
  least_runs_.update();
  const auto least_sum = [&] { return runs_.empty() ? kInfinite : runs_[0].sum; };
  for (;;) {
    auto block = static_cast<uint32_t>(least_runs_.index());
    const double floor = least_runs_[block], sum = least_sum();
    // Rounding is below the slack.
    const double most = limit * (1 + 2 * kSlack);
    if (std::min(floor, sum) > most || std::min(floor, sum) == kInfinite) return;
    if (floor < sum && opened_[block] != search_) {
      open(block, wanted);
      continue;
    }
    uint32_t first;
    if (floor < sum) {
      first = take_first(block);
      block = static_cast<uint32_t>(least_runs_.index());
    } else {
      first = runs_[0].first;
      std::pop_heap(runs_.begin(), runs_.end());
      runs_.pop_back();
    }
    const double other = std::min<double>(least_runs_[block], least_sum());
    look_into(asked, first, wanted, most, other, price_of, begin);
  }
}

// Asks for exact prices of a run's members, as long as its sum is the least.
template <typename Price, typename Begin>
void Candidates::look_into(const Query& query, uint32_t first, uint64_t wanted, double most,
                           double other, Price&& price_of, Begin&& begin) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  constexpr size_t kLong = 32;
  const uint64_t low = low_end(first);
  double sum = 0;
  size_t members = 0;
  for (uint32_t slot = first; is_in_run(slot, first, low, wanted); slot = order_.next(slot)) {
    sum += price(query, slot);
    ++members;
  }
  // B1 tells little of long runs: one after the other, they would all be summed up.
  const uint32_t block = first / kBlock;
  if (members > kLong && summed_[block] != search_) sum_all(query, block, wanted);
  if (sum > most && members <= RunFloors::kMost) runs_ahead_.count_vain();
  for (uint32_t slot = first; is_in_run(slot, first, low, wanted); slot = order_.next(slot)) {
    if (sum > most || sum == kInfinite) return;
    if (exact_[slot / kBlock] >> slot % kBlock & 1) continue;
    if (sum > other) {
      runs_.push_back({sum, first});
      return std::push_heap(runs_.begin(), runs_.end());
    }
    float& known = price(query, slot);
    const float exact = rounded_down(price_of(slots_[slot]));
    sum = std::max(sum - known, 0.0) + exact;
    known = exact;
    exact_[slot / kBlock] |= uint64_t{1} << slot % kBlock;
  }
  if (sum <= most && sum < kInfinite) begin(slots_[first]);
}

}  // namespace dtr
