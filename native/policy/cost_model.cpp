#include "cost_model.h"

#include <algorithm>

namespace dtr {

namespace {

constexpr double kMostParts = 9e18;  // a sum is less (oplog.MOST_SUM)

}  // namespace

void CostModel::configure() {
  needs_ = Needs::of(environment_.options.heuristic, environment_.options.room);
  neighborhoods_.rebuild();
  foresight_.turn(environment_.options.heuristic.foresight != 0);
}

double CostModel::recompute_ns(Storage* storage, double most_ns) {
  int64_t cost = cost_of(storage);
  const double parts = needs_.shares ? kShareParts : 1;
  const auto most = static_cast<int64_t>(std::min(most_ns * parts, kMostParts));
  switch (environment_.options.heuristic.cost) {
    case DTR_COST_ANCESTORS:
      cost += neighborhoods_.ancestors_ns(storage, most);
      break;
    case DTR_COST_NEIGHBORHOOD:
      cost += neighborhoods_.ancestors_ns(storage, most);
      if (cost <= most) cost += neighborhoods_.descendants_ns(storage, most - cost);
      break;
    case DTR_COST_COMPONENT:
      cost += neighborhoods_.component_ns(storage);
      break;
    case DTR_COST_MARGINAL:
      return with_shares(cost,
                         is_unneeded(storage) ? 0 : neighborhoods_.ancestors_ns(storage, most));
    default:
      break;
  }
  return static_cast<double>(cost);
}

double CostModel::cost_ns(const Storage* storage, int64_t neighborhood_ns) const {
  if (environment_.options.heuristic.cost == DTR_COST_NONE) return 1;
  if (!storage->parent) return swap_costs_.with_swap(storage, 0);
  const int64_t own = cost_of(storage);
  return swap_costs_.with_swap(storage, needs_.shares ? with_shares(own, neighborhood_ns)
                                                      : static_cast<double>(own + neighborhood_ns));
}

double CostModel::score_of(const Storage* storage, const SearchContext& context, double cost_ns,
                           uint64_t free_bytes) const {
  Signals signals;
  signals.cost_ns = cost_ns;
  signals.size_bytes = static_cast<double>(storage->size_bytes + free_bytes);
  signals.staleness_ns = staleness_ns(storage, context);
  signals.recomputes = storage->recomputes;
  return score(environment_.options.heuristic, signals) * unneeded_factor(storage);
}

double CostModel::factor_of(const Storage* storage, const SearchContext& context) const {
  Signals signals;
  signals.staleness_ns = staleness_ns(storage, context);
  signals.recomputes = storage->recomputes;
  return score(environment_.options.heuristic, signals) * unneeded_factor(storage);
}

void CostModel::check(const std::vector<Storage*>& storages) {
  catch_up();
  for (const Storage* storage : storages) NeededStorages::check(storage);
  neighborhoods_.check(storages);
}

double CostModel::fresh_cost_ns(const Storage* storage) {
  const int32_t kind = environment_.options.heuristic.cost;
  int64_t neighborhood = 0;
  if (needs_.ancestors && !(needs_.shares && is_unneeded(storage)))
    neighborhood += neighborhoods_.fresh_ancestors_ns(storage);
  if (needs_.descendants) neighborhood += neighborhoods_.fresh_descendants_ns(storage);
  if (kind == DTR_COST_COMPONENT) neighborhood += neighborhoods_.component_ns(storage);
  return cost_ns(storage, neighborhood);
}

}  // namespace dtr
