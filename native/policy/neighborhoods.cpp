#include "neighborhoods.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "base/error.h"

namespace dtr {

namespace {

constexpr auto inputs = [](const Storage* of, auto&& visit) { for_inputs(of, visit); };
constexpr auto dependents = [](const Storage* of, auto&& visit) { for_dependents(of, visit); };

// Null if there are several, too.
Storage* only_counted_input(const Storage* storage) {
  Storage* found = nullptr;
  bool is_only = true;
  for_inputs(storage, [&](Storage* input) {
    if (!input->counted) return;
    is_only = !found;
    found = input;
  });
  return is_only ? found : nullptr;
}

// For its share: as of its eviction, because a sum that is known would have to hear of changes.
void count_dependents(Storage* storage) {
  storage->dependents = 0;
  for_dependents(storage, [&](Storage*) { ++storage->dependents; });
}

}  // namespace

// Joins the storage's component with those next to it.
void Neighborhoods::merge_components(const Storage* storage) {
  if (is_source(storage)) return;
  for_evicted_neighbors(storage, [&](Storage* neighbor) {
    if (!is_source(neighbor)) components_.merge(storage->component, neighbor->component);
  });
}

void Neighborhoods::join(Storage* storage) {
  ++environment_.stats.evicted_storages;
  storage->counted = true;
  storage->below = storage->above = Known::maybe;
  storage->ancestors_known = false;
  if (needs_.shares) count_dependents(storage);
  if (needs_.components) {
    storage->component = components_.create(cost_of(storage));
    merge_components(storage);
  }
  changed(storage, true);
}

void Neighborhoods::leave(Storage* storage) {
  if (!storage->counted) return;
  storage->counted = false;
  --environment_.stats.evicted_storages;
  if (storage->component) {
    components_.leave(storage->component);
    storage->component = nullptr;
    const auto lower = [&](const Storage* neighbor) {
      ++environment_.stats.storage_accesses;
      bounds_.lower(neighbor);
    };
    for_inputs(storage, lower);
    for_dependents(storage, lower);
  }
  changed(storage, false);
}

// Makes unknown what contains the storage, or what it leads to, in both directions. If
// it grew, a cached sum is still a lower bound of the true one.
void Neighborhoods::changed(Storage* storage, bool grew) {
  if (visits_ == 0) return;  // no sum was ever made
  const auto spread = [&](Known Storage::* level_of, bool Storage::* known, auto&& for_next,
                          auto&& for_previous) {
    Known level = grew ? Known::no : Known::gone;
    // N3: what leads here may have promised more.
    for_previous(storage, [&](Storage* previous) {
      if (previous->counted) level = std::max(level, previous->*level_of);
    });
    storage->*level_of = level;
    pending_.assign(1, storage);
    while (!pending_.empty()) {
      const Storage* from = pending_.back();
      pending_.pop_back();
      for_next(from, [&](Storage* next) {
        ++environment_.stats.storage_accesses;
        if (next->counted) {
          next->*known = false;
          if (next->*level_of >= level) return;
          next->*level_of = level;
          pending_.push_back(next);
        } else if (next->candidate >= 0) {
          next->*known = false;
          if (level == Known::gone) bounds_.lower(next);
        }
      });
    }
  };
  if (needs_.ancestors) spread(&Storage::below, &Storage::ancestors_known, dependents, inputs);
  if (needs_.descendants) spread(&Storage::above, &Storage::descendants_known, inputs, dependents);
}

// What the evicted storage counts for in a sum.
int64_t Neighborhoods::part_of(const Storage* storage) const {
  if (!needs_.shares) return cost_of(storage);
  return share_parts(cost_of(storage), storage->live, storage->needed, storage->dependents);
}

// The summed parts of the evicted storages that are reached through evicted ones and were not in
// this visit, each step of the walk being for_next; it stops above `most`. meet: what to do with each.
template <typename ForNext, typename Meet>
int64_t Neighborhoods::walk(const Storage* from, uint64_t visit, ForNext&& for_next, Meet&& meet,
                            int64_t most) {
  int64_t sum = 0;
  pending_.assign(1, from);
  while (!pending_.empty() && sum <= most) {
    const Storage* at = pending_.back();
    pending_.pop_back();
    for_next(at, [&](Storage* next) {
      if (!next->counted || next->visit == visit) return;
      next->visit = visit;
      meet(next);
      ++environment_.stats.storage_accesses;
      sum += part_of(next);
      pending_.push_back(next);
    });
  }
  return sum;
}

// Where what comes first of the ancestors is one alone, the sum is made from its sum: so along a
// chain there is one walk for all.
int64_t Neighborhoods::ancestors_ns(Storage* storage, int64_t most) {
  int64_t sum = 0;
  Storage* top = storage;
  for (Storage* next; !top->ancestors_known && (next = only_counted_input(top)); top = next) {
    ++environment_.stats.storage_accesses;
    sum += part_of(next);
  }
  const int64_t left = most - std::min(most, sum);
  if (!top->ancestors_known) {
    // N4.
    top->ancestors_ns =
        walk(top, ++visits_, inputs, [](Storage* met) { met->below = Known::maybe; }, left);
    top->ancestors_known = top->ancestors_ns <= left;
  }
  const bool is_known = top->ancestors_known;
  const int64_t all = sum += top->ancestors_ns;
  for (Storage* from = storage; from != top; sum -= part_of(from)) {
    from->ancestors_known = is_known;
    from->ancestors_ns = sum;
    from = only_counted_input(from);
    from->below = Known::maybe;
  }
  return all;
}

int64_t Neighborhoods::descendants_ns(Storage* storage, int64_t most) {
  if (storage->descendants_known) return storage->descendants_ns;
  storage->descendants_ns =
      walk(storage, ++visits_, dependents, [](Storage* met) { met->above = Known::maybe; }, most);
  storage->descendants_known = storage->descendants_ns <= most;
  return storage->descendants_ns;
}

int64_t Neighborhoods::component_ns(const Storage* storage) {
  const uint64_t visit = ++visits_;
  int64_t sum = 0;
  for_evicted_neighbors(storage, [&](const Storage* neighbor) {
    ComponentNode* root = components_.root(neighbor->component);
    if (root->mark == visit) return;
    root->mark = visit;
    sum += root->cost_ns;
  });
  return sum;
}

// An upward walk that has been somewhere has been to all above it, so two kinds of visits cannot
// share marks: all upward walks come first.
void Neighborhoods::sums_together(const std::vector<Storage*>& storages,
                                  std::vector<int64_t>* sums) {
  const auto unmoved = [](const Storage*) {};
  const uint64_t upward = ++visits_, downward = ++visits_;
  sums->assign(storages.size(), 0);
  if (needs_.ancestors)
    for (size_t i = 0; i < storages.size(); ++i)
      if (!needs_.shares || !is_unneeded(storages[i]))
        (*sums)[i] += walk(storages[i], upward, inputs, unmoved);
  if (needs_.descendants)
    for (size_t i = 0; i < storages.size(); ++i)
      (*sums)[i] += walk(storages[i], downward, dependents, unmoved);
  if (needs_.components)
    for (size_t i = 0; i < storages.size(); ++i)
      for_evicted_neighbors(storages[i], [&](const Storage* neighbor) {
        ComponentNode* root = components_.root(neighbor->component);
        if (root->mark == upward) return;
        root->mark = upward;
        (*sums)[i] += root->cost_ns;
      });
}

void Neighborhoods::rebuild() {
  const auto for_counted = [&](auto&& visit) {
    for (const Op* op = graph_.oldest_op(); op; op = op->newer)
      for (const Output& output : op->outputs)
        if (output.storage && output.storage->counted) visit(output.storage);
  };
  if (needs_.components) {
    std::vector<Storage*> fresh;
    for_counted([&](Storage* storage) {
      if (!storage->component) fresh.push_back(storage);
    });
    for (Storage* storage : fresh) storage->component = components_.create(cost_of(storage));
    for (const Storage* storage : fresh) merge_components(storage);
  } else {
    for_counted([&](Storage* storage) {
      if (storage->component) components_.leave(storage->component);
      storage->component = nullptr;
    });
  }
  for_counted([&](Storage* storage) {
    storage->below = storage->above = Known::maybe;
    storage->ancestors_known = false;
    if (needs_.shares) count_dependents(storage);
  });
  for (const auto& device : devices_)
    for (size_t i = 0; i < device->candidates.size(); ++i)
      device->candidates.at(i)->ancestors_known = device->candidates.at(i)->descendants_known =
          false;
}

// ---- invariants ----

namespace {

// The counted storages that are reached from one, through counted ones only.
template <typename ForNext>
std::unordered_set<const Storage*> region(const Storage* from, ForNext&& for_next) {
  std::unordered_set<const Storage*> found;
  std::vector<const Storage*> pending{from};
  while (!pending.empty()) {
    const Storage* storage = pending.back();
    pending.pop_back();
    for_next(storage, [&](const Storage* next) {
      if (next->counted && next != from && found.insert(next).second) pending.push_back(next);
    });
  }
  return found;
}

}  // namespace

int64_t Neighborhoods::sum_of(const std::unordered_set<const Storage*>& storages) const {
  int64_t sum = 0;
  for (const Storage* storage : storages) sum += part_of(storage);
  return sum;
}

int64_t Neighborhoods::fresh_ancestors_ns(const Storage* storage) const {
  return sum_of(region(storage, inputs));
}

int64_t Neighborhoods::fresh_descendants_ns(const Storage* storage) const {
  return sum_of(region(storage, dependents));
}

void Neighborhoods::check(const std::vector<Storage*>& storages) {
  const auto require = [](bool holds, const char* rule, uint64_t id) {
    if (!holds) throw StateError("storage " + std::to_string(id) + " breaks " + rule);
  };
  const auto check_sum = [&](const Storage* storage, bool is_known, int64_t known_ns,
                             Known Storage::* level_of, auto&& for_next) {
    if (!is_known) return;
    const auto found = region(storage, for_next);
    require(sum_of(found) == known_ns, "N1: a cached sum differs from a fresh walk", storage->id);
    for (const Storage* counted : found)
      require(counted->*level_of == Known::maybe, "N2: a sum is known after all", counted->id);
  };
  std::unordered_map<const ComponentNode*, int64_t> costs;
  for (const Storage* storage : storages) {
    require((storage->component != nullptr) == (storage->counted && needs_.components),
            "R10: a component that is not needed, or none", storage->id);
    if (storage->component) costs[components_.root(storage->component)] += cost_of(storage);
    if (storage->candidate >= 0 || (needs_.ancestors && storage->counted))
      check_sum(storage, storage->ancestors_known, storage->ancestors_ns, &Storage::below, inputs);
    if (storage->candidate >= 0)
      check_sum(storage, storage->descendants_known, storage->descendants_ns, &Storage::above,
                dependents);
  }
  // Phantom links join sets, they add no cost.
  for (const auto& [root, cost] : costs)
    if (root->cost_ns != cost)
      throw StateError("a component of cost " + std::to_string(cost) + " counts " +
                       std::to_string(root->cost_ns));
}

}  // namespace dtr
