// regions.h: evicted neighborhoods as simrd caches them (simrd text, section 4.5).
//
// A region is what one resident storage sees in one direction: the evicted storages that it
// reaches through evicted ones (interior), and the resident ones at the edge (frontier). On an
// eviction the regions that have the storage in their frontier absorb its regions; on a
// rematerialization those around it are built anew. Between the two a cached cost stays as it
// was, whatever happens to the storages in it: the engine's own neighborhoods are exact instead,
// simrd's are what its published numbers stand on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "id_set.h"
#include "python_set.h"

namespace dtr::simrd {

enum Direction : uint8_t { kAncestors = 0, kDescendants = 1 };
inline Direction opposite(Direction direction) {
  return direction == kAncestors ? kDescendants : kAncestors;
}

// One storage of the graph that regions are walks over.
struct Node {
  int64_t cost = 0;            // of all operators of its views
  uint32_t edges[2] = {0, 0};  // by direction, between tensors: those to itself and repeated ones
                               // included, as a walk over the tensors would visit them
  // By direction: other storages, mostly without repetition; with circles all of them, and the
  // storage itself, in the order of a walk over the tensors.
  std::vector<uint32_t> next[2];
  std::vector<uint32_t> through;  // with circles: the tensor behind each in next[kDescendants]

  void add(int64_t more_cost, uint32_t ancestor_edges, uint32_t descendant_edges) {
    cost += more_cost;
    edges[kAncestors] += ancestor_edges;
    edges[kDescendants] += descendant_edges;
  }
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<uint8_t> material;  // beside the nodes: walks ask it of many that they do not enter
};

struct Region {
  IdSet interior;
  IdSet frontier;
  PythonSet ordered;  // with circles: the frontier once more
  int64_t cost = 0;

  void clear() {
    interior.clear();
    frontier.clear();
    ordered.clear();
    cost = 0;
  }
};

// Both regions of every storage. Counts what simrd would visit.
class Regions {
 public:
  explicit Regions(Graph& graph) : graph_(graph) {}

  // Views will be made of more than the storage that they look at. Then storages may depend on
  // one another in circles, simrd's regions drift from what a walk would give, and what comes
  // of that depends on the order in which Python walks its sets. Before the first storage.
  void expect_circles() { circles_ = true; }
  bool circles() const { return circles_; }

  // root: the number of the storage's first tensor, as which it stands in simrd's sets.
  void add_storage(uint32_t root) {
    if (circles_) {
      roots_.push_back(root);
      storage_of_.resize(root + 1);
      storage_of_[root] = static_cast<uint32_t>(roots_.size() - 1);
    }
    regions_[kAncestors].emplace_back();
    regions_[kDescendants].emplace_back();
    marks_.push_back(0);
  }
  int64_t cost(uint32_t storage, Direction direction) const {
    return regions_[direction][storage].cost;
  }

