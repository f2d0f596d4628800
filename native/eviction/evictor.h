// evictor.h: takes the memory of a storage: the content goes to host memory, or is given up. Lists
// of victims, and what only waits. (Which: victim_search.h; at what moment: room.h.)
#pragma once

#include <mutex>
#include <vector>

#include "graph/contents.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/lifecycle.h"
#include "graph/verifier.h"
#include "locks.h"
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
  bool evict(Storage* storage, EvictionCause cause, EngineCall& call);
  // The same, and never swaps: it is to be computed again. False, too, if it cannot be.
  bool give_up(Storage* storage, EvictionCause cause, Deferred& deferred);
  // Evicts what was chosen, one after the other; null if all went, else the first that cannot be
  // had just now. *evicted: how many went.
  Storage* evict_all(const std::vector<Storage*>& victims, EngineCall& call, size_t* evicted);
  // Evicts what only waits (R11). False if there is nothing.
  bool preempt(Device& device, EngineCall& call);
  // Has a content that had to become a constant go to host memory (SwapSpace::settled_on). False if
  // there is none. Throws OutOfMemory if the host has no memory.
  bool put_aside(const Device& device, EngineCall& call);
  // What evicting it costs, where nothing is known of when it is needed again.
  double loss_ns(Storage* storage) {
    return is_unneeded(storage) ? 0 : parts_.costs.evict_ns(storage);
  }

 private:
  bool is_better_swapped(Storage* storage);

  Parts parts_;
  std::vector<Storage*> others_;  // buffer of evict_all()
};

}  // namespace dtr
