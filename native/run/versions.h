// versions.h: what an op overwrites. The content before it ends as one storage, the content after
// it begins as the next (R1), as a result of the op if the op can be repeated, else as a constant.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/contents.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/op_call.h"
#include "graph/settling.h"
#include "graph/stream_order.h"
#include "graph/unwritten.h"
#include "storage_lifecycle.h"

namespace dtr {

// All of it under the engine's mutex.
class Versions {
 public:
  // What it works with.
  struct Parts {
    Environment& environment;
    Graph& graph;
    StorageLifecycle& lifecycle;
    const GraphCapture& capture;
    const StreamOrder& streams;
    Settling& settling;
    DeadStorages& dead;
    Contents& contents;
    UnwrittenParts& unwritten;
  };
  explicit Versions(const Parts& parts) : parts_(parts) {}

  // Of an op that begins, and overwrites arguments, or touches some while a graph is captured.
  // False if what depends on one must be computed first.
  bool begin(OpCall& call, Deferred& deferred) {
    bool covers = false;
    for (const Input& input : call.inputs)
      covers |= input.storage && overwrites(input.use) && input.use != Use::mutate;
    if (covers) find_shared(call);
    for (Input& input : call.inputs) {
      Storage* storage = input.storage;
      if (!storage || !overwrites(input.use)) continue;
      // Who reads it beside the arguments would read what the op writes.
      if (storage->parent && is_read_beside(storage))
        parts_.lifecycle.forget_parent(storage, deferred);
      // What is also read, or not covered, is an input after all.
      if (input.use == Use::write_only && (input.shared || !input.desc.full)) {
        input.part = !input.desc.full;
        input.begins = input.part && !input.shared && may_begin(storage, input.desc);
        if (!input.begins) input.use = Use::mutate;
      }
      if (input.use == Use::scratch && input.shared) call.cannot_be_repeated(DTR_KEPT_STATE);
      if (input.use == Use::mutate && !storage->parent) {
        if (call.keeps_old) input.copy = copy_of(storage);
        if (input.copy) continue;
        call.loses = true;  // what it reads and overwrites must exist again at a replay
      }
      ++storage->overwriters;
    }
    return settle(call, nullptr, deferred);
  }
  // Settles what the op is about to lose (R8). False if something must be computed first, which
  // *targets gets.
  bool settle(const OpCall& call, std::vector<Storage*>* targets, Deferred& deferred) {
    losses_.clear();
    for (const Input& input : call.inputs)
      if (input.storage && !(input.copy && !targets) && !input.storage->parent &&
          input.storage->children && (overwrites(input.use) || parts_.capture.is_under_way()))
        losses_.push_back({input.storage, written(input)});
    return parts_.settling.settle_each(losses_, targets, deferred);
  }
  // The op ran: sees what it overwrote in fact, and whether it can be repeated. False if it
  // overwrote nothing but scratch memory.
  bool ran(OpCall& call) {
    bool overwritten = false;
    for (Input& input : call.inputs) {
      if (!input.storage || !overwrites(input.use)) continue;
      if (input.copy) {
        overwritten = true;
        continue;
      }
      --input.storage->overwriters;
      overwritten |= input.use != Use::scratch;
      // Made smaller within its storage (out=), it left a part of that as it was.
      if ((input.use == Use::write_only || input.part) && input.storage->handle &&
          !still_covers(input)) {
        input.use = Use::mutate;
        input.begins = input.part = false;
      }
      // What it reads and overwrites must exist again at a replay.
      if (input.use == Use::mutate && !input.storage->parent)
        call.cannot_be_repeated(DTR_KEPT_OVERWRITTEN);
    }
    return overwritten;
  }
  // Begins the next versions; op: its record, or null if it cannot be repeated.
  void end(OpCall& call, Op* op, Deferred& deferred) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      Input& input = call.inputs[i];
      if (input.storage && overwrites(input.use))
        next(call, input, op, static_cast<int32_t>(i), deferred);
    }
  }
  // The op failed. started: it may have overwritten some in part, which are constants of unknown
  // content then.
  void abandon(OpCall& call, bool started, Deferred& deferred) {
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      Input& input = call.inputs[i];
      if (!input.storage || !overwrites(input.use)) continue;
      if (!input.copy)
        --input.storage->overwriters;
      else if (!started)
        deferred.free_block(*input.storage, std::exchange(input.copy, nullptr));
      // One that is not resident cannot have been touched.
      if (started && input.storage->state == State::resident)
        next(call, input, nullptr, static_cast<int32_t>(i), deferred);
    }
  }

 private:
  // Contents up to this size are copied before an op overwrites them, where that is asked for.
  static constexpr uint64_t kMostCopied = 64 * 1024;
  // The bytes that an op is about to overwrite, as far as what depends on others may stay. Where it
  // writes more, having resized the tensor (out=), the checksums of what others hold tell.
  static Range written(const Input& input) {
    return overwrites(input.use) && Contents::others_hold(input.storage) ? span_of(input.desc)
                                                                         : kWholeStorage;
  }
  static bool is_read_beside(const Storage* storage) {
    for (const Edge* edge = storage->children; edge; edge = edge->next)
      if (is_beside(*edge)) return true;
    return false;
  }
  // An optimizer's operator has hundreds of arguments: their storages are marked, not compared.
  void find_shared(OpCall& call) {
    const uint64_t once = parts_.graph.next_walk();
    const uint64_t twice = parts_.graph.next_walk();
    for (const Input& input : call.inputs)
      if (input.storage) input.storage->mark = input.storage->mark < once ? once : twice;
    for (Input& input : call.inputs) input.shared = input.storage && input.storage->mark == twice;
  }
  // Whether a tensor that covered its storage, or a part of it, when the op began does so after it.
  bool still_covers(const Input& input) const {
    const dtr_tensor_desc& desc = input.desc;
    dtr_tensor_desc now;
    parts_.environment.framework->describe(input.tensor, &now);
    if (now.handle != desc.handle) return true;
    if (!input.part) return now.full;
    return now.offset == desc.offset && now.ndim == desc.ndim &&
           std::equal(now.sizes, now.sizes + now.ndim, desc.sizes) &&
           std::equal(now.strides, now.strides + now.ndim, desc.strides);
  }
  // Whether the buffer of a constant, of which the op will overwrite a part, may be filled so (R16).
  bool may_begin(const Storage* storage, const dtr_tensor_desc& part) const {
    return !storage->parent && storage->managed && !storage->constant_for_good &&
           storage->size_bytes > parts_.environment.options.tiny_bytes && Unwritten().begin(part);
  }
  // The content of a small storage at another address; null if there is no room for it.
  void* copy_of(const Storage* storage) const {
    if (!storage->managed || storage->external || storage->state != State::resident ||
        storage->size_bytes > kMostCopied || parts_.capture.is_under_way())
      return nullptr;
    dtr_pool* pool = parts_.environment.pool_of(storage->device_type, storage->device_index);
    const uint64_t on = parts_.streams.for_copy(storage);
    void* copy = nullptr;
    if (dtr_pool_try_allocate(pool, storage->size_bytes, on, &copy) != DTR_OK || !copy)
      return nullptr;
    if (dtr_pool_copy(pool, copy, storage->address, storage->size_bytes, on, nullptr) != DTR_OK) {
      dtr_pool_free(pool, copy);
      return nullptr;
    }
    return copy;
  }
  // The buffer went to the record of what the op has made of it; that of the old content gets the
  // copy, as memory of its own.
  void keep_in_copy(Input& input) {
    Storage* old = input.storage;
    // One that may be swapped is a candidate, in the order of addresses: it goes, and comes back.
    old->state = State::evicted;
    parts_.lifecycle.update_candidate(old);
    old->state = State::resident;
    old->address = std::exchange(input.copy, nullptr);
    parts_.graph.by_address.insert(old->address, old);
    old->remade_on = kNoStream;
    parts_.lifecycle.update_candidate(old);
    parts_.dead.keep(old);
  }
  // Ends the version that the op overwrote and begins the next.
  void next(OpCall& call, Input& input, Op* op, int32_t position, Deferred& deferred) {
    Storage* old = input.storage;
    // Another argument is the same storage and was dealt with; or the op gave the buffer other
    // memory (out=), so that the old version died, and what is there now is a result.
    if (!old->handle) {
      if (input.copy) deferred.free_block(*old, std::exchange(input.copy, nullptr));
      return;
    }
    const int32_t rank = input.adopted && is_whole(input) ? call.made++ : -1;
    Unwritten unwritten;
    const bool in_parts = input.begins || (old->unwritten && input.use == Use::mutate);
    const uint8_t constant_as = [&]() -> uint8_t {
      if (old->constant_for_good) return DTR_KEPT_PARAMETER;
      if (!call.recomputable) return call.constant_as;
      if (input.copy) return DTR_KEPT_OVERWRITTEN;
      if (input.use == Use::scratch) return DTR_KEPT_STATE;
      if (!op) return DTR_KEPT_FAILED;
      if (old->size_bytes <= parts_.environment.options.tiny_bytes) return DTR_KEPT_TINY;
      if (in_parts && !parts_.unwritten.write(call, input, &unwritten)) return DTR_KEPT_IN_PARTS;
      return DTR_KEPT_NOT;
    }();
    const bool constant = constant_as != DTR_KEPT_NOT;
    // It was settled before the op ran: the record may serve the new content.
    if (constant && !old->parent && !input.copy) {
      old->made_by = call.op_key;
      if (!old->external) old->place = call.place;
      old->constant_as = constant_as;
      old->was_evicted = false;
      return;
    }
    dtr_tensor_desc desc;
    parts_.environment.framework->describe(input.tensor, &desc);
    Storage* fresh = parts_.lifecycle.hand_over(old, desc);
    fresh->made_by = call.op_key;
    fresh->place = call.place;
    fresh->constant_as = constant_as;
    if (!constant) {
      Graph::add_output(op, fresh, position, true, rank);
      parts_.contents.note(fresh);
      if (!unwritten.empty()) parts_.unwritten.begin(fresh, std::move(unwritten));
    }
    if (input.copy) {
      keep_in_copy(input);
    } else {
      old->lost = !old->parent;
      parts_.lifecycle.become_evicted(old, EvictionCause::gone);
    }
    parts_.lifecycle.update_candidate(fresh);
  }

  Parts parts_;
  std::vector<Settling::Loss> losses_;  // of settle()
};

}  // namespace dtr
