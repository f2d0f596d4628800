// step_plan.h: an address for each block of a step, and how a job follows it.
//
// A plan says where each allocation of a step goes, and which run uses it last: those of each
// operator's first run, and of each time that it runs again. It was made from what is needed when
// (learn/planner.h). So no victim is searched for, and no place.
//
//  A1  The plan is followed from the beginning of a step, which the operators before it tell, to the
//      first operator that is another. Then all is decided as ever, until a step begins again.
//  A2  What is past its last use is evicted at once, and not swapped, and be it so small that its
//      address is a slab's: what is still there, because nobody needed its place, is not computed
//      again where the plan has it, and is then in the way where it is. What the framework drops
//      before anything else is allocated goes by that alone. What it drops earlier stays until then.
//  A3  What lies in a place nevertheless is evicted, or else makes way: a dead constant goes, if what
//      needs it is dead, too, and others move. A place that cannot be had (something in it is in use,
//      or of nobody known) is none: the request is served as ever. A storage that is not where the
//      plan thinks it is does no harm either, as an eviction is never wrong, only sometimes expensive.
//  A4  What stays from step to step moves, when one begins, to where it leaves the others room; what
//      is evicted then, when it is back.
//  A5  Addresses are given to the thread that runs an operator, for what it allocates meanwhile, in
//      order and by size; and, where none runs, for what the next ones fill.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/environment.h"
#include "graph/records.h"
#include "oplog/op_log_recorder.h"

namespace dtr {

struct StepPlan {
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint64_t kNowhere = UINT64_MAX;
  struct Place {
    uint32_t op, run, ordinal;   // its operator, in the step; which of its runs; its how manieth
    uint32_t result;             // which of the operator's; kNone: none that is kept
    uint32_t last_op, last_run;  // the run that uses it last; kNone: it is let go by then
    uint64_t size_bytes;         // as requested
    uint64_t offset;             // from the pool's first chunk; kNowhere: a slab's
    bool is_ahead;               // allocated before its operator begins, which fills it first
    bool is_dropped;             // right after its last use (A2)
  };
  // What is there in all steps, and where it belongs.
  struct Held {
    void* handle;
    uint64_t offset;
  };
  // How a call is known again: by its signature (policy/costs.h), but for the lowest bits.
  static uint64_t call_of(uint64_t signature) { return signature & ~kMadeAheadBits; }
  // Of an operator that is a part of the one before it. No call has low bits.
  static constexpr uint64_t kSameCall = 1;

  std::vector<uint64_t> calls;  // of the step's operators
  std::vector<Place> places;    // by operator, run and ordinal
  std::vector<Held> held;       // by offset
};

// Finds a sequence of calls in those of a job (Knuth, Morris and Pratt, 1977).
class CallMatcher {
 public:
  explicit CallMatcher(std::vector<uint64_t> calls = {})
      : calls_(std::move(calls)), fallback_(calls_.size(), 0) {
    for (size_t i = 1; i < calls_.size(); ++i) fallback_[i] = after(fallback_[i - 1], calls_[i]);
  }
  size_t size() const { return calls_.size(); }
  // So many of the first calls are the last of the job's, if `matched` were before one more.
  size_t after(size_t matched, uint64_t call) const {
    while (matched > 0 && (matched == calls_.size() || calls_[matched] != call))
      matched = fallback_[matched - 1];
    return matched + (calls_[matched] == call);
  }

 private:
  std::vector<uint64_t> calls_;
  std::vector<size_t> fallback_;  // how many still are where the next call is another
};

class PlanFollower {
 public:
  // steps: told where a step of the plan begins, and that it is not known any more.
  explicit PlanFollower(StepCount& steps) : steps_(steps) {}

  // What a thread runs, as a plan has it.
  struct Running {
    const PlanFollower* of = nullptr;  // null: nothing runs that has a plan
    uint64_t plan = 0;
    uint32_t op = 0, run = 0, ordinal = 0;
  };

