#include "cost_bounds.h"

namespace dtr {

// The part of the cost that is known without looking at others.
double CostBounds::known_cost_ns(const Storage* storage) const {
  if (environment_.options.heuristic.cost == DTR_COST_NONE) return 1;
  int64_t cost = cost_of(storage);
  if (needs_.shares)
    return at_least_1(swap_costs_.at_most_swap(
        storage,
        with_shares(
            cost, storage->ancestors_known && !is_unneeded(storage) ? storage->ancestors_ns : 0)));
  if (needs_.ancestors && storage->ancestors_known) cost += storage->ancestors_ns;
  if (needs_.descendants && storage->descendants_known) cost += storage->descendants_ns;
  return at_least_1(swap_costs_.at_most_swap(storage, static_cast<double>(cost)));
}

double CostBounds::weight_of(const Storage* storage) const {
  const dtr_heuristic& heuristic = environment_.options.heuristic;
  double weight = penalty(heuristic, storage->recomputes) * unneeded_factor(storage);
  if (heuristic.size != DTR_SIZE_NONE)
    weight /= at_least_1(static_cast<double>(storage->size_bytes));
  if (foresight_.sees() && heuristic.staleness_exponent > 0)
    weight /= power(at_least_1(foresight_.until_own_use(storage)), heuristic.staleness_exponent);
  return weight;
}

void CostBounds::set(Device& device, Storage* storage, double cost_ns) {
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

void CostBounds::reset_all() {
  for (const auto& device : devices_) {
    device->candidates.set_exponent(
        foresight_.sees() ? 0 : environment_.options.heuristic.staleness_exponent);
    for (size_t i = 0; i < device->candidates.size(); ++i) reset(*device, device->candidates.at(i));
  }
}

void CostBounds::lower(const Storage* storage) {
  if (storage->candidate < 0 || !needs_.scores) return;
  devices_.of(storage).candidates.lower(storage, known_cost_ns(storage),
                                        components_.decreased_ns());
}

void CostBounds::reweigh(Storage* storage) {
  storage->parked = false;
  if (storage->candidate < 0 || !needs_.scores) return;
  Candidates& candidates = devices_.of(storage).candidates;
  candidates.set_unneeded(storage, goes_first(storage));
  candidates.weigh(storage, weight_of(storage));
  if (needs_.shares && is_unneeded(storage)) lower(storage);
}

}  // namespace dtr
