// memory_use.h: what the memory of a job is taken by, for reports and errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "eviction/swap_space.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"

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
std::vector<BlockInUse> blocks_in_use(const Graph& graph, dtr_pool* pool);

// All of it under the engine's mutex.
class MemoryUse {
 public:
  MemoryUse(const Environment& environment, const Graph& graph, const GraphCapture& capture,
            const SwapSpace& swap_space)
      : environment_(environment), graph_(graph), capture_(capture), swap_space_(swap_space) {}

  HeldBytes held() const;
  // Of one storage, and of all that are resident (DTR_HOLDERS_...): the largest first.
  dtr_holder holder(const Storage* storage) const;
  std::vector<dtr_holder> holders(int32_t when) const;
  // After an op. What is kept, or in use, is looked at again whenever there is a sixteenth more of it
  // than at any look before: so few looks are needed.
  void look_for_peak() {
    if (no_candidates_bytes() >= next_look_bytes_) look();
    if (graph_.by_address.size_bytes() >= next_full_bytes_) look_at_all();
  }
  // How much was kept when most was.
  uint64_t peak_bytes() const { return peak_bytes_; }
  void reset_peak();
  // Anew, or no more; then what was seen stays.
  void watch_fullest(bool on) {
    if (on) fullest_.clear();
    next_full_bytes_ = on ? 0 : UINT64_MAX;
  }
  bool watches_fullest() const { return next_full_bytes_ < UINT64_MAX; }
  // Whether a request has room once all is evicted that can be.
  bool could_have_room(uint64_t size_bytes, dtr_pool* pool) const;
  Shortage shortage(uint64_t size_bytes, dtr_pool* pool) const;
  // The error's text, a thought a line. refusal: what the pool said; advice: a sentence, or nothing.
  std::string why_none(const std::string& refusal, const Shortage& at,
                       const std::string& advice = "") const;

 private:
  bool is_constant(const Storage* storage) const;
  bool is_pinned(const Storage* storage) const;
  int32_t why_kept(const Storage* storage) const;
  std::string other_ways(const Shortage& at) const;
  uint64_t no_candidates_bytes() const {
    return graph_.by_address.size_bytes() - graph_.candidate_bytes;
  }
  std::vector<dtr_holder> holders() const;
  void look();
  void look_at_all();

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
