// call_timer.h: what an operator's own work takes.
//
// On a device an op's host call returns when its work is queued. So a pair of events is recorded
// around it (dtr_pool_time_begin, _end), and read when the device has come by, some ops later:
// nothing ever waits. A timer runs from where an op is about to run to its end, on the stream that is
// this thread's then.
//
// On the host the thread's use of the processor is read before and after it (base/thread_use.h).
//
// Both cost time on the host, and few readings do: of the calls of one signature the first few are
// timed, and then one in many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/room_time.h"
#include "base/thread_use.h"
#include "dtr_alloc.h"
#include "eviction/move.h"
#include "graph/environment.h"
#include "graph/graph_capture.h"
#include "graph/op_call.h"
#include "graph/stream_order.h"
#include "policy/costs.h"
#include "policy/devices.h"

namespace dtr {

// Which calls are timed: by a hash of operator and arguments (not of results: they are not
// known when the op begins). Two hashes may share a place; then both start again.
class TimedCalls {
 public:
  bool next(uint64_t hash) {
    Place& place = places_[hash % places_.size()];
    if (place.hash != hash) place = {hash, 0};
    const uint64_t call = place.calls++;
    return call < kFirst || call % kOneIn == 0;
  }

 private:
  static constexpr uint64_t kFirst = 8;
  static constexpr uint64_t kOneIn = 64;
  struct Place {
    uint64_t hash = 0;
    uint64_t calls = 0;
  };
  std::vector<Place> places_ = std::vector<Place>(4096);
};

// The timer of one thread's call.
struct CallTiming {
  dtr_pool* queued_in = nullptr;  // of the device that queues its work; null: none is known
  uint64_t queued_on = kNoStream;
  bool is_due = false;  // a timer is to start
  bool reads_thread = false;
  ThreadUse begin;      // the clock always, the rest if the thread is read
  int64_t took_ns = 0;  // what was read; 0: nothing
  uint64_t timer = 0;   // of that pool; 0: none runs
  int64_t room_ns = 0;  // the thread's on making room, until the call begins; then in it
  uint32_t unread = 0;  // calls since it last looked for timers that are done
  // What it found.
  static constexpr uint64_t kMost = 32;
  uint64_t timers[kMost];
  int64_t ns[kMost];
  uint64_t count = 0;
};

class CallTimer {
 public:
  CallTimer(const Environment& environment, const StreamOrder& streams, const GraphCapture& capture,
            const Devices& devices)
      : environment_(environment), streams_(streams), capture_(capture), devices_(devices) {}

  // The call is about to run, with everything resident. is_told: its cost is known.
  // During a capture nothing is timed: its events would become a part of the graph.
  void decide(CallTiming& timing, const OpCall& call, uint64_t signature, bool is_told) {
    const Storage* input = queued_input(call);
    timing.queued_in =
        input ? environment_.pool_of(input->device_type, input->device_index) : nullptr;
    const bool is_due = !is_told && !capture_.is_under_way() && timed_calls_.next(signature);
    timing.is_due = is_due && input;
    timing.reads_thread = is_due && !input;
    if (timing.is_due) timing.queued_on = streams_.current(input);
    timing.count = 0;
  }
  // Just before it runs and right after, without the mutex. The latter also looks, now and then,
  // at what other timers say: a pool tells each time once, so learn() has to follow.
  static void start(CallTiming& timing) {
    if (timing.reads_thread) timing.begin.read_thread();
    timing.begin.clock_ns = clock_ns();
    timing.room_ns = RoomTime::spent_ns();
    if (!timing.is_due) return;
    timing.is_due = false;
    // Where that fails the op runs without: what is wrong with the device, it will say itself.
    if (dtr_pool_time_begin(timing.queued_in, timing.queued_on, &timing.timer) != DTR_OK)
      timing.timer = 0;
  }
  static void stop(CallTiming& timing, bool wanted) {
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
    timing.room_ns = RoomTime::spent_ns() - timing.room_ns;
    if (timing.timer && (!wanted || dtr_pool_time_end(timing.queued_in, timing.timer) != DTR_OK))
      drop(timing);
    if (++timing.unread < kLookEvery) return;
    timing.unread = 0;
    timing.count = dtr_pool_times(timing.queued_in, timing.timers, timing.ns, CallTiming::kMost);
  }
  // What the clock says of the call that runs, or just ran.
  static int64_t since_start_ns(const CallTiming& timing) {
    return clock_ns() - timing.begin.clock_ns;
  }
  // Instead of stop(), if the call failed.
  static void drop(CallTiming& timing) {
    if (timing.timer) dtr_pool_time_drop(timing.queued_in, timing.timer);
    timing.timer = 0;
  }
  // Takes in what stop() found.
  void learn(CallTiming& timing, uint64_t signature, uint64_t op_key, CostTable& costs) {
    if (timing.timer || timing.count > 0) take_in(timing, signature, op_key, costs);
  }

 private:
  static constexpr uint32_t kLookEvery = 16;  // ops
  static constexpr int64_t kLittle = 16;      // this part of a reading

  // Without what making room took: that is no part of an operator.
  static int64_t clock_ns() { return now_ns() - RoomTime::spent_ns(); }

  struct TimedOp {
    uint64_t signature;
    uint64_t op_key;
    int64_t room_ns;  // that making room for it took the host
  };
  using Pending = std::unordered_map<uint64_t, TimedOp>;  // by the timer

  void take_in(CallTiming& timing, uint64_t signature, uint64_t op_key, CostTable& costs) {
    Pending& pending = pending_[timing.queued_in];
    for (uint64_t i = 0; i < timing.count; ++i) {
      if (Mover::copy_took(devices_.with(timing.queued_in), timing.timers[i], timing.ns[i]))
        continue;
      const auto found = pending.find(timing.timers[i]);
      if (found == pending.end()) continue;
      const TimedOp& op = found->second;
      const int64_t known_ns = costs.known(op.signature);
      // A device that may have waited while room was made says at most what the op takes.
      const bool is_bound = op.room_ns > timing.ns[i] / kLittle;
      if (!is_bound || known_ns == 0 || timing.ns[i] < known_ns)
        costs.add(op.signature, op.op_key, timing.ns[i]);
      pending.erase(found);
    }
    if (timing.timer) pending[timing.timer] = {signature, op_key, timing.room_ns};
    timing.timer = 0;
  }
  // The storage of an input whose device queues work; null if there is none.
  // (An op without inputs is not timed: where it runs is known by its results.)
  const Storage* queued_input(const OpCall& call) const {
    if (!environment_.framework->current_stream) return nullptr;
    for (const Input& input : call.inputs)
      if (input.storage && input.storage->managed &&
          streams_.has_streams(input.storage->device_type))
        return input.storage;
    return nullptr;
  }

  const Environment& environment_;
  const StreamOrder& streams_;
  const GraphCapture& capture_;
  const Devices& devices_;
  TimedCalls timed_calls_;
  std::unordered_map<const dtr_pool*, Pending> pending_;
};

}  // namespace dtr
