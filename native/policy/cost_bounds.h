// cost_bounds.h: what the columns of the candidates (candidates.h) are filled with: lower bounds of
// scores, made from a record alone or from a cost that was just computed.
#pragma once

#include "component.h"
#include "devices.h"
#include "foresight.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "score.h"
#include "swap_costs.h"

namespace dtr {

// Dead, and nothing that is needed was computed from it.
inline bool is_unneeded(const Storage* storage) {
  return !storage->live && storage->needed_by == 0;
}

// Unneeded, and can be recomputed. A constant has no other way to go but to be swapped out, so nothing
// is gained by taking it first.
inline bool goes_first(const Storage* storage) { return storage->parent && is_unneeded(storage); }

// The factor by which a storage's score counts.
inline double unneeded_factor(const Storage* storage) {
  return goes_first(storage) ? kUnneeded : 1;
}

class CostBounds {
 public:
  CostBounds(const Environment& environment, const Devices& devices, const SwapCosts& swap_costs,
             const Needs& needs, const Components& components, const Foresight& foresight)
      : environment_(environment),
        devices_(devices),
        swap_costs_(swap_costs),
        needs_(needs),
        components_(components),
        foresight_(foresight) {}

  // Of a candidate whose cost was computed.
  void set(Device& device, Storage* storage, double cost_ns) {
    if (!needs_.scores) return;
    device.candidates.set_unneeded(storage, goes_first(storage));
    const dtr_heuristic& heuristic = environment_.options.heuristic;
    const double own = heuristic.cost == DTR_COST_NONE ? 1 : static_cast<double>(cost_of(storage));
    device.candidates.set(
        storage,
        {at_least_1(swap_costs_.at_most_swap(storage, own)),
         at_least_1(swap_costs_.at_most_swap(storage, cost_ns)), weight_of(storage),
         heuristic.size == DTR_SIZE_NONE ? 1 : at_least_1(static_cast<double>(storage->size_bytes)),
         storage->last_access_ns},
        components_.decreased_ns());
  }
  // Nothing is known of the candidate but its record.
  void reset(Storage* storage) { reset(devices_.of(storage), storage); }
  void reset(Device& device, Storage* storage) {
    storage->parked = false;
    set(device, storage, known_cost_ns(storage));
  }
  void reset_all() {
    for (const auto& device : devices_) {
      device->candidates.set_exponent(
          foresight_.sees() ? 0 : environment_.options.heuristic.staleness_exponent);
      for (size_t i = 0; i < device->candidates.size(); ++i)
        reset(*device, device->candidates.at(i));
    }
  }
  // The candidate's cost may have fallen to what is surely part of it.
  void lower(const Storage* storage) {
    if (storage->candidate < 0 || !needs_.scores) return;
    devices_.of(storage).candidates.lower(storage, known_cost_ns(storage),
                                          components_.decreased_ns());
  }
  // The candidate's weight has changed, or it may be evicted again.
  void reweigh(Storage* storage) {
    storage->parked = false;
    if (storage->candidate < 0 || !needs_.scores) return;
    Candidates& candidates = devices_.of(storage).candidates;
    candidates.set_unneeded(storage, goes_first(storage));
    candidates.weigh(storage, weight_of(storage));
    if (needs_.shares && is_unneeded(storage)) lower(storage);
  }
  void unpark(Storage* storage) {
    if (storage->parked) reweigh(storage);
  }

 private:
  // The part of the cost that is known without looking at others.
  double known_cost_ns(const Storage* storage) const {
    if (environment_.options.heuristic.cost == DTR_COST_NONE) return 1;
    int64_t cost = cost_of(storage);
    if (needs_.shares)
      return at_least_1(swap_costs_.at_most_swap(
          storage, with_shares(cost, storage->ancestors_known && !is_unneeded(storage)
                                         ? storage->ancestors_ns
                                         : 0)));
    if (needs_.ancestors && storage->ancestors_known) cost += storage->ancestors_ns;
    if (needs_.descendants && storage->descendants_known) cost += storage->descendants_ns;
    return at_least_1(swap_costs_.at_most_swap(storage, static_cast<double>(cost)));
  }
  double weight_of(const Storage* storage) const {
    const dtr_heuristic& heuristic = environment_.options.heuristic;
    double weight = penalty(heuristic, storage->recomputes) * unneeded_factor(storage);
    if (heuristic.size != DTR_SIZE_NONE)
      weight /= at_least_1(static_cast<double>(storage->size_bytes));
    if (foresight_.sees() && heuristic.staleness_exponent > 0)
      weight /= power(at_least_1(foresight_.until_own_use(storage)), heuristic.staleness_exponent);
    return weight;
  }

  const Environment& environment_;
  const Devices& devices_;
  const SwapCosts& swap_costs_;
  const Needs& needs_;
  const Components& components_;
  const Foresight& foresight_;
};

}  // namespace dtr
