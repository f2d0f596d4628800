// neighborhood.cpp: what the cost of a candidate is made of besides its own.
//
// A storage that is evicted and can come back is *counted* (R4). The cost of a resident
// storage counts those around it (DTR paper, appendix C.2), in one of two ways:
//
// Components (component.h): the counted storages, joined where one is computed from the
// other; the cost of a candidate has the sums of the components next to it.
//
// Exact neighborhoods e*: the counted storages that a candidate would have to be
// recomputed from (ancestors: upward from it through counted storages only), and those
// that need it (descendants: downward). Each half is a sum over distinct storages:
//
//  N1  If ancestors_known, ancestors_ns is that sum; likewise descendants. Counted storages
//      have sums over their ancestors, too.
//  N2  `below` of a counted storage says what the storages that are reached downward
//      from it, through counted ones only, know of their ancestors; `above`, what those
//      upward know of their descendants. Known::no: none has the sum cached.
//      Known::gone: nor does any bound (C1) still contain it.
//  N3  So `below` never falls on the way down: a walk that makes the caches below a
//      storage unknown may stop where they are. `above` likewise, upward.
//  N4  Computing a sum visits all storages of which N2 then has to say `maybe`, but for
//      those above one whose sum is known: it says so of these already.
//
// Under the marginal cost, the sum over ancestors is of their tolls (score.h), which change with
// what becomes of them and of those that ask for them: N1 to N4 hold for these sums as well.
//
// An eviction changes the descendants of what is above it and the ancestors of what is
// below it; so do a return and a vanishing. By N3 a chain of a thousand evictions visits
// each region once, not a thousand times. A new op links its inputs to results that are
// resident and know nothing yet, and a constant is a resident storage: neither changes
// anybody's sum.
#include <algorithm>

#include "run/engine.h"

namespace dtr {

namespace {

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

}  // namespace

// For its toll: as of its eviction, because a sum that is known would have to hear of changes.
void Engine::count_dependents(Storage* storage) {
  storage->dependents = 0;
  for_dependents(storage, [&](Storage*) { ++storage->dependents; });
}

// Joins the storage's component with those next to it.
void Engine::merge_components(const Storage* storage) {
  if (is_source(storage)) return;
  for_evicted_neighbors(storage, [&](Storage* neighbor) {
    if (!is_source(neighbor)) components_.merge(storage->component, neighbor->component);
  });
}

// The storage was evicted.
void Engine::join_neighborhoods(Storage* storage) {
  storage->counted = true;
  storage->below = storage->above = Known::maybe;
  storage->ancestors_known = false;
  if (needs_.tolls) count_dependents(storage);
  if (needs_.components) {
    storage->component = components_.create(cost_of(storage));
    merge_components(storage);
  }
  neighborhood_changed(storage, true);
}

// It came back, vanished or lost its parent: called while the edges still stand. What it
// was next to may lose the whole component.
void Engine::leave_neighborhoods(Storage* storage) {
  if (!storage->counted) return;
  storage->counted = false;
  --stats_.evicted_storages;
  if (storage->component) {
    components_.leave(storage->component);
    storage->component = nullptr;
    const auto lower = [&](Storage* neighbor) {
      ++stats_.storage_accesses;
      bounds_lowered(neighbor);
    };
    for_inputs(storage, lower);
    for_dependents(storage, lower);
  }
  neighborhood_changed(storage, false);
}

// The candidate's cost may have fallen to what is surely part of it.
void Engine::bounds_lowered(Storage* storage) {
  if (storage->candidate < 0 || !needs_.scores) return;
  device_of(storage).candidates.lower(storage, floor_cost_ns(storage), components_.decreased_ns());
}

// Makes unknown what contains the storage, or what it leads to, in both directions. If
// it grew, a cached sum is still a lower bound of the true one.
void Engine::neighborhood_changed(Storage* storage, bool grew) {
  const auto walk = [&](Known Storage::* level_of, bool Storage::* known, auto&& for_next,
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
        ++stats_.storage_accesses;
        if (next->counted) {
          next->*known = false;
          if (next->*level_of >= level) return;
          next->*level_of = level;
          pending_.push_back(next);
        } else if (next->candidate >= 0) {
          next->*known = false;
          if (level == Known::gone) bounds_lowered(next);
        }
      });
    }
  };
  const auto inputs = [](const Storage* of, auto&& visit) { for_inputs(of, visit); };
  const auto dependents = [](const Storage* of, auto&& visit) { for_dependents(of, visit); };
  if (needs_.ancestors) walk(&Storage::below, &Storage::ancestors_known, dependents, inputs);
  if (needs_.descendants) walk(&Storage::above, &Storage::descendants_known, inputs, dependents);
}

