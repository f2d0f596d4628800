#include "regions.h"

#include <algorithm>

namespace dtr::simrd {

namespace {

Direction opposite(Direction direction) {
  return direction == kAncestors ? kDescendants : kAncestors;
}

}  // namespace

void Regions::begin_op(uint32_t first_storage, uint32_t end_storage) {
  first_pending_ = first_storage;
  end_pending_ = end_storage;
}

void Regions::touch(uint32_t storage, int64_t cost, uint32_t ancestor_edges,
                    uint32_t descendant_edges) {
  const bool pending = storage >= first_pending_ && storage < end_pending_;
  if (graph_.material[storage] || pending) {
    Node& node = graph_.nodes[storage];
    node.cost += cost;
    node.edges[kAncestors] += ancestor_edges;
    node.edges[kDescendants] += descendant_edges;
  } else {
    delayed_.push_back({storage, cost, {ancestor_edges, descendant_edges}});
  }
}

int64_t Regions::delayed_cost(uint32_t storage) const {
  int64_t cost = 0;
  for (const Delayed& delayed : delayed_)
    if (delayed.storage == storage) cost += delayed.cost;
  return cost;
}

void Regions::walk(Region& region, uint32_t storage, Direction direction, uint64_t* accesses) {
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

bool Regions::absorb(uint32_t absorber, uint32_t storage, Direction direction, uint64_t* accesses) {
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

bool Regions::evicted(uint32_t storage, uint64_t* accesses) {
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

void Regions::revived(const std::vector<uint32_t>& storages, uint64_t* accesses) {
  for (std::vector<uint32_t>& list : around_) list.clear();
  for (const uint32_t storage : storages)
    for (const Direction direction : {kDescendants, kAncestors}) {
      Region& own = regions_[direction][storage];
      walk(own, storage, direction, accesses);
      own.frontier.for_each([&](uint32_t id) { around_[direction].push_back(id); });
    }
  for (const Direction towards : {kAncestors, kDescendants}) {
    std::vector<uint32_t>& around = around_[towards];
    std::sort(around.begin(), around.end());
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

}  // namespace dtr::simrd
