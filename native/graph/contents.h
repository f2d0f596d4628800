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
#include <string>

#include "base/checksum.h"
#include "base/error.h"
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
  void note_inputs(const OpCall& call) const {
    for (const Input& input : call.inputs)
      if (input.storage && reads(input.use) && !input.storage->external && !is_known(input.storage))
        note(input.storage);
  }
  // Whether an op that has ended read more that others hold than its record is worth.
  static bool reads_too_much(const OpCall& call, int64_t cost_ns) {
    uint64_t bytes = 0;
    for (const Input& input : call.inputs) {
      if (!input.storage || !reads(input.use) || input.constant || !others_hold(input.storage))
        continue;
      const Range span = span_of(input.desc);
      bytes += span.end - span.begin;
    }
    return bytes > kFewBytes && kCheckNsPerByte * static_cast<double>(bytes) >
                                    kMostChecksOfCost * static_cast<double>(cost_ns);
  }
  // What others hold is as the op read it that has just been recorded.
  static void note_what_others_hold(Op* op) {
    for (Edge& edge : op->edges) {
      if (!others_hold(edge.input)) continue;
      // Who has read the same before was compared when the op began, and no write since then may be
      // missed.
      const Edge* before = edge.next;
      const bool is_known = before && !before->lost && span_of(*before) == span_of(edge);
      edge.checksum = is_known ? before->checksum : checksum_of(edge);
    }
  }
  // What others hold from now on is as the ops have read it that have records.
  static void note_dependents(const Storage* storage) {
    if (!others_hold(storage)) return;
    for (Edge* edge = storage->children; edge; edge = edge->next)
      edge->checksum = checksum_of(*edge);
  }
  // After the settings have changed.
  void note_all() {
    for (Storage* storage : graph_.storages())
      if (storage->state == State::resident && is_known(storage)) note(storage);
  }

  bool has_changed(const Storage* storage) const {
    return is_watched(storage) && is_known(storage) && checksum_of(storage) != storage->checksum;
  }
  // The same of what an op is about to use; of what others hold, only the part matters.
  bool has_changed(const Storage* storage, const dtr_tensor_desc& part) const {
    if (!others_hold(storage)) return has_changed(storage);
    const Range about = span_of(part);
    for (const Edge* edge = storage->children; edge; edge = edge->next) {
      const Range span = span_of(*edge);
      if (edge->lost || !meet(span, about)) continue;
      if (checksum_of(*edge) != edge->checksum) return true;
      // The older ones were compared when the edge's op began.
      if (span.begin <= about.begin && about.end <= span.end) return false;
    }
    return false;
  }
  // It has; returns the record of what the memory of a live resident storage holds now.
  Storage* changed(Storage* old, Deferred& deferred) {
    ++environment_.stats.unseen_writes;
    if (!old->parent) {
      ++old->locks;  // memory that is not ours has a record only while something depends on it
      const bool settled = settling_.settle(old, nullptr, Settling::kAnyBytes, deferred);
      --old->locks;
      if (settled) return old;
    }
    dtr_tensor_desc desc{};
    desc.handle = old->handle;
    desc.data = old->address;
    desc.storage_bytes = old->size_bytes;
    desc.device_type = old->device_type;
    desc.device_index = old->device_index;
    Storage* fresh = lifecycle_.hand_over(old, desc);
    fresh->constant_for_good = old->constant_for_good;
    old->lost = !old->parent;
    lifecycle_.become_evicted(old, EvictionCause::gone);
    lifecycle_.update_candidate(fresh);
    lifecycle_.maybe_remove(old, deferred);
    return fresh;
  }
  Storage* changed(Storage* storage, const dtr_tensor_desc& part, Deferred& deferred) {
    if (!others_hold(storage)) return changed(storage, deferred);
    ++environment_.stats.unseen_writes;
    const Range about = span_of(part);
    ++storage->locks;
    const bool settled = settling_.settle(storage, nullptr, Settling::kAnyBytes, deferred, about);
    --storage->locks;
    for (Edge* edge = storage->children; edge && !settled; edge = edge->next)
      edge->lost |= meet(span_of(*edge), about) && checksum_of(*edge) != edge->checksum;
    return storage;
  }
  // What an op is about to read again is as it was, or evicted, if its own op can give it again.
  void compare_inputs(const Op* op, Deferred& deferred) {
    for (const Edge& edge : op->edges) {
      Storage* input = edge.input;
      if (!edge.lost &&
          (input->state != State::resident || input->overwriters > 0 ||
           !(others_hold(input) ? checksum_of(edge) != edge.checksum : has_changed(input))))
        continue;
      if (!input->live || !input->parent)
        throw StateError("storage " + std::to_string(input->id) + ", " +
                         size_text(input->size_bytes) +
                         ", is needed for a rematerialization, but was changed by something "
                         "other than an operator (through numpy, DLPack, a raw pointer or a "
                         "storage); materialize what depends on it before");
      changed(input, deferred);
    }
  }

 private:
  // Checksums read about 10 GB/s. An op that uses every byte it reads takes longer than a quarter of
  // that. Of few bytes no op is too short.
  static constexpr double kCheckNsPerByte = 0.1;
  static constexpr double kMostChecksOfCost = 4;
  static constexpr uint64_t kFewBytes = 64 * 1024;

  bool is_watched(const Storage* storage) const {
    return !storage->external && storage->device_type == kCpu && environment_.options.contents != 0;
  }
  // Whether the checksum is kept: it was computed, or something was computed from it.
  static bool is_known(const Storage* storage) { return storage->parent || storage->children; }
  uint64_t checksum_of(const Storage* storage) const {
    return environment_.options.contents == DTR_CONTENTS_WHOLE
               ? checksum(storage->address, storage->size_bytes)
               : sampled_checksum(storage->address, storage->size_bytes);
  }
  static uint64_t checksum_of(const Edge& edge) {
    const Range span = span_of(edge);
    return checksum(static_cast<const unsigned char*>(edge.input->address) + span.begin,
                    span.end - span.begin);
  }

  Environment& environment_;
  const Graph& graph_;
  Lifecycle& lifecycle_;
  Settling& settling_;
};

}  // namespace dtr
