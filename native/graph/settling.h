// settling.h: before a content that cannot be recomputed is lost for good, its dependents become
// independent of it.
//
// Walking down from the storage that will be lost: a resident live dependent becomes
// a constant and ends the walk there; a dead one passes the demand on to its own
// dependents and vanishes with its last one; a live evicted one must be
// rematerialized first, by the caller.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "deferred.h"
#include "environment.h"
#include "graph.h"
#include "lifecycle.h"
#include "spans.h"

namespace dtr {

class Settling {
 public:
  static constexpr uint64_t kAnyBytes = std::numeric_limits<uint64_t>::max();

  Settling(const Environment& environment, Graph& graph, Lifecycle& lifecycle)
      : environment_(environment), graph_(graph), lifecycle_(lifecycle) {}

  // True: nothing depends on `lost` any more that could be computed again. False: nothing was changed, and *targets
  // (if given) got the live evicted dependents, or more than most_bytes would have
  // become constant. part: only these bytes will be lost, and ops that read others stay.
  bool settle(Storage* lost, std::vector<Storage*>* targets, uint64_t most_bytes,
              Deferred& deferred, const Range& part = kWholeStorage) {
    if (!lost->children) return true;
    pending_.assign(1, lost);
    const bool is_part = part.end < lost->size_bytes || part.begin > 0;
    return settle_pending(is_part ? lost : nullptr, part, targets, 0, most_bytes, deferred);
  }
  // The same for all of these, if their live dependents take at least so many bytes. Else nothing is
  // changed, and it is true.
  bool settle(const std::vector<Storage*>& lost, std::vector<Storage*>* targets,
              uint64_t least_bytes, Deferred& deferred) {
    pending_.assign(lost.begin(), lost.end());
    return settle_pending(nullptr, kWholeStorage, targets, least_bytes, kAnyBytes, deferred);
  }

  // The first for each of these, in their order, with one walk for all: an optimizer overwrites hundreds,
  // with mostly the same dependents. False: for one of them.
  struct Loss {
    Storage* storage;
    Range part;
  };
  bool settle_each(const std::vector<Loss>& losses, std::vector<Storage*>* targets,
                   Deferred& deferred) {
    const auto is_whole = [](const Loss& loss) {
      return loss.part.begin == 0 && loss.part.end >= loss.storage->size_bytes;
    };
    const bool share = losses.size() > 1 && std::ranges::all_of(losses, is_whole);
    const uint64_t blocked = share ? mark_blocked(losses, targets) : 0;
    bool settled = true;
    for (const Loss& loss : losses)
      settled &= (!share || loss.storage->mark != blocked) &&
                 settle(loss.storage, targets, kAnyBytes, deferred, loss.part);
    return settled;
  }

  // Has all that depends on a dead constant, and on other dead ones that this was computed from,
  // become constants, if that takes no more than what is free then. What is evicted becomes one when
  // it is back, and the memory is free once all is.
  void settle_with_others(Storage* lost, Deferred& deferred) {
    const uint64_t most = environment_.stats.kept_constant_bytes + lost->size_bytes;
    uint64_t taken = 0, freed = 0;
    std::vector<Storage*> sources{lost}, dependents;
    const uint64_t above = graph_.next_walk(), below = graph_.next_walk(),
                   both = graph_.next_walk();
    size_t met_above = 1, met_below = 0;
    lost->mark = above;
    const auto meets = [both](Storage* storage, uint64_t here, uint64_t there, size_t* met) {
      if (storage->mark == here || storage->mark == both) return false;
      storage->mark = storage->mark == there ? both : here;
      ++*met;
      return true;
    };
    for (size_t i = 0; i < sources.size(); ++i) {
      freed += sources[i]->size_bytes;
      const size_t known = dependents.size();
      pending_.assign(1, sources[i]);
      while (!pending_.empty()) {
        const Storage* storage = pending_.back();
        pending_.pop_back();
        const bool goes_on = for_computed(storage, [&](const Edge&, Storage* dependent) {
          if (!meets(dependent, below, above, &met_below)) return true;
          const bool is_in_use =
              dependent->overwriters > 0 || (!dependent->live && dependent->locks > 0);
          if (is_in_use || met_below > kMostMet) return false;
          if (!dependent->live) {
            pending_.push_back(dependent);
            return true;
          }
          dependents.push_back(dependent);
          return (taken += dependent->size_bytes) <= most;
        });
        if (!goes_on) return;
      }
      pending_.assign(dependents.begin() + static_cast<ptrdiff_t>(known), dependents.end());
      while (!pending_.empty()) {
        const Storage* storage = pending_.back();
        pending_.pop_back();
        if (!storage->parent) continue;
        for (const Edge& edge : storage->parent->edges) {
          Storage* input = edge.input;
          if (!input || input->live || !meets(input, above, below, &met_above)) continue;
          if (met_above > kMostMet) return;
          if (input->parent)
            pending_.push_back(input);
          else if (has_content(input))
            sources.push_back(input);
        }
      }
    }
    if (taken > freed) return;
    for (Storage* dependent : dependents) {
      dependent->forgets = !has_content(dependent);
      if (!dependent->forgets) lifecycle_.forget_parent(dependent, deferred);
    }
  }

