// neighborhoods.h: what the cost of a candidate is made of besides its own.
//
// A storage that is evicted and can come back is *counted* (R4). The cost of a resident
// storage counts those around it (DTR paper, appendix C.2), in one of two ways:
//
// Components (component.h): the counted storages, joined where one is computed from the
// other; the cost of a candidate has the sums of the components next to it.
//
// Exact neighborhoods e*: the counted storages that a candidate would have to be
// recomputed from (ancestors: upward from it through counted storages only), and those
// that need it (descendants: downward). Each half is a sum over distinct storages:
//
//  N1  ancestors_ns is at most that sum, and equal to it if ancestors_known; likewise descendants.
//      Counted storages have such sums, too. A storage is *blank* if its sum is 0 and not known.
//  N2  If blank_below is set on a counted storage, all storages that are reached downward from it,
//      through counted ones only, are blank in their ancestors; likewise blank_above, upward, in
//      their descendants. So a change that has nobody to tell stops there.
//  N3  A change is told to all sums that it may concern, but only as long as all that were told are
//      no more than kTellings times the storages that were visited to compute sums. Beyond that the
//      sums are made blank, and the next change stops at once: a chain of a thousand evictions,
//      whose sums nobody asks for, is not visited a thousand times.
//
// An eviction changes the descendants of those above it and the ancestors of those below it; so do
// a return and a vanishing. Where the storage has no counted ancestors, as when it was just
// recomputed, the ancestors of those below change by its part and nothing else, so what was known
// stays known. Otherwise what they share with it is not known, and a lower bound remains, from which
// the search has a bound of the score (C1). A new op links its inputs to results that are resident
// and blank, and a constant is a resident storage: neither changes anybody's sum.
//
// Under the marginal cost, the sum over ancestors is of their shares (score.h), which change with
// what becomes of them and of those that need them: such a change is told as well.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "component.h"
#include "cost_bounds.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "score.h"

namespace dtr {

class Neighborhoods {
 public:
  Neighborhoods(Environment& environment, const Graph& graph, const Devices& devices,
                const Needs& needs, Components& components, CostBounds& bounds)
      : environment_(environment),
        graph_(graph),
        devices_(devices),
        needs_(needs),
        components_(components),
        bounds_(bounds) {}

  // ---- changes ----
  // The storage was evicted.
  void join(Storage* storage);
  // It came back, vanished or lost its parent: called while the edges still stand. What it was next
  // to may lose the whole component.
  void leave(Storage* storage);
  // What the evicted storage adds to the cost of those that would be recomputed from it has
  // changed.
  void share_changed(Storage* storage);
  // After a change of the heuristic: what it needs is made from the records, what it does not need
  // goes. Components that were kept keep their phantom connections.
  void rebuild();

  // ---- sums, in nanoseconds, or under the marginal cost in kShareParts of one ----
  // Of those that this one would have to be recomputed from.
  int64_t ancestors_ns(Storage* storage);
  // Of those that need this one to be recomputed.
  int64_t descendants_ns(Storage* storage);
  // Of the distinct evicted components next to the storage.
  int64_t component_ns(const Storage* storage);
  // Of all that the heuristic counts for each of several, in their order; what they share counts
  // with the first.
  void sums_together(const std::vector<Storage*>& storages, std::vector<int64_t>* sums);

  // ---- for check_invariants() ----
  // N1 and N2 by fresh walks: nothing cached is used or changed. Also that components have the
  // costs of their members.
  void check(const std::vector<Storage*>& storages);
  int64_t fresh_ancestors_ns(const Storage* storage) const;
  int64_t fresh_descendants_ns(const Storage* storage) const;

 private:
  int64_t part_of(const Storage* storage) const;
  void merge_components(const Storage* storage);
  template <typename Half, typename Change>
  void tell(Storage* storage, const Half& half, Change&& change);
  template <typename Half, typename SumOf>
  void add(Storage* storage, const Half& half, SumOf&& sum_of);
  template <typename Half>
  void subtract(Storage* storage, const Half& half);
  template <typename ForNext, typename Meet>
  int64_t walk(Storage* from, uint64_t visit, ForNext&& for_next, Meet&& meet);
  int64_t sum_of(const std::unordered_set<const Storage*>& storages) const;

  Environment& environment_;
  const Graph& graph_;
  const Devices& devices_;
  const Needs& needs_;
  Components& components_;
  CostBounds& bounds_;
  uint64_t visits_ = 0;
  int64_t credit_ = 0;             // N3: storages that may still be told
  std::vector<Storage*> pending_;  // worklist of walks
};

}  // namespace dtr
