// rehearsal.cpp: see rehearsal.h.
#include "rehearsal.h"

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

// Operators in all plays of either search: few seconds of a processor. (Not a time, as two runs
// decide alike.)
constexpr uint64_t kMostPlayed = 600'000;

// Less than this share of the job's own compute is no gain of a plan.
constexpr double kLeastPlanGain = 0.01;
// And less than that is none of one more plan.
constexpr double kLittle = 0.002;
// Of the memory, for the schedules that plans are made of.
constexpr double kPlanShares[] = {1.06, 1.03, 1, 0.99, 0.98, 0.97, 0.96, 0.94, 0.92, 0.9};
// With less memory a policy computes more again, so of those that may fit its first are enough.
constexpr size_t kMostOfPolicy = 3;
// So many of all of them are tried, the best first.
constexpr size_t kMostPlans = 12;
// Local search, from a schedule that repeats that much of a step's compute: so many operators in all
// plays; how many weights change at once at most, how often that of an operator that is repeated, and
// by which factor at most, as a logarithm. A larger weight is tried more often there. No weight is
// further from 1, as costs are added up.
constexpr double kWorthSearching = 0.1;
constexpr uint64_t kMostSearched = 1'000'000;
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
  double staleness;
  bool foresight = false;
};
// Of the published policies (dtr_alloc/heuristics.py), and between them.
constexpr Choice kChoices[] = {
    {DTR_COST_MARGINAL, 0.5},         {DTR_COST_NEIGHBORHOOD, 1},
    {DTR_COST_MARGINAL, 1},           {DTR_COST_COMPONENT, 1},
    {DTR_COST_NEIGHBORHOOD, 0.5},     {DTR_COST_ANCESTORS, 0.5},
    {DTR_COST_MARGINAL, 0.5, true},   {DTR_COST_ANCESTORS, 0.5, true},
    {DTR_COST_NEIGHBORHOOD, 1, true},
};

// What a job begins with (marginal) is one of them.
std::vector<EvictionPolicy> policies(const EvictionPolicy& usual) {
  std::vector<EvictionPolicy> all;
  for (const Choice& choice : kChoices) {
    all.push_back(usual);
    all.back().dealloc = Dealloc::lazy;
    all.back().heuristic.cost = choice.cost;
    all.back().heuristic.foresight = choice.foresight;
    all.back().heuristic.staleness_exponent = choice.staleness;
  }
  return all;
}

}  // namespace

dtr_runtime_options Rehearsal::options_of(const EvictionPolicy& policy, uint64_t budget_bytes,
                                          double most_ns) const {
  dtr_runtime_options options{};
  options.common.heuristic = policy.heuristic;
  options.common.dealloc = static_cast<int32_t>(policy.dealloc);
  options.common.budget_bytes = budget_bytes;
  const auto own_ns = static_cast<double>(std::max<int64_t>(program_.cost_ns, 1));
  options.common.max_recompute = static_cast<int64_t>(std::min(most_ns, kHopeless * own_ns));
  options.space = stage_.fixed ? DTR_SPACE_FIXED : DTR_SPACE_HEAP;
  options.history_ops = stage_.history_ops;
  options.room = policy.room;
  options.chunk_bytes = stage_.chunk_bytes;
  options.move_bytes_per_s = stage_.move_bytes_per_s;
  options.swap_bytes = stage_.swap_bytes;
  options.swap_out_bytes_per_s = stage_.swap_out_bytes_per_s;
  options.swap_in_bytes_per_s = stage_.swap_in_bytes_per_s;
  return options;
}

double Rehearsal::repeats(const Simulation& run) const {
  return static_cast<double>(run.result.remat_cost + run.result.swap_cost) /
         static_cast<double>(std::max<int64_t>(program_.cost_ns, 1));
}

double Rehearsal::search_ns(const Simulation& run) const {
  return stage_.room_price.search_ns * static_cast<double>(run.result.searches);
}

double Rehearsal::cost_ns(const Simulation& run) const {
  // A pool that maps nothing says nothing of chunks.
  const uint64_t filled = program_.counted_from > 0
                              ? 0
                              : run.result.peak_bytes / std::max<uint64_t>(stage_.chunk_bytes, 1);
  const uint64_t maps = run.result.mapped_chunks;
  return static_cast<double>(run.result.remat_cost + run.result.swap_cost + run.result.move_cost) +
         stage_.room_price.map_ns * static_cast<double>(maps > filled ? maps - filled : 0) +
         stage_.room_price.remap_ns * static_cast<double>(run.result.remaps);
}

