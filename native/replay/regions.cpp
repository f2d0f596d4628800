#include "regions.h"

#include <algorithm>

namespace dtr::simrd {

void Regions::rebuild(Region& region, uint32_t storage, Direction direction, uint64_t* accesses) {
  region.interior.clear();
  region.frontier.clear();
  region.cost = 0;
  const uint32_t mark = next_mark();
  marks_[storage] = mark;  // it is resident, and never in its own frontier
  pending_.assign(1, storage);
  uint64_t visited = 0;
  while (!pending_.empty()) {
    const Node& node = nodes_[pending_.back()];
    pending_.pop_back();
    const bool up = direction == Direction::ancestors;
    visited += up ? node.parent_edges : node.child_edges;
    for (const uint32_t next : up ? node.parents : node.children) {
      if (marks_[next] == mark) continue;
      marks_[next] = mark;
      if (nodes_[next].material) {
        region.frontier.push_back(next);
      } else {
        region.cost += nodes_[next].cost;
        region.interior.push_back(next);
        pending_.push_back(next);
      }
    }
  }
  *accesses += visited;
}

bool Regions::absorb(Region& region, const Region& of_storage, uint32_t storage,
                     uint64_t* accesses) {
  const auto at = std::find(region.frontier.begin(), region.frontier.end(), storage);
  if (at == region.frontier.end()) return false;
  *at = region.frontier.back();
  region.frontier.pop_back();
  uint32_t mark = next_mark();
  for (const uint32_t known : region.frontier) marks_[known] = mark;
  const size_t frontier = of_storage.frontier.size();  // the two may be the same region
  for (size_t i = 0; i < frontier; ++i) {
    const uint32_t other = of_storage.frontier[i];
    if (marks_[other] == mark) continue;
    marks_[other] = mark;
    region.frontier.push_back(other);
  }
  // What is new, and the storage itself even if it is in the interior already: its cost counts
  // once more then, as it does in simrd.
  mark = next_mark();
  for (const uint32_t known : region.interior) marks_[known] = mark;
  const bool known = marks_[storage] == mark;
  marks_[storage] = mark;
  region.cost += nodes_[storage].cost;
  ++*accesses;
  const size_t interior = of_storage.interior.size();
  for (size_t i = 0; i < interior; ++i) {
    const uint32_t other = of_storage.interior[i];
    if (marks_[other] == mark) continue;
    marks_[other] = mark;
    region.cost += nodes_[other].cost;
    ++*accesses;
    region.interior.push_back(other);
  }
  if (!known) region.interior.push_back(storage);
  return true;
}

bool Regions::evicted(uint32_t storage, uint64_t* accesses) {
  Pair& own = pairs_[storage];
  touched_ = own.ancestors.frontier;
  for (const uint32_t ancestor : touched_)
    if (!absorb(pairs_[ancestor].descendants, own.descendants, storage, accesses)) return false;
  touched_ = own.descendants.frontier;
  for (const uint32_t descendant : touched_)
    if (!absorb(pairs_[descendant].ancestors, own.ancestors, storage, accesses)) return false;
  for (Region* region : {&own.ancestors, &own.descendants}) {
    region->interior.clear();
    region->frontier.clear();
    region->cost = 0;
  }
  return true;
}

void Regions::revived(const std::vector<uint32_t>& storages, uint64_t* accesses) {
  std::vector<uint32_t>& below = touched_;  // whose ancestors changed
  below.clear();
  std::vector<uint32_t> above;
  for (const uint32_t storage : storages) {
    Pair& own = pairs_[storage];
    rebuild(own.descendants, storage, Direction::descendants, accesses);
    rebuild(own.ancestors, storage, Direction::ancestors, accesses);
    above.insert(above.end(), own.ancestors.frontier.begin(), own.ancestors.frontier.end());
    below.insert(below.end(), own.descendants.frontier.begin(), own.descendants.frontier.end());
  }
  const auto distinct = [](std::vector<uint32_t>& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  distinct(above);
  distinct(below);
  for (const uint32_t storage : above)
    rebuild(pairs_[storage].descendants, storage, Direction::descendants, accesses);
  for (const uint32_t storage : below)
    rebuild(pairs_[storage].ancestors, storage, Direction::ancestors, accesses);
}

}  // namespace dtr::simrd
