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

#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
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
inline int32_t try_at(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, const void* address,
                      std::vector<void*>* in_the_way, void** out) {
  constexpr size_t kFewBlocks = 16;
  in_the_way->resize(kFewBlocks);
  for (uint64_t count = 0;;) {
    const int32_t status = dtr_pool_try_at(pool, size_bytes, stream, address, in_the_way->data(),
                                           in_the_way->size(), &count, out);
    const bool are_all = count <= in_the_way->size();
    in_the_way->resize(count);
    if (status != DTR_OK || are_all) return status;
  }
}

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
  void add_device(Device& device) const {
    device.move_price = MovePrice(environment_.options.move_bytes_per_s, device.type == 0);
  }
  // The options have changed.
  void configure() const {
    for (const auto& device : devices_)
      if (environment_.options.move_bytes_per_s > 0 || device->move_price.is_fixed())
        add_device(*device);
  }

  // M1
  bool is_movable(const Storage* storage) const {
    return storage->state == State::resident && storage->managed && !storage->external &&
           storage->size_bytes > environment_.options.tiny_bytes && !storage->captured &&
           storage->locks == storage->holds && storage->pins == 0 && !capture_.is_under_way() &&
           !rest_.any_runs() &&
           (storage->used_on != kNoStream || !streams_.has_streams(storage->device_type));
  }
  double move_ns(const Storage* storage) const {
    Device& device = devices_.of(storage);
    if (device.move_price.needs_calibration()) calibrate(device);
    return device.move_price.ns_of(storage->size_bytes);
  }
  // That copies it; 0 where there are none.
  uint64_t stream_of_move(const Storage* storage) const {
    return streams_.has_streams(storage->device_type) ? storage->used_on : 0;
  }

  // Moves the content to a place outside of [avoid_begin, avoid_end). False, and nothing changed, if
  // it may not be moved, its handle cannot be held, or there is no such place. Throws what the driver
  // says, the content where it was (M5).
  bool move(Storage* storage, const void* avoid_begin, const void* avoid_end, Deferred& deferred) {
    return move_all({storage}, avoid_begin, avoid_end, false, deferred);
  }
  // Likewise all of them, in this order, or none where one has no place; packed: in chunks that are
  // touched already. So nobody who makes room by moves, and fails, undoes what another one did, again
  // and again.
  bool move_all(const std::vector<Storage*>& storages, const void* avoid_begin,
                const void* avoid_end, bool packed, Deferred& deferred) {
    std::vector<Place> places;
    places.reserve(storages.size());
    for (const Storage* storage : storages) {
      if (!is_movable(storage)) return false;
      places.emplace_back(devices_.of(storage), storage, stream_of_move(storage), avoid_begin,
                          avoid_end, packed);
      if (!places.back().address()) return false;
    }
    for (size_t i = 0; i < storages.size(); ++i)
      if (!move_to(storages[i], std::move(places[i]), deferred)) return false;
    return true;
  }
  // Moves the content to an address. False, and nothing changed, likewise; *in_the_way: the blocks
  // in use that lie there, none if it cannot be there at all.
  bool move_at(Storage* storage, const void* address, std::vector<void*>* in_the_way,
               Deferred& deferred) {
    in_the_way->clear();
    if (!is_movable(storage)) return false;
    Place to(devices_.of(storage), storage, stream_of_move(storage), address, in_the_way);
    return to.address() && move_to(storage, std::move(to), deferred);
  }
  // A timer of the device's pool is done: whether it is a copy's.
  static bool copy_took(Device& device, uint64_t timer, int64_t ns) {
    const auto moved = device.pending_moves.find(timer);
    if (moved == device.pending_moves.end()) return false;
    device.move_price.add_copy(moved->second, ns);
    device.pending_moves.erase(moved);
    return true;
  }

 private:
  // The scratch blocks of a calibration.
  static constexpr uint64_t kMostScratch = 4 << 20;
  static constexpr int kCalibrationCopies = 4;

  // A block that nobody uses yet; it goes back if nobody takes it.
  class Place {
   public:
    // None if there is no such place. Throws what the driver says.
    Place(const Device& device, const Storage* storage, uint64_t stream, const void* avoid_begin,
          const void* avoid_end, bool packed)
        : pool_(device.pool) {
      check_status(dtr_pool_try_outside(pool_, storage->size_bytes, stream, avoid_begin, avoid_end,
                                        packed, &address_));
    }
    // At an address.
    Place(const Device& device, const Storage* storage, uint64_t stream, const void* at,
          std::vector<void*>* in_the_way)
        : pool_(device.pool) {
      check_status(try_at(pool_, storage->size_bytes, stream, at, in_the_way, &address_));
    }
    Place(Place&& other) noexcept
        : pool_(other.pool_), address_(std::exchange(other.address_, nullptr)) {}
    Place& operator=(Place&&) = delete;
    ~Place() { dtr_pool_free(pool_, address_); }

    void* address() const { return address_; }
    void* take() { return std::exchange(address_, nullptr); }

   private:
    dtr_pool* pool_;
    void* address_ = nullptr;
  };

  // Copies between two free places, if there are two, as a move would.
  void calibrate(Device& device) const {
    if (capture_.is_under_way()) return;
    const uint64_t stream =
        streams_.has_streams(device.type) ? streams_.current(device.type, device.index) : 0;
    for (uint64_t bytes = kMostScratch; bytes >= Bandwidth::kLeastBytes; bytes /= 2) {
      void* scratch[2] = {nullptr, nullptr};
      for (void*& block : scratch)
        if (dtr_pool_try_outside(device.pool, bytes, stream, nullptr, nullptr, 0, &block) != DTR_OK)
          block = nullptr;
      for (int i = 0; scratch[1] && i < kCalibrationCopies; ++i) {
        uint64_t timer = 0;
        const int64_t begin = now_ns();
        if (dtr_pool_copy(device.pool, scratch[1], scratch[0], bytes, stream, &timer) != DTR_OK)
          break;
        if (timer)
          device.pending_moves[timer] = bytes;
        else if (i > 0 && !streams_.has_streams(device.type))  // the first brings the memory along
          device.move_price.add_copy(bytes, now_ns() - begin);
      }
      for (void* block : scratch) dtr_pool_free(device.pool, block);
      if (scratch[1]) return;
    }
  }
  // Moves to a place, which it takes or gives back.
  bool move_to(Storage* storage, Place to, Deferred& deferred) {
    const dtr_framework* framework = environment_.framework;
    const int64_t begin_ns = now_ns();
    void* const handle = storage->handle;
    if (storage->live) {
      if (!framework->retain_strong(handle)) return false;
      deferred.release_strong(handle);  // after the mutex: ours may be the last by then
    }
    void* const from = storage->address;
    if (handle && framework->data(handle) != from) return false;
    Device& device = devices_.of(storage);
    const bool queues = streams_.has_streams(storage->device_type);
    const uint64_t stream = stream_of_move(storage);
    const uint64_t bytes = storage->size_bytes;

    const bool timed = device.move_price.wants_reading(bytes);
    uint64_t timer = 0;
    const int64_t copy_ns = now_ns();
    int32_t status = dtr_pool_copy(device.pool, to.address(), from, bytes, stream,
                                   queues && timed ? &timer : nullptr);
    const int64_t copied_ns = now_ns();
    if (timer) device.pending_moves[timer] = bytes;
    // The block's own stream may be another one than that of the copy.
    if (status == DTR_OK && queues) status = dtr_pool_record_stream(device.pool, from, stream);
    if (status != DTR_OK)
      throw_status(status, "move: the content of storage " + std::to_string(storage->id) + ", " +
                               size_text(bytes) + ", cannot be copied: " + dtr_last_error());
    if (handle && framework->replace(handle, to.address()) != from) return false;
    lifecycle_.change_address(storage, to.address());
    if (queues) storage->used_on = storage->remade_on = stream;  // O2
    storage->ordered_on = kNoStream;
    dtr_pool_note_move(device.pool, from, to.take(), bytes);
    dtr_pool_free(device.pool, from);

    if (timed && !queues) device.move_price.add_copy(bytes, copied_ns - copy_ns);
    ++environment_.stats.moves;
    environment_.stats.moved_bytes += bytes;
    environment_.stats.move_ns += static_cast<uint64_t>(now_ns() - begin_ns);
    return true;
  }

  Environment& environment_;
  Graph& graph_;
  const Devices& devices_;
  const GraphCapture& capture_;
  const Rest& rest_;
  const StreamOrder& streams_;
  Lifecycle& lifecycle_;
};

}  // namespace dtr
