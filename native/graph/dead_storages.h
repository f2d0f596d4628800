// dead_storages.h: what becomes of a storage that the framework dropped (DTR paper, appendix C.5).
//
// Nothing can ask for a dead storage that nothing depends on: it goes at once, under every
// policy. One with dependents is
//
//   eager   evicted at once; a constant is settled if that makes constants of no more
//           bytes than its own and those of others that go with it, else kept;
//   ignore  kept: evictable, or as a constant;
//   lazy    kept, evictable, once something had to be evicted, if its operator costs 20 us or more:
//           until its memory is needed, what is computed from it costs less to bring back. Others,
//           and constants, go as under eager;
//   auto    as under lazy while that pays, else as under eager;
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
#pragma once

#include <cstdint>
#include <vector>

#include "dealloc.h"
#include "deferred.h"
#include "environment.h"
#include "lifecycle.h"
#include "settling.h"

namespace dtr {

class DeadStorages {
 public:
  DeadStorages(Environment& environment, Lifecycle& lifecycle, Settling& settling)
      : environment_(environment), lifecycle_(lifecycle), settling_(settling) {}

  // By the options.
  void configure() {
    dealloc_from_name(environment_.options.dealloc, &policy_);
    evictions_ = environment_.stats.evictions;
  }
  Dealloc policy() const { return policy_; }
  // Whether a constant is settled when it dies, if that costs no memory.
  bool settles_constants() const { return policy_ == Dealloc::eager || keeps_until_needed(); }

  // The handle of a resident storage died. True: the engine owns the memory from now on
  // (R5). False: it goes back.
  bool keeps_memory(Storage* storage, Deferred& deferred);
  // The handle of an evicted one died.
  void evicted_died(Storage* storage, Deferred& deferred) {
    if (policy_ == Dealloc::banish) mark(storage, deferred);
  }

  // ---- constants that something depends on: what settles them frees memory ----
  const std::vector<Storage*>& constants() const { return constants_; }
  // Dead, resident, without a parent.
  void keep(Storage* constant);
  // It is not that any more.
  void let_go(Storage* storage);
  // Makes constants of no more than so many bytes in its place, so that its memory is free. False,
  // and nothing is changed, if that cannot be.
  bool settle(Storage* constant, uint64_t most_bytes, Deferred& deferred);
  // A rematerialization has used it.
  void note_source(Storage* storage, bool* used) {
    if (storage->kept_for_later) saved_ns_ += cost_of(storage);
    if (storage->kept >= 0 && settles_constants()) storage->is_source = *used = true;
  }
  // The rematerialization is done. What it was computed from was kept because it was evicted: where
  // it is back, and takes no more memory than the constant, it becomes one in its place. Else an
  // optimizer's state that is evicted between its steps would keep the gradient of each step, and
  // free nothing.
  void settle_sources(Deferred& deferred);

  // ---- banishing ----
  // What stood in the way may have gone: tried again once the call is done. (Not here: the callers
  // walk the edges that banishing cuts.)
  void reconsider(Storage* storage, Deferred& deferred) {
    if (storage->to_banish) queue(storage, deferred);
  }
  void reconsider_inputs(const Op* op, Deferred& deferred) {
    if (to_banish_ == 0) return;
    for (const Edge& edge : op->edges)
      if (edge.input) reconsider(edge.input, deferred);
  }
  // Of those that are to be tried.
  void banish_queued(Deferred& deferred);
  // The record goes.
  void forget(Storage* storage);

  // R5 (constants) and R9.
  void check(const std::vector<Storage*>& storages) const;

 private:
  bool keeps_until_needed() const {
    return policy_ == Dealloc::lazy || policy_ == Dealloc::automatic;
  }
  bool keeps_for_later(Storage* storage);
  // Where that takes no more than what goes with the constant, which is locked; whether it is done.
  // One by one, an optimizer's states and a weight that depends on them would keep the gradient of
  // each step.
  bool settle_at_no_cost(Storage* constant, Deferred& deferred);
  void mark(Storage* storage, Deferred& deferred);
  void queue(Storage* storage, Deferred& deferred);
  void banish(Storage* storage, Deferred& deferred);

  Environment& environment_;
  Lifecycle& lifecycle_;
  Settling& settling_;
  Dealloc policy_ = Dealloc::eager;
  uint64_t evictions_ = 0;                 // before the policy
  int64_t keeping_ns_ = 0, saved_ns_ = 0;  // by what is kept for later
  std::vector<Storage*> constants_;
  std::vector<Storage*> queue_;  // to be tried; null: gone meanwhile
  uint64_t to_banish_ = 0;       // storages that are
};

}  // namespace dtr
