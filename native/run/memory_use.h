// memory_use.h: what the memory of a job is taken by, for reports and errors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "errors.h"
#include "eviction/swap_space.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/heap_blocks.h"

namespace dtr {

// Resident bytes.
struct HeldBytes {
  uint64_t constant = 0;
  uint64_t running = 0;  // of the rest: locked by what runs
  uint64_t waiting = 0;  // and what only waits (R11)
};

// A request that found no room in a pool, and the bytes that are in use there.
struct Shortage {
  uint64_t requested = 0;
  uint64_t locked = 0, pinned = 0, constants = 0, evictable = 0;
  uint64_t unseen = 0;      // by the recorder
  uint64_t parameters = 0;  // of what is not evictable
  uint64_t kept = 0;        // results among it that are no parameters and could be swapped
  uint64_t could_go = 0;    // of it, if swapping had room
  bool recomputes = false;  // something is being computed again: the request may be for that
  uint64_t least = 0;       // the budget that this point of the job needs, at least
  dtr_pool_stats pool{};
};

// A block of a pool's heap that is in use, and its storage, or null.
struct BlockInUse {
  uint64_t offset;  // from the pool's first chunk
  uint64_t size_bytes;
  Storage* storage;
};
// Under the engine's mutex. None in counted pools.
inline std::vector<BlockInUse> blocks_in_use(const Graph& graph, dtr_pool* pool) {
  const dtr_pool_room room = room_of(pool, 1);
  std::vector<dtr_run_block> run;
  const size_t count = read_blocks(pool, &run);
  std::vector<BlockInUse> blocks;
  for (size_t i = 0; i < count; ++i)
    if (run[i].state == DTR_BLOCK_IN_USE)
      blocks.push_back({run[i].address - room.base, run[i].size_bytes,
                        graph.by_address.find(reinterpret_cast<void*>(run[i].address))});
  return blocks;
}

// All of it under the engine's mutex.
class MemoryUse {
 public:
  MemoryUse(const Environment& environment, const Graph& graph, const GraphCapture& capture,
            const SwapSpace& swap_space)
      : environment_(environment), graph_(graph), capture_(capture), swap_space_(swap_space) {}

