// simulation.h: what a run of an op log leaves behind.
#pragma once

#include <cstdint>
#include <string>

#include "dtr_alloc.h"

namespace dtr {

// Behind the opaque dtr_simulation.
struct Simulation {
  dtr_simulation_result result{};
  std::string decisions;  // joined by newlines, see dtr_simulation_decisions

  void decide(char kind, uint64_t id) {
    if (!decisions.empty()) decisions += '\n';
    decisions += kind;
    char digits[20];
    int count = 0;
    do digits[count++] = static_cast<char>('0' + id % 10);
    while (id /= 10);
    while (count > 0) decisions += digits[--count];
  }
};

}  // namespace dtr
