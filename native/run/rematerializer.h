// rematerializer.h: bringing evicted content back, with an explicit stack.
//
// The recorder runs closures; the engine says which, in which order, and moves the
// memory. The innermost step runs first; chains thousands of ops deep cost no recursion.
//
// A waiting step locks the inputs that were brought back for it, so that it gets
// nearer to running with each; it does not lock those that are resident anyway. A
// deep stack would lock most of the budget with them, and what is evicted meanwhile
// is only brought back in its turn. (The prototype of the paper locks all of them.)
// Those locks are preempted where there is no other way (waiting_inputs.h), until the step runs.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "current_op.h"
#include "eviction/placement_hint.h"
#include "graph/contents.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/lifecycle.h"
#include "graph/stream_order.h"
#include "graph/verifier.h"
#include "policy/waiting_inputs.h"

namespace dtr {

// What one thread brings back: its stack of steps, and the step that runs.
struct Rematerialization {
  struct Step {
    Storage* target = nullptr;   // locked
    bool forget = false;         // settled: becomes a constant once it is resident
    size_t first_input = 0;      // its locked inputs begin here in stack_inputs
    size_t first_edge = 0;       // and those of its op here in edge_locks
    bool locks_inputs = false;   // all of them, as it is about to run
    WaitingInputs::Step inputs;  // its op is set once they are looked at
  };
  // A lock of a step on one of its inputs.
  struct StepInput {
    Storage* storage = nullptr;
    bool waits = false;  // R11
  };

  std::vector<Step> stack;              // innermost last
  std::vector<StepInput> stack_inputs;  // outermost first
  std::vector<uint8_t> edge_locks;      // for each edge of each step, how many of these
  MissingInputs missing;
  std::vector<Storage*> step_outputs;  // records of the step that runs, locked
  std::vector<Storage*> consumed;      // old versions that it overwrites
  std::vector<int64_t> step;           // exchanged with the framework that runs it
  // Handles of its inputs, strongly: other threads may let go of them while it runs.
  std::vector<void*> held;
  std::vector<void*> refused;  // weakly: hold these without the mutex first
  bool step_open = false;
  // It is not for an op that is to run: another one of its thread may be running, and what that
  // overwrites is no input.
  bool is_within = false;
  CurrentOp outer;            // what its thread ran before the step began
  bool used_sources = false;  // Storage::is_source of some
  int8_t step_device = -1;
  int64_t step_begin_ns = 0;
  int64_t room_ns_at_step = 0;
};

// All of it under the engine's mutex, but for what says otherwise.
class Rematerializer {
 public:
  // What it works with.
  struct Parts {
    Environment& environment;
    Graph& graph;
    Lifecycle& lifecycle;
    const StreamOrder& streams;
    Contents& contents;
    DeadStorages& dead;
    Verifier& verifier;
    WaitingInputs& waiting;
    PlacementHint& hints;
    PlanFollower& plan;
  };
  // A live handle that a step brings back. Holding it may take the GIL, so it happens outside the
  // mutex: first a weak reference under it, then the strong one.
  struct Held {
    Storage* storage;
    void* handle;
    bool strong;
  };
  // Brings a swapped storage back; false if it is dying on another thread.
  using SwapIn = std::function<bool(Storage*)>;

  explicit Rematerializer(const Parts& parts) : parts_(parts) {}

  // One more storage is wanted, before all that are. forget: then it becomes a constant.
  static void want(Rematerialization& remat, Storage* storage, bool forget);
  // Prepares the next step, in remat.step; the id of its op, 0 if all is back. kRefused: call
  // hold_refused() without the mutex, then this again.
  int64_t next(Rematerialization& remat, const SwapIn& swap_in, Deferred& deferred);
  static constexpr int64_t kRefused = -1;
  void hold_refused(Rematerialization& remat) const;

  // The step ran: hold(), then, without the mutex, retain(), then commit(). Throws StateError if it
  // did not give what the op gave the first time.
  std::vector<Held> hold(const Rematerialization& remat) const;
  void retain(std::vector<Held>& held, Deferred& deferred) const;
  void commit(Rematerialization& remat, const std::vector<Held>& held, uint32_t tensors,
              uint32_t results, Deferred& deferred);
  void abort(Rematerialization& remat, Deferred& deferred);

 private:
  Edge* next_missing(Rematerialization& remat, Deferred& deferred);
  void lock_input(Rematerialization& remat, const Edge* edge, bool waits);
  void bring_back(Rematerialization& remat, const Edge* missing);
  bool hold_inputs(Rematerialization& remat, const Op* op, Deferred& deferred) const;
  void describe(Rematerialization& remat, Op* op);
  void take_result(const Op* op, Storage* storage, const dtr_tensor_desc& desc, bool held,
                   Deferred& deferred);
  void make_handle(Storage* storage, void* address);
  void place(Storage* storage, void* address, bool held, Deferred& deferred);
  void drop_consumed(Rematerialization& remat, Deferred& deferred);
  void close_step(Rematerialization& remat, Deferred& deferred);
  void end_step(Rematerialization& remat, Deferred& deferred);

  Parts parts_;
  std::vector<bool> mutated_;  // of describe()
};

}  // namespace dtr
