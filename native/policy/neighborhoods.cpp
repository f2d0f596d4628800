// neighborhoods.cpp: see neighborhoods.h.
#include "neighborhoods.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace dtr {

namespace {

constexpr auto inputs = [](const Storage* of, auto&& visit) { for_inputs(of, visit); };
constexpr auto dependents = [](const Storage* of, auto&& visit) { for_dependents(of, visit); };

// The sums over ancestors, or those over descendants. over: from a storage to those that its sum
// begins with; back: to those whose sums begin with it.
template <typename Over, typename Back>
struct Half {
  int64_t Storage::* sum;
  bool Storage::* known;
  bool Storage::* blank;
  Over over;
  Back back;

  bool is_blank(const Storage* storage) const { return storage->*sum == 0 && !(storage->*known); }
  void forget(Storage* storage) const {
    storage->*sum = 0;
    storage->*known = false;
  }
  bool counts_none(const Storage* storage) const {
    bool counts = false;
    over(storage, [&](const Storage* next) { counts |= next->counted; });
    return !counts;
  }
};
template <typename Over, typename Back>
Half(int64_t Storage::*, bool Storage::*, bool Storage::*, Over, Back) -> Half<Over, Back>;

constexpr Half kAncestors{&Storage::ancestors_ns, &Storage::ancestors_known, &Storage::blank_below,
                          inputs, dependents};
constexpr Half kDescendants{&Storage::descendants_ns, &Storage::descendants_known,
                            &Storage::blank_above, dependents, inputs};
// N3.
constexpr int64_t kTellings = 2;

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
  if (needs_.shares) count_dependents(storage);
  storage->part = part_of(storage);
  if (needs_.components) {
    storage->component = components_.create(cost_of(storage));
    merge_components(storage);
  }
  if (needs_.ancestors) add(storage, kAncestors, [this](Storage* of) { return ancestors_ns(of); });
  if (needs_.descendants)
    add(storage, kDescendants, [this](Storage* of) { return descendants_ns(of); });
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
  if (needs_.ancestors) subtract(storage, kAncestors);
  if (needs_.descendants) subtract(storage, kDescendants);
}

void Neighborhoods::share_changed(Storage* storage) {
  if (!needs_.shares || !storage->counted) return;
  const int64_t grown = part_of(storage) - storage->part;
  storage->part += grown;
  if (grown != 0)
    tell(storage, kAncestors, [grown](Storage* of) {
      of->ancestors_ns = std::max<int64_t>(of->ancestors_ns + grown, 0);
    });
}

// Has change() adjust the sums that the storage counts in, once each, and their bounds. It stops
// where there are none (N2). Without credit it forgets the rest (N3).
template <typename Half, typename Change>
void Neighborhoods::tell(Storage* storage, const Half& half, Change&& change) {
  if (storage->*half.blank) return;
  const uint64_t visit = ++visits_;
  pending_.assign(1, storage);
  while (!pending_.empty()) {
    Storage* const from = pending_.back();
    pending_.pop_back();
    const bool forgets = credit_ < 0;
    if (forgets && from != storage && std::exchange(from->*half.blank, true)) continue;
    half.back(from, [&](Storage* next) {
      if (!forgets && next->visit == visit) return;
      next->visit = visit;
      if (!forgets) --credit_;
      ++environment_.stats.storage_accesses;
      if (!half.is_blank(next)) {
        if (forgets)
          half.forget(next);
        else
          change(next);
        bounds_.lower(next);
      }
      if (next->counted && !(next->*half.blank)) pending_.push_back(next);
    });
  }
}

// The storage and those that its own sum counts now count in the sums of others, too. Of these, some
// may have counted there before: then the new sum is not known, but at least either of the two.
template <typename Half, typename SumOf>
void Neighborhoods::add(Storage* storage, const Half& half, SumOf&& sum_of) {
  bool is_blank = true;
  half.back(storage, [&](Storage* next) {
    ++environment_.stats.storage_accesses;
    is_blank &= half.is_blank(next) && (!next->counted || next->*half.blank);
  });
  storage->*half.blank = is_blank;
  if (is_blank) return;
  const int64_t part = storage->part, behind = sum_of(storage);
  if (part == 0 && behind == 0) return;
  tell(storage, half, [&](Storage* of) {
    int64_t& sum = of->*half.sum;
    bool& known = of->*half.known;
    if (known && sum == 0) {
      sum = part + behind;
    } else {
      sum = std::max(sum + part, part + behind);
      known &= behind == 0;
    }
  });
}

