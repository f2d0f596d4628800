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

inline double score(const dtr_heuristic& heuristic, const Signals& signals) {
  double above = penalty(heuristic, signals.recomputes);
  if (heuristic.cost != DTR_COST_NONE) above *= at_least_1(signals.cost_ns);
  double below = 1;
  if (heuristic.size != DTR_SIZE_NONE) below *= at_least_1(signals.size_bytes);
  const double staleness = at_least_1(signals.staleness_ns);
  if (heuristic.staleness_exponent == 1)
    below *= staleness;
  else if (heuristic.staleness_exponent > 0)
    below *= std::pow(staleness, heuristic.staleness_exponent);
  return above / below;
}

// What must be kept up to date for a heuristic; the engine maintains nothing else.
struct Needs {
  bool components = false;   // of evicted storages, joined and summed
  bool ancestors = false;    // exact sums over evicted ancestors
  bool descendants = false;  // and over evicted descendants
  bool free_bytes = false;   // asks the pool about a block's neighbors
  bool scores = true;        // columns for the search by score

  static Needs of(const dtr_heuristic& heuristic) {
    Needs needs;
    const bool all = heuristic.select == DTR_SELECT_CALLBACK;
    needs.scores = heuristic.select == DTR_SELECT_SCORE;
    const int32_t cost = needs.scores ? heuristic.cost : DTR_COST_NONE;
    needs.components = all || cost == DTR_COST_COMPONENT;
    needs.ancestors = all || cost == DTR_COST_ANCESTORS || cost == DTR_COST_NEIGHBORHOOD;
    needs.descendants = all || cost == DTR_COST_NEIGHBORHOOD;
    needs.free_bytes = all || (needs.scores && heuristic.size == DTR_SIZE_BYTES_AND_FREE);
    return needs;
  }
};

// Numbers for DTR_SELECT_RANDOM and for sampling: the same for the same seed everywhere.
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
