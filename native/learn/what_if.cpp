#include "what_if.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <random>
#include <unordered_set>
#include <utility>

namespace dtr {

namespace {

// A policy that repeats so many times the job's own compute is as good as none.
constexpr double kHopeless = 20;

// Near the least budget a policy may do well by chance, and grind in the next step. So it is played
// with a little less memory, too.
constexpr double kShares[] = {1, 0.98, 0.96};
constexpr double kPlays = std::size(kShares);

// A job needs so much more than its program, as it is not played to the last detail.
constexpr double kMargin = 1.05;

// Work (Simulation::work) for each operator of the program, and at least: of a first plan, and of the
// search for another. A million is some 25 ms of a processor.
constexpr uint64_t kFirstWork = 2000, kLeastFirstWork = 10'000'000;
constexpr uint64_t kWideWork = 3000, kLeastWideWork = 80'000'000;
// A play by bytes that needs more for each operator searches so much that it is no good.
constexpr uint64_t kPlayWork = 900, kLeastPlayWork = 10'000'000;
// All plays for a budget that is advised.
constexpr uint64_t kMostAdvised = 200'000'000;
// In any other play.
constexpr uint64_t kMostWork = 200'000'000;
// Schedules of one policy are tried for a first plan, until one has addresses.
constexpr uint32_t kFirstTries = 4;
// Where there are no addresses for a schedule, the next has this share of its memory at most.
constexpr double kLessForAddresses = 0.97;
// And where this share of the room is left, it has that, too.
constexpr double kSpare = 0.01;

// Less than this share of the job's own compute is no gain of a policy.
constexpr double kLeastGain = 0.03;
// And less than this is none of a plan.
constexpr double kLeastPlanGain = 0.01;
// And this of one more plan.
constexpr double kLittle = 0.002;
// Of the memory, for the schedules that plans are made of.
constexpr double kPlanShares[] = {1.06, 1.03, 1, 0.99, 0.98, 0.97, 0.96, 0.94, 0.92, 0.9};
// With less memory a policy computes more again, so of those that may fit its first are enough. And
// after so many plays that cost too much no others are tried.
constexpr size_t kMostOfPolicy = 3;
constexpr size_t kMostExpensive = 3;
// So many of all of them are tried, the best first.
constexpr size_t kMostPlans = 12;
// Local search, from a schedule that repeats that much of a step's compute: so much work in all
// plays; how many weights change at once at most, how often that of an operator that is repeated, and
// by which factor at most, as a logarithm. A larger weight is tried more often there. No weight is
// further from 1, as costs are added up.
constexpr double kWorthSearching = 0.1;
constexpr uint64_t kMostSearched = 200'000'000;
constexpr uint32_t kMostChanges = 3;
constexpr double kOfRepeated = 0.5;
constexpr double kMostChange = 2;
constexpr double kUpwards = 0.7;
constexpr double kMostWeight = 1000;
constexpr double kMostWorse = 0.01;  // at first
// What slabs waste, and what the last of each size have free. (With 1.1 some plans take a chunk for
// a slab from large blocks, and give it back, in each step.)
constexpr double kSlabSlack = 1.5;
constexpr uint64_t kSlabSpare = 32768;

struct Choice {
  int32_t cost;
  int32_t size;
  double staleness;
  bool foresight;
  Dealloc dealloc;
  int32_t room;
};
// The published policies (dtr_alloc/heuristics.py), and between them. The most promising first, of
// which the first plan is made: those of DTR's paper are good at chains, and take little work.
constexpr Choice kChoices[] = {
    {DTR_COST_NEIGHBORHOOD, DTR_SIZE_BYTES, 1, false, Dealloc::eager, DTR_ROOM_SINGLE},
    {DTR_COST_COMPONENT, DTR_SIZE_BYTES, 1, false, Dealloc::eager, DTR_ROOM_SINGLE},
    {DTR_COST_MARGINAL, DTR_SIZE_BYTES, 0.5, true, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_NEIGHBORHOOD, DTR_SIZE_BYTES, 1, true, Dealloc::lazy, DTR_ROOM_SINGLE},
    {DTR_COST_MARGINAL, DTR_SIZE_BYTES, 0.5, false, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_NEIGHBORHOOD, DTR_SIZE_BYTES, 1, false, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_MARGINAL, DTR_SIZE_BYTES, 1, false, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_COMPONENT, DTR_SIZE_BYTES, 1, false, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_NEIGHBORHOOD, DTR_SIZE_BYTES, 0.5, false, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_ANCESTORS, DTR_SIZE_BYTES, 0.5, false, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_ANCESTORS, DTR_SIZE_BYTES, 0.5, true, Dealloc::lazy, DTR_ROOM_AUTO},
    {DTR_COST_COMPONENT, DTR_SIZE_NONE, 1, false, Dealloc::eager, DTR_ROOM_WINDOW},
    {DTR_COST_NONE, DTR_SIZE_NONE, 1, false, Dealloc::eager, DTR_ROOM_SINGLE},
};
constexpr size_t kFirstChoices = 4;

std::vector<EvictionPolicy> policies() {
  std::vector<EvictionPolicy> all;
  for (const Choice& choice : kChoices) {
    EvictionPolicy policy;
    policy.heuristic.select = DTR_SELECT_SCORE;
    policy.heuristic.cost = choice.cost;
    policy.heuristic.size = choice.size;
    policy.heuristic.staleness_exponent = choice.staleness;
    policy.heuristic.recompute_factor = 1;
    policy.heuristic.foresight = choice.foresight;
    policy.room = choice.room;
    policy.dealloc = choice.dealloc;
    all.push_back(policy);
  }
  return all;
}

}  // namespace

uint32_t WhatIf::candidates() { return std::size(kChoices); }

dtr_runtime_options WhatIf::options_of(const EvictionPolicy& policy, uint64_t budget_bytes,
                                       double most_ns) const {
  dtr_runtime_options options = memory_.options;
  options.common.heuristic = policy.heuristic;
  options.common.dealloc = static_cast<int32_t>(policy.dealloc);
  options.common.budget_bytes = budget_bytes;
  const auto own_ns = static_cast<double>(std::max<int64_t>(program_.cost_ns, 1));
  options.common.max_recompute = static_cast<int64_t>(std::min(most_ns, kHopeless * own_ns));
  options.room = policy.room;
  options.replay_ns = memory_.room_price.replay_ns;
  return options;
}

double WhatIf::repeats(const Simulation& run) const {
  return static_cast<double>(run.result.remat_cost + run.result.swap_cost) /
         static_cast<double>(std::max<int64_t>(program_.cost_ns, 1));
}

double WhatIf::search_ns(const Simulation& run) const {
  return memory_.room_price.search_ns * static_cast<double>(run.result.searches);
}

double WhatIf::cost_ns(const Simulation& run) const {
  // A pool that maps nothing says nothing of chunks.
  const uint64_t filled =
      program_.counted_from > 0
          ? 0
          : run.result.peak_bytes / std::max<uint64_t>(memory_.options.chunk_bytes, 1);
  const uint64_t maps = run.result.mapped_chunks;
  return static_cast<double>(run.result.remat_cost + run.replay_cost + run.result.swap_cost +
                             run.result.move_cost) +
         memory_.room_price.map_ns * static_cast<double>(maps > filled ? maps - filled : 0) +
         memory_.room_price.remap_ns * static_cast<double>(run.result.remaps);
}

WhatIf::Allowance WhatIf::allow(uint64_t work) const {
  return {worked_ + work, std::max(kLeastPlayWork, kPlayWork * program_.calls.size())};
}

void WhatIf::simulate(const dtr_runtime_options& options, uint64_t most_work,
                      Simulation& run) const {
  run.most_work = most_work;
  run.counted_from = std::max(run.counted_from, program_.counted_from);
  simulate_runtime(options, program_, run);
  worked_ += run.work;
}

std::optional<WhatIf::Found> WhatIf::play(const EvictionPolicy& policy, uint64_t budget_bytes,
                                          double most_ns, uint64_t most_work,
                                          uint64_t* peak_bytes) const {
  Simulation run;
  simulate(options_of(policy, budget_bytes, most_ns), most_work, run);
  if (peak_bytes) *peak_bytes = run.result.peak_bytes;
  if (run.result.status != DTR_SIMULATION_OK || cost_ns(run) >= most_ns) return std::nullopt;
  return Found{policy, cost_ns(run), repeats(run), search_ns(run)};
}

std::optional<WhatIf::Found> WhatIf::usual(const EvictionPolicy& policy) const {
  return play(policy, memory_.budget_bytes, std::numeric_limits<double>::infinity(), UINT64_MAX);
}

// None if it fails, or costs as much as most_ns.
std::optional<WhatIf::Found> WhatIf::play_near(const EvictionPolicy& policy, double most_ns,
                                               const Allowance& allowance) const {
  Found sum{policy, 0, 0, 0};
  for (const double share : kShares) {
    const auto budget = static_cast<uint64_t>(share * static_cast<double>(memory_.budget_bytes));
    const std::optional<Found> found =
        play(policy, budget, kPlays * most_ns - sum.cost_ns, work_of_play(allowance));
    if (!found) return std::nullopt;
    sum.cost_ns += found->cost_ns;
    sum.repeats += found->repeats;
    sum.search_ns += found->search_ns;
  }
  return Found{policy, sum.cost_ns / kPlays, sum.repeats / kPlays, sum.search_ns / kPlays};
}

std::optional<WhatIf::Found> WhatIf::best_policy(const std::vector<EvictionPolicy>& policies,
                                                 double most_ns, const Allowance& allowance) const {
  std::optional<Found> best;
  for (const EvictionPolicy& policy : policies) {
    if (!is_left(allowance)) break;
    if (std::optional<Found> found = play_near(policy, best ? best->cost_ns : most_ns, allowance))
      best = std::move(found);
  }
  return best;
}

// What it computes again if bytes alone count; none if it fails, or that is as much as most_ns.
std::optional<double> WhatIf::play_bytes(const Schedule& schedule, double most_ns,
                                         uint64_t most_work, AllocationTrace* trace) const {
  dtr_runtime_options options = options_of(schedule.policy, schedule.budget_bytes, most_ns);
  options.space = DTR_SPACE_BYTES;
  options.chunk_bytes = 0;
  options.move_bytes_per_s = 0;
  options.swap_bytes = 0;
  Simulation run;
  if (!schedule.weights.empty())
    for (uint64_t op = 0; op < program_.operators; ++op)
      run.weights.push_back(schedule.weights[op % schedule.weights.size()]);
  run.trace = trace;
  run.period = has_steps() ? program_.counted_from : 0;
  simulate(options, most_work, run);
  if (run.result.status != DTR_SIMULATION_OK) return std::nullopt;
  return static_cast<double>(run.result.remat_cost + run.replay_cost);
}

// A plan of a schedule that was played, or of one like it for which there are addresses.
std::optional<WhatIf::Found> WhatIf::plan_of(Schedule schedule, AllocationTrace trace,
                                             double most_ns, const Allowance& allowance) const {
  const uint64_t period = program_.counted_from;
  for (uint32_t tries = 0; is_left(allowance); ++tries) {
    const StepBlocks step(trace, period, period);
    const uint64_t limit = limit_of(step, memory_.pool_bytes),
                   needed = step.bytes_with(memory_.held);
    const uint64_t spare = limit - std::min(limit, needed);
    const uint64_t excess = needed - std::min(needed, limit);
    const bool has_spare =
        tries == 0 && static_cast<double>(spare) > kSpare * static_cast<double>(limit);
    if (excess == 0 && !has_spare)
      if (std::optional<Found> found = follow(schedule, trace, most_ns, work_of_play(allowance)))
        return found;
    if (tries == kFirstTries) break;
    Schedule next = schedule;
    if (has_spare)
      next.budget_bytes += spare;
    else
      next.budget_bytes = std::min(
          next.budget_bytes - std::min(next.budget_bytes, excess),
          static_cast<uint64_t>(kLessForAddresses * static_cast<double>(next.budget_bytes)));
    AllocationTrace played;
    if (play_bytes(next, most_ns, work_of_play(allowance), &played)) {
      schedule = std::move(next);
      trace = std::move(played);
    } else if (!has_spare) {
      break;
    }
  }
  return std::nullopt;
}

// What a policy would do if only bytes counted is a schedule. What it keeps without need has no
// address, so the budget of a schedule is what it needs at once more, or less, than there is room for.
std::optional<WhatIf::Found> WhatIf::first(const EvictionPolicy& usual, double usual_ns) const {
  const auto own_ns = static_cast<double>(program_.cost_ns);
  const uint64_t operators = program_.calls.size();
  const uint64_t work = kLeastFirstWork + kFirstWork * operators;
  const Allowance allowance = allow(work);
  const double most_ns = std::min(usual_ns - kLittle * own_ns, kHopeless * own_ns);
  const double gain_ns = kLeastGain * own_ns;
  std::vector<EvictionPolicy> first = policies();
  first.resize(kFirstChoices);
  std::vector<std::pair<Schedule, AllocationTrace>>
      schedules;  // each repeats less than those before
  for (const EvictionPolicy& policy : first) {
    if (!has_steps() || !is_left(allowance)) break;
    ++progress_.tried;
    Schedule schedule{policy, memory_.budget_bytes, 0};
    AllocationTrace trace;
    const std::optional<double> again_ns =
        play_bytes(schedule, schedules.empty() ? most_ns : schedules.back().first.again_ns,
                   std::min(work_of_play(allowance), work / kFirstChoices), &trace);
    if (!again_ns) continue;
    schedule.again_ns = *again_ns;
    schedules.emplace_back(std::move(schedule), std::move(trace));
  }
  std::optional<Found> found;
  for (; !schedules.empty() && is_left(allowance); schedules.pop_back()) {
    const Schedule schedule = schedules.back().first;
    const double less_ns = found ? found->cost_ns - kLittle * own_ns : most_ns;
    if (schedule.again_ns >= less_ns) break;
    if (auto plan = plan_of(schedule, std::move(schedules.back().second), less_ns, allowance))
      found = std::move(plan);
    // A plan does what it promises, and leaves little for a policy to gain, but where policies may
    // swap, or memory for addresses is short.
    if (found && memory_.options.swap_bytes == 0 && found->cost_ns <= schedule.again_ns + gain_ns)
      return found;
  }
  first.push_back(usual);
  const double most_of_policy = found ? found->cost_ns : usual_ns - gain_ns;
  const std::optional<Found> policy = best_policy(first, most_of_policy, allowance);
  return policy && policy->cost_ns + policy->search_ns < most_of_policy ? policy : found;
}

// Near the smallest budgets schedules differ by chance. So several are played, and the best one that
// fits is the plan.
std::optional<WhatIf::Found> WhatIf::wider(const Found& known) const {
  const auto own_ns = static_cast<double>(program_.cost_ns);
  const uint64_t work = std::max(kLeastWideWork, kWideWork * program_.calls.size());
  const Allowance of_plans = allow(work);
  const uint64_t period = program_.counted_from;
  const double most_ns =
      std::min(known.cost_ns + known.search_ns - kLittle * own_ns, kHopeless * own_ns);
  std::vector<Schedule> schedules;
  progress_.tried = 0;
  for (const EvictionPolicy& policy : policies()) {
    if (!has_steps() || !is_left(of_plans)) break;
    ++progress_.tried;
    size_t fit = 0, expensive = 0;
    for (const double share : kPlanShares) {
      if (!is_left(of_plans) || fit == kMostOfPolicy || expensive == kMostExpensive) break;
      const double bytes = share * static_cast<double>(memory_.budget_bytes);
      Schedule schedule{policy, static_cast<uint64_t>(bytes), 0};
      AllocationTrace trace;
      const uint64_t before = worked_, most_work = work_of_play(of_plans);
      const std::optional<double> again_ns = play_bytes(schedule, most_ns, most_work, &trace);
      if (worked_ - before > most_work) break;
      if (!again_ns) {
        ++expensive;
        continue;
      }
      const StepBlocks step(trace, period, period);
      if (!has_room_for(step)) continue;
      schedule.again_ns = *again_ns;
      schedules.push_back(schedule);
      ++fit;
    }
  }
  std::optional<Found> planned = plan_by(schedules, most_ns);
  if ((planned || known.has_plan()) && memory_.options.swap_bytes == 0) return planned;
  const double gain_ns = known.has_plan() ? 0 : kLeastGain * own_ns;
  const Allowance of_policies = allow(work);
  const double most_of_policy = planned ? planned->cost_ns : known.cost_ns - gain_ns;
  const std::optional<Found> policy = best_policy(policies(), most_of_policy, of_policies);
  return policy && policy->cost_ns + policy->search_ns < most_of_policy ? policy : planned;
}

std::optional<WhatIf::Found> WhatIf::best(const EvictionPolicy& usual, double usual_ns,
                                          bool any) const {
  std::optional<Found> found = first(usual, usual_ns);
  first_work_ = worked_;
  if (found && any) return found;
  if (std::optional<Found> more = wider(found ? *found : Found{usual, usual_ns, 0, 0}))
    found = std::move(more);
  return found;
}

std::optional<WhatIf::Found> WhatIf::plan_by(std::vector<Schedule>& schedules,
                                             double most_ns) const {
  std::ranges::stable_sort(schedules, {}, &Schedule::again_ns);
  const double little_ns = kLittle * static_cast<double>(program_.cost_ns);
  std::optional<Found> best;
  for (size_t i = 0; i < schedules.size() && i < kMostPlans && !progress_.cancelled; ++i) {
    const double less_ns = best ? best->cost_ns - little_ns : most_ns;
    if (schedules[i].again_ns >= less_ns) break;
    AllocationTrace trace;
    play_bytes(schedules[i], less_ns, kMostWork, &trace);
    if (std::optional<Found> planned = follow(schedules[i], trace, less_ns, kMostWork))
      best = std::move(planned);
  }
  return best;
}

// A policy evicts the less of an operator, the more the operator is said to cost. So any weights make a
// schedule. A change of few is kept if it repeats no more, or early in the search (simulated
// annealing) a little more.
std::optional<WhatIf::Found> WhatIf::better(const Found& known) const {
  const auto own_ns = static_cast<double>(program_.cost_ns);
  constexpr auto kMostNs = static_cast<double>(INT64_MAX);
  if (!known.has_plan() || known.repeats < kWorthSearching || own_ns > kMostNs / (4 * kMostWeight))
    return std::nullopt;
  const uint64_t period = program_.counted_from;
  const Allowance allowance = allow(kMostSearched);
  Schedule here{known.policy, known.schedule_bytes, kHopeless * own_ns,
                std::vector<double>(period, 1)};
  std::vector<Schedule> better;
  std::vector<uint64_t> repeated;  // operators of the step, as often as they are
  const auto go_to = [&](const Schedule& next, double most_ns) {
    AllocationTrace trace;
    const std::optional<double> again_ns =
        play_bytes(next, most_ns, work_of_play(allowance), &trace);
    if (!again_ns) return;
    const StepBlocks step(trace, period, period);
    if (!has_room_for(step)) return;
    here = next;
    here.again_ns = *again_ns;
    if (better.empty() || here.again_ns < better.back().again_ns) better.push_back(here);
    repeated.clear();
    for (const AllocationTrace::Block& block : trace.blocks)
      if (block.op != AllocationTrace::kNoOp && block.run > 0)
        repeated.push_back(block.op % period);
  };
  std::minstd_rand random;  // the same each time
  const auto below = [&](size_t count) { return random() % count; };
  const auto share = [&] { return static_cast<double>(random()) / std::minstd_rand::max(); };
  go_to(Schedule(here), here.again_ns);
  while (is_left(allowance)) {
    Schedule next = here;
    for (size_t changes = 1 + below(kMostChanges); changes > 0; --changes) {
      const bool of_repeated = share() < kOfRepeated && !repeated.empty();
      const uint64_t op = of_repeated ? repeated[below(repeated.size())] : below(period);
      const double change = kMostChange * (2 * share() - (of_repeated ? 1 - kUpwards : 1));
      double& weight = next.weights[op];
      weight = std::clamp(weight * std::exp(change), 1 / kMostWeight, kMostWeight);
    }
    const double left =
        static_cast<double>(allowance.end - worked_) / static_cast<double>(kMostSearched);
    go_to(next, (1 + kMostWorse * left * share()) * here.again_ns);
  }
  return plan_by(better, known.cost_ns - kLeastPlanGain * own_ns);
}

bool WhatIf::has_room_for(const StepBlocks& step) const {
  return step.bytes_with(memory_.held) <= limit_of(step, memory_.pool_bytes);
}

uint64_t WhatIf::limit_of(const StepBlocks& step, uint64_t budget_bytes) const {
  const auto slabs = static_cast<uint64_t>(
      kSlabSlack * static_cast<double>(memory_.slab_bytes + step.small_bytes()));
  const uint64_t taken =
      slabs + std::max({kSlabSpare, memory_.options.chunk_bytes, memory_.slab_growth_bytes});
  return budget_bytes - std::min(budget_bytes, taken);
}

// The plan of a trace's step, if it costs less in the heap. The first step that follows it
// brings things in place, so the one behind it counts.
std::optional<WhatIf::Found> WhatIf::follow(const Schedule& schedule, const AllocationTrace& trace,
                                            double most_ns, uint64_t most_work) const {
  const uint64_t period = program_.counted_from;
  const StepBlocks step(trace, period, period);
  std::optional<StepPlan> plan = step.lay_out(memory_.held, limit_of(step, memory_.pool_bytes));
  if (!plan) return std::nullopt;
  const auto of_step = [&](const std::vector<uint64_t>& calls) {
    const auto begin = calls.begin() + static_cast<std::ptrdiff_t>(period);
    return std::vector<uint64_t>(begin, begin + static_cast<std::ptrdiff_t>(period));
  };
  plan->calls = of_step(program_.calls);
  // The same in the heap of the play, where other addresses are held.
  bool fits = true;
  Simulation run;
  run.plan_from = run.period = period;
  run.make_plan = [&](const std::vector<NamedBlock>& blocks) {
    const std::unordered_set<uint64_t> survivors(trace.survivors.begin(), trace.survivors.end());
    std::vector<HeldBlock> held;
    for (const NamedBlock& block : blocks)
      if (block.serial == 0 || survivors.count(block.serial) > 0)
        held.push_back({block.offset, block.size_bytes,
                        memory_.options.move_bytes_per_s > 0 ? block.handle : nullptr});
    std::optional<StepPlan> played = step.lay_out(held, limit_of(step, memory_.budget_bytes));
    fits = played.has_value();
    if (!fits) return StepPlan{};
    played->calls = of_step(trace.calls);
    return *played;
  };
  run.counted_from = 2 * period;
  dtr_runtime_options options = options_of(schedule.policy, memory_.budget_bytes,
                                           kHopeless * static_cast<double>(program_.cost_ns));
  options.swap_bytes = 0;
  simulate(options, most_work, run);
  if (!fits || run.result.status != DTR_SIMULATION_OK) return std::nullopt;
  // One step counted, as many as the program has.
  const auto share = static_cast<double>(program_.operators / period - 1) /
                     static_cast<double>(program_.operators / period - 2);
  Found found{schedule.policy,      share * (cost_ns(run) + search_ns(run)),
              share * repeats(run), 0,
              std::move(*plan),     schedule.budget_bytes};
  if (found.cost_ns >= most_ns) return std::nullopt;
  return found;
}

std::optional<WhatIf::Budget> WhatIf::least_budget(const EvictionPolicy& policy,
                                                   double most_repeats, uint64_t least,
                                                   uint64_t beside) const {
  const double most_ns = most_repeats * static_cast<double>(program_.cost_ns) + 1;
  // Without a limit nothing is computed again.
  uint64_t peak = 0;
  if (!play(policy, UINT64_MAX, std::numeric_limits<double>::infinity(), UINT64_MAX, &peak))
    return std::nullopt;
  peak = std::max(peak, least);
  uint64_t low = std::max(memory_.budget_bytes, least), high = peak;
  const Allowance of_search = allow(kMostAdvised / 2);
  const auto do_well = [&](uint64_t bytes, const Allowance& allowance) {
    return play(policy, bytes, most_ns, work_of_play(allowance));
  };
  if (peak <= memory_.budget_bytes) return std::nullopt;
  if (low == memory_.budget_bytes && do_well(low, of_search)) return std::nullopt;
  const uint64_t enough = std::max<uint64_t>((high - low) / 50, 1);
  while (high - low > enough && is_left(of_search)) {
    const uint64_t middle = low + (high - low) / 2;
    (do_well(middle, of_search) ? high : low) = middle;
  }
  const auto stepped = [&](double bytes) {
    constexpr uint64_t kStep = Tuner::kAdvisedStep;
    const uint64_t all = static_cast<uint64_t>(bytes) + beside + kStep - 1;
    return std::min(all - all % kStep - beside, peak);
  };
  const Allowance of_advice = allow(kMostAdvised / 2);
  for (const uint64_t bytes :
       {stepped(kMargin * static_cast<double>(high)), stepped(static_cast<double>(high)), peak})
    if (const std::optional<Found> found = do_well(bytes, of_advice))
      return Budget{bytes, found->repeats};
  return std::nullopt;
}

}  // namespace dtr
