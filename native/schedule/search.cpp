#include "search.h"

#include <algorithm>
#include <cmath>

#include "clock.h"

namespace dtr::schedule {

namespace {

constexpr int64_t kNoLimit = INT64_MAX / 2;
constexpr float kOutweighs = 60;  // more than scores differ, and than the dead are preferred

}  // namespace

Search::Search(const Plan& plan, uint64_t budget_bytes, uint64_t seed)
    : plan_(plan), budget_(budget_bytes), player_(plan), random_(seed) {
  best_.status = Status::out_of_memory;
  point_.weights.assign(plan.storages.size(), 0);
}

// Of mean 0 and variance 1, roughly normal.
double Search::noise() {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += uniform();
  return sum - 6;
}

void Search::consider(const Outcome& outcome) {
  if (outcome.status != Status::ok) return;
  if (best_.status != Status::ok || outcome.remat_cost < best_.remat_cost) best_ = outcome;
}

void Search::sweep() {
  const int64_t most = 10 * plan_.cost_before.back();
  const auto play = [&](const Score& score) {
    const int64_t limit = best_.status == Status::ok ? best_.remat_cost : most;
    const Outcome& outcome = player_.run(budget_, score, nullptr, limit);
    if (outcome.status == Status::ok && (best_.status != Status::ok || outcome.remat_cost < here_)) {
      point_.score = score;
      here_ = outcome.remat_cost;
    }
    consider(outcome);
  };
  for (const double keep : {1.0, 0.0})
    for (const double pending : {1.0, 0.5, 0.2})
      for (const double descendants : {0.0, 0.5})
        for (const double distance : {0.0, 0.25, 0.5, 1.0})
          for (const double staleness : {0.0, 0.5}) {
            Score score;
            score.keep = keep;
            score.pending = pending;
            score.descendants = descendants;
            score.distance = distance;
            score.staleness = staleness;
            play(score);
          }
}

void Search::change_score(Score& score) {
  const auto move = [&](double& value, double scale) {
    value = std::max(0.0, value + scale * noise());
  };
  switch (random_() % 7) {
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
    default:
      score.part = std::min(1.0, score.part * std::exp2(noise()));
      break;
  }
}

void Search::change(Point& point) {
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
      const std::vector<uint32_t>& parents = plan_.storages[storage].parents;
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

uint64_t Search::walk(uint64_t steps, double seconds) {
  if (best_.status != Status::ok || best_.remat_cost == 0) return 0;
  const int64_t begin = now_ns();
  const auto note = [&](const Outcome& outcome) {
    evicted_.clear();
    computed_again_.clear();
    for (const Eviction& eviction : outcome.evictions) evicted_.push_back(eviction.storage);
    for (uint32_t storage = 0; storage < outcome.remats.size(); ++storage)
      computed_again_.insert(computed_again_.end(), outcome.remats[storage], storage);
  };
  note(player_.run(budget_, point_.score, &point_.weights, kNoLimit));
  const double hot = 0.003 * static_cast<double>(best_.remat_cost);
  Point next;
  for (uint64_t step = 0; step < steps; ++step) {
    const double left = 1 - static_cast<double>(step) / static_cast<double>(steps);
    if (seconds > 0 && static_cast<double>(now_ns() - begin) > seconds * 1e9) return step;
    next = point_;
    change(next);
    const double worse = -std::log(1 - uniform()) * hot * left * left;
    const Outcome& outcome = player_.run(budget_, next.score, &next.weights,
                                         here_ + static_cast<int64_t>(worse));
    if (outcome.status != Status::ok) continue;
    here_ = outcome.remat_cost;
    std::swap(point_, next);
    note(outcome);
    consider(outcome);
  }
  return steps;
}

}  // namespace dtr::schedule
