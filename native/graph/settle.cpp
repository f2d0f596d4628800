// settle.cpp: before a content that cannot be recomputed is lost for good, whatever
// hangs on it becomes independent of it.
//
// Walking down from the storage that will be lost: a resident live dependent becomes
// a constant and ends the walk there; a dead one passes the demand on to its own
// dependents and vanishes with its last one; a live evicted one must be
// rematerialized first, by the caller.
#include <algorithm>

#include "run/engine.h"

namespace dtr {

// True: nothing depends on `lost` any more. False: nothing was changed, and *targets
// (if given) got the live evicted dependents, or more than most_bytes would have
// become constant.
bool Engine::settle(Storage* lost, std::vector<Storage*>* targets, uint64_t most_bytes,
                    Deferred& deferred) {
  if (!lost->children) return true;
  const uint64_t walk = graph_.next_walk();
  std::vector<Storage*> pending{lost};
  std::vector<Storage*> resident;
  uint64_t bytes = 0;
  bool possible = true;
  while (!pending.empty()) {
    const Storage* storage = pending.back();
    pending.pop_back();
    for (const Edge* edge = storage->children; edge; edge = edge->next)
      for (const Output& output : edge->op->outputs) {
        Storage* dependent = output.storage;
        if (!dependent || dependent->mark == walk) continue;
        dependent->mark = walk;
        if (has_content(dependent) && dependent->live) {
          resident.push_back(dependent);
          if (dependent->overwriters > 0) pending.push_back(dependent);  // R8
          if (is_candidate(dependent)) bytes += dependent->size_bytes;
        } else if (dependent->live) {
          possible = false;
          if (targets) targets->push_back(dependent);
        } else if (dependent->locks > 0) {
          // A rematerialization in progress counts on it, and may overwrite it: as a
          // constant it would be lost for its other dependents.
          possible = false;
        } else {
          pending.push_back(dependent);
        }
      }
    if ((!possible && !targets) || bytes > most_bytes) return false;
  }
  if (!possible || bytes > most_bytes) return false;
  for (Storage* storage : resident) forget_parent(storage, deferred);
  return true;
}

// A rematerialization is done. Dead constants that it began with were kept because what is computed
// from them was evicted: where that is back, and takes no more memory than the constant, it becomes
// one in its place. Else an optimizer's state that is evicted between its steps would keep the
// gradient of each step, and free nothing.
void Engine::settle_sources(Frame& frame, Deferred& deferred) {
  if (!frame.used_sources) return;
  frame.used_sources = false;
  for (size_t i = kept_constants_.size(); i-- > 0;) {
    if (i >= kept_constants_.size()) continue;  // settling one may take others along
    Storage* source = kept_constants_[i];
    if (!source->is_source) continue;
    source->is_source = false;
    ++source->locks;
    settle(source, nullptr, source->size_bytes, deferred);
    unlock(source, deferred);
  }
}

// Whether the dead records that the storage's history consists of take more memory than
// the storage itself. Then it had better be a constant: a running average would keep
// its whole past, and free a few bytes when evicted. *counted: the dead records met.
bool Engine::history_outweighs(Storage* storage, uint64_t* counted) {
  constexpr uint64_t kRecordBytes = 1024;  // an op's record and its closure, about
  const uint64_t most = storage->size_bytes / kRecordBytes;
  const uint64_t walk = graph_.next_walk();
  pending_.assign(1, storage);
  *counted = 0;
  while (!pending_.empty()) {
    const Storage* next = pending_.back();
    pending_.pop_back();
    if (!next->parent) continue;
    for (const Edge& edge : next->parent->edges) {
      Storage* input = edge.input;
      if (input->live || input->mark == walk) continue;
      input->mark = walk;
      if (++*counted > most) return true;
      pending_.push_back(input);
    }
  }
  return false;
}

// Cuts the oldest ops off until no more than history_ops remain (DTR has no such
// rule; without it a running average would keep its whole past). True: done.
bool Engine::settle_history(std::vector<Storage*>* targets, Deferred& deferred) {
  while (stats_.live_ops > options_.history_ops) {
    Op* op = graph_.oldest_op();
    const uint64_t before = stats_.live_ops;
    const size_t wanted = targets ? targets->size() : 0;
    std::vector<Storage*> outputs;
    for (const Output& output : op->outputs)
      if (output.storage) outputs.push_back(output.storage);
    for (Storage* storage : outputs) {
      if (has_content(storage) && storage->live) {
        if (storage->overwriters == 0 || settle(storage, targets, UINT64_MAX, deferred))  // R8
          forget_parent(storage, deferred);
      } else if (storage->live) {
        if (targets) targets->push_back(storage);
      } else {
        // Its last dependent gone, the dead storage vanishes, and the op with it.
        ++storage->locks;
        settle(storage, targets, UINT64_MAX, deferred);
        unlock(storage, deferred);
      }
    }
    if (stats_.live_ops == before || (targets && targets->size() > wanted)) return false;
  }
  return true;
}

}  // namespace dtr
