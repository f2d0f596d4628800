// call_timer.cpp: see call_timer.h. A timer runs from where an op is about to run to its end, on the
// stream that is this thread's then.
#include "call_timer.h"

#include <algorithm>

#include "base/clock.h"
#include "base/scoped_timer.h"
#include "eviction/move.h"

namespace dtr {

namespace {

constexpr uint32_t kLookEvery = 16;  // ops

// Without what making room took: that is no part of an operator.
int64_t clock_ns() { return now_ns() - room_ns_of_thread(); }

}  // namespace

// (An op without inputs is not timed: where it runs is known by its results.)
const Storage* CallTimer::queued_input(const OpCall& call) const {
  if (!environment_.framework->current_stream) return nullptr;
  for (const Input& input : call.inputs)
    if (input.storage && input.storage->managed && streams_.has_streams(input.storage->device_type))
      return input.storage;
  return nullptr;
}

// During a capture nothing is timed: its events would become a part of the graph.
void CallTimer::decide(CallTiming& timing, const OpCall& call, uint64_t signature, bool is_told) {
  const Storage* input = queued_input(call);
  timing.queued_in =
      input ? environment_.pool_of(input->device_type, input->device_index) : nullptr;
  const bool is_due = !is_told && !capture_.is_under_way() && timed_calls_.next(signature);
  timing.is_due = is_due && input;
  timing.reads_thread = is_due && !input;
  if (timing.is_due) timing.queued_on = streams_.current(input);
  timing.count = 0;
}

void CallTimer::start(CallTiming& timing) {
  if (timing.reads_thread) timing.begin.read_thread();
  timing.begin.clock_ns = clock_ns();
  if (!timing.is_due) return;
  timing.is_due = false;
  // Where that fails the op runs without: what is wrong with the device, it will say itself.
  if (dtr_pool_time_begin(timing.queued_in, timing.queued_on, &timing.timer) != DTR_OK)
    timing.timer = 0;
}

void CallTimer::drop(CallTiming& timing) {
  if (timing.timer) dtr_pool_time_drop(timing.queued_in, timing.timer);
  timing.timer = 0;
}

int64_t CallTimer::since_start_ns(const CallTiming& timing) {
  return clock_ns() - timing.begin.clock_ns;
}

void CallTimer::stop(CallTiming& timing, bool wanted) {
  timing.took_ns = 0;
  if (timing.reads_thread && wanted) {
    ThreadUse took;
    took.clock_ns = since_start_ns(timing);
    took.read_thread();
    took.processor_ns -= timing.begin.processor_ns;
    took.sleeps -= timing.begin.sleeps;
    timing.took_ns = std::max<int64_t>(took.own_ns(), 1);
  }
  if (!timing.queued_in) return;
  if (timing.timer && (!wanted || dtr_pool_time_end(timing.queued_in, timing.timer) != DTR_OK))
    drop(timing);
  if (++timing.unread < kLookEvery) return;
  timing.unread = 0;
  timing.count = dtr_pool_times(timing.queued_in, timing.timers, timing.ns, CallTiming::kMost);
}

void CallTimer::take_in(CallTiming& timing, uint64_t signature, uint64_t op_key, CostTable& costs) {
  Pending& pending = pending_[timing.queued_in];
  for (uint64_t i = 0; i < timing.count; ++i) {
    if (Mover::copy_took(devices_.with(timing.queued_in), timing.timers[i], timing.ns[i])) continue;
    const auto found = pending.find(timing.timers[i]);
    if (found == pending.end()) continue;
    costs.add(found->second.signature, found->second.op_key, timing.ns[i]);
    pending.erase(found);
  }
  if (timing.timer) pending[timing.timer] = {signature, op_key};
  timing.timer = 0;
}

}  // namespace dtr
