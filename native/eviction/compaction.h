// compaction.h: making place for a request by moving what lies in the way (move.h: what may move,
// how, and its price).
//
// Unless room is made by single evictions only, the victims chosen for eviction are compared with
// moves: a hole is made by moves alone, which may take constants out of the way; or members of a
// window are moved that cost less to copy than to make anew, beside evictions. And before memory is
// remapped a hole is made by moves, if they cost less.
//
// The last resort before waiting inputs are evicted, or a request fails, is the same at any price;
// where memory is mapped by chunks, one is emptied into the gaps between other blocks, to be mapped
// to where the request is.
//
// Scanning all blocks takes longer than a search for victims. So a scan happens only if the
// expected saving exceeds the price of several scans; each scan in vain doubles that threshold.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "move.h"

namespace dtr {

class Compactor {
 public:
  Compactor(Environment& environment, const Graph& graph, const GraphCapture& capture, Mover& mover)
      : environment_(environment), graph_(graph), capture_(capture), mover_(mover) {}

  // ---- at a user's request ----
  // Moves what it can towards the low addresses. Returns bytes moved.
  uint64_t compact(dtr_pool* pool, Deferred& deferred);

  // ---- during a search for victims ----
  // Whether copies are weighed against evictions.
  bool is_on() const;
  void begin_search(const Device& device);
  // What it costs to have a window's member out of the way: giving it up for cost_ns, or, if a hole
  // is as large, a copy. (Others may be first at the hole, or it may be the window's own.)
  double at_most_move(const Storage* storage, double cost_ns) const;

  // ---- for a request ----
  // Before victims are evicted: if a place for the request can be made by moves alone that cost
  // less than they would, it is (true, and no victims are left). Else, of a window's members, those
  // that are cheaper to move go elsewhere; true if any did. loss_ns: of evicting one.
  bool move_victims(Device& device, uint64_t size_bytes, bool fragmented, bool is_window,
                    const std::function<double(Storage*)>& loss_ns, std::vector<Storage*>* victims,
                    Deferred& deferred);
  // Makes a hole by moves that cost less than what is at stake, if that is worth a scan.
  bool open_hole_instead(Device& device, uint64_t size_bytes, double stake_ns, Deferred& deferred);
  // Moves what lies in the cheapest stretch that is large enough to places outside of it, if that
  // costs less than most_ns: infinity is the last resort. True if something was moved and the
  // stretch is free now. (If one is free already, more holes would not help.)
  bool open_hole(Device& device, uint64_t size_bytes, double most_ns, Deferred& deferred);
  // Moves all that touches some chunk into gaps in chunks that are touched anyway, if as many
  // chunks as are lacking can be emptied. True if the chunk is empty now: then there is one that is
  // lacking less.
  bool empty_chunk(Device& device, uint64_t size_bytes, Deferred& deferred);

 private:
  // Of the heap of one device.
  struct Scans {
    double last_ns = 0;
    uint32_t in_vain = 0;  // since the last that was not
  };

  Scans& scans_of(const Device& device);
  // All large blocks of a pool, by address; until the next call.
  const std::vector<dtr_run_block>& blocks_of(dtr_pool* pool);

  Environment& environment_;
  const Graph& graph_;
  const GraphCapture& capture_;
  Mover& mover_;
  std::vector<Scans> scans_;  // by device
  std::vector<dtr_run_block> blocks_;
  uint64_t largest_hole_ = 0;  // that a window's member could move to; 0: none moves
};

}  // namespace dtr
