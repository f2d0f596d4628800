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
//  N1  If ancestors_known, ancestors_ns is that sum; likewise descendants. Counted storages
//      have sums over their ancestors, too.
//  N2  `below` of a counted storage says what the storages that are reached downward
//      from it, through counted ones only, know of their ancestors; `above`, what those
//      upward know of their descendants. Known::no: none has the sum cached.
//      Known::gone: nor does any bound (C1) still contain it.
//  N3  So `below` never falls on the way down: a walk that makes the caches below a
//      storage unknown may stop where they are. `above` likewise, upward.
//  N4  Computing a sum visits all storages of which N2 then has to say `maybe`, but for
//      those above one whose sum is known: it says so of these already. A walk that stops
//      early has told those that it met, of which a path of such leads down to where it began.
//
// Under the marginal cost, the sum over ancestors is of their shares (score.h), which change with
// what becomes of them and of those that need them: N1 to N4 hold for these sums as well.
//
// An eviction changes the descendants of what is above it and the ancestors of what is
// below it; so do a return and a vanishing. By N3 a chain of a thousand evictions visits
// each region once, not a thousand times. A new op links its inputs to results that are
// resident and know nothing yet, and a constant is a resident storage: neither changes
// anybody's sum.
#pragma once

#include <cstdint>
#include <limits>
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
  void share_changed(const Storage* storage, bool grew) {
    if (needs_.shares && storage->counted) spread_share(const_cast<Storage*>(storage), grew);
  }
  // After a change of the heuristic: what it needs is made from the records, what it does not need
  // goes. Components that were kept keep their phantom connections.
  void rebuild();

  // ---- sums, in nanoseconds, or under the marginal cost in kShareParts of one ----
  // Of those that this one would have to be recomputed from; or of some of them, which is more than
  // `most`.
  int64_t ancestors_ns(Storage* storage, int64_t most = std::numeric_limits<int64_t>::max());
  // Of those that need this one to be recomputed; likewise.
  int64_t descendants_ns(Storage* storage, int64_t most = std::numeric_limits<int64_t>::max());
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
  void changed(Storage* storage, bool grew);
  void spread_share(Storage* storage, bool grew) {
    if (storage->below < (grew ? Known::no : Known::gone)) changed(storage, grew);
  }
  template <typename ForNext, typename Meet>
  int64_t walk(const Storage* from, uint64_t visit, ForNext&& for_next, Meet&& meet,
               int64_t most = std::numeric_limits<int64_t>::max());
  int64_t sum_of(const std::unordered_set<const Storage*>& storages) const;

  Environment& environment_;
  const Graph& graph_;
  const Devices& devices_;
  const Needs& needs_;
  Components& components_;
  CostBounds& bounds_;
  uint64_t visits_ = 0;
  std::vector<const Storage*> pending_;  // worklist of walks
};

}  // namespace dtr