  // An op is asked for: these new storages count as evicted until it has run.
  void begin_op(uint32_t first_storage, uint32_t end_storage) {
    first_pending_ = first_storage;
    end_pending_ = end_storage;
  }
  // The op is a view of the storage, or takes it as an argument: adds to its cost and edges. On
  // an evicted storage that is delayed, because only regions built from now on know of it.
  void touch(uint32_t storage, int64_t cost, uint32_t ancestor_edges, uint32_t descendant_edges) {
    const bool pending = storage >= first_pending_ && storage < end_pending_;
    if (graph_.material[storage] || pending)
      graph_.nodes[storage].add(cost, ancestor_edges, descendant_edges);
    else
      delayed_.push_back({storage, cost, {ancestor_edges, descendant_edges}});
  }
  // After the storage was evicted. False: a region that should have it in its frontier has not
  // (in a circle), where simrd fails an assertion.
  bool evicted(uint32_t storage, uint64_t* accesses) {
    for (const Direction towards : {kAncestors, kDescendants}) {
      std::vector<uint32_t>& around = around_[0];
      around.clear();
      const Region& own = regions_[towards][storage];
      if (circles_)
        own.ordered.for_each([&](uint32_t root) { around.push_back(storage_of_[root]); });
      else
        own.frontier.for_each([&](uint32_t id) { around.push_back(id); });
      for (const uint32_t other : around)
        if (!absorb(other, storage, opposite(towards), accesses)) return false;
    }
    regions_[kAncestors][storage].clear();
    regions_[kDescendants][storage].clear();
    return true;
  }
  // After these came back in one step, or were computed.
  void revived(const std::vector<uint32_t>& storages, uint64_t* accesses) {
    for (std::vector<uint32_t>& list : around_) list.clear();
    for (const uint32_t storage : storages)
      for (const Direction direction : {kDescendants, kAncestors}) {
        Region& own = regions_[direction][storage];
        walk(own, storage, direction, accesses);
        own.frontier.for_each([&](uint32_t id) { around_[direction].push_back(id); });
      }
    for (const Direction towards : {kAncestors, kDescendants}) {
      std::vector<uint32_t>& around = around_[towards];
      std::ranges::sort(around);
      around.erase(std::unique(around.begin(), around.end()), around.end());
      for (const uint32_t other : around)
        walk(regions_[opposite(towards)][other], other, opposite(towards), accesses);
    }
    for (size_t i = delayed_.size(); i-- > 0;) {
      const Delayed delayed = delayed_[i];
      if (!graph_.material[delayed.storage]) continue;
      delayed_.erase(delayed_.begin() + static_cast<std::ptrdiff_t>(i));
      touch(delayed.storage, delayed.cost, delayed.edges[kAncestors], delayed.edges[kDescendants]);
    }
  }
  // Fills a region by a walk from a storage.
  void walk(Region& region, uint32_t storage, Direction direction, uint64_t* accesses) {
    region.clear();
    const uint32_t mark = ++mark_;
    marks_[storage] = mark;  // it is resident, and never in its own frontier
    pending_.assign(1, storage);
    while (!pending_.empty()) {
      const uint32_t at = pending_.back();
      pending_.pop_back();
      *accesses += graph_.nodes[at].edges[direction];
      if (at != storage) region.cost += graph_.nodes[at].cost;
      for (const uint32_t next : graph_.nodes[at].next[direction]) {
        if (marks_[next] == mark) continue;
        marks_[next] = mark;
        if (graph_.material[next]) {
          region.frontier.add(next);
          if (circles_) region.ordered.add(roots_[next]);
        } else {
          region.interior.add(next);
          pending_.push_back(next);
        }
      }
    }
    for (const Delayed& delayed : delayed_)
      if (delayed.storage == storage || region.interior.has(delayed.storage)) {
        if (delayed.storage != storage) region.cost += delayed.cost;
        *accesses += delayed.edges[direction];
      }
  }

 private:
  struct Delayed {
    uint32_t storage;
    int64_t cost;
    uint32_t edges[2];
  };
  bool absorb(uint32_t absorber, uint32_t storage, Direction direction, uint64_t* accesses) {
    Region& region = regions_[direction][absorber];
    const Region& other = regions_[direction][storage];
    if (!region.frontier.remove(storage)) return false;
    region.frontier.add_all(other.frontier, [](uint32_t) {});
    if (circles_) {
      region.ordered.remove(roots_[storage]);
      region.ordered.add_all(other.ordered);
    }
    // What is new, and the storage itself even if it is in the interior already: its cost counts
    // once more then, as it does in simrd.
    region.interior.add(storage);
    region.cost += graph_.nodes[storage].cost;
    ++*accesses;
    region.interior.add_all(other.interior, [&](uint32_t id) {
      region.cost += graph_.nodes[id].cost + delayed_cost(id);
      ++*accesses;
    });
    return true;
  }
  int64_t delayed_cost(uint32_t storage) const {
    int64_t cost = 0;
    for (const Delayed& delayed : delayed_)
      if (delayed.storage == storage) cost += delayed.cost;
    return cost;
  }

  Graph& graph_;
  std::vector<Region> regions_[2];  // by direction, then by storage
  std::vector<Delayed> delayed_;
  uint32_t first_pending_ = 0, end_pending_ = 0;
  bool circles_ = false;
  std::vector<uint32_t> roots_, storage_of_;  // with circles: by storage, and back
  std::vector<uint32_t> marks_;
  uint32_t mark_ = 0;
  std::vector<uint32_t> around_[2];
  std::vector<uint32_t> pending_;
};

}  // namespace dtr::simrd
