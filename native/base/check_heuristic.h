// check_heuristic.h: whether the parts of a heuristic exist, for the engine and for simulations.
#pragma once

#include <limits>
#include <string>

#include "error.h"

namespace dtr {

// Throws InvalidArgument, naming the field.
inline void require_number(const char* name, double value, double least, double most,
                           const char* allowed) {
  if (!(value >= least && value <= most)) invalid(name, std::to_string(value), allowed);
}

inline void check(const dtr_heuristic& heuristic) {
  constexpr double kMost = std::numeric_limits<double>::max();
  require_between("heuristic.select", heuristic.select, 0, DTR_SELECT_CALLBACK);
  require_between("heuristic.cost", heuristic.cost, 0, DTR_COST_MARGINAL);
  require_between("heuristic.size", heuristic.size, 0, DTR_SIZE_BYTES_AND_FREE);
  require_number("heuristic.staleness_exponent", heuristic.staleness_exponent, 0, 1, "0 to 1");
  require_number("heuristic.recompute_factor", heuristic.recompute_factor, 1, kMost,
                 "1 and more, finite");
  require_between("heuristic.foresight", heuristic.foresight, 0, 1);
}

inline void check(const dtr_simulation_options& options) {
  check(options.heuristic);
  require_between("dealloc", options.dealloc, DTR_DEALLOC_EAGER, DTR_DEALLOC_AUTO);
  require_between("max_recompute", options.max_recompute, -1, INT64_MAX);
}

}  // namespace dtr
