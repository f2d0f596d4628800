// search.h: looks for an eviction schedule of little recomputing, with the whole log known.
//
// Two phases. A sweep over the parts of the score gives the first incumbent. Then a random walk in
// rounds: each step changes the weights of a few storages or an exponent of the score, plays
// the plan, and keeps what is not worse (simulated annealing: early in a round also what is a
// little worse). The move that matters most keeps what an evicted storage is computed from, dead
// or not. The same seed and number of steps give the same schedule.
#pragma once

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <vector>

#include "base/clock.h"
#include "player.h"

namespace dtr::schedule {

class Search {
 public:
  Search(const Plan& plan, uint64_t budget_bytes, uint64_t seed)
      : plan_(plan), budget_(budget_bytes), player_(plan), random_(seed) {
    best_.status = Status::out_of_memory;
    point_.weights.assign(plan.storages.size(), 0);
  }

  // Plays the scores of the sweep.
  // One part of the score after the other is set to what is best, the others as they are; twice. If
  // no score is known to work yet, the next value is kept anyway, so that all are met.
  void sweep() {
    struct Part {
      double Score::* part;
      std::vector<double> values;
    };
    const Part parts[] = {
        {&Score::keep, {1, 0}},
        {&Score::spare, {0, 8, 2, 32}},
        {&Score::pending, {0.5, 0.2, 1}},
        {&Score::distance, {0.5, 0.25, 1, 0}},
        {&Score::staleness, {0, 0.5}},
        {&Score::descendants, {0, 0.5}},
        {&Score::part, {0.03125, 0.25, 0}},
        {&Score::size, {1, 0.8}},
    };
    const int64_t most = 10 * plan_.cost_before.back();
    const auto play = [&](const Score& score) {
      const bool found = best_.status == Status::ok;
      const Outcome& outcome =
          player_.run(budget_, score, nullptr, found ? best_.remat_cost - 1 : most);
      if (outcome.status != Status::ok) return;
      best_ = outcome;
      point_.score = score;
      here_ = outcome.remat_cost;
    };
    play(Score());
    for (int round = 0; round < 2; ++round)
      for (const Part& part : parts)
        for (const double value : part.values) {
          if (best_.status == Status::ok && best_.remat_cost == 0) return;
          Score score = point_.score;
          if (score.*part.part == value) continue;
          score.*part.part = value;
          play(score);
          if (best_.status != Status::ok) point_.score = score;
        }
  }
  // So many steps of the walk, from what was found so far; no further one after so many seconds, if
  // they are above 0. Returns how many were made.
  uint64_t walk(uint64_t steps, double seconds) {
    if (best_.status != Status::ok) return 0;
    const int64_t begin = now_ns();
    Point best_point = point_, next;
    const uint64_t round = std::max<uint64_t>(1, steps / kRounds);
    double hot = 0;
    for (uint64_t step = 0; step < steps; ++step) {
      if (best_.remat_cost == 0) return step;
      if (seconds > 0 && static_cast<double>(now_ns() - begin) > seconds * 1e9) return step;
      if (step % round == 0) {
        const uint64_t number = step / round;
        point_ = best_point;
        if (number % 2 == 1) {
          // Keeping what dies can do all that evicting it can.
          point_.weights.assign(plan_.storages.size(), 0);
          point_.score.keep = 1;
          change_score(point_.score);
          change_score(point_.score);
        }
        hot = kHot[number % std::size(kHot)] * static_cast<double>(best_.remat_cost);
        const Outcome& outcome = player_.run(budget_, point_.score, &point_.weights, kNoLimit);
        if (outcome.status == Status::ok)
          note(outcome);
        else
          here_ = kNoLimit;
      }
      next = point_;
      change(next);
      const double left = 1 - static_cast<double>(step % round) / static_cast<double>(round);
      const double worse = -std::log(1 - uniform()) * hot * left * left;
      const int64_t most = here_ == kNoLimit ? here_ : here_ + static_cast<int64_t>(worse);
      const Outcome& outcome = player_.run(budget_, next.score, &next.weights, most);
      if (outcome.status != Status::ok) continue;
      std::swap(point_, next);
      note(outcome);
      if (here_ >= best_.remat_cost) continue;
      best_ = outcome;
      best_point = point_;
    }
    return steps;
  }

  // Status other than ok: nothing was found yet.
  const Outcome& best() const { return best_; }

 private:
  static constexpr uint64_t kRounds =
      8;  // each cools down; every second one begins without weights
  // Of the recomputing: how much worse passes, by round.
  static constexpr double kHot[] = {0.003, 0.1, 0.03, 0.01};
  static constexpr int64_t kNoLimit = INT64_MAX / 2;
  static constexpr float kOutweighs =
      60;  // more than scores differ, and than the dead are preferred

  struct Point {
    Score score;
    std::vector<float> weights;
  };

  void note(const Outcome& outcome) {
    here_ = outcome.remat_cost;
    evicted_.clear();
    computed_again_.clear();
    for (const Eviction& eviction : outcome.evictions) evicted_.push_back(eviction.storage);
    for (uint32_t storage = 0; storage < outcome.remats.size(); ++storage)
      computed_again_.insert(computed_again_.end(), outcome.remats[storage], storage);
  }
  void change(Point& point) {
    if (uniform() < 0.1) change_score(point.score);
    const int count = 1 + static_cast<int>(random_() % 3);
    for (int i = 0; i < count; ++i) {
      const double which = uniform();
      uint32_t storage;
      double by;
      if (which < 0.3 && !computed_again_.empty()) {
        storage = pick(computed_again_);  // keep it longer
        by = 1;
      } else if (which < 0.55 && !evicted_.empty()) {
        storage = pick(evicted_);
        by = uniform() < 0.5 ? 1 : -1;
      } else if (which < 0.8 && !evicted_.empty()) {
        storage = pick(evicted_);  // keep what it is computed from
        const std::vector<uint32_t>& parents = plan_.links[storage].parents;
        if (!parents.empty()) {
          if (uniform() < 0.5) point.weights[storage] -= kOutweighs * static_cast<float>(uniform());
          storage = pick(parents);
        }
        by = 1;
      } else {
        storage = static_cast<uint32_t>(uniform() * static_cast<double>(plan_.storages.size()));
        by = -1;
      }
      float& weight = point.weights[storage];
      const double how = uniform();
      if (how < 0.1)
        weight = 0;
      else if (how < 0.4)
        weight = kOutweighs * static_cast<float>(by);
      else
        weight += static_cast<float>(by * std::abs(noise()) * (how < 0.55 ? 8 : 2));
    }
  }
  void change_score(Score& score) {
    const auto move = [&](double& value, double scale) {
      value = std::max(0.0, value + scale * noise());
    };
    switch (random_() % 8) {
      case 0:
        move(score.distance, 0.2);
        break;
      case 1:
        move(score.staleness, 0.2);
        break;
      case 2:
        move(score.pending, 0.3);
        break;
      case 3:
        move(score.descendants, 0.3);
        break;
      case 4:
        move(score.size, 0.1);
        break;
      case 5:
        move(score.ancestors, 0.2);
        break;
      case 6:
        score.spare = uniform() < 0.3 ? 0 : std::exp2(6 * uniform());
        break;
      default:
        score.part = uniform() < 0.5 ? 0 : std::exp2(-8 * uniform());
        break;
    }
  }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  // Of mean 0 and variance 1, roughly normal.
  double noise() {
    double sum = 0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum - 6;
  }
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