  HeldBytes held() const {
    HeldBytes held;
    graph_.by_address.for_each([&](const void*, const Storage* storage) {
      if (!storage->parent || storage->unwritten)
        held.constant += storage->size_bytes;
      else if (storage->locks > storage->holds)
        held.running += storage->size_bytes;
      else if (storage->locks > 0)
        held.waiting += storage->size_bytes;
    });
    return held;
  }
  // Of one storage, and of all that are resident (DTR_HOLDERS_...): the largest first.
  dtr_holder holder(const Storage* storage) const {
    return {storage->made_by, storage->size_bytes, storage->place, why_kept(storage)};
  }
  std::vector<dtr_holder> holders(int32_t when) const {
    if (when == DTR_HOLDERS_NOW) return holders();
    return when == DTR_HOLDERS_FULLEST ? fullest_ : at_peak_;
  }
  // After an op. What is kept, or in use, is looked at again whenever there is a sixteenth more of it
  // than at any look before: so few looks are needed.
  void look_for_peak() {
    if (no_candidates_bytes() >= next_look_bytes_) look();
    if (graph_.by_address.size_bytes() >= next_full_bytes_) look_at_all();
  }
  // How much was kept when most was.
  uint64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak() {
    at_peak_.clear();
    peak_bytes_ = next_look_bytes_ = 0;
    if (watches_fullest()) watch_fullest(true);
  }
  // Anew, or no more; then what was seen stays.
  void watch_fullest(bool on) {
    if (on) fullest_.clear();
    next_full_bytes_ = on ? 0 : UINT64_MAX;
  }
  bool watches_fullest() const { return next_full_bytes_ < UINT64_MAX; }
  // Whether a request has room once all is evicted that can be.
  bool could_have_room(uint64_t size_bytes, dtr_pool* pool) const {
    const dtr_pool_stats stats = stats_of(pool);
    if (size_bytes > stats.budget_bytes) return false;
    const uint64_t wanted = stats.allocated_bytes + size_bytes;
    uint64_t lacking = wanted - std::min(wanted, stats.budget_bytes);
    return lacking == 0 ||
           graph_.by_address.any_of([&](const void* address, const Storage* storage) {
             if (storage->locks > 0 || !dtr_pool_contains(pool, address) || is_constant(storage) ||
                 is_pinned(storage))
               return false;
             lacking -= std::min(lacking, storage->size_bytes);
             return lacking == 0;
           });
  }
  Shortage shortage(uint64_t size_bytes, dtr_pool* pool) const {
    Shortage at;
    at.requested = size_bytes;
    dtr_pool_get_stats(pool, &at.pool);
    for (const Storage* storage : graph_.storages())
      at.recomputes |= storage->state == State::recomputing;
    uint64_t passing = 0;  // dead: under a larger budget it might be gone
    graph_.by_address.for_each([&](const void* address, const Storage* storage) {
      if (!dtr_pool_contains(pool, address)) return;
      const uint64_t bytes = storage->size_bytes;
      const bool pinned = is_pinned(storage);
      uint64_t& kind = storage->locks > 0     ? at.locked
                       : is_constant(storage) ? at.constants
                       : pinned               ? at.pinned
                                              : at.evictable;
      kind += bytes;
      if (&kind == &at.evictable) return;
      if (!storage->live && (at.recomputes || storage->locks == 0)) passing += bytes;
      if (storage->parent || storage->unwritten || pinned) return;
      const bool is_parameter = storage->constant_as == DTR_KEPT_PARAMETER;
      if (is_parameter) at.parameters += bytes;
      if (!SwapCosts::could_swap(storage)) return;
      if (!is_parameter) at.kept += bytes;
      if (storage->locks == 0) at.could_go += bytes;
    });
    const uint64_t seen = at.locked + at.pinned + at.constants + at.evictable;
    at.unseen = at.pool.requested_bytes - std::min(at.pool.requested_bytes, seen);
    at.least = at.pool.allocated_bytes - at.evictable - passing;
    if (at.recomputes)
      at.least -= std::min(at.least, at.unseen);
    else
      at.least += size_bytes;
    return at;
  }
  // The error's text, a thought a line. refusal: what the pool said; advice: a sentence, or nothing.
  std::string why_none(const std::string& refusal, const Shortage& at,
                       const std::string& advice = "") const {
    const dtr_pool_stats& pool = at.pool;
    std::string text = "dtr_alloc: out of memory: requested " + size_text(at.requested) +
                       ", budget " + size_text(pool.budget_bytes) + ".\n";
    const size_t by_driver = refusal.find(kRefusedByDriver);
    if (by_driver != std::string::npos) {
      text += "The system grants less than the budget" + refusal.substr(by_driver) +
              ". Raise that limit or shrink the batch.\n";
    } else {
      // Else evicting was not enough, or goes on for too long.
      if (at.least > pool.budget_bytes)
        text += "This point of the job needs a budget of at least " + size_text(at.least) + ". ";
      text += advice + "Raise the budget or shrink the batch.\n" + other_ways(at);
    }
    text += "In use: allocated " + size_text(pool.allocated_bytes) +
            ", of it locked by running ops " + size_text(at.locked) + ", constants " +
            size_text(at.constants) + ", pinned " + size_text(at.pinned) + ", evictable " +
            size_text(at.evictable) + ", unseen by the recorder " + size_text(at.unseen);
    const SwapSpace& swap = swap_space_;
    if (swap.costs().is_on() || swap.memory().in_use_bytes() > 0)
      text += "; swapped to host memory " + size_text(swap.memory().in_use_bytes()) + " of " +
              size_text(swap.memory().cap_bytes());
    return text + ".\nFree: " + size_text(pool.budget_bytes - pool.reserved_bytes) + " unmapped, " +
           size_text(pool.reserved_bytes - pool.allocated_bytes) + " mapped, largest free block " +
           size_text(pool.largest_free_bytes) + ".";
  }

