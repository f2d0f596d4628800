// rehearsal.cpp: see rehearsal.h.
#include "rehearsal.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>

namespace dtr {

namespace {

// A policy that repeats so many times the job's own compute is as good as none.
constexpr double kHopeless = 20;

// Near the least budget a policy may do well by chance, and grind in the next step. So it is played
// with a little less memory, too.
constexpr double kShares[] = {1, 0.98, 0.96};
constexpr double kPlays = std::size(kShares);

// Operators in all plays: some seconds of a processor. (Not a time, as two runs decide alike.)
constexpr uint64_t kMostPlayed = 1'200'000;

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

}  // namespace

std::optional<Rehearsal::Found> Rehearsal::play(const EvictionPolicy& policy, uint64_t budget_bytes,
                                                double most_ns, uint64_t* peak_bytes) const {
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
  Simulation run;
  simulate_runtime(options, program_.view(), run);
  played_ += program_.workspace_at.size() + run.result.remat_ops;
  if (peak_bytes) *peak_bytes = run.result.peak_bytes;
  if (run.result.status != DTR_SIMULATION_OK) return std::nullopt;
  // A pool that maps nothing says nothing of chunks.
  const uint64_t filled = program_.counted_from > 0
                              ? 0
                              : run.result.peak_bytes / std::max<uint64_t>(stage_.chunk_bytes, 1);
  const uint64_t maps = run.result.mapped_chunks;
  const auto again_ns = static_cast<double>(run.result.remat_cost);
  const double cost_ns = again_ns + static_cast<double>(run.result.move_cost) +
                         stage_.map_ns * static_cast<double>(maps > filled ? maps - filled : 0) +
                         stage_.remap_ns * static_cast<double>(run.result.remaps);
  if (cost_ns >= most_ns) return std::nullopt;
  return Found{policy, cost_ns, again_ns / own_ns};
}

std::optional<Rehearsal::Found> Rehearsal::best_policy(const EvictionPolicy& usual) const {
  std::optional<Found> best;
  EvictionPolicy here = usual;
  const auto attempt = [&](const EvictionPolicy& policy) {
    const double most_ns = best ? best->cost_ns : std::numeric_limits<double>::infinity();
    Found sum{policy, 0, 0};
    for (const double share : kShares) {
      if (cancelled_ || played_ > kMostPlayed) return;
      const auto budget = static_cast<uint64_t>(share * static_cast<double>(stage_.budget_bytes));
      const std::optional<Found> found = play(policy, budget, kPlays * most_ns - sum.cost_ns);
      if (!found) return;
      sum.cost_ns += found->cost_ns;
      sum.repeats += found->repeats;
    }
    best = Found{policy, sum.cost_ns / kPlays, sum.repeats / kPlays};
    here = policy;
  };
  attempt(usual);
  const std::optional<Found> first = best;
  for (int round = 0; round < 2; ++round) {
    // While no policy works, the next part is tried with the last one.
    for (const Choice& choice : kChoices) {
      // In a first step there is nothing to foresee by.
      if (choice.foresight && program_.counted_from == 0) continue;
      EvictionPolicy next = here;
      next.heuristic.cost = choice.cost;
      next.heuristic.foresight = choice.foresight;
      next.heuristic.staleness_exponent = choice.staleness;
      attempt(next);
    }
    for (const Dealloc dealloc : {Dealloc::eager, Dealloc::lazy}) {
      if (dealloc == here.dealloc) continue;
      EvictionPolicy next = here;
      next.dealloc = dealloc;
      attempt(next);
    }
    for (const int32_t room : {DTR_ROOM_AUTO, DTR_ROOM_SINGLE}) {
      if (room == here.room) continue;
      EvictionPolicy next = here;
      next.room = room;
      attempt(next);
    }
    for (const double factor : {1.0, 1.2, 1.5}) {
      if (factor == here.heuristic.recompute_factor) continue;
      EvictionPolicy next = here;
      next.heuristic.recompute_factor = factor;
      attempt(next);
    }
  }
  const double least_gain = kLeastGain * static_cast<double>(program_.cost_ns);
  if (first && best->cost_ns > first->cost_ns - least_gain) return std::nullopt;
  return best;
}

std::optional<Rehearsal::Budget> Rehearsal::least_budget(const EvictionPolicy& policy,
                                                         double most_repeats) const {
  constexpr double kUnlimited = std::numeric_limits<double>::infinity();
  const double most_ns = most_repeats * static_cast<double>(program_.cost_ns) + 1;
  // Without a limit nothing is computed again.
  uint64_t high = 0;
  if (!play(policy, UINT64_MAX, kUnlimited, &high)) return std::nullopt;
  Budget least{high, 0};
  uint64_t low = std::min(stage_.budget_bytes, high);
  const uint64_t enough = std::max<uint64_t>((high - low) / 50, 1);
  while (high - low > enough && !cancelled_) {
    const uint64_t middle = low + (high - low) / 2;
    const std::optional<Found> found = play(policy, middle, most_ns);
    if (found) least = {middle, found->repeats};
    (found ? high : low) = middle;
  }
  return least;
}

}  // namespace dtr
