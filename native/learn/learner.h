// learner.h: learns a job's step, and finds a plan for it, or the policy that costs least (run/coach.h).
//
// 1. It *listens*: the op log is written, into memory. Every so often it looks whether a step was
//    repeated at its end. As long as next to nothing is computed again there is nothing to learn but
//    that: then it *rests*, without a log, until something is. Where no step is repeated, what was
//    heard last stands for the steps to come: it has no plan, but a policy.
// 2. What was heard is *rehearsed* (rehearsal.h) on a thread of its own, while the job goes on.
// 3. The best is *followed*. A policy decides as any other, operator by operator, and a plan is left
//    where the job differs: so any step is as right as one that was learned. While a plan is followed,
//    a better one is looked for on the thread, once. If the job's steps cost more than before, or one
//    much more, what was learned goes. If they do so later, or miss more of the plan, the job is
//    another by then, or has outgrown its plan, and it listens again. Where nothing was found, or it
//    went, steps are watched all the same.
//
// Where decisions must be the same in each run (DTR_LEARN_AT_ONCE) the job waits for its rehearsal,
// and looks for no better plan: looks depend on operators alone, and what is played on the program.
//
// All of it is under the engine's mutex, except the rehearsal, which shares nothing with it.
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
#include <vector>

#include "rehearsal.h"
#include "run/coach.h"
#include "run/memory_use.h"
#include "step_log.h"

namespace dtr {

class Learner final : public Coach, public std::enable_shared_from_this<Learner> {
 public:
  explicit Learner(const Coached& parts) : parts_(parts) {}
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;
  ~Learner() override { end_rehearsal(); }

  void op_ended(Deferred& deferred, std::unique_lock<EngineMutex>& lock) override try {
    if (waiter_) return;
    if (phase_ == Phase::listening)
      listen(deferred, lock);
    else if (phase_ != Phase::done)
      go_on(deferred);
  } catch (const std::exception&) {
    give_up(deferred);
  }
  void ran_again() override {
    if (phase_ == Phase::following && !waiter_) check_grinding();
  }
  int64_t step_ns() const override { return step_ns_; }
  int32_t learning() const override;
  Advice advise(double most_slowness, const Shortage* at,
                std::unique_lock<EngineMutex>& lock) override;
  void forget(Deferred& deferred) override;

  // What a thread is given, and gives.
  struct Task {
    Task();
    ~Task();
    using Play = std::function<std::optional<Rehearsal::Found>(const Rehearsal&)>;
    // On a thread of its own, when an earlier one has ended.
    void start(Play play);
    // Waits for the thread.
    void join();
    // Likewise; it gives up with its next play.
    void end();

    OwnedProgram program;
    Stage stage;
    std::atomic<bool> cancelled{false};
    std::atomic<bool> is_done{false};
    std::optional<Rehearsal::Found> found;
    std::thread thread = {};
    std::mutex joining;
    int64_t process;  // that has the thread

   private:
    void end_thread();
  };

 private:
  enum class Phase {
    begins,
    listening,
    resting,     // next to nothing is computed again
    rehearsing,  // on the thread
    following,
    done
  };
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

  void begin(Deferred& deferred);
  void listen(Deferred& deferred, std::unique_lock<EngineMutex>& lock);
  bool may_listen();
  void listen_again(Deferred& deferred);
  void end(Deferred& deferred);
  void go_on(Deferred& deferred);
  void rest_on(Deferred& deferred);
  void hear();
  void rehearse(Deferred& deferred, std::unique_lock<EngineMutex>& lock);
  void begin_windows();
  bool window_ended();
  void wait_for_rehearsal(Deferred& deferred);
  void follow(Deferred& deferred);
  void check_step(Deferred& deferred);
  void check_grinding();
  void rest(Phase phase, Deferred& deferred);
  // There is no memory, or no thread, to learn with: the job goes on as it is.
  void give_up(Deferred& deferred);
  struct Advised {
    uint64_t operators = 0;  // that were played; 0: none
    Advice advice;
  };
  struct Waiter {};
  // Calls until() without the mutex; nothing is learned meanwhile. False: another thread made this
  // forget, or the engine has no use for it any more.
  template <typename Wait>
  bool wait(std::unique_lock<EngineMutex>& lock, Wait&& until);
  void end_rehearsal();
  bool can_play() const;
  uint64_t budget_bytes() const;
  Stage stage(uint64_t running_bytes = 0) const;
  void add_held(Stage& stage) const;
  void follow_usual();
  void watch();
  EvictionPolicy policy() const;
  Mark now() const;
  Mark now_with_room() const;
  double repeats_since(const Mark& mark) const;
  uint64_t evictions() const;  // so far, swaps among them
  // The operators of a step, or what stands for one where none is repeated.
  uint64_t pace() const;
  // While it listens: two steps ago.
  const Mark& recent_mark() const;

  const Coached parts_;
  Phase phase_ = Phase::begins;
  StepLog log_;
  uint64_t heard_ = 0;      // operators since it listens
  uint64_t next_look_ = 0;  // with so many
  uint64_t evictions_ = 0;  // when it began to listen
  StepLog::Repetition step_;
  int64_t step_ns_ = 0;
  int64_t pace_ns_ = 0;
  std::vector<Mark> marks_;  // since it listens, at every so many operators
  double before_ = 0;        // what steps cost before the policy, in terms of the job's own compute
  double promised_ = 0;      // and what they will repeat, as rehearsed
  EvictionPolicy usual_;     // and by which
  bool is_usual_ = true;     // what is followed is the job's own policy
  bool is_planned_ = false;  // what is followed has a plan
  bool is_second_ = false;   // a better one than the first
  bool is_doubted_ = false;  // what is followed did too little in the last steps
  Windows windows_;
  double expected_ = 0;                 // what steps cost when the policy was found to be good
  double expected_misses_ = 0;          // and what two of them missed
  uint32_t times_ = 0;                  // that it has listened in a row
  std::optional<uint64_t> slab_bytes_;  // when the last plan was looked for
  std::array<Advised, 2> advised_;      // the last to a job that is slow, and to one without room
  std::shared_ptr<Task> task_;
  const Waiter* waiter_ = nullptr;  // on the stack of wait(), until this forgets
};

std::shared_ptr<Coach> make_learner(const Coached& coached);

}  // namespace dtr
