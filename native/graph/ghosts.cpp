// ghosts.cpp: which dead storages somebody is going to need.
//
// A dead storage that a rematerialization brought back (a ghost) is of use only to what is
// computed from it. An evicted storage *asks* for its op's inputs if it will be needed itself:
//
//  G1  A storage asks if it is evicted and can come back, and is live or has askers.
//  G2  The askers of a storage are the outputs of the ops that read it that ask; they are counted.
//
// So what an eviction of a ghost without askers takes away is nothing that anything evicted now
// would begin with: it goes before everything else (kIdle). One with askers is what their
// rematerialization begins with, and is scored as the living are. (A dead storage that is resident
// under the policy "ignore" is a ghost, too.)
//
// Asking spreads upward through dead evicted storages and stops at one that is resident, live or
// had another asker: where a rematerialization would stop, too. So a change visits at most what a
// rematerialization would run, and on the fast path, where nothing is evicted, there is none.
#include "run/engine.h"

namespace dtr {

namespace {

// As it was before ghosts were told apart: a hundredth for each.
constexpr double kDiscount = 0.01;

}  // namespace

// Called after each change of what G1 speaks of; with gone before the storage loses its parent.
void Engine::update_asking(Storage* changed, bool gone) {
  asking_.assign(1, changed);
  while (!asking_.empty()) {
    Storage* storage = asking_.back();
    asking_.pop_back();
    const bool asks = !(gone && storage == changed) && storage->counted && storage->parent &&
                      (storage->live || storage->askers > 0);
    if (asks == storage->asks) continue;
    storage->asks = asks;
    if (!storage->live) toll_changed(storage, !asks);
    for (const Edge& edge : storage->parent->edges) {
      Storage* input = edge.input;
      input->askers += asks ? 1 : -1;
      if (input->askers != (asks ? 1 : 0) || input->live) continue;
      if (input->counted)
        asking_.push_back(input);
      else if (input->candidate >= 0)
        reweigh(input);
    }
  }
}

// The factor by which a storage's score counts.
double Engine::ghost_factor(const Storage* storage) const {
  if (storage->live || !storage->parent) return 1;
  if (options_.unneeded == DTR_UNNEEDED_DISCOUNTED) return kDiscount;
  return is_idle(storage) ? kIdle : 1;
}

// Under DTR_UNNEEDED_AT_ONCE, the memory of every ghost without askers goes back. (Not under the
// other policies for the dead: they keep dead storages that nobody brought back, too.)
void Engine::release_ghosts(Deferred& deferred) {
  if (options_.unneeded != DTR_UNNEEDED_AT_ONCE || dead_.policy() != Dealloc::eager) return;
  for (const auto& device : devices_) {
    grow_up(*device);
    // From the end: the last candidate fills the gap.
    for (size_t i = device->candidates.size(); i-- > 0;) {
      Storage* storage = device->candidates.at(i);
      if (storage->parent && is_idle(storage) && storage->locks == 0 && storage->pins == 0)
        drop(storage, EvictionCause::gone, deferred);
    }
  }
}

}  // namespace dtr