// They no longer count in the sums of others, unless these reach them otherwise.
template <typename Half>
void Neighborhoods::subtract(Storage* storage, const Half& half) {
  const int64_t part = storage->part;
  int64_t most = part;  // by which a sum falls
  if (!half.counts_none(storage))
    most = storage->*half.known ? part + storage->*half.sum : std::numeric_limits<int64_t>::max();
  if (most == 0) return;
  tell(storage, half, [&](Storage* of) {
    int64_t& sum = of->*half.sum;
    sum = sum > most ? sum - most : 0;
    of->*half.known &= most == part;
  });
}

// What the evicted storage counts for in a sum.
int64_t Neighborhoods::part_of(const Storage* storage) const {
  if (!needs_.shares) return cost_of(storage);
  return share_parts(cost_of(storage), storage->live, storage->needed, storage->dependents);
}

// The summed parts of the evicted storages that are reached through evicted ones and were not in
// this visit, each step of the walk being for_next. meet: what to do with each.
template <typename ForNext, typename Meet>
int64_t Neighborhoods::walk(Storage* from, uint64_t visit, ForNext&& for_next, Meet&& meet) {
  int64_t sum = 0;
  pending_.assign(1, from);
  while (!pending_.empty()) {
    const Storage* at = pending_.back();
    pending_.pop_back();
    for_next(at, [&](Storage* next) {
      if (!next->counted || next->visit == visit) return;
      next->visit = visit;
      meet(next);
      credit_ += kTellings;
      ++environment_.stats.storage_accesses;
      sum += next->part;
      pending_.push_back(next);
    });
  }
  return sum;
}

// Where what comes first of the ancestors is one alone, the sum is made from its sum: so along a
// chain there is one walk for all.
int64_t Neighborhoods::ancestors_ns(Storage* storage) {
  int64_t sum = 0;
  Storage* top = storage;
  for (Storage* next; !top->ancestors_known && (next = only_counted_input(top)); top = next) {
    ++environment_.stats.storage_accesses;
    credit_ += kTellings;
    sum += next->part;
  }
  if (!top->ancestors_known) {
    top->ancestors_known = true;
    top->ancestors_ns =
        walk(top, ++visits_, inputs, [](Storage* met) { met->blank_below = false; });
  }
  sum += top->ancestors_ns;
  for (Storage* from = storage; from != top; sum -= from->part) {
    from->ancestors_known = true;
    from->ancestors_ns = sum;
    from = only_counted_input(from);
    from->blank_below = false;
  }
  return storage->ancestors_ns;
}

int64_t Neighborhoods::descendants_ns(Storage* storage) {
  if (storage->descendants_known) return storage->descendants_ns;
  storage->descendants_known = true;
  return storage->descendants_ns =
             walk(storage, ++visits_, dependents, [](Storage* met) { met->blank_above = false; });
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
    if (needs_.shares) count_dependents(storage);
    storage->part = part_of(storage);
  });
  for (Storage* storage : graph_.storages()) {
    kAncestors.forget(storage);
    kDescendants.forget(storage);
    storage->blank_below = storage->blank_above = true;
  }
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
  const auto check_sum = [&](const Storage* storage, const auto& half) {
    if (half.is_blank(storage)) return;
    const auto found = region(storage, half.over);
    const int64_t sum = sum_of(found), kept = storage->*half.sum;
    require(storage->*half.known ? kept == sum : kept >= 0 && kept <= sum,
            "N1: a sum that is kept differs from a fresh walk", storage->id);
    for (const Storage* counted : found)
      require(!(counted->*half.blank), "N2: there is a sum that it is part of", counted->id);
  };
  std::unordered_map<const ComponentNode*, int64_t> costs;
  for (const Storage* storage : storages) {
    require((storage->component != nullptr) == (storage->counted && needs_.components),
            "R10: a component that is not needed, or none", storage->id);
    if (storage->component) costs[components_.root(storage->component)] += cost_of(storage);
    if (needs_.ancestors) check_sum(storage, kAncestors);
    if (needs_.descendants) check_sum(storage, kDescendants);
  }
  // Phantom links join sets, they add no cost.
  for (const auto& [root, cost] : costs)
    if (root->cost_ns != cost)
      throw StateError("a component of cost " + std::to_string(cost) + " counts " +
                       std::to_string(root->cost_ns));
}

}  // namespace dtr
