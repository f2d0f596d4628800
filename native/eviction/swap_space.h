// swap_space.h: contents that go to host memory and come back.
//
// A swap is one more way to evict (its cost: swap_costs.h). A storage that was swapped out (R14) is
// brought back by remat_next() before it hands a closure out, so that a framework needs to know
// nothing of it.
//
// Copies run without the engine's mutex. While one does, its buffer is `moving` and the storage is
// locked; a thread that needs the storage meanwhile waits. A copy out takes the storage's memory
// away first, so that nobody writes to it: if it fails, the memory goes back to the storage.
//
// Streams. A copy out is queued on the stream that used the block last, a copy in on the stream of
// the thread that needs the content. The block of a copy out goes back to the pool at once: what
// is queued on its stream from then on comes behind the copy. One buffer's copies are ordered
// explicitly where they are on two streams.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/lifecycle.h"
#include "graph/observer.h"
#include "graph/settling.h"
#include "graph/stream_order.h"
#include "policy/cost_model.h"
#include "policy/devices.h"
#include "policy/host_memory.h"
#include "policy/swap_costs.h"
#include "policy/victim_search.h"
#include "prefetcher.h"

namespace dtr {

class SwapSpace {
 public:
  SwapSpace(Environment& environment, Graph& graph, const Devices& devices, Lifecycle& lifecycle,
            DeadStorages& dead, Settling& settling, const StreamOrder& streams, CostModel& costs,
            VictimSearch& search)
      : environment_(environment),
        graph_(graph),
        devices_(devices),
        lifecycle_(lifecycle),
        dead_(dead),
        settling_(settling),
        streams_(streams),
        cost_model_(costs),
        search_(search) {}

  // ---- settings ----
  // What copies of a new device cost.
  void add_device(Device& device) const;
  // The options have changed: what is a candidate, and what copies cost.
  void configure(Deferred& deferred);
  // Gives back the kept buffers: all, or what is more than the cap allows.
  void give_back_kept(bool all, Deferred& deferred);

  // On a device, the stalest content that was evicted when it had to become a constant, and may go
  // to host memory although swapping is off (settles_to_host); null if there is none.
  Storage* settled_on(const Device& device);

  const HostMemory& memory() const { return host_; }
  const SwapCosts& costs() const { return costs_; }

  // ---- copies; the lock is let go meanwhile ----
  enum class Outcome { done, not_now, no_host_memory };
  // Has the content copied to host memory and gives the storage's memory back. not_now, and nothing
  // changed: the cap leaves no room or the memory cannot be had just now. no_host_memory: the
  // driver refuses host memory for a content that can be recomputed; the storage is as it was, but
  // locked. Throws, the storage as it was, if a constant finds no host memory, or a copy fails.
  Outcome swap_out(Storage* storage, EvictionCause cause, EngineCall& call);
  // Brings a swapped storage back, which the caller has locked. False: it is dying on another
  // thread. Throws, nothing changed, if there is no memory.
  // ahead: before anybody needs it, on the pool's side stream; false, too, if no memory is free.
  bool swap_in(Storage* storage, EngineCall& call, bool ahead = false);

  // An operator needs the storage, and it has come back, by itself or just now. *returned gets its
  // id, if others may be expected behind it.
  void note_return(Storage* storage, uint64_t* returned);
  // All that the operator needs is there: those expected behind this one may come.
  void prefetch(uint64_t returned, const GraphCapture& capture, EngineCall& call);

  // The content of a swapped storage is no longer in host memory.
  void drop_copy(Storage* storage);
  // The framework let go of a swapped storage.
  void died(Storage* storage, Deferred& deferred);

  // R14.
  void check(const std::vector<Storage*>& storages) const;

 private:
  Environment& environment_;
  Graph& graph_;
  const Devices& devices_;
  Lifecycle& lifecycle_;
  DeadStorages& dead_;
  Settling& settling_;
  const StreamOrder& streams_;
  CostModel& cost_model_;
  VictimSearch& search_;
  HostMemory host_;
  SwapCosts costs_{environment_, devices_, host_};
  Prefetcher prefetcher_;
  std::condition_variable_any copied_;              // a copy is done
  std::unordered_map<uint64_t, Storage*> swapped_;  // by id
};

}  // namespace dtr
