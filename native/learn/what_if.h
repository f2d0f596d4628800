// what_if.h: what-if plays: of a job's step on an engine of its own (simulate/runtime.h), with other policies
// or with more memory, to know what they would cost.
//
// What a policy costs is the compute that it repeats, what it moves and swaps, and what the kernel, or
// the driver, takes to map memory anew. All of it is computed from the program, so a play of the
// same program gives the same result everywhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "dtr_alloc.h"
#include "planner.h"
#include "policy/room_price.h"
#include "run/tuner.h"
#include "simulate/runtime.h"
#include "step_log.h"

namespace dtr {

// The memory of a job, as it is simulated.
struct SimulatedMemory {
  uint64_t budget_bytes = 0;
  dtr_runtime_options options{};  // but for the budget and the policy. Plans never swap.
  RoomPrice room_price;
  // For plans: all of the pool's budget, the bytes of its slabs and how many more they are to have
  // room for, and what is in its heap all the time, by offset.
  uint64_t pool_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t slab_growth_bytes = 0;
  std::vector<HeldBlock> held;
};

// How far a search is, for others to see; and whether they want no more of it.
struct SearchProgress {
  std::atomic<bool> cancelled{false};
  std::atomic<uint32_t> tried{0};  // policies, the one that is played included
};

// Its work is counted alike everywhere (Simulation::work), and bounded: so two searches of one program
// find the same.
class WhatIf {
 public:
  // progress.cancelled: ends what is asked for between two plays, with what is known by then.
  WhatIf(const JobProgram& program, const SimulatedMemory& memory, SearchProgress& progress)
      : program_(program), memory_(memory), progress_(progress) {}

  struct Found {
    EvictionPolicy policy;
    double cost_ns;      // beside the job's own
    double repeats;      // computed again, or swapped, in terms of the job's own compute
    double search_ns;    // to choose what to evict, beside the cost; 0: a plan's is part of it
    StepPlan plan = {};  // to follow beside the policy; without calls there is none
    uint64_t schedule_bytes = 0;  // with so many was its schedule played
    bool has_plan() const { return !plan.calls.empty(); }
  };
  // By a policy as it is; none if it does not play the program to its end.
  std::optional<Found> usual(const EvictionPolicy& policy) const;
  // The most promising policies by bytes, and a plan of the best one's schedule. None if that costs
  // no less than the job's usual policy, which is said to cost so much.
  std::optional<Found> first(const EvictionPolicy& usual, double usual_ns) const;
  // A plan, or else a policy, that costs less than one that is known: by all policies, with more
  // memory and with less.
  std::optional<Found> wider(const Found& known) const;
  // A plan that costs less than one that was found, by local search from its schedule on.
  std::optional<Found> better(const Found& known) const;
  // What first() and wider() find one after the other. any: the second only if the first one finds
  // nothing.
  std::optional<Found> best(const EvictionPolicy& usual, double usual_ns, bool any = false) const;

  // Of best(), until it had the first.
  uint64_t first_work() const { return first_work_; }

  static uint32_t candidates();  // policies

  struct Budget {
    uint64_t bytes;
    double repeats;  // as above
  };
  // A budget that was played, with which the policy repeats no more than that: the least found from
  // `least` on, to 2 % of what a search has to look through, and kMargin more, up to what the program
  // takes without a budget. With `beside`, of which the program knows nothing, it is one of
  // Tuner::kAdvisedStep, if that is not too much. None if the program does as well by the budget that
  // it has, or none was found with bounded work.
  std::optional<Budget> least_budget(const EvictionPolicy& policy, double most_repeats,
                                     uint64_t least, uint64_t beside = 0) const;

 private:
  // Work up to `end` in all, and so much for a play.
  struct Allowance {
    uint64_t end, play;
  };
  Allowance allow(uint64_t work) const;
  bool is_left(const Allowance& of) const { return !progress_.cancelled && worked_ < of.end; }
  uint64_t work_of_play(const Allowance& of) const {
    return is_left(of) ? std::min(of.end - worked_, of.play) : 0;
  }
  struct Schedule {
    EvictionPolicy policy;
    uint64_t budget_bytes;
    double again_ns;
    std::vector<double> weights = {};  // by operator of the step, if its cost is taken for another
  };
  bool has_steps() const {
    return program_.counted_from > 0 && program_.calls.size() >= 3 * program_.counted_from;
  }
  // The policy that costs least of some, in the heap; none if none costs less than most_ns.
  std::optional<Found> best_policy(const std::vector<EvictionPolicy>& policies, double most_ns,
                                   const Allowance& allowance) const;
  // With all of the memory and with less.
  std::optional<Found> play_near(const EvictionPolicy& policy, double most_ns,
                                 const Allowance& allowance) const;
  std::optional<Found> plan_of(Schedule schedule, AllocationTrace trace, double most_ns,
                               const Allowance& allowance) const;
  // The plan of the schedule that repeats least of those that fit; none if it costs most_ns.
  std::optional<Found> plan_by(std::vector<Schedule>& schedules, double most_ns) const;
  std::optional<double> play_bytes(const Schedule& schedule, double most_ns, uint64_t most_work,
                                   AllocationTrace* trace) const;
  // What of a budget is left for blocks that are no slabs'.
  uint64_t limit_of(const StepBlocks& step, uint64_t budget_bytes) const;
  bool has_room_for(const StepBlocks& step) const;
  std::optional<Found> follow(const Schedule& schedule, const AllocationTrace& trace,
                              double most_ns, uint64_t most_work) const;
  dtr_runtime_options options_of(const EvictionPolicy& policy, uint64_t budget_bytes,
                                 double most_ns) const;
  double repeats(const Simulation& run) const;
  double cost_ns(const Simulation& run) const;
  double search_ns(const Simulation& run) const;
  void simulate(const dtr_runtime_options& options, uint64_t most_work, Simulation& run) const;
  // What it costs beside the job's own; none if it fails, or costs as much as `most_ns`, or takes
  // more work.
  std::optional<Found> play(const EvictionPolicy& policy, uint64_t budget_bytes, double most_ns,
                            uint64_t most_work, uint64_t* peak_bytes = nullptr) const;

  const JobProgram& program_;
  const SimulatedMemory& memory_;
  SearchProgress& progress_;
  mutable uint64_t worked_ = 0, first_work_ = 0;
};

}  // namespace dtr
