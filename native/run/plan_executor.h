// plan_executor.h: gives the blocks of a step the places that its plan has for them: A2 to A4 of
// step_plan.h.
#pragma once

#include <cstdint>
#include <vector>

#include "eviction/evictor.h"
#include "eviction/move.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/lifecycle.h"
#include "policy/devices.h"
#include "policy/victim_search.h"
#include "step_plan.h"

namespace dtr {

class PlanExecutor {
 public:
  // What it works with.
  struct Parts {
    EngineMutex& mutex;
    Environment& environment;
    Graph& graph;
    Devices& devices;
    const GraphCapture& capture;
    Lifecycle& lifecycle;
    DeadStorages& dead;
    VictimSearch& search;
    Mover& mover;
    Evictor& evictor;
    PlanFollower& plan;
  };
  explicit PlanExecutor(const Parts& parts) : parts_(parts) {}

  // Without the mutex. Null if the plan says nothing, or the place cannot be had (A3).
  void* allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream);

  // ---- under the engine's mutex, which the calls let go of ----
  // A2. wanted: what somebody asked for now, and may not have locked.
  void evict_last_used(const PlanFollower::Running& ran, EngineCall& call,
                       const Storage* wanted = nullptr);
  // A4, if a step begins.
  void move_held(EngineCall& call);

 private:
  bool clear(Device& device, const void* begin, uint64_t size_bytes,
             const std::vector<void*>& in_the_way, EngineCall& call);
  bool make_way(Storage* storage, const void* begin, const void* end, Deferred& deferred);
  bool move_held(Storage* storage, const void* address, EngineCall& call);
  bool move_aside(Storage* storage, const void* begin, const void* end, EngineCall& call);

  Parts parts_;
  std::vector<PlanFollower::Given> last_used_;  // buffer of evict_last_used()
};

}  // namespace dtr
