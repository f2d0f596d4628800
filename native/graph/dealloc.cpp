// dealloc.cpp: what becomes of a storage that the framework dropped (DTR paper, appendix C.5).
//
// Nothing can ask for a dead storage that nothing depends on: it goes at once, under every
// policy. One with dependents is
//
//   eager   evicted at once; a constant is settled if that makes constants of no more
//           bytes than its own, else kept;
//   ignore  kept: as a ghost, evictable (ghosts.cpp says before what), or as a constant;
//   lazy    kept as a ghost: until memory is needed, what is computed from it costs less to
//           bring back. A constant goes as under eager;
//   banish  removed for good once no dependent is evicted: its dependents forget their
//           parent and cannot be evicted any more, and its record goes. Until then it is
//           as under ignore, and tried again whenever one of its dependents was unlocked
//           (a rematerialization locks what it brings back) or has vanished.
//
// A locked dependent waits, too: an op in flight may be about to overwrite it, and as a
// constant it would be lost for those that depend on it (R8).
//
// Overwritten versions are not banished. They did not die, their buffer went to the next
// version, so nothing would be gained, and the next version could not be evicted: every
// activation of a job with in-place functions would stay. They go as under eager.
#include <algorithm>
#include <vector>

#include "run/engine.h"

namespace dtr {

// Puts a dead constant that something depends on into the list that make_room() goes
// through when no storage can be evicted.
void Engine::keep_constant(Storage* storage) {
  if (storage->kept >= 0) return;
  storage->kept = static_cast<int64_t>(kept_constants_.size());
  kept_constants_.push_back(storage);
  stats_.kept_constant_bytes += storage->size_bytes;
}

// The handle of a resident storage died. True: the engine owns the memory from now on
// (R5). False: it goes back.
bool Engine::keeps_memory_of_dead(Storage* storage, Deferred& deferred) {
  if (!storage->children && storage->locks == 0) return false;
  // An op in flight gave its buffer another size, after it may have written to it: that
  // is not the recorded content.
  if (storage->overwriters > 0) return false;
  // Another op in flight dropped its argument as soon as it had read it. What that computes from a
  // constant will depend on it.
  const bool is_read = storage->locks > storage->holds && !storage->parent;
  if (!is_read && (dealloc_ == Dealloc::eager || dealloc_ == Dealloc::lazy)) {
    if (storage->parent || !storage->children) return dealloc_ == Dealloc::lazy && storage->parent;
    ++storage->locks;  // its last dependent would take it along, and the block with it
    const bool settled = settle(storage, nullptr, storage->size_bytes, deferred);
    --storage->locks;
    if (settled) return false;
  }
  if (!storage->parent) keep_constant(storage);
  if (dealloc_ == Dealloc::banish) mark_for_banishing(storage, deferred);
  return true;
}

// The reverse: it is not resident any more.
void Engine::let_go_of_constant(Storage* storage) {
  if (storage->kept < 0) return;
  stats_.kept_constant_bytes -= storage->size_bytes;
  kept_constants_.back()->kept = storage->kept;
  kept_constants_[storage->kept] = kept_constants_.back();
  kept_constants_.pop_back();
  storage->kept = -1;
}

void Engine::mark_for_banishing(Storage* storage, Deferred& deferred) {
  if (!storage->to_banish) ++to_banish_;
  storage->to_banish = true;
  queue_for_banishing(storage, deferred);
}

// Has the storage tried again once the call is done. (Not here: the callers walk the edges
// that banishing cuts.)
void Engine::queue_for_banishing(Storage* storage, Deferred& deferred) {
  deferred.banish_queued();
  if (storage->queued) return;
  storage->queued = true;
  banish_queue_.push_back(storage);
}

// The record goes: nobody tries it again.
void Engine::forget_banishing(Storage* storage) {
  storage->to_banish = false;
  --to_banish_;
  if (!storage->queued) return;
  storage->queued = false;
  // What is removed was queued just before, mostly: it stands near the end.
  const auto at = std::find(banish_queue_.rbegin(), banish_queue_.rend(), storage);
  if (at != banish_queue_.rend()) *at = nullptr;
}

// Called by a Deferred, after the mutex was released.
void Engine::banish_queued(Deferred& deferred) {
  std::lock_guard<EngineMutex> lock(mutex_);
  // One that goes may have others tried again: those that it depended on.
  while (!banish_queue_.empty()) {
    Storage* storage = banish_queue_.back();
    banish_queue_.pop_back();
    if (!storage) continue;
    storage->queued = false;
    banish(storage, deferred);
  }
}

// What stands between a dead storage and being banished; null if nothing does.
const Storage* Engine::keeps_from_banishing(const Storage* storage) const {
  if (storage->locks > 0) return storage;
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    for (const Output& output : edge->op->outputs) {
      const Storage* dependent = output.storage;
      if (dependent && (!has_content(dependent) || dependent->locks > 0)) return dependent;
    }
  return nullptr;
}

void Engine::banish(Storage* storage, Deferred& deferred) {
  if (keeps_from_banishing(storage)) return;
  std::vector<Storage*> dependents;
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    for (const Output& output : edge->op->outputs)
      if (output.storage) dependents.push_back(output.storage);
  ++stats_.banished;
  const uint64_t id = storage->id;
  // A dead dependent may vanish with the others; the locks keep the list whole until then.
  ++storage->locks;
  for (Storage* dependent : dependents) ++dependent->locks;
  for (Storage* dependent : dependents) forget_parent(dependent, deferred);
  for (Storage* dependent : dependents) unlock(dependent, deferred);
  unlock(storage, deferred);
  if (watcher_) watcher_->banished(id);
}

}  // namespace dtr
