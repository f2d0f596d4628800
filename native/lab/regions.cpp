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

// Adds an evicted storage to the interior.
void Regions::take(Region& region, uint32_t id, Direction direction) {
  region.settled += graph_.nodes[id].cost;
  region.edges += graph_.nodes[id].edges[direction];
}

void Regions::walk(Region& region, uint32_t storage, Direction direction, uint64_t* accesses) {
  region.clear();
  const uint32_t mark = ++mark_;
  marks_[storage] = mark;  // it is resident, and never in its own frontier
  pending_.assign(1, storage);
  while (!pending_.empty()) {
    const uint32_t at = pending_.back();
    pending_.pop_back();
    if (at != storage) take(region, at, direction);
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
  region.cost = region.settled;
  *accesses += region.edges + graph_.nodes[storage].edges[direction];
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
  if (region.interior.add(storage)) {
    take(region, storage, direction);
    region.exact &= other.exact;
  } else {
    region.exact = false;
  }
  region.cost += graph_.nodes[storage].cost;
  ++*accesses;
  region.interior.add_all(other.interior, [&](uint32_t id) {
    take(region, id, direction);
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

void Regions::computed(const std::vector<uint32_t>& storages, const std::vector<uint32_t>& inputs,
                       uint64_t* accesses) {
  if (circles_) return revived(storages, accesses);
  for (const uint32_t storage : storages) {
    for (const uint32_t input : inputs) regions_[kAncestors][storage].frontier.add(input);
    *accesses += graph_.nodes[storage].edges[kAncestors];
  }
  if (storages.empty()) return;
  for (const uint32_t input : inputs) {
    Region& region = regions_[kDescendants][input];
    if (!region.exact) {
      walk(region, input, kDescendants, accesses);
      continue;
    }
    for (const uint32_t storage : storages) region.frontier.add(storage);
    region.cost = region.settled;
    *accesses += graph_.nodes[input].edges[kDescendants] + region.edges;
  }
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
    const Direction back = opposite(towards);
    lost_interior_.clear();
    lost_frontier_.clear();
    for (const uint32_t storage : storages) {
      const Region& own = regions_[back][storage];
      own.interior.for_each([&](uint32_t id) { lost_interior_.push_back(id); });
      own.frontier.for_each([&](uint32_t id) { lost_frontier_.push_back(id); });
    }
    if (storages.size() > 1)
      for (std::vector<uint32_t>* list : {&around_[towards], &lost_interior_, &lost_frontier_}) {
        std::sort(list->begin(), list->end());
        list->erase(std::unique(list->begin(), list->end()), list->end());
      }
    // Storages are numbered so that each comes after those that it was computed from. From the
    // region's storage outward:
    if (back == kAncestors) std::reverse(lost_interior_.begin(), lost_interior_.end());
    for (const uint32_t other : around_[towards])
      if (circles_ || !regions_[back][other].exact)
        walk(regions_[back][other], other, back, accesses);
      else
        shrink(other, back, storages, accesses);
  }
  for (size_t i = delayed_.size(); i-- > 0;) {
    const Delayed delayed = delayed_[i];
    if (!graph_.material[delayed.storage]) continue;
    delayed_.erase(delayed_.begin() + static_cast<std::ptrdiff_t>(i));
    touch(delayed.storage, delayed.cost, delayed.edges[kAncestors], delayed.edges[kDescendants]);
  }
}

// Whether the storage is next to one that the region belongs to or has in its interior.
bool Regions::reaches(const Region& region, uint32_t from, uint32_t to, Direction direction) const {
  for (const uint32_t before : graph_.nodes[to].next[opposite(direction)])
    if (before == from || region.interior.has(before)) return true;
  return false;
}

// Brings an exact region to what a walk would give, now that these storages are resident:
// without them and without what it reached only through them (lost_).
void Regions::shrink(uint32_t storage, Direction direction, const std::vector<uint32_t>& revived,
                     uint64_t* accesses) {
  Region& region = regions_[direction][storage];
  const auto drop = [&](uint32_t id) {
    if (!region.interior.remove(id)) return;
    region.settled -= graph_.nodes[id].cost;
    region.edges -= graph_.nodes[id].edges[direction];
  };
  for (const uint32_t id : revived) drop(id);
  for (const uint32_t id : lost_interior_)
    if (region.interior.has(id) && !reaches(region, storage, id, direction)) drop(id);
  // What is about to be computed was not there when the region was built, maybe.
  if (direction == kDescendants)
    for (uint32_t id = first_pending_; id < end_pending_; ++id)
      if (!graph_.material[id] && reaches(region, storage, id, direction) &&
          region.interior.add(id))
        take(region, id, direction);
  for (const uint32_t id : lost_frontier_)
    if (region.frontier.has(id) && !reaches(region, storage, id, direction))
      region.frontier.remove(id);
  for (const uint32_t id : revived)
    if (reaches(region, storage, id, direction)) region.frontier.add(id);
  region.cost = region.settled;
  *accesses += graph_.nodes[storage].edges[direction] + region.edges;
  for (const Delayed& delayed : delayed_)
    if (region.interior.has(delayed.storage)) {
      region.cost += delayed.cost;
      *accesses += delayed.edges[direction];
    }
}

}  // namespace dtr::simrd
