// invariants.cpp: the engine checks its own rules (records.h). Costs time in the
// number of records: for tests and debug builds.
#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "engine.h"
#include "grain.h"
#include "graph/require.h"

namespace dtr {

void Engine::check_invariants() {
  Transaction call(*this);
  graph_.check(stats_.live_ops);
  const std::unordered_set<Storage*> storages = graph_.all_storages();
  lifecycle_.check(storages, call.deferred);
  dead_.check(storages);
  unwritten_.check(storages);
  swap_space_.check(storages);
  std::unordered_map<const ComponentNode*, int64_t> costs;
  for (Storage* storage : storages) {
    require((storage->component != nullptr) == (storage->counted && needs_.components),
            "R10: a component that is not needed, or none", storage);
    if (storage->component) costs[components_.root(storage->component)] += cost_of(storage);
    check_asking(storage);
  }
  // Components keep the costs of their members (phantom links join sets, they add no cost).
  for (const auto& [root, cost] : costs)
    if (root->cost_ns != cost)
      throw StateError("a component of cost " + std::to_string(cost) + " counts " +
                       std::to_string(root->cost_ns));
  check_neighborhoods();
  check_search();
}

// G1 and G2 of one storage. (For all storages together they have one solution, as the graph has
// no cycles.)
void Engine::check_asking(const Storage* storage) {
  uint32_t askers = 0;
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    for (const Output& output : edge->op->outputs)
      if (output.storage && output.storage->asks) ++askers;
  if (askers != storage->askers)
    throw StateError("storage " + std::to_string(storage->id) +
                     " breaks G2: " + std::to_string(askers) + " ask for it, counted are " +
                     std::to_string(storage->askers));
  if (storage->asks !=
      (storage->counted && storage->parent && (storage->live || storage->askers > 0)))
    throw StateError("storage " + std::to_string(storage->id) + " breaks G1: it " +
                     (storage->asks ? "asks" : "does not ask"));
}

namespace {

// The counted storages that are reached from one, through counted ones only.
std::unordered_set<const Storage*> region(const Storage* from, bool upward) {
  std::unordered_set<const Storage*> found;
  std::vector<const Storage*> pending{from};
  const auto meet = [&](const Storage* next) {
    if (next && next->counted && next != from && found.insert(next).second) pending.push_back(next);
  };
  while (!pending.empty()) {
    const Storage* storage = pending.back();
    pending.pop_back();
    if (upward) {
      if (storage->parent)
        for (const Edge& edge : storage->parent->edges) meet(edge.input);
    } else {
      for (const Edge* edge = storage->children; edge; edge = edge->next)
        for (const Output& output : edge->op->outputs) meet(output.storage);
    }
  }
  return found;
}

}  // namespace

int64_t Engine::sum_of(const std::unordered_set<const Storage*>& storages) const {
  int64_t sum = 0;
  for (const Storage* storage : storages) sum += part_of(storage);
  return sum;
}

// N1 and N2 by fresh walks: nothing cached is used or changed.
void Engine::check_neighborhoods() {
  const auto require = [](bool holds, const char* rule, uint64_t id) {
    if (!holds) throw StateError("storage " + std::to_string(id) + " breaks " + rule);
  };
  const auto check = [&](const Storage* storage, bool upward) {
    if (!(upward ? storage->ancestors_known : storage->descendants_known)) return;
    const auto found = region(storage, upward);
    require(sum_of(found) == (upward ? storage->ancestors_ns : storage->descendants_ns),
            "N1: a cached sum differs from a fresh walk", storage->id);
    for (const Storage* counted : found)
      require((upward ? counted->below : counted->above) == Known::maybe,
              "N2: a sum is known after all", counted->id);
  };
  for (const auto& device : devices_)
    for (size_t i = 0; i < device->candidates.size(); ++i)
      for (const bool upward : {true, false}) check(device->candidates.at(i), upward);
  if (!needs_.ancestors) return;
  for (const Op* op = graph_.oldest_op(); op; op = op->newer)
    for (const Output& output : op->outputs)
      if (output.storage && output.storage->counted) check(output.storage, true);
}

// C1 and C2; and, seldom enough for bounds to age, that the search chooses what brute
// force chooses. The counters stay.
void Engine::check_search() {
  // Now and then those that no search has met stay as they are.
  if (!needs_.scores || ++checks_ % 4 == 1) return;
  const dtr_engine_stats before = stats_;
  const bool search = checks_ % 4 == 0;
  for (const auto& device : devices_) {
    const SearchContext moment = context_of(*device);
    const Storage* best = nullptr;
    double least = 0;
    for (size_t i = 0; i < device->candidates.size(); ++i) {
      Storage* storage = device->candidates.at(i);
      int64_t cost = cost_of(storage);
      const int32_t kind = options_.heuristic.cost;
      if (kind == DTR_COST_ANCESTORS || kind == DTR_COST_NEIGHBORHOOD)
        cost += sum_of(region(storage, true));
      if (kind == DTR_COST_NEIGHBORHOOD) cost += sum_of(region(storage, false));
      if (kind == DTR_COST_COMPONENT) cost += component_ns(storage);
      const double recompute =
          needs_.tolls ? with_tolls(cost, is_idle(storage) ? 0 : sum_of(region(storage, true)))
                       : static_cast<double>(cost);
      const double value = exact_score(
          storage, moment, kind == DTR_COST_NONE ? 1 : swap_costs_.with_swap(storage, recompute));
      const double bound = device->candidates.bound(storage, moment.now_ns,
                                                    components_.decreased_ns(), moment.most_free);
      const bool free_to_go = is_free_to_go(storage);
      if (storage->parked ? free_to_go : bound > value * (1 + Candidates::kSlack))
        throw StateError("storage " + std::to_string(storage->id) + " breaks C" +
                         (storage->parked ? "2: it is parked" : "1") + ": its bound is " +
                         std::to_string(bound) + ", its score " + std::to_string(value));
      if (!free_to_go) continue;
      if (best && (value > least || (value == least && storage->id > best->id))) continue;
      best = storage;
      least = value;
    }
    if (const std::string broken =
            device->candidates.check(moment.now_ns, components_.decreased_ns());
        !broken.empty())
      throw StateError(broken);
    if (!search) continue;
    check_windows(*device, moment);
    const Storage* found = choose(*device, moment);
    if (found != best)
      throw StateError("the search found storage " + std::to_string(found ? found->id : 0) +
                       " where storage " + std::to_string(best ? best->id : 0) +
                       " has the least score");
  }
  stats_ = before;
}

// W5, by trying every run of blocks, for requests of several sizes.
void Engine::check_windows(Device& device, const SearchContext& moment) {
  size_t blocks = 64, count;
  while ((count = run_of(device, nullptr, blocks)) == blocks) blocks *= 2;
  const std::vector<dtr_run_block> all(run_.begin(), run_.begin() + static_cast<int64_t>(count));
  uint64_t largest = kGrain;
  std::vector<Storage*> owners(count, nullptr);
  for (size_t i = 0; i < count; ++i) {
    if (all[i].state != 1) continue;
    Storage* storage = graph_.by_address.find(reinterpret_cast<const void*>(all[i].address));
    if (storage && storage->candidate >= 0 && is_free_to_go(storage)) owners[i] = storage;
    largest = std::max(largest, all[i].size_bytes);
  }
  const auto free = [&](size_t i) { return all[i].state == 0 || all[i].state == 3; };
  for (const uint64_t size :
       {kGrain, largest / 2 + kGrain / 2, largest, 3 * largest, 9 * largest}) {
    const uint64_t size_bytes = in_grains(size);
    FewWindows best;
    best.clear();
    ++price_look_;
    for (size_t first = 0; first < count; ++first) {
      if (!owners[first]) continue;
      size_t begin = first;
      while (begin > 0 && free(begin - 1)) --begin;
      uint64_t bytes = 0;
      Window window{owners[first], 0, 0};
      for (size_t i = begin; i < count && (free(i) || owners[i]); ++i) {
        bytes += all[i].size_bytes;
        if (!free(i)) {
          ++window.members;
          window.price += price_of(device, owners[i], moment);
        }
        const bool ends = i + 1 == count || !free(i + 1);
        if (window.members > 0 && ends && bytes >= size_bytes) {
          best.offer(window);
          break;
        }
      }
    }
    search_windows(device, moment, size_bytes);
    bool same = few_.size() == best.size();
    for (size_t i = 0; same && i < best.size(); ++i)
      same = few_[i].first == best[i].first && few_[i].members == best[i].members &&
             few_[i].price == best[i].price;
    if (same) continue;
    // Another thread may have taken or freed a block meanwhile: then nothing can be said.
    const auto is_same_block = [](const dtr_run_block& a, const dtr_run_block& b) {
      return a.address == b.address && a.size_bytes == b.size_bytes && a.state == b.state;
    };
    if (run_of(device, nullptr, blocks) != count ||
        !std::equal(all.begin(), all.end(), run_.begin(), is_same_block))
      return;
    throw StateError("W5: for " + std::to_string(size_bytes) + " bytes the search found " +
                     std::to_string(few_.size()) + " windows, the best of price " +
                     std::to_string(few_.size() ? few_[0].price : 0) + ", where " +
                     std::to_string(best.size()) + " are best, with " +
                     std::to_string(best.size() ? best[0].price : 0));
  }
}

}  // namespace dtr
