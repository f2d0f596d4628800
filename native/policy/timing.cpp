// timing.cpp: see timing.h. A timer runs from where an op is about to run to its end, on the
// stream that is this thread's then.
#include "timing.h"

#include "base/error.h"
#include "run/engine.h"

namespace dtr {

namespace {

constexpr uint32_t kLookEvery = 16;  // ops

}  // namespace

// The device that the op's inputs are on, if it queues work. (An op without inputs is not
// timed: where it runs is known by its results.)
Device* Engine::queue_of(const Frame& frame) const {
  for (const Input& input : frame.inputs)
    if (input.storage && input.storage->managed && has_streams(input.storage->device_type))
      return &device_of(input.storage);
  return nullptr;
}

// During a capture nothing is: its events would become a part of the graph.
void Engine::decide_timing(Frame& frame) {
  const Device* device = framework_->current_stream ? queue_of(frame) : nullptr;
  frame.queued_in = device ? device->pool : nullptr;
  frame.timed = device && !capture_.is_under_way() && timed_calls_.next(frame.signature.value());
  if (frame.timed) frame.queued_on = stream_of(device->type, device->index);
}

// Called without the mutex, just before the op runs.
void Engine::start_timer(Frame& frame) {
  if (!frame.timed) return;
  frame.timed = false;
  // Where that fails the op runs without: what is wrong with the device, it will say itself.
  if (dtr_pool_time_begin(frame.queued_in, frame.queued_on, &frame.timer) != DTR_OK)
    frame.timer = 0;
}

// Also looks, now and then, at what other timers say. learn() takes both in.
void Engine::stop_timer(Frame& frame, bool wanted) {
  if (!frame.queued_in) return;
  dtr_pool* pool = frame.queued_in;
  if (frame.timer && (!wanted || dtr_pool_time_end(pool, frame.timer) != DTR_OK)) {
    dtr_pool_time_drop(pool, frame.timer);
    frame.timer = 0;
  }
  frame.times.count = 0;
  if (++frame.unread < kLookEvery) return;
  frame.unread = 0;
  frame.times.collect(pool);
}

void Engine::learn(Frame& frame, uint64_t signature) {
  if (!frame.timer && frame.times.count == 0) return;
  for (const auto& device : devices_) {
    if (device->pool != frame.queued_in) continue;
    for (uint64_t i = 0; i < frame.times.count; ++i) {
      const auto moved = device->pending_moves.find(frame.times.timers[i]);
      if (moved != device->pending_moves.end()) {
        device->move_price.add_copy(moved->second, frame.times.ns[i]);
        device->pending_moves.erase(moved);
        continue;
      }
      const auto found = device->pending_times.find(frame.times.timers[i]);
      if (found == device->pending_times.end()) continue;
      costs_.add(found->second.signature, found->second.op_key, frame.times.ns[i]);
      device->pending_times.erase(found);
    }
    if (frame.timer) device->pending_times[frame.timer] = {signature, frame.op_key};
  }
  frame.timer = 0;
  frame.times.count = 0;
}

}  // namespace dtr
