// cost_model.h: what it costs to evict a storage, and its score. It follows what becomes of
// storages, and keeps up to date only what the heuristic needs (R10).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "component.h"
#include "cost_bounds.h"
#include "devices.h"
#include "foresight.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "needed_storages.h"
#include "neighborhoods.h"
#include "score.h"
#include "search_context.h"
#include "swap_costs.h"

namespace dtr {

class CostModel {
 public:
  CostModel(Environment& environment, const Graph& graph, const Devices& devices,
            const SwapCosts& swap_costs)
      : environment_(environment),
        swap_costs_(swap_costs),
        bounds_(environment, devices, swap_costs, needs_, components_, foresight_),
        neighborhoods_(environment, graph, devices, needs_, components_, bounds_),
        needed_(graph, neighborhoods_, bounds_) {}

  // The options have changed.
  void configure();
  const Needs& needs() const { return needs_; }
  const SwapCosts& swap_costs() const { return swap_costs_; }
  CostBounds& bounds() { return bounds_; }
  Foresight& foresight() { return foresight_; }
  Neighborhoods& neighborhoods() { return neighborhoods_; }
  int64_t decreased_ns() const { return components_.decreased_ns(); }
  uint64_t visited_components() const { return components_.visited(); }

  // ---- what becomes of a storage ----
  void evicted(Storage* storage) {
    neighborhoods_.join(storage);
    needed_.changed(storage);
  }
  // Its content is back.
  void returned(Storage* storage) {
    neighborhoods_.leave(storage);
    needed_.changed(storage);
  }
  // Called before it does.
  void loses_parent(Storage* storage) {
    if (storage->needed) needed_.loses_parent(storage);
    if (storage->counted) neighborhoods_.leave(storage);
  }
  // The framework no longer refers to it.
  void died(Storage* storage) {
    if (storage->candidate >= 0) bounds_.reweigh(storage);
    if (storage->needed) needed_.changed(storage);
    neighborhoods_.share_changed(storage, false);
  }

  // ---- costs, in nanoseconds ----
  // Called before a search.
  void catch_up() { needed_.catch_up(); }
  // Each is exact unless it is above most_ns; then it may be more than is said.
  static constexpr double kAnyNs = std::numeric_limits<double>::infinity();
  // Of a storage with a parent: to recompute it, by the heuristic's kind of cost.
  double recompute_ns(Storage* storage, double most_ns = kAnyNs);
  // To evict it, by whichever way is cheaper.
  double evict_ns(Storage* storage, double most_ns = kAnyNs) {
    return swap_costs_.with_swap(storage, storage->parent ? recompute_ns(storage, most_ns) : 0);
  }
  // The same as a score counts it, and it alone, whatever else is evicted.
  double cost_ns(Storage* storage, double most_ns = kAnyNs) {
    return environment_.options.heuristic.cost == DTR_COST_NONE ? 1 : evict_ns(storage, most_ns);
  }
  double alone_ns(const Storage* storage) const {
    return swap_costs_.with_swap(storage, static_cast<double>(cost_of(storage)));
  }
  // Of one whose neighborhood costs so much (Neighborhoods::sums_together()).
  double cost_ns(const Storage* storage, int64_t neighborhood_ns) const;

  // ---- scores ----
  // free_bytes: beside its block, that count with its size.
  double score_of(const Storage* storage, const SearchContext& context, double cost_ns,
                  uint64_t free_bytes) const;
  // The factor of a cost in the score without the size.
  double factor_of(const Storage* storage, const SearchContext& context) const;

  // N1, N2, G1, G2, and R10 of components, for check_invariants().
  void check(const std::vector<Storage*>& storages);
  // The cost by fresh walks.
  double fresh_cost_ns(const Storage* storage);

 private:
  Environment& environment_;
  const SwapCosts& swap_costs_;
  double staleness_ns(const Storage* storage, const SearchContext& context) const {
    return foresight_.sees() ? foresight_.until_use(storage)
                             : static_cast<double>(context.now_ns - storage->last_access_ns);
  }

  Needs needs_;
  Components components_;
  Foresight foresight_;
  CostBounds bounds_;
  Neighborhoods neighborhoods_;
  NeededStorages needed_;
};

}  // namespace dtr