// What the evicted storage adds to the cost of those that would be recomputed from it has changed.
void Engine::toll_changed(Storage* storage, bool grew) {
  if (!needs_.tolls || !storage->counted) return;
  if (storage->below < (grew ? Known::no : Known::gone)) neighborhood_changed(storage, grew);
}

// What the evicted storage counts for in a sum over ancestors.
int64_t Engine::part_of(const Storage* storage) const {
  if (!needs_.tolls) return cost_of(storage);
  return toll_parts(cost_of(storage), storage->live, storage->asks, storage->dependents);
}

// The summed parts of the evicted storages that are reached through evicted ones, each step of the
// walk being for_next. Notes on each that a sum knows of it.
template <typename ForNext>
int64_t Engine::evicted_cost(Storage* storage, Known Storage::* level_of, ForNext&& for_next) {
  const uint64_t visit = ++visits_;
  int64_t sum = 0;
  pending_.assign(1, storage);
  while (!pending_.empty()) {
    const Storage* from = pending_.back();
    pending_.pop_back();
    for_next(from, [&](Storage* next) {
      if (!next->counted || next->visit == visit) return;
      next->visit = visit;
      next->*level_of = Known::maybe;
      ++stats_.storage_accesses;
      sum += part_of(next);
      pending_.push_back(next);
    });
  }
  return sum;
}

// Of those that this one would have to be recomputed from. Where what comes first of these is one
// alone, the sum is made from its sum: so along a chain there is one walk for all.
int64_t Engine::ancestors_ns(Storage* storage) {
  int64_t sum = 0;
  Storage* top = storage;
  for (Storage* next; !top->ancestors_known && (next = only_counted_input(top)); top = next) {
    ++stats_.storage_accesses;
    sum += part_of(next);
  }
  if (!top->ancestors_known) {
    top->ancestors_known = true;
    top->ancestors_ns = evicted_cost(
        top, &Storage::below, [](const Storage* of, auto&& visit) { for_inputs(of, visit); });
  }
  sum += top->ancestors_ns;
  for (Storage* from = storage; from != top; sum -= part_of(from)) {
    from->ancestors_known = true;
    from->ancestors_ns = sum;
    from = only_counted_input(from);
    from->below = Known::maybe;
  }
  return storage->ancestors_ns;
}

// Of those that need this one to be recomputed.
int64_t Engine::descendants_ns(Storage* storage) {
  if (storage->descendants_known) return storage->descendants_ns;
  storage->descendants_known = true;
  return storage->descendants_ns =
             evicted_cost(storage, &Storage::above,
                          [](const Storage* of, auto&& visit) { for_dependents(of, visit); });
}

// The summed cost of the distinct evicted components next to the storage.
int64_t Engine::component_ns(Storage* storage) {
  const uint64_t visit = ++visits_;
  int64_t sum = 0;
  for_evicted_neighbors(storage, [&](Storage* neighbor) {
    ComponentNode* root = components_.root(neighbor->component);
    if (root->mark == visit) return;
    root->mark = visit;
    sum += root->cost_ns;
  });
  return sum;
}

// After a change of the heuristic: what it needs is made from the records, what it does
// not need goes. Components that were kept keep their phantom connections.
void Engine::rebuild_neighborhoods() {
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
    if (needs_.tolls) count_dependents(storage);
  });
  for (const auto& device : devices_)
    for (size_t i = 0; i < device->candidates.size(); ++i)
      device->candidates.at(i)->ancestors_known = device->candidates.at(i)->descendants_known =
          false;
}

}  // namespace dtr
