// room.h: makes room for a request that has no place, or no memory. What is evicted is one storage
// of the least score, or a window: its members go in one call, so that the request has its place at
// the next try. A member that cannot be had just now blocks: what went before it is gone, and if
// that was nothing, the search goes on without it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "at_exit.h"
#include "base/scoped_timer.h"
#include "compaction.h"
#include "evictor.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/heap_blocks.h"
#include "graph/lifecycle.h"
#include "locks.h"
#include "policy/cost_model.h"
#include "policy/repeat_rate.h"
#include "policy/room_price.h"
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
  // Evicts what was chosen for the request, or lets go of a constant, or moves what lies in the way,
  // or evicts what only waits, or, as the last resort, has what was settled go to host memory.
  int32_t make_room(Device& device, uint64_t size_bytes, EngineCall& call) {
    Deferred& deferred = call.deferred;
    dtr_engine_stats& stats = parts_.environment.stats;
    // The bytes are there, but not in one piece.
    const bool fragmented = dtr_pool_unused_bytes(device.pool) >= size_bytes;
    Evicting evicting(*this, call);
    call.lock.lock();
    parts_.environment.observers.notify(&Observer::asked_for_room, size_bytes);
    bool freed = false;
    {
      std::vector<Storage*> refused;  // locked, so that the next search passes over them
      const AtExit unlock([&] {
        for (Storage* storage : refused) parts_.lifecycle.unlock(storage, deferred);
      });
      while (!freed) {
        const Way way = choose_victims(device, size_bytes, call);
        if (way == Way::remap)
          return parts_.compactor.open_hole_instead(device, size_bytes, remap_ns_, deferred)
                     ? DTR_ROOM_IS_FREED
                     : DTR_ROOM_BY_REMAP;
        const bool is_window = way == Way::window;
        if (victims_.empty()) break;
        if (parts_.compactor.move_victims(
                device, size_bytes, fragmented, is_window,
                [this](Storage* storage) { return parts_.evictor.loss_ns(storage); }, &victims_,
                deferred)) {
          freed = true;
          if (victims_.empty()) break;
        }
        size_t evicted = 0;
        evicting.begin();
        Storage* failed = parts_.evictor.evict_all(victims_, call, &evicted);
        freed |= evicted > 0;
        if (is_window) stats.window_evictions += evicted;
        if (fragmented) stats.contiguity_evictions += evicted;
        if (!freed) {
          evicting.end();
          ++failed->locks;
          refused.push_back(failed);
        }
      }
    }
    if (!freed && evicting_ > 0) {
      evicted_.wait(call.lock);
      return DTR_ROOM_IS_FREED;
    }
    freed = freed || settle_a_constant(device, deferred);
    if (!freed && parts_.environment.options.moving) {
      constexpr double kAtAnyPrice = std::numeric_limits<double>::infinity();
      freed = parts_.compactor.open_hole(device, size_bytes, kAtAnyPrice, deferred) ||
              parts_.compactor.empty_chunk(device, size_bytes, deferred);
    }
    if (!freed) {
      evicting.begin();
      freed = parts_.evictor.preempt(device, call) || parts_.evictor.put_aside(device, call);
      if (!freed) evicting.end();
    }
    return freed ? DTR_ROOM_IS_FREED : DTR_ROOM_IS_NONE;
  }

 private:
  // How a request gets its place: by evicting one, or neighbors, or with memory from elsewhere.
  enum class Way { single, window, remap };
  // From the first victim until the memory of all is free, which happens without the mutex. Another
  // thread that finds nothing to evict meanwhile waits, instead of failing. Nothing that may wait for
  // that thread happens in between: no request for room, no code of others.
  class Evicting : NotCopied {
   public:
    Evicting(RoomMaker& room, EngineCall& call) : room_(room), call_(call) {}
    ~Evicting() {
      if (call_.lock.owns_lock()) call_.lock.unlock();
      if (!begun_) return;
      call_.deferred.free_blocks();
      call_.lock.lock();
      end();
    }

    // Under the mutex.
    void begin() {
      if (!std::exchange(begun_, true)) ++room_.evicting_;
    }
    // Under the mutex; nothing was evicted.
    void end() {
      if (!std::exchange(begun_, false)) return;
      --room_.evicting_;
      room_.evicted_.notify_all();
    }

   private:
    RoomMaker& room_;
    EngineCall& call_;
    bool begun_ = false;
  };

  // How a request gets its place, and what is evicted for that, in victims_.
  //
  // Under DTR_ROOM_AUTO an unneeded storage of the request's size is the first choice: nothing is lost
  // with it, and its block is used whole. Then comes the best score, as it is the best use of what is
  // freed beyond the request. If that one does not make the place, singles may be blind to what does:
  // so a window goes, but not while a remap would do with some more bytes, wherever they are: near the
  // smallest budgets windows then evict what is needed at once. Memory is remapped where that costs
  // less than what would be evicted, and where no window helps. Once e* has taken over from the marginal
  // cost (repeat_rate.h), there are no windows.
  Way choose_victims(Device& device, uint64_t size_bytes, EngineCall& call) {
    SearchSample& sample = parts_.environment.search_sample;
    std::optional<ScopedTimer<int64_t, thread_ns>> timer;
    if (sample.searches++ % SearchSample::kOneIn == 0) timer.emplace(sample.measured_ns);
    const SearchContext context = parts_.search.context_of(device);
    const dtr_engine_options& options = parts_.environment.options;
    const dtr_pool_room room = room_of(device.pool, size_bytes);
    // Where there is a hole what is missing is time, or memory for slabs.
    const bool lacks_place = room.chunk_bytes > 0 && room.in_one_piece && !room.has_hole;
    const bool has_windows = !parts_.repeats.has_taken_over();
    int32_t way = DTR_ROOM_SINGLE;
    if (lacks_place && parts_.costs.needs().scores)
      way = has_windows ? options.room : DTR_ROOM_AUTO;
    Storage* const whole =
        way == DTR_ROOM_AUTO ? parts_.search.choose_whole(device, size_bytes) : nullptr;
    constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
    const uint64_t lacking_chunks =
        lacks_place && !whole ? dtr_pool_lacking_chunks(device.pool, size_bytes) : kNever;
    const bool can_remap = lacking_chunks == 0;
    if (can_remap) remap_ns_ = remap_ns(device, room, size_bytes);
    if (way == DTR_ROOM_SINGLE && can_remap) return Way::remap;
    ++parts_.environment.stats.searches;
    if (whole) {
      victims_.assign(1, whole);
      return Way::single;
    }
    Storage* single = nullptr;
    if (options.heuristic.select == DTR_SELECT_CALLBACK)
      single = parts_.search.choose_by_callback(device, context, call.lock);
    else if (way != DTR_ROOM_WINDOW)
      single = parts_.search.choose(device, context);
    victims_.clear();  // not before: a callback lets another thread choose
    if (single) victims_.push_back(single);
    if (way == DTR_ROOM_SINGLE) return Way::single;

    const auto is_expensive = [&] {
      double loss = 0;
      for (Storage* storage : victims_) loss += parts_.evictor.loss_ns(storage);
      return can_remap && loss > remap_ns_;
    };
    if (single && parts_.windows.makes_place(device, single, size_bytes))
      return is_expensive() ? Way::remap : Way::single;
    const bool lacks_bytes = !can_remap && lacking_chunks != kNever;
    if (has_windows && !(lacks_bytes && single)) {
      parts_.compactor.begin_search(device);
      const std::vector<Storage*>& members = parts_.windows.find(
          device, context, size_bytes, [this](const Storage* storage, double evict_ns) {
            return parts_.compactor.at_most_move(storage, evict_ns);
          });
      if (!members.empty()) {
        victims_ = members;
        if (!is_expensive()) return Way::window;
      }
    }
    if (can_remap) return Way::remap;
    if (!single && (single = parts_.search.choose(device, context))) victims_.push_back(single);
    return Way::single;
  }
  // What it costs to take memory from other addresses to where a request is. It leaves the heap as
  // scattered as it was, so the next request is likely to need another one, while a window that goes
  // leaves one hole. Hence it counts as several; but only while evictions cost what they seem to.
  double remap_ns(const Device& device, const dtr_pool_room& room, uint64_t size_bytes) const {
    constexpr double kRemaps = 4;
    const RoomPrice price = RoomPrice::of(device.type, room.chunk_bytes);
    const auto chunks = static_cast<double>((size_bytes + room.chunk_bytes - 1) / room.chunk_bytes);
    return (parts_.repeats.shows() ? 1 : kRemaps) * (price.remap_ns + price.map_ns * chunks);
  }
  // A dead constant that turned out to be dispensable. False if there is none.
  bool settle_a_constant(const Device& device, Deferred& deferred) {
    for (size_t i = parts_.dead.constants().size(); i-- > 0;) {
      Storage* constant = parts_.dead.constants()[i];
      if (constant->locks > 0 || !dtr_pool_contains(device.pool, constant->address)) continue;
      if (parts_.dead.settle(constant, Settling::kAnyBytes, deferred)) return true;
    }
    return false;
  }

  Parts parts_;
  // What choose_victims() chose, and the price of a remap, if one will do.
  std::vector<Storage*> victims_;
  double remap_ns_ = 0;
  std::condition_variable_any evicted_;  // another thread's Evicting is over
  uint32_t evicting_ = 0;                // threads whose victims are not yet free
};

}  // namespace dtr
