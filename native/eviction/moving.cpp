// moving.cpp: contents that go to other addresses of their pool.
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
//      holds: they are of what does not run yet and looks again (R11).
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
// When: holes.cpp.
//
// The price (move_price.h) is measured: what the host spends on a move by the clock, copies by the
// clock or, on streams, by timers that are read some operators later. Nothing waits for them.
#include <algorithm>

#include "base/error.h"
#include "run/engine.h"

namespace dtr {

namespace {

// The scratch blocks of a calibration.
constexpr uint64_t kMostScratch = 4 << 20;
constexpr int kCalibrationCopies = 4;

}  // namespace

// M1.
bool Engine::is_movable(const Storage* storage) const {
  return storage->state == State::resident && storage->managed && !storage->external &&
         !storage->captured && storage->locks == storage->holds && storage->pins == 0 &&
         !capture_.is_under_way() &&
         (storage->used_on != kNoStream || !streams_.has_streams(storage->device_type));
}

double Engine::move_ns(const Storage* storage) {
  Device& device = device_of(storage);
  if (device.move_price.needs_calibration()) calibrate_moves(device);
  return device.move_price.ns_of(storage->size_bytes);
}

// Copies between two free places, if there are two, as a move would.
void Engine::calibrate_moves(Device& device) {
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

// Moves the content to a place outside of [avoid_begin, avoid_end), and, if packed, in chunks that
// are touched already. False, and nothing changed, if it may not be moved, its handle cannot be
// held, or there is no such place. Throws what the driver says, the content where it was (M5).
bool Engine::relocate(Storage* storage, const void* avoid_begin, const void* avoid_end, bool packed,
                      Deferred& deferred) {
  if (!is_movable(storage)) return false;
  const int64_t begin_ns = now_ns();
  void* const handle = storage->handle;
  if (storage->live) {
    if (!framework_->retain_strong(handle)) return false;
    deferred.release_strong(handle);  // after the mutex: ours may be the last by then
  }
  void* const from = storage->address;
  if (handle && framework_->data(handle) != from) return false;
  Device& device = device_of(storage);
  const bool queues = streams_.has_streams(storage->device_type);
  const uint64_t stream = queues ? storage->used_on : 0;
  const uint64_t bytes = storage->size_bytes;
  void* to = nullptr;
  check_status(
      dtr_pool_try_outside(device.pool, bytes, stream, avoid_begin, avoid_end, packed, &to));
  if (!to) return false;

  const bool timed = device.move_price.wants_reading(bytes);
  uint64_t timer = 0;
  const int64_t copy_ns = now_ns();
  int32_t status =
      dtr_pool_copy(device.pool, to, from, bytes, stream, queues && timed ? &timer : nullptr);
  const int64_t copied_ns = now_ns();
  if (timer) device.pending_moves[timer] = bytes;
  // The block's own stream may be another one than that of the copy.
  if (status == DTR_OK && queues) status = dtr_pool_record_stream(device.pool, from, stream);
  if (status != DTR_OK) {
    const std::string text = dtr_last_error();
    dtr_pool_free(device.pool, to);
    throw_status(status, "move: the content of storage " + std::to_string(storage->id) + " (" +
                             std::to_string(bytes) + " bytes) cannot be copied: " + text);
  }
  if (handle && framework_->replace(handle, to) != from) {
    dtr_pool_free(device.pool, to);
    return false;
  }
  const bool is_placed = storage->candidate >= 0;  // they stand in the order of addresses
  if (is_placed) device.candidates.remove(storage);
  graph_.by_address.erase(from);
  graph_.by_address.insert(to, storage);
  storage->address = to;
  if (is_placed) {
    device.candidates.add(storage);
    reset_bounds(device, storage);
  }
  if (queues) storage->used_on = storage->remade_on = stream;  // O2
  storage->ordered_on = kNoStream;
  dtr_pool_note_move(device.pool, from, to, bytes);
  dtr_pool_free(device.pool, from);

  const int64_t end_ns = now_ns();
  const int64_t by_hand = queues ? 0 : copied_ns - copy_ns;
  if (timed && !queues) device.move_price.add_copy(bytes, by_hand);
  device.move_price.add_launch(end_ns - begin_ns - by_hand);
  ++stats_.moves;
  stats_.moved_bytes += bytes;
  stats_.move_ns += static_cast<uint64_t>(end_ns - begin_ns);
  environment_.observers.notify(&Observer::moved, storage);
  return true;
}

bool Engine::user_move(void* handle, const void* avoid_begin, const void* avoid_end) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* storage = graph_.by_handle.find(handle);
  return storage && relocate(storage, avoid_begin, avoid_end, false, deferred);
}

Device& Engine::device_with(const dtr_pool* pool) const {
  for (Device* device : devices_)
    if (device->pool == pool) return *device;
  throw InvalidArgument("pool is not one of the engine's; allowed: given to dtr_engine_add_pool");
}

uint64_t Engine::move_some(dtr_pool* pool, uint64_t seed, uint64_t count) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  device_with(pool);
  std::vector<Storage*> movable;
  graph_.by_address.for_each([&](const void* address, Storage* storage) {
    if (is_movable(storage) && dtr_pool_contains(pool, address)) movable.push_back(storage);
  });
  std::sort(movable.begin(), movable.end(),
            [](const Storage* a, const Storage* b) { return a->id < b->id; });
  Random random(seed);
  uint64_t moved = 0;
  for (uint64_t draw = 0; draw < count && !movable.empty(); ++draw) {
    Storage* storage = movable[random.below(movable.size())];
    if (relocate(storage, nullptr, nullptr, false, deferred)) ++moved;
  }
  return moved;
}

// Whether the timer is a copy's.
bool Engine::copy_took(Device& device, uint64_t timer, int64_t ns) {
  const auto moved = device.pending_moves.find(timer);
  if (moved == device.pending_moves.end()) return false;
  device.move_price.add_copy(moved->second, ns);
  device.pending_moves.erase(moved);
  return true;
}

// The options have changed.
void Engine::configure_moving() {
  for (Device* device : devices_)
    if (options_.move_bytes_per_s > 0 || device->move_price.is_fixed())
      device->move_price = MovePrice(options_.move_bytes_per_s, device->type == 0);
}

}  // namespace dtr
