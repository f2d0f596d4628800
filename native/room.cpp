// room.cpp: choosing what to evict, and evicting it.
#include <algorithm>
#include <limits>

#include "engine.h"

namespace dtr {

namespace {

// A ghost was brought back on the way to something else: nobody is known to want it,
// while a live storage's owner holds on to it. Without this, fresh ghosts push live
// storages out, and recurrent nets thrash at half their memory, where with it they
// run each op about twice. (DTR scores ghosts as it scores all else.)
constexpr double kGhostDiscount = 0.01;

}  // namespace

// h_DTR with components (DTR paper, appendix C.2): the storage's own cost plus that
// of the distinct evicted components next to it, over size times staleness.
double Engine::score(const Storage* storage, int64_t now) {
  const uint64_t walk = ++walk_;
  double cost = cost_of(storage);
  for_evicted_neighbors(storage, [&](Storage* neighbor) {
    ComponentNode* root = components_.root(neighbor->component);
    if (root->mark == walk) return;
    root->mark = walk;
    cost += root->cost_ns;
  });
  if (!storage->live) cost *= kGhostDiscount;
  return dtr::score({cost, static_cast<double>(storage->size_bytes),
                     static_cast<double>(now - storage->last_access_ns)});
}

// The candidate of the smallest score, by exact search; null if there is none.
Storage* Engine::choose(const dtr_pool* pool, int64_t now) {
  Storage* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (Storage* storage : candidates_) {
    if (storage->locks > 0 || storage->pins > 0 || storage->size_bytes < options_.min_evict_bytes ||
        !dtr_pool_contains(pool, storage->address))
      continue;
    const double value = score(storage, now);
    if (!best || value < least) {
      least = value;
      best = storage;
    }
  }
  return best;
}

// Takes the memory of a candidate. False, and nothing changed, if its handle cannot
// be held just now (it is dying, or only a Python wrapper refers to it).
bool Engine::evict(Storage* storage, Deferred& deferred) {
  void* address = storage->address;
  if (storage->live) {
    if (!framework_->retain_strong(storage->handle)) return false;
    // Dropped after the mutex: ours may be the last reference by then.
    deferred.release_strong(storage->handle);
    if (!framework_->detach(storage->handle, storage)) return false;
    deferred.free_block(*storage, address);
  } else if (storage->handle) {
    lose_handle(storage, deferred);  // a ghost: the strong reference's deleter returns the block
  } else {
    deferred.free_block(*storage, address);  // a ghost that no rematerialization has used yet
  }
  by_address_.erase(address);
  become_evicted(storage);
  if (watcher_) watcher_->evicted(storage->id);
  ++stats_.evictions;
  stats_.evicted_bytes += storage->size_bytes;
  return true;
}

// The pool's room callback: evicts one storage, or lets go of a dead constant that
// turned out to be dispensable. 1 if memory was freed.
int32_t Engine::make_room(dtr_pool* pool) {
  const int64_t begin = now_ns();
  bool freed = false;
  {
    Deferred deferred(*this);
    std::lock_guard<EngineMutex> lock(mutex_);
    eviction_cause_ = Journal::Cause::room;
    std::vector<Storage*> refused;
    while (!freed) {
      Storage* victim = choose(pool, clock_ns_);
      ++stats_.searches;
      if (!victim) break;
      freed = evict(victim, deferred);
      if (!freed) {
        ++victim->locks;
        refused.push_back(victim);
      }
    }
    for (Storage* storage : refused) unlock(storage, deferred);
    for (size_t i = kept_constants_.size(); !freed && i-- > 0;) {
      Storage* constant = kept_constants_[i];
      if (constant->locks > 0 || !dtr_pool_contains(pool, constant->address)) continue;
      ++constant->locks;
      freed = settle(constant, nullptr, std::numeric_limits<uint64_t>::max(), deferred);
      unlock(constant, deferred);
    }
    eviction_cause_ = Journal::Cause::gone;
    stats_.search_ns += static_cast<uint64_t>(now_ns() - begin);
  }
  room_ns_of_thread() += now_ns() - begin;
  return freed;
}

}  // namespace dtr
