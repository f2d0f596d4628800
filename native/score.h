// score.h: what an eviction candidate costs, as a value: h(s, m, c) = c / (m * s).
//
// s: staleness, m: size, c: the recomputation that evicting it may cause (DTR paper,
// section 4.1, and appendix C). Smaller is evicted first. A further heuristic is a
// further way to gather c, m or s: it gets its name here and its gathering in
// room.cpp, and the search stays as it is.
#pragma once

#include <cstdint>
#include <cstring>

namespace dtr {

enum class Heuristic : uint8_t {
  dtr_eqclass  // c: own cost + cost of the neighboring evicted components
};

inline bool heuristic_from_name(const char* name, Heuristic* out) {
  if (std::strcmp(name, "dtr-eqclass") != 0) return false;
  *out = Heuristic::dtr_eqclass;
  return true;
}

struct Signals {
  double cost_ns;
  double size_bytes;
  double staleness_ns;
};

inline double score(const Signals& signals) {
  // Two storages touched in the same tick must still compare by cost and size.
  const double staleness = signals.staleness_ns < 1 ? 1 : signals.staleness_ns;
  return signals.cost_ns / (signals.size_bytes * staleness);
}

}  // namespace dtr
