// settling.cpp: see settling.h.
#include "settling.h"

#include <algorithm>

namespace dtr {

namespace {

// Storages that freed_with() looks at.
constexpr size_t kMostMet = 2048;

}  // namespace

bool Settling::settle(Storage* lost, std::vector<Storage*>* targets, uint64_t most_bytes,
                      Deferred& deferred, const Range& part) {
  if (!lost->children) return true;
  const uint64_t walk = graph_.next_walk();
  pending_.assign(1, lost);
  resident_.clear();
  uint64_t bytes = 0;
  bool possible = true;
  const bool is_part = part.end < lost->size_bytes || part.begin > 0;
  while (!pending_.empty()) {
    const Storage* storage = pending_.back();
    pending_.pop_back();
    for (const Edge* edge = storage->children; edge; edge = edge->next) {
      if (edge->lost || (is_part && storage == lost && !meet(span_of(*edge), part))) continue;
      for (const Output& output : edge->op->outputs) {
        Storage* dependent = output.storage;
        if (!dependent || dependent->mark == walk) continue;
        dependent->mark = walk;
        if (has_content(dependent) && dependent->live) {
          resident_.push_back(dependent);
          if (dependent->overwriters > 0) pending_.push_back(dependent);  // R8
          if (is_candidate(dependent)) bytes += dependent->size_bytes;
        } else if (dependent->live) {
          possible = false;
          if (targets) targets->push_back(dependent);
        } else if (dependent->locks > 0) {
          // A rematerialization in progress counts on it, and may overwrite it: as a
          // constant it would be lost for its other dependents.
          possible = false;
        } else {
          pending_.push_back(dependent);
        }
      }
    }
    if ((!possible && !targets) || bytes > most_bytes) return false;
  }
  if (!possible || bytes > most_bytes) return false;
  // Others may be settled meanwhile.
  std::vector<Storage*> resident = std::move(resident_);
  for (Storage* storage : resident) lifecycle_.forget_parent(storage, deferred);
  resident_ = std::move(resident);
  return true;
}

uint64_t Settling::freed_with(const Storage* lost) {
  size_t left = kMostMet;
  std::vector<const Storage*> dependents;
  if (!find_live_dependents(lost, &dependents, &left)) return 0;
  std::sort(dependents.begin(), dependents.end());
  std::vector<const Storage*> sources;
  const uint64_t walk = graph_.next_walk();
  pending_ = dependents;
  while (!pending_.empty()) {
    const Storage* storage = pending_.back();
    pending_.pop_back();
    if (!storage->parent) continue;
    for (const Edge& edge : storage->parent->edges) {
      Storage* input = edge.input;
      if (!input || input->live || input->mark == walk) continue;
      input->mark = walk;
      if (left == 0) return 0;
      --left;
      if (input->parent)
        pending_.push_back(input);
      else if (has_content(input))
        sources.push_back(input);
    }
  }
  uint64_t bytes = 0;
  std::vector<const Storage*> needed_by;
  for (const Storage* source : sources)
    if (find_live_dependents(source, &needed_by, &left) &&
        std::all_of(needed_by.begin(), needed_by.end(), [&](const Storage* dependent) {
          return std::binary_search(dependents.begin(), dependents.end(), dependent);
        }))
      bytes += source->size_bytes;
  return bytes;
}

// False: one is evicted or in use, or more were met than are left to be.
bool Settling::find_live_dependents(const Storage* of, std::vector<const Storage*>* found,
                                    size_t* left) {
  found->clear();
  const uint64_t walk = graph_.next_walk();
  pending_.assign(1, of);
  while (!pending_.empty()) {
    const Storage* storage = pending_.back();
    pending_.pop_back();
    for (const Edge* edge = storage->children; edge; edge = edge->next) {
      if (edge->lost) continue;
      for (const Output& output : edge->op->outputs) {
        Storage* dependent = output.storage;
        if (!dependent || dependent->mark == walk) continue;
        dependent->mark = walk;
        if (*left == 0) return false;
        --*left;
        if (dependent->live ? !has_content(dependent) : dependent->locks > 0) return false;
        if (dependent->live) found->push_back(dependent);
        if (!dependent->live || dependent->overwriters > 0) pending_.push_back(dependent);
      }
    }
  }
  return true;
}

bool Settling::history_outweighs(const Storage* storage, uint64_t* counted) {
  constexpr uint64_t kRecordBytes = 1024;  // an op's record and its closure, about
  const uint64_t most = storage->size_bytes / kRecordBytes;
  *counted = 0;
  if (environment_.stats.live_ops <= most) return false;  // nor do those of all histories
  const uint64_t walk = graph_.next_walk();
  pending_.assign(1, storage);
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

bool Settling::settle_history(std::vector<Storage*>* targets, Deferred& deferred) {
  const uint64_t& live_ops = environment_.stats.live_ops;
  while (live_ops > environment_.options.history_ops) {
    const uint64_t before = live_ops;
    const size_t wanted = targets ? targets->size() : 0;
    std::vector<Storage*> outputs;
    for (const Output& output : graph_.oldest_op()->outputs)
      if (output.storage) outputs.push_back(output.storage);
    for (Storage* storage : outputs) {
      if (has_content(storage) && storage->live) {
        if (storage->overwriters == 0 || settle(storage, targets, kAnyBytes, deferred))  // R8
          lifecycle_.forget_parent(storage, deferred);
      } else if (storage->live) {
        if (targets) targets->push_back(storage);
      } else {
        // Its last dependent gone, the dead storage vanishes, and the op with it.
        ++storage->locks;
        settle(storage, targets, kAnyBytes, deferred);
        lifecycle_.unlock(storage, deferred);
      }
    }
    if (live_ops == before || (targets && targets->size() > wanted)) return false;
  }
  return true;
}

}  // namespace dtr