  // ---- under the engine's mutex ----
  // In place of the one before; one without calls is none. at_beginning: of a step, just now.
  void follow(StepPlan plan, bool at_beginning) {
    plan_ = std::move(plan);
    // A part of an operator has no end of its own.
    for (StepPlan::Place& place : plan_.places)
      while (place.last_op != StepPlan::kNone && plan_.calls[place.last_op] == StepPlan::kSameCall)
        --place.last_op;
    ++number_;
    go_to(kLost);
    first_place_.assign(plan_.calls.size() + 1, 0);
    for (const StepPlan::Place& place : plan_.places) ++first_place_[place.op + 1];
    for (size_t op = 0; op < plan_.calls.size(); ++op) first_place_[op + 1] += first_place_[op];
    ahead_ = 0;
    by_last_use_.clear();
    for (size_t i = 0; i < plan_.places.size(); ++i)
      if (const StepPlan::Place& place = plan_.places[i];
          place.result != StepPlan::kNone && place.last_op != StepPlan::kNone && !place.is_dropped)
        by_last_use_.push_back(i);
    std::ranges::sort(by_last_use_, {}, [this](size_t i) { return last_use_of(plan_.places[i]); });
    given_.assign(plan_.places.size(), Given());

    std::vector<uint64_t> calls;
    std::ranges::copy_if(plan_.calls, std::back_inserter(calls),
                         [](uint64_t call) { return call != StepPlan::kSameCall; });
    // From the end backwards: what is the same before the end of a round and before another point of it.
    const size_t count = calls.size();
    const CallMatcher backwards({calls.rbegin(), calls.rend()});
    size_t needed = std::min<size_t>(count, 1), same = 0;
    for (size_t i = 1; i + 1 < 2 * count; ++i) {
      same = backwards.after(same, calls[(2 * count - 1 - i) % count]);
      if (i + 1 < count + same) needed = std::min(count, std::max(needed, same + 1));
    }
    ending_ = CallMatcher({calls.end() - static_cast<std::ptrdiff_t>(needed), calls.end()});
    heard_ = 0;
    tries_ = kTries;
    is_on_ = count > 0;
    if (is_on_ && at_beginning) go_to(0);
  }
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
  // A step begins, and what is held is to be where it belongs. Where that cannot be had it is tried
  // a few times.
  bool wants_moves() const { return at_ == 0 && tries_ > 0 && !plan_.held.empty(); }
  const std::vector<StepPlan::Held>& held() const { return plan_.held; }
  void tried_moves(bool are_there) { tries_ = are_there ? kTries : std::max(tries_, 1u) - 1; }

  // This thread is about to run the next operator of the job, or one again.
  void op_begins() const {
    running_of_thread() = {};
    if (at_ != kLost) running_of_thread() = {this, number_, static_cast<uint32_t>(at_), 0, 0};
  }
  void step_begins(Op* op) const {
    running_of_thread() = {};
    if (op->planned_by != number_ || at_ == kLost) return;
    running_of_thread() = {this, number_, op->planned_as, ++op->planned_runs, 0};
  }
  // The job's operator ran; op: its record, or null.
  void ended(uint64_t signature, Op* op) {
    const uint64_t call = StepPlan::call_of(signature);
    if (at_ == kLost || plan_.calls[at_] != call) {
      if (at_ != kLost) {
        heard_ = 0;
        std::ranges::fill(given_, Given());
      }
      heard_ = ending_.after(heard_, call);
      go_to(heard_ == ending_.size() ? 0 : kLost);
      return;
    }
    if (op) {
      for (const Output& output : op->outputs) note(output, at_, 0);
      op->planned_by = number_;
      op->planned_as = static_cast<uint32_t>(at_);
      op->planned_runs = 0;
    }
    do ++at_;
    while (at_ < plan_.calls.size() && plan_.calls[at_] == StepPlan::kSameCall);
    if (at_ == plan_.calls.size()) go_to(0);
    ahead_ = first_place_[at_];
  }
  // The step that this thread runs gave this again, which was not there.
  void gave(const Output& output) {
    const Running& running = running_of_thread();
    if (running.plan == number_) note(output, running.op, running.run);
  }
  // What a run gave. Another storage may be at its address by now.
  struct Given {
    void* address = nullptr;
    uint64_t storage = 0;  // Storage::id
  };
  // What was used for the last time by a run that has just ended.
  void take_last_used(const Running& running, std::vector<Given>* all) {
    all->clear();
    if (running.plan != number_) return;
    const auto run = std::make_pair(running.op, running.run);
    auto place = std::ranges::lower_bound(
        by_last_use_, run, {}, [this](size_t i) { return last_use_of(plan_.places[i]); });
    for (; place != by_last_use_.end() && last_use_of(plan_.places[*place]) == run; ++place)
      if (const Given given = std::exchange(given_[*place], Given()); given.address)
        all->push_back(given);
  }
  // Where the next allocation of this thread goes; StepPlan::kNowhere if nothing says so.
  uint64_t next(uint64_t size_bytes) {
    Running& running = running_of_thread();
    if (!is_on()) return StepPlan::kNowhere;
    if (running.of == nullptr) return next_ahead(size_bytes);
    if (running.of != this || running.plan != number_) return StepPlan::kNowhere;
    const auto begin = plan_.places.begin();
    const auto from = begin + static_cast<std::ptrdiff_t>(first_place_[running.op]);
    const auto to = begin + static_cast<std::ptrdiff_t>(first_place_[running.op + 1]);
    auto place = std::lower_bound(
        from, to, std::make_tuple(running.run, running.ordinal),
        [](const StepPlan::Place& a, auto b) { return std::make_tuple(a.run, a.ordinal) < b; });
    for (; place != to && place->run == running.run; ++place) {
      if (place->is_ahead || place->size_bytes != size_bytes || place->offset == StepPlan::kNowhere)
        continue;
      running.ordinal = place->ordinal + 1;
      return place->offset;
    }
    return StepPlan::kNowhere;
  }

