// candidate_windows.h: where windows of a low price may begin; part of candidates.h.
//
// A *run* is the part of a window that the columns know: from a first candidate on, until with all
// that lies between and beside them `wanted` bytes are spanned. The window has all of its members.
// Three kinds of lower bounds, each dearer to get than the one before, are taken in the order of
// their values, the least first, as A* does: so none is looked into that is above the price of
// what is found in the end.
//   1. A member's product (C3); its runs have a price of at least the least of their products. Of
//      a block that is not looked into, the members' least prices (C4) tell.
//   2. The sum of a run's bounds, of the runs with the member whose product was the least.
//   3. The same sum with the exact prices of some members, one more each time.
// Only a run that is the least with all prices exact is worth a question to the pool.
#pragma once

#include "candidates.h"

namespace dtr {

template <typename Price, typename Begin>
void Candidates::search_windows(int64_t now_ns, int64_t decreased_ns, uint64_t wanted,
                                const double& limit, Price&& price_of, Begin&& begin) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  // Members that are taken before any price is asked for: the limit that is found then, which is
  // near the least, spares most runs of the others.
  constexpr int kProbes = 16;
  if (list_.empty()) return;
  refresh_floors(now_ns, decreased_ns);
  const Query asked = query(now_ns, decreased_ns, wanted);
  ++search_;
  runs_.clear();
  take_least_products(asked.bytes);
  size_t block = least_block();
  for (int probes = 0;;) {
    // Rounding is below the slack.
    const double most = limit * (1 + 2 * kSlack);
    const double product = least_[block];
    const double sum = runs_.empty() ? std::numeric_limits<double>::infinity() : runs_[0].sum;
    const bool probed = probes >= kProbes && limit == kInfinite && !runs_.empty();
    if (product < sum && !probed) {
      if (product > most) return;
      if (opened_[block] != search_) {
        open(asked, block);
        if (least_[block] > most) ++vain_;
      } else {
        find_runs(asked, take_least(block), wanted, most);
        ++probes;
      }
      block = least_block();
    } else {
      if (runs_.empty() || sum > most) return;
      const uint32_t first = runs_[0].first;
      std::pop_heap(runs_.begin(), runs_.end());
      runs_.pop_back();
      const double next = probed          ? kInfinite
                          : runs_.empty() ? product
                                          : std::min(product, runs_[0].sum);
      look_into(asked, first, wanted, most, next, price_of, begin);
    }
  }
}

// Asks for exact prices of a run's members, as long as its sum is the least.
template <typename Price, typename Begin>
void Candidates::look_into(const Query& query, uint32_t first, uint64_t wanted, double most,
                           double other, Price&& price_of, Begin&& begin) {
  constexpr uint32_t kNone = AddressOrder::kNone;
  const uint64_t low = low_end(first);
  for (;;) {
    double sum = 0;
    uint32_t unknown = kNone;
    for (uint32_t slot = first;;) {
      sum += price(query, slot);
      if (unknown == kNone && !(exact_[slot / kBlock] >> slot % kBlock & 1)) unknown = slot;
      slot = order_.next(slot);
      if (slot == kNone || order_.begin(slot) - std::min(order_.begin(slot), low) >= wanted) break;
    }
    if (sum > most || sum == std::numeric_limits<double>::infinity()) return;
    if (unknown == kNone) return begin(slots_[first]);
    if (sum > other) {
      runs_.push_back({sum, first});
      return std::push_heap(runs_.begin(), runs_.end());
    }
    price(query, unknown) = rounded_down(price_of(slots_[unknown]));
    exact_[unknown / kBlock] |= uint64_t{1} << unknown % kBlock;
  }
}

}  // namespace dtr
