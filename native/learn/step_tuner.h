// step_tuner.h: the step tuner: it finds a plan for a job's step, or the policy that costs least
// (run/tuner.h). Its states:
//
//  Idle       It records from the next operator on.
//  Recording  The op log is written, into memory. Every so often it is looked at whether a step was
//             repeated at its end. Where none is, what was recorded last stands for the steps to come:
//             it has no plan, but a policy.
//  Resting    Steps take next to nothing beside their own compute, so there is nothing to find, and no
//             log, until they do.
//  Searching  What was recorded is played in other ways (what_if.h) on a thread of its own, while the
//             job goes on. The search for the first plan has the job's priority, once: it is short.
//  Following  What was found is followed, or, if nothing was, the options' policy. A policy decides as
//             any other, operator by operator, and a plan is left where the job differs: so any step is
//             as right as one that was recorded. Once the first has proven good, a better plan is
//             searched for on the thread, once, with what processors have left. If that costs more, the
//             first comes back. The options' policy foresees uses once it has computed far more again
//             in a step than before.
//  Done       Nothing more is looked for.
//
// The steps under a plan are compared with those before, and with what it promised. One that costs more
// is revised: the step is recorded again, with the costs of now, and the plan is followed until there
// is a better one. So it is if steps cost more later, or miss more of the plan: the job is another by
// then, or has outgrown its plan. The options' policy comes back only if one step computes far more
// again, or if nothing that was found cost less.
//
// Where decisions must be the same in each run (DTR_LEARN_AT_ONCE) the job waits for its search, and
// no better plan is searched for beside it: looks depend on operators alone, and what is played on the
// program.
//
// All of it is under the engine's mutex, except the search, which shares nothing with it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "not_copied.h"
#include "run/memory_use.h"
#include "run/tuner.h"
#include "step_log.h"
#include "what_if.h"

namespace dtr {

class StepTuner final : public Tuner, public std::enable_shared_from_this<StepTuner>, NotCopied {
 public:
  explicit StepTuner(const TunerParts& parts) : parts_(parts), begun_by_(policy()) {}
  ~StepTuner() override { end_search(); }

  void op_ended(EngineCall& call) override;
  void ran_again() override;
  bool give_up() override;
  int64_t step_ns() const override { return step_ns_; }
  void describe(dtr_engine_stats* out) const override;
  Advice advise(double most_slowness, const Shortage* at,
                std::unique_lock<EngineMutex>& lock) override;
  void forget(Deferred& deferred) override;

  // What a thread is given, and gives.
  struct Task {
    Task();
    ~Task();
    using Play = std::function<std::optional<WhatIf::Found>(const WhatIf&)>;
    // On a thread of its own, when an earlier one has ended. gives_way: to the job and all others.
    void start(Play play, bool gives_way);
    // Waits for the thread.
    void join();
    // Likewise; it gives up with its next play.
    void end();

    JobProgram program;
    SimulatedMemory memory;
    SearchProgress progress;
    std::atomic<bool> is_done{false};
    std::optional<WhatIf::Found> found;
    std::thread thread = {};
    std::mutex joining;
    int64_t process;  // that has the thread

   private:
    void end_thread();
  };

 private:
  // What was computed up to some point, by the engine's counters, and what was computed again or
  // swapped; what it took to make room (to search, to move, to map); and how often memory was not where
  // a plan wants it: addresses that could not be had, and remaps.
  struct Mark {
    int64_t own_ns = 0, again_ns = 0, room_ns = 0;
    uint64_t misses = 0;
  };
  // Beside the job's own compute, in terms of that.
  static double cost_between(const Mark& from, const Mark& to) {
    return static_cast<double>(to.again_ns - from.again_ns + to.room_ns - from.room_ns) /
           static_cast<double>(std::max<int64_t>(to.own_ns - from.own_ns, 1));
  }
  // Steps since something changed, two at a time.
  struct Windows {
    Mark begin;  // of the one that runs
    uint64_t operators = 0;
    uint32_t count = 0;  // that ended
    Mark first;          // the end of the first that counts
  };
  // What two steps cost, and missed of a plan, when it was found to be good.
  struct Usual {
    double cost = 0, misses = 0;
  };

