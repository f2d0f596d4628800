// plan_executor.h: gives the blocks of a step the places that its plan has for them: A2 to A4 of
// step_plan.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "base/room_time.h"
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
  void* allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream) {
    if (size_bytes == 0) return nullptr;
    uint64_t offset = StepPlan::kNowhere;
    {
      std::lock_guard<EngineMutex> lock(parts_.mutex);
      if (!parts_.capture.is_under_way()) offset = parts_.plan.next(size_bytes);
    }
    if (offset == StepPlan::kNowhere) return nullptr;
    RoomTime::begin();
    Device& device = parts_.devices.with(pool);
    const auto* const wanted = reinterpret_cast<const void*>(device.base + offset);
    thread_local std::vector<void*> in_the_way;
    void* address = nullptr;
    const auto attempt = [&] {
      return try_at(pool, size_bytes, stream, wanted, &in_the_way, &address) == DTR_OK;
    };
    if (!attempt()) return nullptr;
    if (!address && !in_the_way.empty()) {
      bool is_clear = false;
      {
        EngineCall call(parts_.environment, parts_.dead, parts_.mutex);
        is_clear = clear(device, wanted, size_bytes, in_the_way, call);
      }
      if (is_clear && !attempt()) return nullptr;
    }
    std::lock_guard<EngineMutex> lock(parts_.mutex);
    ++(address ? parts_.environment.stats.planned : parts_.environment.stats.plan_misses);
    return address;
  }

  // ---- under the engine's mutex, which the calls let go of ----
  // A2. wanted: what somebody asked for now, and may not have locked.
  void evict_last_used(const PlanFollower::Running& ran, EngineCall& call,
                       const Storage* wanted = nullptr) {
    if (!parts_.plan.is_on()) return;
    parts_.plan.take_last_used(ran, &last_used_);
    for (const PlanFollower::Given& given : last_used_) {
      Storage* storage = parts_.graph.by_address.find(given.address);
      if (storage && storage->id == given.storage && storage != wanted && is_candidate(storage) &&
          parts_.search.is_free_to_go(storage))
        parts_.evictor.give_up(storage, EvictionCause::room, call.deferred);
    }
  }
  // A4, if a step begins.
  void move_held(EngineCall& call) {
    if (!parts_.plan.is_on() || !parts_.plan.wants_moves()) return;
    const std::vector<StepPlan::Held> all =
        parts_.plan.held();  // another thread may follow another plan
    bool are_there = true;
    for (const StepPlan::Held& held : all) {
      Storage* storage = parts_.graph.by_handle.find(held.handle);
      if (!storage || !storage->live || storage->state != State::resident) continue;
      const uint64_t base = parts_.devices.of(storage).base;
      const auto* const address = reinterpret_cast<const void*>(base + held.offset);
      are_there &= storage->address == address || move_held(storage, address, call);
    }
    parts_.plan.tried_moves(are_there);
  }

 private:
  // Evicts what lies in these blocks, which are in the way of [begin, end), or has it make way. False,
  // and nothing is evicted, if something can do neither.
  bool clear(Device& device, const void* begin, uint64_t size_bytes,
             const std::vector<void*>& in_the_way, EngineCall& call) {
    parts_.search.promote(device);
    for (const void* address : in_the_way)
      if (!parts_.graph.by_address.find(address)) return false;
    const void* const end = static_cast<const char*>(begin) + size_bytes;
    for (const void* address : in_the_way) {
      Storage* storage = parts_.graph.by_address.find(address);
      if (!storage || (is_candidate(storage) && parts_.search.is_free_to_go(storage))) continue;
      if (!make_way(storage, begin, end, call.deferred)) return false;
    }
    std::vector<Storage*> victims;  // those that did not go with the others
    for (const void* address : in_the_way)
      if (Storage* storage = parts_.graph.by_address.find(address);
          storage && is_candidate(storage))
        victims.push_back(storage);
    size_t evicted = 0;
    if (!victims.empty()) parts_.evictor.evict_all(victims, call, &evicted);
    return true;
  }
  // A dead constant goes if what needs it is dead, too, or takes no more as a constant. Else it moves.
  bool make_way(Storage* storage, const void* begin, const void* end, Deferred& deferred) {
    if (storage->kept >= 0 && storage->locks == 0 &&
        parts_.dead.settle(storage, storage->size_bytes, deferred))
      return true;
    return parts_.environment.options.moving && parts_.mover.move(storage, begin, end, deferred);
  }
  bool move_held(Storage* storage, const void* address, EngineCall& call) {
    std::vector<void*> in_the_way;
    const auto* const end = static_cast<const char*>(address) + storage->size_bytes;
    const auto fits = [&] {
      return parts_.mover.move_at(storage, address, &in_the_way, call.deferred);
    };
    if (fits()) return true;
    // What is in use, such as gradients, may be expensive to compute again by now.
    for (const void* other_address : in_the_way) {
      Storage* other = parts_.graph.by_address.find(other_address);
      if (other && other != storage && other->live)
        parts_.mover.move(other, address, end, call.deferred);
    }
    if (fits()) return true;
    if (in_the_way.empty()) return false;
    // It may be in its own way.
    const auto own = std::ranges::find(in_the_way, storage->address);
    if (own != in_the_way.end()) {
      in_the_way.erase(own);
      if (!move_aside(storage, address, end, call)) return false;
    }
    ++storage->locks;  // its record stays
    const bool is_clear =
        clear(parts_.devices.of(storage), address, storage->size_bytes, in_the_way, call);
    call.lock.unlock();
    call.deferred.free_blocks();
    call.lock.lock();
    parts_.lifecycle.unlock(storage, call.deferred);
    return is_clear && parts_.graph.by_handle.find(storage->handle) == storage && fits();
  }
  // Out of [begin, end), which is partly its own place. Room is made for it as for any request.
  bool move_aside(Storage* storage, const void* begin, const void* end, EngineCall& call) {
    if (parts_.mover.move(storage, begin, end, call.deferred)) return true;
    const void* const handle = storage->handle;
    dtr_pool* const pool = parts_.devices.of(storage).pool;
    const uint64_t stream = parts_.mover.stream_of_move(storage);
    // What is in both may be as much as the two are apart.
    const auto apart =
        std::abs(static_cast<const char*>(begin) - static_cast<char*>(storage->address));
    const uint64_t bytes = storage->size_bytes + static_cast<uint64_t>(apart);
    ++storage->locks;
    call.lock.unlock();
    call.deferred.free_blocks();
    void* room = nullptr;
    const int32_t status = dtr_pool_allocate(pool, bytes, stream, &room);
    dtr_pool_free(pool, room);
    call.lock.lock();
    parts_.lifecycle.unlock(storage, call.deferred);
    return status == DTR_OK && parts_.graph.by_handle.find(handle) == storage &&
           parts_.mover.move(storage, begin, end, call.deferred);
  }

  Parts parts_;
  std::vector<PlanFollower::Given> last_used_;  // buffer of evict_last_used()
};

}  // namespace dtr
