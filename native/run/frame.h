// frame.h: the state of one thread's recorder between two calls: the operator call in flight, its
// timer, its lines of the op log, and the rematerialization that it waits for.
#pragma once

#include <cstdint>
#include <vector>

#include "call_timer.h"
#include "current_op.h"
#include "dtr/framework.h"
#include "graph/op_call.h"
#include "oplog/op_log_recorder.h"
#include "policy/costs.h"
#include "rematerializer.h"

namespace dtr {

struct Frame : OpCall {
  std::vector<int64_t> buffer;  // exchanged with the recorder
  OpenLog log;
  Signature signature;
  uint64_t call = 0;     // the signature without results; for hints (placement_hint.h)
  int64_t told_ns = -1;  // what the op will cost, if that is known beforehand: simulations
  std::vector<dtr_tensor_desc> results;
  CallTiming timing;
  CurrentOp outer;        // what its thread ran before the op
  uint64_t returned = 0;  // the id of a storage that came back from host memory for the op
  bool keeps = false;     // brings everything back: until then nothing live is evicted
  Rematerialization remat;
  bool requested = false;  // the op's request has begun
};

}  // namespace dtr
