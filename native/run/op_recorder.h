// op_recorder.h: one operator call, from begin to end. It looks at the arguments, says what must be
// brought back, and records the op that ran: what it read, and what it made.
#pragma once

#include <cstdint>

#include "call_timer.h"
#include "eviction/placement_hint.h"
#include "eviction/swap_space.h"
#include "frame.h"
#include "graph/contents.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/rest.h"
#include "graph/settling.h"
#include "graph/stream_order.h"
#include "graph/unwritten.h"
#include "oplog/op_log_recorder.h"
#include "policy/cost_model.h"
#include "policy/costs.h"
#include "policy/devices.h"
#include "policy/waiting_inputs.h"
#include "step_plan.h"
#include "storage_lifecycle.h"
#include "versions.h"

namespace dtr {

// All of it under the engine's mutex, but for what says otherwise.
class OpRecorder {
 public:
  // What it works with.
  struct Parts {
    Environment& environment;
    Graph& graph;
    const Devices& devices;
    StorageLifecycle& lifecycle;
    Versions& versions;
    const GraphCapture& capture;
    const StreamOrder& streams;
    Settling& settling;
    Contents& contents;
    const UnwrittenParts& unwritten;
    SwapSpace& swap_space;
    WaitingInputs& waiting;
    OpLogRecorder& op_log;
    PlacementHint& hints;
    CostTable& costs;
    CostModel& cost_model;
    PlanFollower& plan;
    const Rest& rest;
  };
  explicit OpRecorder(const Parts& parts)
      : parts_(parts), timer_(parts.environment, parts.streams, parts.capture, parts.devices) {}

  // A set of DTR_NEED_WORK, DTR_HAS_... and DTR_NO_CLOSURE. If it throws, the call is over.
  int32_t begin(Frame& frame, uint32_t tensors, uint32_t flags, uint64_t op_key,
                Deferred& deferred);
  // Says, in frame.remat, what to bring back for an op that needs work; false if it may run.
  bool prepare(Frame& frame, Deferred& deferred);
  // Says, in frame.remat, what to bring back so that all tensors in the buffer may be overwritten;
  // false if nothing that is evicted depends on them. What is resident is settled then. Nothing is
  // done if all that is live and depends on them takes less than least_bytes.
  bool settle(Frame& frame, uint32_t tensors, uint64_t least_bytes, Deferred& deferred);
  // The op that runs reads a tensor: a storage that is none of its arguments becomes an input of its
  // record.
  int32_t reads_inside(Frame& frame, const void* tensor, Deferred& deferred);
  // Right after the op ran, without the mutex. is_measured: its cost is what the clock says.
  static void stop(Frame& frame, bool is_measured) {
    frame.outer.put_back();
    CallTimer::stop(frame.timing, is_measured);
  }
  // It ran. The id of its record, 0 if there is none. cost_ns: below 0 if it was measured.
  int64_t end(Frame& frame, uint32_t results, uint32_t flags, int64_t cost_ns, void* closure,
              Deferred& deferred);
  // It does not run, or, if it was started, failed.
  void abort(Frame& frame, bool started, Deferred& deferred);

 private:
  void describe_inputs(Frame& frame);
  void classify(Frame& frame, Input& input, Deferred& deferred);
  void capture_inputs(const Frame& frame, Deferred& deferred);
  static void want_settled(Frame& frame, std::vector<Storage*>& targets);
  void about_to_run(Frame& frame);
  void describe_results(Frame& frame, uint32_t results);
  void foresee(Frame& frame, int64_t cost_ns);
  int64_t cost_of_call(Frame& frame);
  Op* build_op(Frame& frame, int64_t cost_ns);
  Storage* new_result(Frame& frame, const dtr_tensor_desc& desc, Deferred& deferred);
  void close(Frame& frame, Deferred& deferred);
  bool is_managed_device(const dtr_tensor_desc& desc) const {
    return parts_.environment.pool_of(desc.device_type, desc.device_index) != nullptr;
  }

  Parts parts_;
  CallTimer timer_;
};

}  // namespace dtr
