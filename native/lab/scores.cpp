// scores.cpp: the machine's scores and its choice among the candidates.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "policy/score.h"
#include "quotient.h"
#include "simrd.h"

namespace dtr::simrd {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double quotient(double a, unsigned __int128 b) { return a / static_cast<double>(b); }

}  // namespace

uint32_t Components::create(int64_t cost) {
  nodes_.push_back({static_cast<uint32_t>(nodes_.size()), 0, cost, 0});
  return static_cast<uint32_t>(nodes_.size() - 1);
}

uint32_t Components::root(uint32_t node, uint64_t* accesses) {
  ++*accesses;
  while (nodes_[node].parent != node) {
    nodes_[node].parent = nodes_[nodes_[node].parent].parent;
    node = nodes_[node].parent;
    ++*accesses;
  }
  return node;
}

void Components::merge(uint32_t a, uint32_t b, uint64_t* accesses) {
  a = root(a, accesses);
  b = root(b, accesses);
  if (a == b) return;
  if (nodes_[a].rank > nodes_[b].rank) std::swap(a, b);
  if (nodes_[a].rank == nodes_[b].rank) ++nodes_[b].rank;
  nodes_[a].parent = b;
  nodes_[b].cost += std::exchange(nodes_[a].cost, 0);
}

// The cost of e* (or of its ancestors alone), walked anew. *newest becomes the newest access in
// it and the storage itself.
int64_t Machine::neighborhood_cost(uint32_t storage, int64_t* newest) {
  *newest = in_use_[storage].last_access;
  regions_.walk(walk_up_, storage, kAncestors, &result_.accesses);
  int64_t cost = walk_up_.cost;
  walk_up_.interior.for_each(
      [&](uint32_t above) { *newest = std::max(*newest, in_use_[above].last_access); });
  if (options_.common.heuristic.cost == DTR_COST_ANCESTORS) return cost;
  regions_.walk(walk_down_, storage, kDescendants, &result_.accesses);
  walk_down_.interior.for_each([&](uint32_t below) {
    *newest = std::max(*newest, in_use_[below].last_access);
    // A storage may be on both sides, through views: it counts once.
    if (!walk_up_.interior.has(below)) cost += graph_.nodes[below].cost;
  });
  return cost;
}

int64_t Machine::component_cost(uint32_t storage) {
  components_.next_walk();
  int64_t cost = 0;
  each_evicted_neighbor(storage, [&](const Storage& neighbor) {
    const uint32_t root = components_.root(neighbor.component, &result_.accesses);
    if (components_.visit(root)) cost += components_.cost(root);
  });
  return cost;
}

double Machine::marginal_cost(uint32_t at) {
  int64_t shares = 0;
  const uint32_t walk = ++walks_;
  pending_.assign(1, at);
  while (!pending_.empty()) {
    const Node& node = graph_.nodes[pending_.back()];
    pending_.pop_back();
    for (const uint32_t above : node.next[kAncestors]) {
      Storage& storage = storages_[above];
      if (graph_.material[above] || storage.walk == walk) continue;
      storage.walk = walk;
      ++result_.accesses;
      shares += share_parts(graph_.nodes[above].cost, in_use_[above].references > 0, storage.needed,
                            graph_.nodes[above].next[kDescendants].size());
      pending_.push_back(above);
    }
  }
  return with_shares(graph_.nodes[at].cost, shares);
}

template <typename Cost>
double Machine::score(uint32_t at, Cost cost, int64_t newest) const {
  const dtr_heuristic& heuristic = options_.common.heuristic;
  const Storage& storage = storages_[at];
  const int64_t stale = clock_ - newest;
  if (heuristic.size != DTR_SIZE_NONE && bytes_of(at) == 0) return kInfinity;
  if (heuristic.staleness_exponent > 0 && stale <= 0) return kInfinity;
  unsigned __int128 below = heuristic.size != DTR_SIZE_NONE ? bytes_of(at) : 1;
  if (heuristic.staleness_exponent == 1) below *= static_cast<uint64_t>(stale);
  double value = quotient(cost, below);
  // Beyond simrd:
  if (heuristic.staleness_exponent > 0 && heuristic.staleness_exponent < 1)
    value /= std::pow(static_cast<double>(stale), heuristic.staleness_exponent);
  if (heuristic.recompute_factor > 1)
    value *= std::pow(heuristic.recompute_factor, storage.recomputes);
  return value;
}

// Beyond simrd, to search less, as DTR's prototype does (DTR, section 4.2): small storages are
// passed over, and a sample of the others is drawn, each of the same chance. There is always one,
// for the largest is not below the mean.
void Machine::narrow_candidates() {
  uint64_t bytes = 0;
  for (const uint32_t at : candidates_) bytes += bytes_of(at);
  const uint64_t count = candidates_.size();
  const double mean = static_cast<double>(bytes) / static_cast<double>(count);
  // The mean again, because a double may be rounded to more than the largest.
  const uint64_t least =
      std::min(static_cast<uint64_t>(std::ceil(options_.least_size_share * mean)),
               bytes / count + (bytes % count != 0));
  std::erase_if(candidates_, [&](uint32_t at) { return bytes_of(at) < least; });
  if (options_.sampling == DTR_SAMPLING_NONE) return;
  auto left = static_cast<uint32_t>(candidates_.size());
  auto wanted = static_cast<uint32_t>(std::ceil(std::sqrt(left)));
  size_t kept = 0;
  for (const uint32_t at : candidates_)
    if (random_.below(left--) < wanted) {
      candidates_[kept++] = at;
      --wanted;
    }
  candidates_.resize(kept);
}

uint32_t Machine::choose() {
  const dtr_heuristic& heuristic = options_.common.heuristic;
  pool_.list(&candidates_);
  if (options_.sampling != DTR_SAMPLING_NONE || options_.least_size_share > 0) narrow_candidates();
  if (heuristic.select == DTR_SELECT_RANDOM) {
    ++result_.evaluations;
    ++result_.accesses;
    return candidates_[random_.below(static_cast<uint32_t>(candidates_.size()))];
  }
  double least = kInfinity;
  const auto evaluate = [&](uint32_t at) {
    ++result_.evaluations;
    ++result_.accesses;
    int64_t cost = heuristic.cost == DTR_COST_NONE ? 1 : graph_.nodes[at].cost;
    int64_t newest = in_use_[at].last_access;
    if (is_marginal_) {
      double value = score(at, cost, newest);
      if (in_use_[at].references == 0 && storages_[at].needed_by == 0)
        value *= kUnneeded;
      else if (value <= least)  // else another is better whatever the shares
        value = score(at, marginal_cost(at), newest);
      return value;
    }
    if (caches_regions_) {
      cost += regions_.cost(at, kAncestors);
      if (heuristic.cost == DTR_COST_NEIGHBORHOOD) cost += regions_.cost(at, kDescendants);
    } else if (keeps_components_) {
      cost += component_cost(at);
    } else if (walks_neighborhood_) {
      int64_t newest_around;
      cost += neighborhood_cost(at, &newest_around);
      if (options_.newest_staleness) newest = newest_around;
    }
    return score(at, cost, newest);
  };
  uint32_t best = CandidatePool::kNone;
  for (const uint32_t at : candidates_) {
    const double value = evaluate(at);
    if (value <= least) {
      least = value;
      best = at;
    }
    if (value == 0) break;
  }
  return best;
}

}  // namespace dtr::simrd