  // ---- by the thread of the operator ----
  static Running& running_of_thread() {
    thread_local Running running;
    return running;
  }

 private:
  static std::pair<uint32_t, uint32_t> last_use_of(const StepPlan::Place& place) {
    return {place.last_op, place.last_run};
  }
  static constexpr uint64_t kLost = UINT64_MAX;
  static constexpr uint32_t kTries = 3;
  static constexpr size_t kFarAhead = 16;  // places
  void go_to(uint64_t op) {
    at_ = op;
    if (op == 0)
      steps_.begins();
    else if (op == kLost)
      steps_.is_unknown();
  }
  void note(const Output& output, uint64_t op, uint32_t run) {
    if (!output.storage || output.rank < 0) return;
    for (size_t i = first_place_[op]; i < first_place_[op + 1]; ++i) {
      const StepPlan::Place& place = plan_.places[i];
      if (place.run != run || place.result != static_cast<uint32_t>(output.rank)) continue;
      given_[i] = {output.storage->address, output.storage->id};
      if (place.last_op == StepPlan::kNone) continue;
      output.storage->when_dropped = place.is_dropped ? WhenDropped::goes : WhenDropped::stays;
    }
  }
  uint64_t next_ahead(uint64_t size_bytes) {
    if (at_ == kLost) return StepPlan::kNowhere;
    const size_t end = std::min(plan_.places.size(), first_place_[at_] + kFarAhead);
    for (size_t i = ahead_; i < end; ++i) {
      const StepPlan::Place& place = plan_.places[i];
      if (!place.is_ahead || place.size_bytes != size_bytes) continue;
      ahead_ = i + 1;
      return place.offset;
    }
    return StepPlan::kNowhere;
  }

  StepCount& steps_;
  std::atomic<bool> is_on_{false};
  StepPlan plan_;
  std::vector<size_t> first_place_;  // by operator
  std::vector<size_t> by_last_use_;  // those of results, by the run that uses them last
  std::vector<Given> given_;         // the results, by place; without an address: past its last use
  uint64_t number_ = 0;              // of the plan
  uint64_t at_ = kLost;              // the operator that is next
  uint32_t tries_ = 0;               // that are left, to move what is held
  size_t ahead_ = 0;                 // the place from which on the next that is ahead is looked for
  // The calls with which a step ends, as many as occur nowhere else in it; and how many of them the
  // last calls of the job are.
  CallMatcher ending_;
  size_t heard_ = 0;
};

}  // namespace dtr
