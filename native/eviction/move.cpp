// move.cpp: see move.h.
#include "move.h"

#include <string>

#include "base/clock.h"
#include "base/error.h"

namespace dtr {

namespace {

// The scratch blocks of a calibration.
constexpr uint64_t kMostScratch = 4 << 20;
constexpr int kCalibrationCopies = 4;

}  // namespace

void Mover::add_device(Device& device) const {
  device.move_price = MovePrice(environment_.options.move_bytes_per_s, device.type == 0);
}

void Mover::configure() const {
  for (const auto& device : devices_)
    if (environment_.options.move_bytes_per_s > 0 || device->move_price.is_fixed())
      add_device(*device);
}

bool Mover::is_movable(const Storage* storage) const {
  return storage->state == State::resident && storage->managed && !storage->external &&
         storage->size_bytes > DTR_TINY_BYTES && !storage->captured &&
         storage->locks == storage->holds && storage->pins == 0 && !capture_.is_under_way() &&
         (storage->used_on != kNoStream || !streams_.has_streams(storage->device_type));
}

double Mover::move_ns(const Storage* storage) const {
  Device& device = devices_.of(storage);
  if (device.move_price.needs_calibration()) calibrate(device);
  return device.move_price.ns_of(storage->size_bytes);
}

void Mover::calibrate(Device& device) const {
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

bool Mover::move(Storage* storage, const void* avoid_begin, const void* avoid_end, bool packed,
                 Deferred& deferred) {
  const dtr_framework* framework = environment_.framework;
  if (!is_movable(storage)) return false;
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
  if (handle && framework->replace(handle, to) != from) {
    dtr_pool_free(device.pool, to);
    return false;
  }
  lifecycle_.change_address(storage, to);
  if (queues) storage->used_on = storage->remade_on = stream;  // O2
  storage->ordered_on = kNoStream;
  dtr_pool_note_move(device.pool, from, to, bytes);
  dtr_pool_free(device.pool, from);

  const int64_t end_ns = now_ns();
  const int64_t by_hand = queues ? 0 : copied_ns - copy_ns;
  if (timed && !queues) device.move_price.add_copy(bytes, by_hand);
  device.move_price.add_launch(end_ns - begin_ns - by_hand);
  ++environment_.stats.moves;
  environment_.stats.moved_bytes += bytes;
  environment_.stats.move_ns += static_cast<uint64_t>(end_ns - begin_ns);
  environment_.observers.notify(&Observer::moved, storage);
  return true;
}

bool Mover::copy_took(Device& device, uint64_t timer, int64_t ns) {
  const auto moved = device.pending_moves.find(timer);
  if (moved == device.pending_moves.end()) return false;
  device.move_price.add_copy(moved->second, ns);
  device.pending_moves.erase(moved);
  return true;
}

}  // namespace dtr
