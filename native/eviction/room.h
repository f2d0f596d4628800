// room.h: makes room for a request that has no place, or no memory. What is evicted is one storage
// of the least score, or a window: its members go in one call, so that the request has its place at
// the next try. A member that cannot be had just now blocks: what went before it is gone, and if
// that was nothing, the search goes on without it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "compaction.h"
#include "evictor.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/lifecycle.h"
#include "locks.h"
#include "policy/cost_model.h"
#include "policy/repeat_rate.h"
#include "policy/victim_search.h"
#include "policy/window_search.h"

namespace dtr {

class RoomMaker {
 public:
  // What it works with.
  struct Parts {
    EngineMutex& mutex;
    Environment& environment;
    Lifecycle& lifecycle;
    DeadStorages& dead;
    CostModel& costs;
    VictimSearch& search;
    WindowSearch& windows;
    Evictor& evictor;
    Compactor& compactor;
    const RepeatRate& repeats;
  };

  explicit RoomMaker(const Parts& parts) : parts_(parts) {}

  // The answer to a pool that asks for room (DTR_ROOM_...); without the mutex, which it takes.
  // Throws StateError if a callback heuristic fails, OutOfMemory if a copy finds no host memory.
  int32_t make_room(Device& device, uint64_t size_bytes, EngineCall& call);

 private:
  // How a request gets its place: by evicting one, or neighbors, or with memory from elsewhere.
  enum class Way { single, window, remap };
  class Evicting;

  Way choose_victims(Device& device, uint64_t size_bytes, EngineCall& call);
  double remap_ns(const Device& device, const dtr_pool_room& room, uint64_t size_bytes) const;
  bool settle_a_constant(const Device& device, Deferred& deferred);

  Parts parts_;
  // What choose_victims() chose, and the price of a remap, if one will do.
  std::vector<Storage*> victims_;
  double remap_ns_ = 0;
  std::condition_variable_any evicted_;  // another thread's Evicting is over
  uint32_t evicting_ = 0;                // threads whose victims are not yet free
};

}  // namespace dtr
