#include "simrd.h"

#include <string>

#include "base/clock.h"
#include "errors.h"

namespace dtr::simrd {

Machine::Machine(const dtr_lab_options& options, const Log& log, Simulation& simulation,
                 EvictionList* given)
    : Playback(log),
      options_(options),
      simulation_(simulation),
      result_(simulation.result),
      given_(given),
      random_(options.common.heuristic.seed) {
  const dtr_heuristic& heuristic = options.common.heuristic;
  const bool scored = heuristic.select == DTR_SELECT_SCORE;
  const bool neighborhood =
      scored && (heuristic.cost == DTR_COST_ANCESTORS || heuristic.cost == DTR_COST_NEIGHBORHOOD);
  walks_neighborhood_ = neighborhood && (banishes() || options.newest_staleness);
  caches_regions_ = neighborhood && !walks_neighborhood_;
  keeps_components_ = scored && heuristic.cost == DTR_COST_COMPONENT;
  is_marginal_ = scored && heuristic.cost == DTR_COST_MARGINAL;
  if (keeps_components_ && banishes())
    throw InvalidArgument(
        "the cost of the heuristic is 'component' under banishing; allowed with simrd's "
        "semantics: none, local, ancestors, neighborhood (it has no components of storages "
        "that may be banished)");
}

void Machine::run() {
  if (caches_regions_ && log_.has_wide_views()) regions_.expect_circles();
  try {
    play();
    if (given_ != nullptr) given_->check_end(result_.model_ops + result_.remat_ops);
  } catch (const Stop& stop) {
    result_.status = stop.status;
  }
  result_.clock = clock_;
  result_.chain_depth = most_waiting_;
  result_.peak_bytes = peak_;
  result_.end_bytes = memory_;
}

// Defines an op, and runs it.
void Machine::compute(uint32_t id) {
  const Op& op = log_.ops[id];
  const auto first_storage = static_cast<uint32_t>(storages_.size());
  const bool has_regions = caches_regions_ || walks_neighborhood_;
  const auto each_storage = [&](auto&& visit) {
    for (uint32_t tensor = op.first_output; tensor < op.end_output(); ++tensor)
      visit(log_.tensors[tensor].storage, tensor);
  };
  each_storage([&](uint32_t at, uint32_t tensor) {
    if (at == storages_.size()) {
      storages_.emplace_back();
      // Until it is computed it counts as evicted, with no cost in its component.
      if (keeps_components_) storages_.back().component = components_.create(0);
      graph_.nodes.emplace_back();
      graph_.material.push_back(0);
      if (has_regions) regions_.add_storage(tensor);
      if (banishes()) evicted_dependents_.emplace_back();
    }
    storages_[at].tensors.push_back(tensor);
    ++in_use_[at].references;
    ++tensors_;
  });
  if (is_marginal_)
    each_storage([&](uint32_t at, uint32_t tensor) {
      if (log_.is_view(tensor)) update_needed(at, true);
    });
  if (has_regions) regions_.begin_op(first_storage, static_cast<uint32_t>(storages_.size()));
  add_edges(op);
  if (is_marginal_) each_storage([&](uint32_t at, uint32_t) { update_needed(at); });
  materialize(op.first_output, false);
  each_storage([&](uint32_t at, uint32_t) { stamp(at); });
  if (op.constant) pin(op.first_output);
}

// Adds to a storage's cost and edges.
void Machine::touch(uint32_t at, int64_t cost, uint32_t ancestor_edges, uint32_t descendant_edges) {
  int64_t sum = graph_.nodes[at].cost;
  add(sum, cost, "times");
  if (caches_regions_)
    regions_.touch(at, cost, ancestor_edges, descendant_edges);
  else
    graph_.nodes[at].add(cost, ancestor_edges, descendant_edges);
}

void Machine::add_edges(const Op& op) {
  const uint32_t end = op.end_output();
  sources_.clear();
  for (const uint32_t input : op.inputs) {
    const uint32_t from = storage_of(input);
    touch(from, 0, 0, op.outputs);
    if (std::ranges::find(sources_, from) == sources_.end()) sources_.push_back(from);
  }
  for (uint32_t tensor = op.first_output; tensor < end; ++tensor) {
    const uint32_t to = storage_of(tensor);
    const std::vector<uint32_t>& views = storages_[to].tensors;
    const bool view = views.front() != tensor;
    // All views count, each op once: the cost of bringing the storage and its views back. (What
    // this op made of it stands at the end.)
    const auto own = std::find(views.rbegin(), views.rend(), tensor);
    const bool counted = view && log_.tensors[*(own + 1)].op == log_.tensors[tensor].op;
    touch(to, counted ? 0 : op.cost, static_cast<uint32_t>(op.inputs.size()), 0);
    for (const uint32_t from : sources_) {
      if (from == to) continue;
      if (banishes()) evicted_dependents_[from].insert(tensor);
      if (regions_.circles()) continue;
      if (view) {
        const std::vector<uint32_t>& parents = graph_.nodes[to].next[kAncestors];
        if (std::ranges::find(parents, from) != parents.end()) continue;
      }
      graph_.nodes[from].next[kDescendants].push_back(to);
      graph_.nodes[to].next[kAncestors].push_back(from);
    }
  }
  if (regions_.circles()) add_ordered_edges(op);
  if (!banishes()) return;
  links_.resize(tensors_);
  for (uint32_t tensor = op.first_output; tensor < end; ++tensor)
    links_[tensor].parents.assign(op.inputs.begin(), op.inputs.end());
  for (const uint32_t input : op.inputs)
    for (uint32_t tensor = op.first_output; tensor < end; ++tensor)
      links_[input].children.push_back(tensor);
}

// All edges in the order of a walk: tensor by tensor of a storage, as they were made.
void Machine::add_ordered_edges(const Op& op) {
  for (const uint32_t input : op.inputs) {
    const uint32_t from = storage_of(input);
    std::vector<uint32_t>& through = graph_.nodes[from].through;
    std::vector<uint32_t>& children = graph_.nodes[from].next[kDescendants];
    const auto at = std::ranges::upper_bound(through, input) - through.begin();
    for (uint32_t i = op.outputs; i-- > 0;) {
      through.insert(through.begin() + at, input);
      children.insert(children.begin() + at, storage_of(op.first_output + i));
    }
  }
  for (uint32_t tensor = op.first_output; tensor < op.end_output(); ++tensor)
    for (const uint32_t input : op.inputs)
      graph_.nodes[storage_of(tensor)].next[kAncestors].push_back(storage_of(input));
}

const std::vector<uint32_t>& Machine::begin(uint32_t tensor) {
  const uint32_t at = storage_of(tensor);
  check(!defined_[tensor] && !storages_[at].banished);
  check(graph_.material[at] || in_use_[at].locks == 0);
  const std::vector<uint32_t>& inputs = banishes() ? links_[tensor].parents : op_of(tensor).inputs;
  for (const uint32_t input : inputs) {
    const uint32_t from = storage_of(input);
    if (!banishes() || in_use_[from].references > 0) stamp(from);
  }
  return inputs;
}

void Machine::revive(uint32_t at, bool again) {
  graph_.material[at] = true;
  if (again) ++storages_[at].recomputes;
  if (is_marginal_) update_needed(at);
}

void Machine::executed(const Op& op, const Step& step) {
  if (step.again) {
    result_.remat_cost += op.cost;
    ++result_.remat_ops;
    result_.collateral += made_.size() - 1;
    simulation_.decide('R', step.tensor);
  } else {
    result_.model_cost += op.cost;
    ++result_.model_ops;
    simulation_.decide('M', step.tensor);
  }
  for (const uint32_t storage : revived_) enter(storage);
  if (caches_regions_) regions_.revived(revived_, &result_.accesses);
  if (keeps_components_)
    for (const uint32_t storage : revived_) {
      uint32_t& node = storages_[storage].component;
      components_.add(components_.root(node, &result_.accesses), -graph_.nodes[storage].cost);
      node = kNone;
    }
  unlock_inputs(step.tensor);
  if (options_.common.max_recompute >= 0 && result_.remat_cost > options_.common.max_recompute)
    throw Stop{DTR_SIMULATION_THRASH};
}

void Machine::unlock_inputs(uint32_t tensor) {
  if (!banishes()) {
    for (const uint32_t input : op_of(tensor).inputs) unlock(storage_of(input));
    return;
  }
  // simrd walks the list that banishing shortens meanwhile: the input behind a banished one is
  // passed over, and stays locked.
  for (size_t i = 0; i < links_[tensor].parents.size(); ++i) {
    const uint32_t storage = storage_of(links_[tensor].parents[i]);
    unlock(storage);
    for (const uint32_t made : made_)
      if (storage_of(made) != storage) evicted_dependents_[storage].erase(made);
    try_banish(storage);
  }
}

void Machine::unreferenced(uint32_t at) {
  if (is_marginal_) update_needed(at);
  if (banishes())
    try_banish(at);
  else if (options_.common.dealloc == DTR_DEALLOC_EAGER && graph_.material[at] &&
           !in_use_[at].pinned)
    evict(at, false);
}

void Machine::leave(uint32_t at) {
  check(graph_.material[at] && !storages_[at].banished);
  check(pool_.leave(at));
}

void Machine::make_room(uint64_t bytes) {
  if (given_ != nullptr) return evict_given(bytes);
  if (memory_ + bytes <= options_.common.budget_bytes) return;
  const int64_t begin = now_ns();
  while (memory_ + bytes > options_.common.budget_bytes) {
    if (pool_.size() == 0) throw Stop{DTR_SIMULATION_OUT_OF_MEMORY};
    evict(choose(), true);
  }
  result_.search_ns += static_cast<uint64_t>(now_ns() - begin);
}

void Machine::evict_given(uint64_t bytes) {
  const uint64_t executions = result_.model_ops + result_.remat_ops;
  for (int64_t root = given_->next(executions); root >= 0; root = given_->next(executions)) {
    const auto tensor = static_cast<uint64_t>(root);
    if (tensor >= tensors_ || log_.storages[storage_of(tensor)].root != tensor)
      given_->refuse("is none; allowed: the first tensor of a storage that exists by then");
    const uint32_t at = storage_of(tensor);
    if (in_use_[at].pinned) given_->refuse("is pinned; allowed: what is no constant or output");
    if (!graph_.material[at]) given_->refuse("is not resident");
    if (in_use_[at].locks > 0) given_->refuse("is in use by an op or a rematerialization");
    evict(at, true);
  }
  if (memory_ + bytes > options_.common.budget_bytes)
    throw InvalidArgument("schedule: after " + std::to_string(executions) + " executions " +
                          std::to_string(bytes) + " bytes are needed beside " +
                          std::to_string(memory_) +
                          " in use, and nothing more is evicted; the budget is " +
                          std::to_string(options_.common.budget_bytes));
}

void Machine::evict(uint32_t at, bool forced) {
  Storage& storage = storages_[at];
  check(in_use_[at].locks == 0);
  if (!banishes()) check(!in_use_[at].pinned);
  graph_.material[at] = false;
  memory_ -= bytes_of(at);
  pool_.leave(at);
  for (const uint32_t tensor : storage.tensors) {
    defined_[tensor] = false;
    if (!banishes()) continue;
    for (const uint32_t parent : links_[tensor].parents)
      if (storage_of(parent) != at) evicted_dependents_[storage_of(parent)].insert(tensor);
  }
  if (is_marginal_) update_needed(at);
  ++(forced ? result_.forced : result_.other);
  simulation_.decide(forced ? 'E' : 'D', log_.storages[at].root);
  if (caches_regions_) check(regions_.evicted(at, &result_.accesses));
  if (keeps_components_) {
    storage.component = components_.create(graph_.nodes[at].cost);
    each_evicted_neighbor(at, [&](const Storage& neighbor) {
      components_.merge(neighbor.component, storage.component, &result_.accesses);
    });
  }
}

// Removes for good what nobody refers to and no evicted tensor would need (simrd text, section
// 4.4). What depends on it is pinned.
void Machine::try_banish(uint32_t at) {
  Storage& storage = storages_[at];
  if (in_use_[at].references > 0 || !evicted_dependents_[at].empty()) return;
  if (graph_.material[at]) {
    in_use_[at].locks = 0;
    evict(at, false);
  }
  for (const uint32_t tensor : storage.tensors) {
    for (const uint32_t parent : links_[tensor].parents) {
      const uint32_t from = storage_of(parent);
      if (from == at) continue;
      evicted_dependents_[from].erase(tensor);
      std::vector<uint32_t>& siblings = links_[parent].children;
      siblings.erase(std::ranges::find(siblings, tensor));
      --graph_.nodes[from].edges[kDescendants];
      std::erase(graph_.nodes[from].next[kDescendants], at);
    }
    for (const uint32_t child : links_[tensor].children) {
      const uint32_t to = storage_of(child);
      if (to == at) continue;
      std::vector<uint32_t>& parents = links_[child].parents;
      parents.erase(std::ranges::find(parents, tensor));
      --graph_.nodes[to].edges[kAncestors];
      std::erase(graph_.nodes[to].next[kAncestors], at);
      pin(child);
    }
  }
  storage.banished = true;
  ++result_.banished;
  simulation_.decide('B', log_.storages[at].root);
}

// Brings needed (score.h) up to date after the storage's content, references or needed_by have
// changed. Relinked, it is not needed until the next call, because its inputs are about to change.
// Views can make circles of storages that need one another for good.
void Machine::update_needed(uint32_t changed, bool relinked) {
  pending_.assign(1, changed);
  while (!pending_.empty()) {
    const uint32_t at = pending_.back();
    pending_.pop_back();
    Storage& storage = storages_[at];
    const bool needed = !(relinked && at == changed) && !graph_.material[at] &&
                        (in_use_[at].references > 0 || storage.needed_by > 0);
    if (needed == storage.needed) continue;
    storage.needed = needed;
    for (const uint32_t input : graph_.nodes[at].next[kAncestors]) {
      storages_[input].needed_by += needed ? 1 : -1;
      pending_.push_back(input);
    }
  }
}

void Machine::enter(uint32_t at) {
  check(in_use_[at].locks == 0);
  if (!pool_.has(at)) pool_.enter(at);
}

}  // namespace dtr::simrd
