// contents.h: whether a content is still the one that the engine knows.
//
// Operators tell the engine what they overwrite. Others write past them: NumPy, kernels that get a
// pointer, processes that share the memory. Where the host can read the memory, which is on the
// CPU, every content has a checksum of its last known state, and is compared with it
//
//  - when an op begins to use it: if it differs, the old content ends as if an op had overwritten
//    it, and what is there now is a constant;
//  - before it is given up: if it differs, it stays, because its op would not give it again;
//  - before a rematerialization reads it: if it differs, it is computed again, too, or, where it
//    cannot be, the rematerialization fails.
//
// So nothing is computed from a content that changed unseen. A constant that nothing depends on may
// change: its checksum is taken when an op begins to use it whose results may be recorded.
//
// The checksum is of the whole content with DTR_CONTENTS_WHOLE. Else it is of a few words, evenly
// spread: a write to all of a content is noticed, a write to a small part of it may not be.
//
// Memory that the framework's own allocator gave before the engine met it is looked at like ours, as
// long as its address was not given away (dtr_tensor_desc.exclusive): a model that is older than the
// engine.
//
// Where others hold the address, every byte counts that an op has read whose record depends on it:
// a data set may be larger than all that the job computes from it, and an op reads one batch. Each
// edge has the checksum of the span of these bytes (spans.h), taken when its op has ended. So a
// write, by an op or unseen, concerns the ops that have read where it went, and no others. Where the
// checksum would take some times longer than the op itself, as where it picks a few rows of a large
// table, the op's results are constants, and nothing depends on what it read. Parameters are exempt:
// all that a model computes depends on them.
#pragma once

#include <cstdint>

#include "deferred.h"
#include "environment.h"
#include "graph.h"
#include "lifecycle.h"
#include "op_call.h"
#include "settling.h"

namespace dtr {

class Contents {
 public:
  Contents(Environment& environment, const Graph& graph, Lifecycle& lifecycle, Settling& settling)
      : environment_(environment), graph_(graph), lifecycle_(lifecycle), settling_(settling) {}

  // Whether every byte counts that an op with a record has read: others may write to it unseen.
  static bool others_hold(const Storage* storage) {
    return storage->external && storage->device_type == kCpu && storage->state == State::resident;
  }

  // A resident storage's content is as it should be.
  void note(Storage* storage) const {
    if (is_watched(storage)) storage->checksum = checksum_of(storage);
  }
  // The same for what an op is about to use that may be recorded, unless others hold its address.
  void note_inputs(const OpCall& call) const;
  // Whether an op that has ended read more that others hold than its record is worth.
  static bool reads_too_much(const OpCall& call, int64_t cost_ns);
  // What others hold is as the op read it that has just been recorded.
  static void note_what_others_hold(Op* op);
  // What others hold from now on is as the ops have read it that have records.
  static void note_dependents(const Storage* storage);
  // After the settings have changed.
  void note_all();

  bool has_changed(const Storage* storage) const {
    return is_watched(storage) && is_known(storage) && checksum_of(storage) != storage->checksum;
  }
  // The same of what an op is about to use; of what others hold, only the part matters.
  bool has_changed(const Storage* storage, const dtr_tensor_desc& part) const;
  // It has; returns the record of what the memory of a live resident storage holds now.
  Storage* changed(Storage* old, Deferred& deferred);
  Storage* changed(Storage* storage, const dtr_tensor_desc& part, Deferred& deferred);
  // What an op is about to read again is as it was, or evicted, if its own op can give it again.
  void compare_inputs(const Op* op, Deferred& deferred);

 private:
  bool is_watched(const Storage* storage) const {
    return !storage->external && storage->device_type == kCpu && environment_.options.contents != 0;
  }
  // Whether the checksum is kept: it was computed, or something was computed from it.
  static bool is_known(const Storage* storage) { return storage->parent || storage->children; }
  uint64_t checksum_of(const Storage* storage) const;
  static uint64_t checksum_of(const Edge& edge);

  Environment& environment_;
  const Graph& graph_;
  Lifecycle& lifecycle_;
  Settling& settling_;
};

}  // namespace dtr
