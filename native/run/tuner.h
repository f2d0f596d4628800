// tuner.h: what the engine and its step tuner have to do with each other. The tuner itself is above the
// engine, in learn/: it plays steps on engines of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "eviction/move.h"
#include "graph/dealloc.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "locks.h"
#include "memory_use.h"
#include "oplog/op_log_recorder.h"
#include "policy/devices.h"
#include "step_plan.h"

namespace dtr {

// How a job is evicted: what is chosen, how room is made, what becomes of the dead.
struct EvictionPolicy {
  dtr_heuristic heuristic{};
  int32_t room = DTR_ROOM_AUTO;
  Dealloc dealloc = Dealloc::eager;
};

// What a step tuner sees of its engine, and how it has the engine follow a policy or a plan.
struct TunerParts {
  const Environment& environment;
  const Graph& graph;
  const Devices& devices;
  OpLogRecorder& op_log;
  std::function<void(const EvictionPolicy&)> follow;
  // From the next step on; one without calls: no longer.
  std::function<void(StepPlan)> follow_plan;
  const Mover& mover;
};

class Tuner {
 public:
  // Budgets are advised in such steps, but where that would be more than the job needs without one: a
  // text says them exactly.
  static constexpr uint64_t kAdvisedStep = 1 << 16;
  // A budget that was played, with which what ran so far computes no more than it may.
  struct Advice {
    uint64_t budget_bytes = 0;  // more than that of now; 0: no play confirms one
    double slowness = 0;        // all that is computed then, in terms of what is computed first
  };

  virtual ~Tuner() = default;
  // ---- under the engine's mutex, which is let go of while others are waited for ----
  // Another operator was recorded.
  virtual void op_ended(EngineCall& call) = 0;
  // An operator ran again.
  virtual void ran_again() = 0;
  // The job computes so much again that it would end. What is followed goes; false if nothing is.
  virtual bool give_up() = 0;
  // What the first executions of a step cost; 0: no step is known.
  virtual int64_t step_ns() const = 0;
  // Where it is, for dtr_engine_stats.
  virtual void describe(dtr_engine_stats* out) const = 0;
  // at: where the thread that calls found no room, which is played, too; null: it is only slow.
  // Takes seconds at most.
  virtual Advice advise(double most_slowness, const Shortage* at,
                        std::unique_lock<EngineMutex>& lock) = 0;
  // It begins again with the next operator; the op log is off. A call in which another thread waits
  // returns without a result.
  virtual void forget(Deferred& deferred) = 0;
};

using MakeTuner = std::shared_ptr<Tuner> (*)(const TunerParts&);

}  // namespace dtr
