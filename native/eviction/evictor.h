// evictor.h: takes the memory of a storage: the content goes to host memory, or is given up. Lists
// of victims, and what only waits. (Which: victim_search.h; at what moment: room.h.)
#pragma once

#include <utility>
#include <vector>

#include "at_exit.h"
#include "graph/contents.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/lifecycle.h"
#include "graph/verifier.h"
#include "policy/cost_model.h"
#include "policy/victim_search.h"
#include "policy/waiting_inputs.h"
#include "swap_space.h"

namespace dtr {

// All of it under the engine's mutex, which a copy to host memory lets go of.
class Evictor {
 public:
  // What it works with.
  struct Parts {
    Environment& environment;
    Graph& graph;
    const Devices& devices;
    Lifecycle& lifecycle;
    Contents& contents;
    Verifier& verifier;
    WaitingInputs& waiting;
    SwapSpace& swap_space;
    CostModel& costs;
    VictimSearch& search;
  };

  explicit Evictor(const Parts& parts) : parts_(parts) {}

  // Takes the memory of a candidate. False, and nothing changed, if its handle cannot be held just
  // now (it is dying, or only a Python wrapper refers to it), or if the host has no memory for it.
  bool evict(Storage* storage, EvictionCause cause, EngineCall& call) {
    if (!is_better_swapped(storage)) return give_up(storage, cause, call.deferred);
    const SwapSpace::Outcome outcome = parts_.swap_space.swap_out(storage, cause, call);
    if (outcome != SwapSpace::Outcome::no_host_memory) return outcome == SwapSpace::Outcome::done;
    const bool is_gone = give_up(storage, cause, call.deferred);
    parts_.lifecycle.unlock(storage, call.deferred);
    return is_gone;
  }
  // The same, and never swaps: it is to be computed again. False, too, if it cannot be.
  bool give_up(Storage* storage, EvictionCause cause, Deferred& deferred) {
    if (!storage->parent) return false;
    Environment& environment = parts_.environment;
    if (parts_.contents.has_changed(storage)) {
      // Its op would not give it again. What was computed from the old content notices that itself.
      ++environment.stats.unseen_writes;
      parts_.lifecycle.forget_parent(storage, deferred);
      return false;
    }
    void* address = storage->address;
    if (storage->live) {
      if (!environment.framework->retain_strong(storage->handle)) return false;
      // Dropped after the mutex: ours may be the last reference by then.
      deferred.release_strong(storage->handle);
      parts_.verifier.keep_expected(storage);
      if (!environment.framework->detach(storage->handle, storage)) {
        Verifier::forget_expected(storage, deferred);
        return false;
      }
      deferred.free_block(*storage, address);
    } else if (storage->handle) {
      // Dead: the strong reference's deleter returns the block.
      parts_.lifecycle.lose_handle(storage, deferred);
    } else {
      deferred.free_block(*storage, address);  // dead, and no rematerialization has used it yet
    }
    parts_.graph.by_address.erase(address);
    dtr_pool_note(parts_.devices.of(storage).pool, DTR_EVENT_EVICT, address, storage->size_bytes);
    parts_.lifecycle.become_evicted(storage, cause);
    environment.observers.notify(&Observer::evicted, storage);
    ++environment.stats.evictions;
    environment.stats.evicted_bytes += storage->size_bytes;
    return true;
  }
  // Evicts what was chosen, one after the other; null if all went, else the first that cannot be
  // had just now. *evicted: how many went.
  Storage* evict_all(const std::vector<Storage*>& victims, EngineCall& call, size_t* evicted) {
    *evicted = 0;
    Storage* const first = victims.front();
    // A copy to host memory lets go of the mutex: the others' records stay, whatever becomes of them,
    // and another thread that evicts meanwhile finds no buffer here and takes one of its own.
    std::vector<Storage*> others = std::move(others_);
    others.assign(victims.begin() + 1, victims.end());
    for (Storage* storage : others) ++storage->locks;
    Storage* failed = nullptr;
    {
      size_t next = 0;
      // A copy may throw: then the rest must be unlocked, too.
      const AtExit unlock([&] {
        while (next < others.size()) parts_.lifecycle.unlock(others[next++], call.deferred);
      });
      if (evict(first, EvictionCause::room, call))
        ++*evicted;
      else
        failed = first;
      while (!failed && next < others.size()) {
        Storage* storage = others[next];
        if (storage->locks > 1 || storage->candidate < 0) {
          failed = storage;
          break;
        }
        ++next;
        if (!storage->live && !storage->children) {
          // It was dropped meanwhile: the record goes, and its memory.
          parts_.lifecycle.unlock(storage, call.deferred);
          continue;
        }
        --storage->locks;
        parts_.costs.bounds().unpark(storage);  // a search of another thread may have met it locked
        if (parts_.search.is_free_to_go(storage) && evict(storage, EvictionCause::room, call))
          ++*evicted;
        else
          failed = storage;
      }
    }
    others_ = std::move(others);
    return failed;
  }
  // Evicts what only waits (R11). False if there is nothing.
  bool preempt(Device& device, EngineCall& call) {
    const SearchContext context = parts_.search.context_of(device);
    const auto alone_ns = [this](const Storage* storage) { return parts_.costs.alone_ns(storage); };
    while (Storage* waiting = parts_.waiting.choose(device, context, alone_ns)) {
      parts_.waiting.note_preemption(waiting);
      if (!evict(waiting, EvictionCause::room, call)) continue;
      ++parts_.environment.stats.preemptions;
      return true;
    }
    return false;
  }
  // Has a content that had to become a constant go to host memory (SwapSpace::settled_on). False if
  // there is none. Throws OutOfMemory if the host has no memory.
  bool put_aside(const Device& device, EngineCall& call) {
    Storage* storage = parts_.swap_space.settled_on(device);
    if (!storage) return false;
    if (parts_.swap_space.swap_out(storage, EvictionCause::room, call) == SwapSpace::Outcome::done)
      return true;
    // Its handle cannot be held just now: another one may do.
    ++storage->locks;
    const AtExit unlock([&] { parts_.lifecycle.unlock(storage, call.deferred); });
    return put_aside(device, call);
  }
  // What evicting it costs, where nothing is known of when it is needed again.
  double loss_ns(Storage* storage) {
    return is_unneeded(storage) ? 0 : parts_.costs.evict_ns(storage);
  }

 private:
  // Whether evicting means swapping. Nobody is going to need an unneeded one: it is given up.
  bool is_better_swapped(Storage* storage) {
    const SwapCosts& swap = parts_.costs.swap_costs();
    if (!swap.is_swappable(storage)) return false;
    if (!storage->parent) return true;
    return !is_unneeded(storage) && swap.has_room(storage) &&
           swap.swap_ns(storage) < (parts_.costs.needs().scores
                                        ? parts_.costs.recompute_ns(storage)
                                        : static_cast<double>(cost_of(storage)));
  }

  Parts parts_;
  std::vector<Storage*> others_;  // buffer of evict_all()
};

}  // namespace dtr
