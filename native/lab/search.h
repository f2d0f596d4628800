// search.h: looks for an eviction schedule of little recomputing, with the whole log known.
//
// Two phases. A sweep over the parts of the score gives the first incumbent. Then a random walk in
// rounds: each step changes the weights of a few storages or an exponent of the score, plays
// the plan, and keeps what is not worse (simulated annealing: early in a round also what is a
// little worse). The move that matters most keeps what an evicted storage is computed from, dead
// or not. The same seed and number of steps give the same schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "plan.h"

namespace dtr::schedule {

enum class Status : int32_t { ok = 0, out_of_memory = 1, too_costly = 2 };

// After so many executions the storage is evicted.
struct Eviction {
  uint32_t after;
  uint32_t storage;
};

struct Outcome {
  Status status = Status::ok;
  bool keeps = false;  // whether what dies stays until the list says that it goes
  int64_t remat_cost = 0;
  uint32_t executions = 0;
  std::vector<Eviction> evictions;
  std::vector<uint32_t> remats;  // by storage
};

// The best that was found: a status other than ok says that nothing was.
struct Found {
  Outcome best;
  uint64_t steps;  // of the walk that were made
};

// So many steps of the walk after the sweep; no further one after so many seconds, if they are above 0.
Found search(const Plan& plan, uint64_t budget_bytes, uint64_t seed, uint64_t steps,
             double seconds);

}  // namespace dtr::schedule
