// replay.h: what every replay of an op log leaves behind.
#pragma once

#include <cstdint>
#include <string>

#include "dtr_alloc.h"

namespace dtr {

// Behind the opaque dtr_replay.
struct Replay {
  dtr_replay_result result{};
  std::string decisions;  // joined by newlines, see dtr_replay_decisions

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
