// search.h: looks for an eviction schedule of little recomputing, with the whole log known.
//
// Two phases. A sweep over the parts of the score gives the first incumbent. Then a random walk in
// rounds: each step changes the weights of a few storages or an exponent of the score, plays
// the plan, and keeps what is not worse (simulated annealing: early in a round also what is a
// little worse). The move that matters most keeps what an evicted storage is computed from, dead
// or not. The same seed and number of steps give the same schedule.
#pragma once

#include <random>
#include <vector>

#include "player.h"

namespace dtr::schedule {

class Search {
 public:
  Search(const Plan& plan, uint64_t budget_bytes, uint64_t seed);

  // Plays the scores of the sweep.
  void sweep();
  // So many steps of the walk, from what was found so far; no further one after so many seconds, if
  // they are above 0. Returns how many were made.
  uint64_t walk(uint64_t steps, double seconds);

  // Status other than ok: nothing was found yet.
  const Outcome& best() const { return best_; }

 private:
  struct Point {
    Score score;
    std::vector<float> weights;
  };

  void note(const Outcome& outcome);
  void change(Point& point);
  void change_score(Score& score);
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  double noise();
  uint32_t pick(const std::vector<uint32_t>& from) {
    return from[static_cast<size_t>(uniform() * static_cast<double>(from.size()))];
  }

  const Plan& plan_;
  const uint64_t budget_;
  Player player_;
  std::mt19937_64 random_;
  Outcome best_;
  Point point_;                                     // where the walk is
  int64_t here_ = 0;                                // what it costs there
  std::vector<uint32_t> evicted_, computed_again_;  // there: storages, as often as it happened
};

}  // namespace dtr::schedule
