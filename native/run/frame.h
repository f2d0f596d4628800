// frame.h: the state of one thread's recorder between two calls: the operator call in flight, its
// timer, its lines of the op log, and the rematerialization that it waits for.
#pragma once

#include <cstdint>
#include <vector>

#include "call_timer.h"
#include "dtr/framework.h"
#include "graph/op_call.h"
#include "oplog/op_log_recorder.h"
#include "policy/costs.h"

namespace dtr {

class Engine;

// A lock of a step on one of its inputs.
struct StepInput {
  Storage* storage = nullptr;
  bool held = false;  // R11
};

// A rematerialization in progress: the explicit stack, innermost last.
struct RematStep {
  Storage* target = nullptr;  // locked
  Op* op = nullptr;           // set once its inputs are locked
  bool forget = false;        // settled: becomes a constant once it is resident
  size_t first_input = 0;     // its locked inputs begin here in Frame::stack_inputs
};

struct Frame : OpCall {
  explicit Frame(Engine& owner) : engine(owner) {}
  Engine& engine;
  std::vector<int64_t> buffer;  // exchanged with the recorder
  std::vector<int64_t> step;    // exchanged with whoever repeats an op
  OpenLog log;
  Signature signature;
  uint64_t call = 0;     // the signature without results; for hints (placement_hint.h)
  int64_t told_ns = -1;  // what the op will cost, if that is known beforehand: simulations
  std::vector<dtr_tensor_desc> results;
  int64_t begin_ns = 0;
  int64_t room_ns_at_begin = 0;
  int64_t* room_ns = nullptr;      // of its thread
  uint64_t* running_op = nullptr;  // likewise
  CallTiming timing;
  uint64_t returned = 0;  // the id of a storage that came back from host memory for the op
  bool keeps = false;     // brings everything back: until then nothing live is evicted
  std::vector<RematStep> stack;
  std::vector<StepInput> stack_inputs;  // locked inputs of the steps, outermost first
  std::vector<Storage*> step_outputs;   // records of the step in flight, held
  std::vector<Storage*> consumed;       // old versions that the step in flight overwrites
  bool requested = false;               // the op's request has begun
  bool step_open = false;
  bool used_sources = false;  // Storage::is_source of some
  int8_t step_device = -1;
  int64_t step_begin_ns = 0;
  int64_t room_ns_at_step = 0;
};

}  // namespace dtr
