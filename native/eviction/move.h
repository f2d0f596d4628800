// move.h: contents that go to other addresses of their pool.
//
// A block in the way of a large request need not be given up: it can be copied elsewhere, for the
// price of a copy instead of a recomputation. Views, aliases and saved tensors all look at one
// storage (a handle), so that exchanging the address in the handle moves them all.
//
//  M1  What may move: a resident content whose memory is ours and whose address nobody was told.
//      So nothing that is pinned, that escaped (R6's external ones: their address was given away,
//      on every device), or that a captured graph knows; and nothing at all while one is captured.
//      Constants may: escapes are where addresses are given away, and all of them pin
//      (dtr_alloc/escapes.py). What runs knows addresses too, so what is locked stays, but for
//      holds: they are of what does not run yet and looks again (R11). What is tiny stays, because
//      operators may look at it without a lock (tiny_bytes).
//  M2  A move happens wholly under the engine's mutex: nobody meets a storage half moved, and what
//      an operator is given after it begins is the new address. No deleter runs there.
//  M3  The handle is held for that time. One that is dying on another thread, or that only a Python
//      object refers to, is not moved; that is no failure.
//  M4  The copy is queued on the stream of the last use, which is behind the last change of the
//      content, and behind all work that was recorded to use the block. It is a making of the
//      content like a rematerialization: another stream's use comes behind it by O2. The pool knows
//      that the old block is used by that stream, and its address goes back in that order.
//  M5  A failure leaves the content where it was, and the new place goes back.
//
// When: compaction.h.
//
// The price (policy/move_price.h) is measured: what the host spends on a move by the clock, copies
// by the clock or, on streams, by timers that are read some operators later. Nothing waits for
// them.
#pragma once

#include <vector>

#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/lifecycle.h"
#include "graph/rest.h"
#include "graph/stream_order.h"
#include "policy/devices.h"

namespace dtr {

// dtr_pool_try_at() with as many blocks in the way as there are.
int32_t try_at(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, const void* address,
               std::vector<void*>* in_the_way, void** out);

class Mover {
 public:
  Mover(Environment& environment, Graph& graph, const Devices& devices, const GraphCapture& capture,
        const Rest& rest, const StreamOrder& streams, Lifecycle& lifecycle)
      : environment_(environment),
        graph_(graph),
        devices_(devices),
        capture_(capture),
        rest_(rest),
        streams_(streams),
        lifecycle_(lifecycle) {}

  // What moves on a new device cost.
  void add_device(Device& device) const;
  // The options have changed.
  void configure() const;

  bool is_movable(const Storage* storage) const;  // M1
  double move_ns(const Storage* storage) const;
  // That copies it; 0 where there are none.
  uint64_t stream_of_move(const Storage* storage) const;

  // Moves the content to a place outside of [avoid_begin, avoid_end), and, if packed, in chunks
  // that are touched already. False, and nothing changed, if it may not be moved, its handle cannot
  // be held, or there is no such place. Throws what the driver says, the content where it was (M5).
  bool move(Storage* storage, const void* avoid_begin, const void* avoid_end, bool packed,
            Deferred& deferred);
  // Likewise all of them, in this order, or none where one has no place. So nobody who makes room by
  // moves, and fails, undoes what another one did, again and again.
  bool move_all(const std::vector<Storage*>& storages, const void* avoid_begin,
                const void* avoid_end, bool packed, Deferred& deferred);
  // Moves the content to an address. False, and nothing changed, likewise; *in_the_way: the blocks
  // in use that lie there, none if it cannot be there at all.
  bool move_at(Storage* storage, const void* address, std::vector<void*>* in_the_way,
               Deferred& deferred);
  // A timer of the device's pool is done: whether it is a copy's.
  static bool copy_took(Device& device, uint64_t timer, int64_t ns);

 private:
  class Place;

  // Copies between two free places, if there are two, as a move would.
  void calibrate(Device& device) const;
  // Moves to a place, which it takes or gives back.
  bool move_to(Storage* storage, Place to, Deferred& deferred);

  Environment& environment_;
  Graph& graph_;
  const Devices& devices_;
  const GraphCapture& capture_;
  const Rest& rest_;
  const StreamOrder& streams_;
  Lifecycle& lifecycle_;
};

}  // namespace dtr
