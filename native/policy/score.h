// score.h: what an eviction candidate costs, as a value: h = c * r^n / (m * s^a). The
// smallest is evicted first (DTR paper, section 4.1 and appendix C).
//
// c is a recomputation cost, m a size, s a staleness, n how often the storage was
// recomputed: dtr_heuristic says which, and Signals has their values. A part that the
// heuristic leaves out is 1.
//
// Every score is a positive finite number: a cost below 1 ns, a size below 1 byte and a
// staleness below 1 ns count as 1 (so what is free, or was used in this tick, still
// compares by its other parts), and r^n above kMostPenalty counts as kMostPenalty.
#pragma once

#include <cmath>
#include <cstdint>

#include "dtr_alloc.h"

namespace dtr {

// The marginal cost (DTR_COST_MARGINAL): what evicting a storage adds to the recomputing that is
// ahead anyway. An evicted storage is *needed* if the framework still refers to it, or if a storage
// computed from it is needed (needed_storages.h). So what is needed will be recomputed, as far as
// can be told, whatever is evicted next. The cost is the storage's own and, of each evicted storage
// that it would be recomputed from, a *share*:
//   - live: kLiveShare of its cost. It is recomputed for its own sake, about when this one is; but
//     the longer the chain behind, the likelier that memory does not hold it for both.
//   - dead and needed: nothing. Another one will pay for it.
//   - dead and not needed: its cost, divided among all that were computed from it, because the
//     others are likely to go the same way.
// A dead storage that is not needed costs nothing: it goes first, and among such ones that which
// would be recomputed, if it were needed after all, for the least of its own cost.
// The factor of such ones: below what the scores of others differ by, and far from the ends of a
// float.
constexpr double kUnneeded = 1e-6;

// Shares are counted in parts of a nanosecond, in integers, so that their sums do not depend on the
// order.
constexpr int64_t kShareParts = 64;
constexpr int64_t kLiveShare = kShareParts / 4;

inline int64_t share_parts(int64_t cost_ns, bool live, bool needed, size_t dependents) {
  if (live) return cost_ns * kLiveShare;
  if (needed) return 0;
  return cost_ns * kShareParts / static_cast<int64_t>(dependents > 1 ? dependents : 1);
}

inline double with_shares(int64_t cost_ns, int64_t parts) {
  return static_cast<double>(cost_ns) + static_cast<double>(parts) / kShareParts;
}

struct Signals {
  double cost_ns = 1;
  double size_bytes = 1;
  double staleness_ns = 1;
  uint32_t recomputes = 0;
};

constexpr double kMostPenalty = 1e15;

// The factor for n recomputations.
inline double penalty(const dtr_heuristic& heuristic, uint32_t n) {
  if (heuristic.recompute_factor == 1 || n == 0) return 1;
  const double factor = std::pow(heuristic.recompute_factor, n);
  return factor < kMostPenalty ? factor : kMostPenalty;
}

inline double at_least_1(double value) { return value > 1 ? value : 1; }

inline double power(double base, double exponent) {
  return exponent == 0.5 ? std::sqrt(base) : std::pow(base, exponent);  // the default's, and faster
}

inline double score(const dtr_heuristic& heuristic, const Signals& signals) {
  double above = penalty(heuristic, signals.recomputes);
  if (heuristic.cost != DTR_COST_NONE) above *= at_least_1(signals.cost_ns);
  double below = 1;
  if (heuristic.size != DTR_SIZE_NONE) below *= at_least_1(signals.size_bytes);
  const double staleness = at_least_1(signals.staleness_ns);
  if (heuristic.staleness_exponent == 1)
    below *= staleness;
  else if (heuristic.staleness_exponent > 0)
    below *= power(staleness, heuristic.staleness_exponent);
  return above / below;
}

// What must be kept up to date for a heuristic; the engine maintains nothing else.
struct Needs {
  bool components = false;   // of evicted storages, joined and summed
  bool ancestors = false;    // exact sums over evicted ancestors
  bool descendants = false;  // and over evicted descendants
  bool shares = false;       // the sums over ancestors are of shares, not of costs
  bool free_bytes = false;   // asks the pool about a block's neighbors
  bool scores = true;        // columns for the search by score

  // Under DTR_ROOM_AUTO the free bytes beside a block count with its size: they are what its going
  // makes one piece with (docs/concepts/default-policy.md).
  static Needs of(const dtr_heuristic& heuristic, int32_t room) {
    Needs needs;
    const bool all = heuristic.select == DTR_SELECT_CALLBACK;
    needs.scores = heuristic.select == DTR_SELECT_SCORE;
    const int32_t cost = needs.scores ? heuristic.cost : DTR_COST_NONE;
    needs.components = all || cost == DTR_COST_COMPONENT;
    needs.shares = cost == DTR_COST_MARGINAL;
    needs.ancestors =
        all || needs.shares || cost == DTR_COST_ANCESTORS || cost == DTR_COST_NEIGHBORHOOD;
    needs.descendants = all || cost == DTR_COST_NEIGHBORHOOD;
    const bool beside = heuristic.size == DTR_SIZE_BYTES_AND_FREE ||
                        (heuristic.size == DTR_SIZE_BYTES && room == DTR_ROOM_AUTO);
    needs.free_bytes = all || (needs.scores && beside);
    return needs;
  }
};

// Numbers for DTR_SELECT_RANDOM: the same for the same seed everywhere.
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, end): the high half of a product, as good as even for any real end.
  uint64_t below(uint64_t end) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * end) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace dtr
