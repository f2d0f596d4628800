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
  // Why a pool had no memory for a request. refusal: what the pool said.
  std::string why_none(const std::string& refusal, uint64_t size_bytes, dtr_pool* pool) const;

 private:
  int32_t why_kept(const Storage* storage) const;
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
