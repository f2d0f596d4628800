// needed_storages.h: which evicted storages are going to be needed again.
//
// A dead storage that a rematerialization brought back is of use only to what is computed from it.
//
//  G1  An evicted storage is needed if it can come back, and is live or needed by another.
//  G2  A storage is needed by the ops that read it and have needed outputs; they are counted, and
//      so are an op's needed outputs.
//
// So what an eviction of a dead storage that nothing needs takes away is nothing that any evicted
// storage would begin with: it goes before everything else (kUnneeded). One that is needed is what
// their rematerialization begins with, and is scored as the living are. (A dead storage that is
// resident under the policy "ignore" is treated alike.)
//
// Need spreads upward through dead evicted storages and stops at one that is resident, live or
// needed already: where a rematerialization would stop, too. So a change visits at most what a
// rematerialization would run, and on the fast path, where nothing is evicted, there is none.
//
// Who searches for victims asks for it, and while a plan is followed nobody does. So need is followed
// for as many changes after a search as there are records, which a look at all of them costs; after
// that it stays as it is until catch_up(). G2 holds all the while.
#pragma once

#include <vector>

#include "cost_bounds.h"
#include "graph/graph.h"
#include "neighborhoods.h"

namespace dtr {

class NeededStorages {
 public:
  NeededStorages(const Graph& graph, Neighborhoods& neighborhoods, CostBounds& bounds)
      : graph_(graph), neighborhoods_(neighborhoods), bounds_(bounds) {}

  // Called after each change of what G1 speaks of.
  void changed(Storage* storage) {
    if (to_follow_ == 0) {
      is_behind_ = true;
      return;
    }
    --to_follow_;
    update(storage, false);
  }
  // Called before the storage loses its parent.
  void loses_parent(Storage* storage) { update(storage, true); }
  // Called before G1 is relied on.
  void catch_up();

  // G1 and G2 of one storage, for check_invariants(). (For all storages together they have one
  // solution, as the graph has no cycles.)
  static void check(const Storage* storage);

 private:
  void update(Storage* changed, bool loses_parent);

  const Graph& graph_;
  Neighborhoods& neighborhoods_;
  CostBounds& bounds_;
  std::vector<Storage*> pending_;  // worklist of update()
  size_t to_follow_ = 0;           // so many changes are followed
  bool is_behind_ = false;         // some was not
};

}  // namespace dtr