std::optional<Rehearsal::Found> Rehearsal::play(const EvictionPolicy& policy, uint64_t budget_bytes,
                                                double most_ns, uint64_t* peak_bytes) const {
  Simulation run;
  simulate_runtime(options_of(policy, budget_bytes, most_ns), program_.view(), run);
  played_ += program_.workspace_at.size() + run.result.remat_ops;
  if (peak_bytes) *peak_bytes = run.result.peak_bytes;
  if (run.result.status != DTR_SIMULATION_OK || cost_ns(run) >= most_ns) return std::nullopt;
  return Found{policy, cost_ns(run), repeats(run), search_ns(run)};
}

// With all of the memory and with less; none if it fails, or costs as much as most_ns.
std::optional<Rehearsal::Found> Rehearsal::play_near(const EvictionPolicy& policy,
                                                     double most_ns) const {
  Found sum{policy, 0, 0, 0};
  for (const double share : kShares) {
    const auto budget = static_cast<uint64_t>(share * static_cast<double>(stage_.budget_bytes));
    const std::optional<Found> found = play(policy, budget, kPlays * most_ns - sum.cost_ns);
    if (!found) return std::nullopt;
    sum.cost_ns += found->cost_ns;
    sum.repeats += found->repeats;
    sum.search_ns += found->search_ns;
  }
  return Found{policy, sum.cost_ns / kPlays, sum.repeats / kPlays, sum.search_ns / kPlays};
}

std::optional<Rehearsal::Found> Rehearsal::best_policy(const EvictionPolicy& usual,
                                                       std::optional<Found> best) const {
  const uint64_t most_played = played_ + kMostPlayed;
  for (const EvictionPolicy& policy : policies(usual)) {
    if (cancelled_ || played_ > most_played) break;
    const double most_ns = best ? best->cost_ns : std::numeric_limits<double>::infinity();
    if (std::optional<Found> found = play_near(policy, most_ns)) best = std::move(found);
  }
  return best;
}

std::optional<Rehearsal::Found> Rehearsal::best(const EvictionPolicy& usual) const {
  const auto own_ns = static_cast<double>(program_.cost_ns);
  const std::optional<Found> first = play_near(usual, std::numeric_limits<double>::infinity());
  // A plan does what it promises, and leaves little for a policy to gain, but where policies may swap.
  Found planned = first.value_or(Found{usual, kHopeless * own_ns, kHopeless, 0});
  // What is searched for is saved, too.
  planned.cost_ns += planned.search_ns;
  const double most_ns = planned.cost_ns - kLeastPlanGain * own_ns;
  plan(planned);
  const bool is_planned = !planned.plan.calls.empty() && planned.cost_ns <= most_ns;
  if (is_planned && stage_.swap_bytes == 0) return planned;
  std::optional<Found> best = best_policy(usual, is_planned ? std::move(planned) : first);
  const bool has_plan = best && !best->plan.calls.empty();
  if (best && !has_plan && first && best->cost_ns > first->cost_ns - kLeastGain * own_ns)
    best.reset();
  return best;
}

// What it computes again if bytes alone count; none if it fails, or that is as much as most_ns.
std::optional<double> Rehearsal::play_bytes(const Schedule& schedule, double most_ns,
                                            Trajectory* trajectory) const {
  dtr_runtime_options options = options_of(schedule.policy, schedule.budget_bytes, most_ns);
  options.space = DTR_SPACE_BYTES;
  options.chunk_bytes = 0;
  options.move_bytes_per_s = 0;
  options.swap_bytes = 0;
  Program program = program_.view();
  std::vector<double> weights;
  if (!schedule.weights.empty()) {
    for (uint64_t op = 0; op < program.operators; ++op)
      weights.push_back(schedule.weights[op % schedule.weights.size()]);
    program.weights = weights.data();
  }
  Simulation run;
  run.trajectory = trajectory;
  simulate_runtime(options, program, run);
  played_ += program_.workspace_at.size() + run.result.remat_ops;
  if (run.result.status != DTR_SIMULATION_OK) return std::nullopt;
  return static_cast<double>(run.result.remat_cost);
}

std::optional<double> Rehearsal::play_to_fit(const Schedule& schedule, double most_ns,
                                             Trajectory* trajectory) const {
  const std::optional<double> again_ns = play_bytes(schedule, most_ns, trajectory);
  if (!again_ns) return std::nullopt;
  const StepBlocks step(*trajectory, program_.counted_from, program_.counted_from);
  if (!step.may_fit(stage_.held, limit_of(step, stage_.pool_bytes))) return std::nullopt;
  return again_ns;
}

