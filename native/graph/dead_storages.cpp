#include "dead_storages.h"

#include <algorithm>
#include <string>

#include "require.h"

namespace dtr {

namespace {

// What stands between a dead storage and being banished; null if nothing does.
const Storage* keeps_from_banishing(const Storage* storage) {
  if (storage->locks > 0) return storage;
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    for (const Output& output : edge->op->outputs) {
      const Storage* dependent = output.storage;
      if (dependent && (!has_content(dependent) || dependent->locks > 0)) return dependent;
    }
  return nullptr;
}

}  // namespace

// As long as nothing had to be evicted, memory is not short, and nothing is gained by keeping it.
// What costs less than a search for it later goes at once. A plan knows what is used later. Beside the
// search, new contents take memory that is in no cache while others are kept. So under auto all that is
// kept may cost so much more than recomputations have gained by it: a hundredth of the compute, and a
// quarter of what was computed again, where more can be gained. A device whose replays cost its host's
// time has no such cache, so there auto is lazy.
bool DeadStorages::keeps_for_later(Storage* storage) {
  constexpr int64_t kKeepNs = 20'000;
  constexpr uint64_t kOfOwn = 100, kOfRepeated = 4;
  if (storage->when_dropped != WhenDropped::by_policy)
    return storage->when_dropped == WhenDropped::stays;
  if (!keeps_until_needed() || environment_.stats.evictions <= evictions_ ||
      cost_of(storage) < kKeepNs)
    return false;
  const dtr_engine_stats& stats = environment_.stats;
  const uint64_t credit_ns = stats.total_cost_ns / kOfOwn + stats.recompute_cost_ns / kOfRepeated;
  if (policy_ == Dealloc::automatic && storage->parent->replay_ns == 0 &&
      keeping_ns_ - saved_ns_ > static_cast<int64_t>(credit_ns))
    return false;
  keeping_ns_ += kKeepNs;
  storage->kept_for_later = true;
  return true;
}

bool DeadStorages::keeps_memory(Storage* storage, Deferred& deferred) {
  if (!storage->children && storage->locks == 0) return false;
  // An op in flight gave its buffer another size, after it may have written to it: that
  // is not the recorded content.
  if (storage->overwriters > 0) return false;
  // Another op in flight dropped its argument as soon as it had read it. What that computes from a
  // constant will depend on it.
  const bool is_read = storage->locks > storage->holds && !storage->parent;
  if (!is_read && settles_constants()) {
    if (storage->parent || !storage->children) return keeps_for_later(storage);
    ++storage->locks;  // its last dependent would take it along, and the block with it
    const bool settled = settle_at_no_cost(storage, deferred);
    --storage->locks;
    if (settled) return false;
  }
  if (!storage->parent) keep(storage);
  if (policy_ == Dealloc::banish) mark(storage, deferred);
  return true;
}

void DeadStorages::keep(Storage* constant) {
  if (constant->kept >= 0) return;
  constant->kept = static_cast<int64_t>(constants_.size());
  constants_.push_back(constant);
  environment_.stats.kept_constant_bytes += constant->size_bytes;
}

void DeadStorages::let_go(Storage* storage) {
  if (storage->kept < 0) return;
  environment_.stats.kept_constant_bytes -= storage->size_bytes;
  constants_.back()->kept = storage->kept;
  constants_[storage->kept] = constants_.back();
  constants_.pop_back();
  storage->kept = -1;
}

bool DeadStorages::settle(Storage* constant, uint64_t most_bytes, Deferred& deferred) {
  ++constant->locks;  // its last dependent would take it along
  const bool settled = settling_.settle(constant, nullptr, most_bytes, deferred);
  lifecycle_.unlock(constant, deferred);
  return settled;
}

bool DeadStorages::settle_at_no_cost(Storage* constant, Deferred& deferred) {
  if (settling_.settle(constant, nullptr, constant->size_bytes, deferred)) return true;
  settling_.settle_with_others(constant, deferred);
  return !constant->children;
}

void DeadStorages::settle_sources(Deferred& deferred) {
  for (size_t i = constants_.size(); i-- > 0;) {
    if (i >= constants_.size()) continue;  // settling one may take others along
    Storage* source = constants_[i];
    if (!source->is_source) continue;
    source->is_source = false;
    ++source->locks;
    settle_at_no_cost(source, deferred);
    lifecycle_.unlock(source, deferred);
  }
}

void DeadStorages::mark(Storage* storage, Deferred& deferred) {
  if (!storage->to_banish) ++to_banish_;
  storage->to_banish = true;
  queue(storage, deferred);
}

void DeadStorages::queue(Storage* storage, Deferred& deferred) {
  deferred.banish_queued();
  if (storage->queued) return;
  storage->queued = true;
  queue_.push_back(storage);
}

void DeadStorages::forget(Storage* storage) {
  if (!storage->to_banish) return;
  storage->to_banish = false;
  --to_banish_;
  if (!storage->queued) return;
  storage->queued = false;
  // What is removed was queued just before, mostly: it stands near the end.
  const auto at = std::find(queue_.rbegin(), queue_.rend(), storage);
  if (at != queue_.rend()) *at = nullptr;
}

void DeadStorages::banish_queued(Deferred& deferred) {
  // One that goes may have others tried again: those that it depended on.
  while (!queue_.empty()) {
    Storage* storage = queue_.back();
    queue_.pop_back();
    if (!storage) continue;
    storage->queued = false;
    banish(storage, deferred);
  }
}

void DeadStorages::banish(Storage* storage, Deferred& deferred) {
  if (keeps_from_banishing(storage)) return;
  std::vector<Storage*> dependents;
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    for (const Output& output : edge->op->outputs)
      if (output.storage) dependents.push_back(output.storage);
  ++environment_.stats.banished;
  const uint64_t id = storage->id;
  // A dead dependent may vanish with the others; the locks keep the list whole until then.
  ++storage->locks;
  for (Storage* dependent : dependents) ++dependent->locks;
  for (Storage* dependent : dependents) lifecycle_.forget_parent(dependent, deferred);
  for (Storage* dependent : dependents) lifecycle_.unlock(dependent, deferred);
  lifecycle_.unlock(storage, deferred);
  environment_.observers.notify(&Observer::banished, id);
}

void DeadStorages::check(const std::vector<Storage*>& storages) const {
  uint64_t kept_bytes = 0, to_banish = 0;
  for (const Storage* storage : storages) {
    const bool kept =
        storage->state == State::resident && storage->managed && !storage->live && !storage->parent;
    require(kept == (storage->kept >= 0), "R5: a constant is kept or not", storage);
    if (kept) {
      kept_bytes += storage->size_bytes;
      require(constants_[storage->kept] == storage, "R5: the index leads elsewhere", storage);
    }
    if (!storage->to_banish) continue;
    ++to_banish;
    require(!storage->live, "R9: a live storage is to be banished", storage);
    require(storage->queued || keeps_from_banishing(storage),
            "R9: nothing keeps it from being banished", storage);
  }
  const uint64_t counted = environment_.stats.kept_constant_bytes;
  if (kept_bytes != counted)
    throw StateError("R5: kept constants have " + std::to_string(kept_bytes) +
                     " bytes, counted are " + std::to_string(counted));
  if (to_banish != to_banish_)
    throw StateError("R9: " + std::to_string(to_banish) +
                     " storages are to be banished, counted are " + std::to_string(to_banish_));
}

}  // namespace dtr
