// call_timer.h: what an operator's own work takes.
//
// On a device an op's host call returns when its work is queued. So a pair of events is recorded
// around it (dtr_pool_time_begin, _end), and read when the device has come by, some ops later:
// nothing ever waits.
//
// On the host the thread's use of the processor is read before and after it (base/thread_use.h).
//
// Both cost time on the host, and few readings do: of the calls of one signature the first few are
// timed, and then one in many.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/thread_use.h"
#include "dtr_alloc.h"
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
  void decide(CallTiming& timing, const OpCall& call, uint64_t signature, bool is_told);
  // Just before it runs and right after, without the mutex. The latter also looks, now and then,
  // at what other timers say: a pool tells each time once, so learn() has to follow.
  static void start(CallTiming& timing);
  static void stop(CallTiming& timing, bool wanted);
  // What the clock says of the call that runs, or just ran.
  static int64_t since_start_ns(const CallTiming& timing);
  // Instead of stop(), if the call failed.
  static void drop(CallTiming& timing);
  // Takes in what stop() found.
  void learn(CallTiming& timing, uint64_t signature, uint64_t op_key, CostTable& costs) {
    if (timing.timer || timing.count > 0) take_in(timing, signature, op_key, costs);
  }

 private:
  struct TimedOp {
    uint64_t signature;
    uint64_t op_key;
  };
  using Pending = std::unordered_map<uint64_t, TimedOp>;  // by the timer

  void take_in(CallTiming& timing, uint64_t signature, uint64_t op_key, CostTable& costs);
  // The storage of an input whose device queues work; null if there is none.
  const Storage* queued_input(const OpCall& call) const;

  const Environment& environment_;
  const StreamOrder& streams_;
  const GraphCapture& capture_;
  const Devices& devices_;
  TimedCalls timed_calls_;
  std::unordered_map<const dtr_pool*, Pending> pending_;
};

}  // namespace dtr