  struct Idle {};
  struct Recording {
    uint64_t evictions;  // when it began
    std::vector<Mark> marks;
    uint64_t operators = 0, next_look = 0;
    uint64_t least = 0;  // operators, before a step is known
  };
  struct Resting {
    Windows windows;
  };
  struct Searching {};
  struct Following {
    Windows windows;
    std::optional<Usual> usual = {};
    bool is_doubted = false;                       // it did too little in the last steps
    std::optional<WhatIf::Found> improvable = {};  // what was found first
    std::optional<WhatIf::Found> fallback = {};    // that, under one to be better
  };
  struct Done {};
  using State = std::variant<Idle, Recording, Resting, Searching, Following, Done>;

  // The state after another operator; none: the same.
  using Next = std::optional<State>;
  Next next(Idle&, EngineCall& call);
  Next next(Recording& now, EngineCall& call);
  Next next(Resting& now, EngineCall& call);
  Next next(Searching&, EngineCall& call);
  Next next(Following& now, EngineCall& call);
  Next next(Done&, EngineCall&) { return std::nullopt; }

  void take_records();
  void stop_recording(Deferred& deferred);
  // To record again, if it has not done so too often in a row.
  State again(uint32_t windows);
  bool may_record(uint32_t windows);
  // Nothing was found in what was recorded. Where that was no step, there may be one that is longer.
  State found_nothing();
  // As things are, and to record again once they cost more.
  State watch(double cost);
  Next search(const Recording& of, EngineCall& call);
  Following follow(WhatIf::Found found);
  void improve(const WhatIf::Found& known);
  void follow_usual();
  void begin_anew();
  // What was searched for, if the thread has ended.
  std::optional<WhatIf::Found> take_found();
  void end_search();

  Windows new_windows() const;
  bool has_ended(Windows& windows) const;

  // Calls until() without the mutex; no operator counts meanwhile. False: another thread made this
  // forget, or the engine has no use for it any more.
  template <typename Wait>
  bool wait(std::unique_lock<EngineMutex>& lock, Wait&& until);
  bool can_play() const;
  bool is_asked() const;
  bool is_measured() const;
  RoomPrice room_price(uint8_t device_type, uint64_t chunk_bytes) const;
  uint64_t budget_bytes() const;
  SimulatedMemory simulated_memory(uint64_t running_bytes = 0) const;
  void add_held(SimulatedMemory& memory) const;
  EvictionPolicy policy() const;
  Mark now() const;
  Mark now_with_room() const;
  uint64_t evictions() const;  // so far, swaps among them
  // The operators of a step, or what stands for one where none is repeated.
  uint64_t pace() const;
  // Two steps ago.
  const Mark& recent_mark(const Recording& of) const;

  struct Advised {
    uint64_t operators = 0;  // that were played; 0: none
    Advice advice;
  };
  struct Waiter {};
  // What is followed instead of the options' policy.
  struct Followed {
    bool is_plan;
    double promised, repeats;
    uint64_t in_step;  // since which
  };

  const TunerParts parts_;
  const EvictionPolicy begun_by_;  // as a job with another budget would be
  State state_;
  StepLog log_;
  uint64_t operators_ = 0;  // of the job
  StepLog::Repetition step_;
  int64_t step_ns_ = 0;
  int64_t pace_ns_ = 0;
  uint32_t times_ = 0;  // that it has recorded in a row
  std::optional<Followed> followed_;
  double own_ns_ = 1;                   // of the step that was searched for
  double before_ = 0;                   // what steps cost before, in terms of the job's own compute
  EvictionPolicy usual_;                // the options' policy
  double usual_cost_ = 0;               // and what steps cost by it
  std::optional<uint64_t> slab_bytes_;  // when the last plan was searched for
  std::array<Advised, 2> advised_;      // the last to a job that is slow, and to one without room
  std::shared_ptr<Task> task_;
  const Waiter* waiter_ = nullptr;  // on the stack of wait(), until this forgets
};

std::shared_ptr<Tuner> make_step_tuner(const TunerParts& parts);

}  // namespace dtr