// What a policy would do if only bytes counted is a schedule. What it keeps without need has no
// address, so that one for some more memory may fit, too. And near the smallest budgets schedules
// differ by chance. So several are played, and the best one that fits is the plan.
void Rehearsal::plan(Found& found) const {
  const uint64_t period = program_.counted_from;
  if (period == 0 || program_.calls.size() < 3 * period) return;
  const uint64_t most_played = played_ + kMostPlayed;
  const auto goes_on = [&] { return !cancelled_ && played_ < most_played; };
  std::vector<Schedule> schedules;
  for (const EvictionPolicy& policy : policies(found.policy)) {
    size_t fit = 0;
    for (const double share : kPlanShares) {
      if (!goes_on() || fit == kMostOfPolicy) break;
      const double bytes = share * static_cast<double>(stage_.budget_bytes);
      Schedule schedule{policy, static_cast<uint64_t>(bytes), 0};
      Trajectory trajectory;
      const std::optional<double> again_ns = play_to_fit(schedule, found.cost_ns, &trajectory);
      if (!again_ns) continue;
      schedule.again_ns = *again_ns;
      schedules.push_back(schedule);
      ++fit;
    }
  }
  plan_by(schedules, found);
}

void Rehearsal::plan_by(std::vector<Schedule>& schedules, Found& found) const {
  std::stable_sort(schedules.begin(), schedules.end(),
                   [](const Schedule& a, const Schedule& b) { return a.again_ns < b.again_ns; });
  for (size_t i = 0; i < schedules.size() && i < kMostPlans && !cancelled_; ++i) {
    if (schedules[i].again_ns >= found.cost_ns - kLittle * static_cast<double>(program_.cost_ns))
      return;
    Trajectory trajectory;
    play_bytes(schedules[i], found.cost_ns, &trajectory);
    std::optional<Found> planned = follow(schedules[i].policy, trajectory, found.cost_ns);
    if (!planned) continue;
    found = std::move(*planned);
    found.schedule_bytes = schedules[i].budget_bytes;
  }
}

// A policy evicts the less of an operator, the more the operator is said to cost. So any weights make a
// schedule. A change of few is kept if it repeats no more, or early in the search (simulated
// annealing) a little more.
std::optional<Rehearsal::Found> Rehearsal::better(const Found& known) const {
  const auto own_ns = static_cast<double>(program_.cost_ns);
  constexpr auto kMostNs = static_cast<double>(INT64_MAX);
  if (known.repeats < kWorthSearching || own_ns > kMostNs / (4 * kMostWeight)) return std::nullopt;
  const uint64_t period = program_.counted_from;
  const uint64_t first_played = played_;
  Schedule here{known.policy, known.schedule_bytes, kHopeless * own_ns,
                std::vector<double>(period, 1)};
  std::vector<Schedule> better;
  std::vector<uint64_t> repeated;  // operators of the step, as often as they are
  const auto go_to = [&](const Schedule& next, double most_ns) {
    Trajectory trajectory;
    const std::optional<double> again_ns = play_to_fit(next, most_ns, &trajectory);
    if (!again_ns) return;
    here = next;
    here.again_ns = *again_ns;
    if (better.empty() || here.again_ns < better.back().again_ns) better.push_back(here);
    repeated.clear();
    for (const Trajectory::Block& block : trajectory.blocks)
      if (block.op != Trajectory::kNoOp && block.run > 0) repeated.push_back(block.op % period);
  };
  std::minstd_rand random;  // the same each time
  const auto below = [&](size_t count) { return random() % count; };
  const auto share = [&] { return static_cast<double>(random()) / std::minstd_rand::max(); };
  go_to(Schedule(here), here.again_ns);
  while (!cancelled_ && played_ - first_played < kMostSearched) {
    Schedule next = here;
    for (size_t changes = 1 + below(kMostChanges); changes > 0; --changes) {
      const bool of_repeated = share() < kOfRepeated && !repeated.empty();
      const uint64_t op = of_repeated ? repeated[below(repeated.size())] : below(period);
      const double change = kMostChange * (2 * share() - (of_repeated ? 1 - kUpwards : 1));
      double& weight = next.weights[op];
      weight = std::clamp(weight * std::exp(change), 1 / kMostWeight, kMostWeight);
    }
    const double left =
        1 - static_cast<double>(played_ - first_played) / static_cast<double>(kMostSearched);
    go_to(next, (1 + kMostWorse * left * share()) * here.again_ns);
  }
  Found found{known.policy, known.cost_ns - kLeastPlanGain * own_ns, known.repeats, 0};
  plan_by(better, found);
  if (found.plan.calls.empty()) return std::nullopt;
  return found;
}