 private:
  // The bytes at which the next look is worth it.
  static uint64_t next_after(uint64_t bytes) {
    constexpr uint64_t kLeastMore = 4096;
    return bytes + bytes / 16 + kLeastMore;
  }
  bool is_constant(const Storage* storage) const {
    const SwapCosts& swap = swap_space_.costs();
    return storage->unwritten ||
           (!storage->parent && !(swap.is_swappable(storage) && swap.has_room(storage)));
  }
  bool is_pinned(const Storage* storage) const {
    return storage->pins > 0 || capture_.is_frozen(storage);
  }
  int32_t why_kept(const Storage* storage) const {
    if (storage->state != State::resident) return DTR_KEPT_NOT;
    if (!storage->managed) return DTR_KEPT_OF_OTHERS;
    if (storage->pins > 0) return DTR_KEPT_PINNED;
    if (storage->unwritten) return DTR_KEPT_UNWRITTEN;
    if (is_candidate(storage)) {
      const bool in_use = storage->locks > 0 || capture_.is_frozen(storage);
      return in_use ? DTR_KEPT_IN_USE : DTR_KEPT_NOT;
    }
    if (storage->external) return DTR_KEPT_ESCAPED;
    return storage->captured ? int32_t{DTR_KEPT_CAPTURED} : storage->constant_as;
  }
  // What helps besides a larger budget: a line, or nothing.
  std::string other_ways(const Shortage& at) const {
    const uint64_t budget = at.pool.budget_bytes;
    const HostMemory& host = swap_space_.memory();
    const uint64_t host_bytes = host.in_use_bytes() + at.parameters + at.kept + at.requested;
    // Kept results do not go where host memory is only the last resort.
    const uint64_t cap = swap_space_.costs().is_on() ? host.cap_bytes() : 0;
    const std::string swap =
        host_bytes <= cap ? "" : "DTR_ALLOC_SWAP=" + std::to_string((host_bytes >> 20) + 1) + "MiB";
    const bool are_most = 2 * at.parameters > budget;
    if (are_most && at.requested <= budget && at.parameters + at.requested > budget)
      return "Parameters alone fill the budget: " + size_text(at.parameters) +
             ", which are never evicted. Sharding (FSDP2)" + (swap.empty() ? "" : " or " + swap) +
             " moves them out of it.\n";
    const bool is_most = 2 * at.kept > at.pool.allocated_bytes - at.evictable;
    const bool is_enough = at.least <= budget + at.could_go;
    if (swap.empty() || !is_most || !is_enough || at.could_go == 0) return "";
    return "Results that are kept, without parameters, take " + size_text(at.kept) + ": " + swap +
           " lets them go to host memory.\n";
  }
  uint64_t no_candidates_bytes() const {
    return graph_.by_address.size_bytes() - graph_.candidate_bytes;
  }
  std::vector<dtr_holder> holders() const {
    std::map<std::tuple<int32_t, uint64_t, uint32_t>, uint64_t> bytes;
    graph_.by_address.for_each([&](const void*, const Storage* storage) {
      const dtr_holder one = holder(storage);
      bytes[{one.why_kept, one.op_key, one.place}] += one.size_bytes;
    });
    std::vector<dtr_holder> all;
    for (const auto& [of, size_bytes] : bytes)
      all.push_back({std::get<1>(of), size_bytes, std::get<2>(of), std::get<0>(of)});
    std::ranges::stable_sort(all, std::ranges::greater(), &dtr_holder::size_bytes);
    return all;
  }
  void look() {
    next_look_bytes_ = next_after(no_candidates_bytes());
    std::vector<dtr_holder> found = holders();
    uint64_t kept = 0;
    for (const dtr_holder& one : found)
      if (one.why_kept != DTR_KEPT_NOT && one.why_kept != DTR_KEPT_IN_USE &&
          one.why_kept != DTR_KEPT_TINY)
        kept += one.size_bytes;
    if (kept <= peak_bytes_) return;
    peak_bytes_ = kept;
    at_peak_ = std::move(found);
  }
  void look_at_all() {
    next_full_bytes_ = next_after(graph_.by_address.size_bytes());
    fullest_ = holders();
  }

  const Environment& environment_;
  const Graph& graph_;
  const GraphCapture& capture_;
  const SwapSpace& swap_space_;
  std::vector<dtr_holder> at_peak_;
  uint64_t peak_bytes_ = 0;
  uint64_t next_look_bytes_ = 0;
  std::vector<dtr_holder> fullest_;
  uint64_t next_full_bytes_ = UINT64_MAX;
};

}  // namespace dtr