  // Whether the dead records that the storage's history consists of take more memory than
  // the storage itself. Then it had better be a constant: a running average would keep
  // its whole past, and free a few bytes when evicted. *counted: the dead records met.
  bool history_outweighs(const Storage* storage, uint64_t* counted) {
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

  // Cuts the oldest ops off until no more than history_ops remain (DTR has no such
  // rule; without it a running average would keep its whole past). True: done. False: *targets,
  // if given, got what must be rematerialized first.
  bool settle_history(std::vector<Storage*>* targets, Deferred& deferred) {
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

 private:
  // Storages that settle_with_others() looks at, in each direction.
  static constexpr size_t kMostMet = 2048;

  // Calls visit(edge, dependent) for each storage that was computed from this one by an op that has not
  // lost it, until one call returns false. Whether none did.
  template <typename Visit>
  static bool for_computed(const Storage* storage, Visit&& visit) {
    for (const Edge* edge = storage->children; edge; edge = edge->next) {
      if (edge->lost) continue;
      for (const Output& output : edge->op->outputs)
        if (output.storage && !visit(*edge, output.storage)) return false;
    }
    return true;
  }

  // Gives those the mark whose dependents, none of which they may lose, are not all there. Returns
  // the mark.
  uint64_t mark_blocked(const std::vector<Loss>& losses, std::vector<Storage*>* targets) {
    const uint64_t seen = graph_.next_walk(), met = graph_.next_walk(),
                   blocked = graph_.next_walk();
    std::vector<const Storage*> blockers;
    for (const Loss& loss : losses) {
      loss.storage->mark = met;
      pending_.assign(1, loss.storage);
      while (!pending_.empty()) {
        const Storage* storage = pending_.back();
        pending_.pop_back();
        for_computed(storage, [&](const Edge&, Storage* dependent) {
          if (dependent->mark >= seen) return true;
          const bool is_there = has_content(dependent) && dependent->live;
          const bool ends =
              is_there ? dependent->overwriters == 0 : dependent->live || dependent->locks > 0;
          dependent->mark = ends ? seen : met;
          if (!ends) pending_.push_back(dependent);
          if (!ends || is_there) return true;
          blockers.push_back(dependent);
          if (dependent->live && targets) targets->push_back(dependent);
          return true;
        });
      }
    }
    while (!blockers.empty()) {
      const Storage* storage = blockers.back();
      blockers.pop_back();
      if (!storage->parent) continue;
      for (const Edge& edge : storage->parent->edges) {
        if (edge.lost || !edge.input || edge.input->mark != met) continue;
        edge.input->mark = blocked;
        blockers.push_back(edge.input);
      }
    }
    return blocked;
  }
  // Of pending_. in_part: the one of which only these bytes will be lost, or null.
  bool settle_pending(const Storage* in_part, const Range& part, std::vector<Storage*>* targets,
                      uint64_t least_bytes, uint64_t most_bytes, Deferred& deferred) {
    const uint64_t walk = graph_.next_walk();
    resident_.clear();
    uint64_t bytes = 0;
    bool possible = true;
    while (!pending_.empty()) {
      const Storage* storage = pending_.back();
      pending_.pop_back();
      for_computed(storage, [&](const Edge& edge, Storage* dependent) {
        if (storage == in_part && !meet(span_of(edge), part)) return true;
        if (dependent->mark == walk) return true;
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
        return true;
      });
      if ((!possible && !targets) || bytes > most_bytes) return false;
    }
    if (least_bytes > 0) {
      uint64_t all = 0;
      for (const Storage* storage : resident_) all += storage->parent ? storage->size_bytes : 0;
      for (const Storage* storage : *targets) all += storage->size_bytes;
      if (all < least_bytes) {
        targets->clear();
        return true;
      }
    }
    if (!possible || bytes > most_bytes) return false;
    // Others may be settled meanwhile.
    std::vector<Storage*> resident = std::move(resident_);
    for (Storage* storage : resident) lifecycle_.forget_parent(storage, deferred);
    resident_ = std::move(resident);
    return true;
  }

  const Environment& environment_;
  Graph& graph_;
  Lifecycle& lifecycle_;
  std::vector<const Storage*> pending_;
  std::vector<Storage*> resident_;
};

}  // namespace dtr