uint64_t Rehearsal::limit_of(const StepBlocks& step, uint64_t budget_bytes) const {
  const auto slabs = static_cast<uint64_t>(
      kSlabSlack * static_cast<double>(stage_.slab_bytes + step.small_bytes()));
  const uint64_t taken =
      slabs + std::max({kSlabSpare, stage_.chunk_bytes, stage_.slab_growth_bytes});
  return budget_bytes - std::min(budget_bytes, taken);
}

// The plan of a trajectory's step, if it costs less in the heap. The first step that follows it
// brings things in place, so the one behind it counts.
std::optional<Rehearsal::Found> Rehearsal::follow(const EvictionPolicy& policy,
                                                  const Trajectory& trajectory,
                                                  double most_ns) const {
  const uint64_t period = program_.counted_from;
  const StepBlocks step(trajectory, period, period);
  std::optional<StepPlan> plan = step.lay_out(stage_.held, limit_of(step, stage_.pool_bytes));
  if (!plan) return std::nullopt;
  const auto of_step = [&](const std::vector<uint64_t>& calls) {
    const auto begin = calls.begin() + static_cast<std::ptrdiff_t>(period);
    return std::vector<uint64_t>(begin, begin + static_cast<std::ptrdiff_t>(period));
  };
  plan->calls = of_step(program_.calls);
  // The same in the heap of the play, where other addresses are held.
  bool fits = true;
  Simulation run;
  run.plan_from = period;
  run.make_plan = [&](const std::vector<NamedBlock>& blocks) {
    const std::unordered_set<uint64_t> survivors(trajectory.survivors.begin(),
                                                 trajectory.survivors.end());
    std::vector<HeldBlock> held;
    for (const NamedBlock& block : blocks)
      if (block.serial == 0 || survivors.count(block.serial) > 0)
        held.push_back(
            {block.offset, block.size_bytes, stage_.move_bytes_per_s > 0 ? block.handle : nullptr});
    std::optional<StepPlan> played = step.lay_out(held, limit_of(step, stage_.budget_bytes));
    fits = played.has_value();
    if (!fits) return StepPlan{};
    played->calls = of_step(trajectory.calls);
    return *played;
  };
  Program program = program_.view();
  program.counted_from = 2 * period;
  dtr_runtime_options options =
      options_of(policy, stage_.budget_bytes, kHopeless * static_cast<double>(program_.cost_ns));
  options.swap_bytes = 0;
  simulate_runtime(options, program, run);
  if (!fits || run.result.status != DTR_SIMULATION_OK) return std::nullopt;
  // One step counted, as many as the program has.
  const auto share = static_cast<double>(program.operators / period - 1) /
                     static_cast<double>(program.operators / period - 2);
  Found found{policy, share * (cost_ns(run) + search_ns(run)), share * repeats(run), 0,
              std::move(*plan)};
  if (found.cost_ns >= most_ns) return std::nullopt;
  return found;
}

std::optional<Rehearsal::Budget> Rehearsal::least_budget(const EvictionPolicy& policy,
                                                         double most_repeats,
                                                         uint64_t least) const {
  const double most_ns = most_repeats * static_cast<double>(program_.cost_ns) + 1;
  // Without a limit nothing is computed again.
  uint64_t peak = 0;
  if (!play(policy, UINT64_MAX, std::numeric_limits<double>::infinity(), &peak))
    return std::nullopt;
  peak = std::max(peak, least);
  uint64_t low = std::max(stage_.budget_bytes, least), high = peak;
  if (peak <= stage_.budget_bytes) return std::nullopt;
  if (low == stage_.budget_bytes && play(policy, low, most_ns)) return std::nullopt;
  const uint64_t enough = std::max<uint64_t>((high - low) / 50, 1);
  while (high - low > enough && !cancelled_) {
    const uint64_t middle = low + (high - low) / 2;
    (play(policy, middle, most_ns) ? high : low) = middle;
  }
  const auto more = static_cast<uint64_t>(kMargin * static_cast<double>(high));
  for (const uint64_t bytes : {std::min(more, peak), high, peak})
    if (const std::optional<Found> found = play(policy, bytes, most_ns))
      return Budget{bytes, found->repeats, peak};
  return std::nullopt;
}

}  // namespace dtr
