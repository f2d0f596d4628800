// simrd.h: a machine with the semantics of simrd, the simulator of the DTR paper.
//
// It runs op logs with exactly the decisions of the published simulator, so that a number of
// ours can stand beside a published one. (On request it searches less, as DTR's prototype does:
// narrow_candidates.) What differs from the engine, which the run with
// runtime semantics drives (simulate/runtime.h):
//   - Views are tensors of their own: evicting a storage undefines them all, and using one again
//     runs its view operator again. Mutation makes a copy.
//   - No record ever vanishes: a storage that nobody can ask for still counts as evicted.
//   - A waiting rematerialization locks all its inputs; the order of candidates decides ties, and
//     a lock moves a storage to the end of that order.
// So it has records of its own; the scores are the engine's (dtr_heuristic).
//
// Sources: the simrd text, section 4, and where that is silent the program's behavior: the
// clock starts at 1; inputs are stamped when a (re)materialization is asked for, before anything
// else is done; outputs after their operator. Sums and costs are integers.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "candidate_pool.h"
#include "eviction_list.h"
#include "lab/dtr_lab.h"
#include "mersenne.h"
#include "playback.h"
#include "regions.h"
#include "simulate/simulation.h"

namespace dtr::simrd {

// The edges of one tensor, which banishing takes away one by one.
struct Links {
  std::vector<uint32_t> parents;   // the op's inputs, but for those banished
  std::vector<uint32_t> children;  // once for each time that it is an argument
};

// Beside what everyone who plays knows of it (InUse).
struct Storage {
  uint32_t recomputes = 0;
  uint32_t component = kNone;  // its node while it is evicted, or not yet computed
  bool banished = false;
  bool needed = false;     // evicted, and referred to or needed by what is
  uint32_t needed_by = 0;  // storages computed from it that are needed, for the marginal cost
  uint32_t walk = 0;       // visited in the walk of that number
  std::vector<uint32_t> tensors;
};

// Evicted components (appendix C.2): sums that are never split. A revived storage's cost, as it
// is by then, is taken off its component's sum.
class Components {
 public:
  uint32_t create(int64_t cost);
  uint32_t root(uint32_t node, uint64_t* accesses);
  void merge(uint32_t a, uint32_t b, uint64_t* accesses);
  int64_t cost(uint32_t root) const { return nodes_[root].cost; }
  void add(uint32_t root, int64_t cost) { nodes_[root].cost += cost; }
  // Whether this is the first visit to the root since next_walk().
  bool visit(uint32_t root) {
    if (nodes_[root].walk == walk_) return false;
    nodes_[root].walk = walk_;
    return true;
  }
  void next_walk() { ++walk_; }

 private:
  struct ComponentNode {
    uint32_t parent;
    uint32_t rank;
    int64_t cost;
    uint64_t walk;
  };
  std::vector<ComponentNode> nodes_;
  uint64_t walk_ = 0;
};

class Machine : private Playback<Machine> {
  friend Playback<Machine>;

 public:
  // Throws InvalidArgument for options that simrd has no meaning for.
  // given: what is evicted for room, instead of what the heuristic would choose; may be null.
  Machine(const dtr_lab_options& options, const Log& log, Simulation& simulation,
          EvictionList* given = nullptr);
  // Runs the log; its outcome is in the simulation.
  void run();

 private:
  // What ends a run early.
  struct Stop {
    int32_t status;
  };

  // ---- simrd.cpp ----
  void compute(uint32_t op);
  void touch(uint32_t storage, int64_t cost, uint32_t ancestor_edges, uint32_t descendant_edges);
  void add_edges(const Op& op);
  void add_ordered_edges(const Op& op);
  bool is_resident(uint32_t storage) const { return graph_.material[storage]; }
  const std::vector<uint32_t>& begin(uint32_t tensor);
  void revive(uint32_t storage, bool again);
  void executed(const Op& op, const Step& step);
  void unlock_inputs(uint32_t tensor);
  void enter(uint32_t storage);
  void leave(uint32_t storage);
  void unreferenced(uint32_t storage);
  void evict(uint32_t storage, bool forced);
  void try_banish(uint32_t storage);
  void make_room(uint64_t bytes);
  void evict_given(uint64_t bytes);
  void update_needed(uint32_t storage, bool relinked = false);
  // Of the storages beside it, as often as they stand there.
  template <typename F>
  void each_evicted_neighbor(uint32_t storage, F&& visit) {
    const Node& node = graph_.nodes[storage];
    result_.accesses += node.edges[kAncestors] + node.edges[kDescendants];
    for (const std::vector<uint32_t>& side : node.next)
      for (const uint32_t neighbor : side)
        if (!graph_.material[neighbor]) visit(storages_[neighbor]);
  }
  void stamp(uint32_t storage) { in_use_[storage].last_access = clock_; }
  void check(bool holds) const {
    if (!holds) throw Stop{DTR_SIMULATION_CONTRADICTION};
  }
  bool banishes() const { return options_.common.dealloc == DTR_DEALLOC_BANISH; }

  // ---- scores.cpp ----
  uint32_t choose();
  void narrow_candidates();
  int64_t neighborhood_cost(uint32_t storage, int64_t* newest);
  int64_t component_cost(uint32_t storage);
  double marginal_cost(uint32_t storage);
  template <typename Cost>
  double score(uint32_t storage, Cost cost, int64_t newest) const;

  const dtr_lab_options options_;
  Simulation& simulation_;
  dtr_simulation_result& result_;
  EvictionList* const given_;
  bool caches_regions_ = false;      // e*, as cached by simrd
  bool walks_neighborhood_ = false;  // e*, walked for each score
  bool keeps_components_ = false;
  bool is_marginal_ = false;

  uint32_t tensors_ = 0;           // of the log, how many were asked for so far, and
  std::vector<Storage> storages_;  // their storages
  Graph graph_;                    // the storages, parallel to storages_
  CandidatePool pool_;             // the resident, unlocked storages
  std::vector<Links> links_;       // parallel to these tensors, and
  std::vector<std::unordered_set<uint32_t>> evicted_dependents_;  // to storages_: tensors; both
                                                                  // for banishing only
  Components components_;
  Regions regions_{graph_};
  Region walk_up_, walk_down_;
  Mersenne random_;
  std::vector<uint32_t> candidates_;  // of a choice, in the order of the pool
  std::vector<uint32_t> pending_;     // worklist
  uint32_t walks_ = 0;
  // Of the op that is being defined:
  std::vector<uint32_t> sources_;  // the distinct storages of its arguments
};

}  // namespace dtr::simrd
