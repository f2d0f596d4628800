#include "search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <random>
#include <utility>

#include "base/clock.h"
#include "playback.h"

namespace dtr::schedule {

namespace {

constexpr double kDeadFirst = 40;  // as a logarithm: more than scores differ

// log2, within 1e-3: scores are compared, not reported.
double quick_log2(double x) {
  if (!(x > 0)) return -1000;
  const auto bits = std::bit_cast<uint64_t>(x);
  const double exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
  const auto m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull) - 1;
  return exponent + m + m * (1 - m) * (0.422865 - 0.15921963 * m);
}

// What the smallest of is evicted, as logarithms:
//   weight + log(numerator) - size log(bytes) - distance log(to next use) - staleness log(...)
struct Score {
  double ancestors = 1;    // of its evicted ancestors' cost, each op once
  double pending = 0.5;    // of that part of it that something evicted needs anyway
  double descendants = 0;  // of its evicted descendants' cost, of those that are needed again
  double size = 1;         // exponents
  double distance = 0.5;
  double staleness = 0;
  double keep = 1;        // 1: what dies stays until its room is needed
  double part = 0.03125;  // what frees less than this part of what is missing goes last
  double spare = 0;       // above 0: what something resident, needed and so many times as large was
                          // computed from does not go first
};

// Runs a plan under a budget, with scores that know what comes.
class Player : private simrd::Playback<Player> {
  friend simrd::Playback<Player>;

 public:
  explicit Player(const Plan& plan) : Playback(plan), plan_(plan) {
    for (const simrd::LogStorage& storage : plan.storages)
      log_size_.push_back(quick_log2(static_cast<double>(storage.size_bytes)));
    mark_.resize(plan.storages.size());
    op_mark_.resize(plan.ops.size());
  }
  // weights: by storage, or none. Ends as too costly above most_remat_cost.
  const Outcome& run(uint64_t budget_bytes, const Score& score, const std::vector<float>* weights,
                     int64_t most_remat_cost) {
    reset();
    score_ = score;
    outcome_.keeps = score.keep > 0;
    weights_ = weights;
    budget_ = budget_bytes;
    most_ = most_remat_cost;
    try {
      play();
    } catch (const Stop& stop) {
      outcome_.status = stop.status;
    }
    return outcome_;
  }

 private:
  enum State : uint8_t { kUnborn, kResident, kEvicted };
  enum class Use : uint8_t { unknown, being_found, known };
  struct Stop {
    Status status;
  };
  // A candidate whose ancestors are to be summed anew: its score without them, and that without
  // its numerator.
  struct Late {
    double bound, rest;
    uint32_t storage;
  };
  struct UseStep {
    uint32_t storage;
    size_t next_child;
  };

  void reset() {
    const size_t storages = plan_.storages.size();
    outcome_.status = Status::ok;
    outcome_.remat_cost = 0;
    outcome_.executions = 0;
    outcome_.evictions.clear();
    outcome_.remats.assign(storages, 0);
    state_.assign(storages, kUnborn);
    cost_.assign(storages, 0);
    pool_.clear();
    pool_bytes_.clear();
    at_.assign(storages, kNone);
    use_at_.assign(storages, 0);
    next_use_.assign(storages, kNone);
    use_.assign(storages, Use::unknown);
    numerator_.assign(storages, 0);
    numerator_known_.assign(storages, 0);
    needed_.assign(storages, 0);
    position_ = 0;
  }
  void compute(uint32_t id) {
    const Op& op = plan_.ops[id];
    for (uint32_t t = op.first_output; t < op.end_output(); ++t) {
      const uint32_t storage = plan_.tensors[t].storage;
      ++in_use_[storage].references;
      if (t == op.first_output || plan_.tensors[t - 1].storage != storage)
        cost_[storage] += op.cost;
      numerator_known_[storage] = 0;
    }
    materialize(op.first_output, false);
    for (uint32_t t = op.first_output; t < op.end_output(); ++t) of(t).last_access = clock_;
    if (op.constant) return pin(op.first_output);
    for (const uint32_t input : op.inputs) use_[plan_.tensors[input].storage] = Use::unknown;
    ++position_;
  }
  void unreferenced(uint32_t storage) {
    if (score_.keep == 0 && is_resident(storage) && !in_use_[storage].pinned) evict(storage);
  }
  bool is_resident(uint32_t storage) const { return state_[storage] == kResident; }
  void check(bool) const {}  // the plan is one
  const std::vector<uint32_t>& begin(uint32_t tensor) {
    const std::vector<uint32_t>& inputs = op_of(tensor).inputs;
    for (const uint32_t input : inputs) of(input).last_access = clock_;
    return inputs;
  }
  void executed(const Op& op, const Step& step) {
    ++outcome_.executions;
    if (step.again) {
      outcome_.remat_cost += op.cost;
      ++outcome_.remats[storage_of(step.tensor)];
    }
    for (const uint32_t input : op.inputs) unlock(storage_of(input));
    if (outcome_.remat_cost > most_) throw Stop{Status::too_costly};
  }
  void make_room(uint64_t bytes) {
    if (memory_ + bytes <= budget_) return;
    const size_t first = outcome_.evictions.size();
    std::vector<std::vector<uint32_t>> undone;  // tensors that each eviction made undefined
    while (memory_ + bytes > budget_) {
      const uint64_t missing = memory_ + bytes - budget_;
      uint32_t storage = choose(static_cast<uint64_t>(score_.part * static_cast<double>(missing)));
      if (storage == kNone) storage = choose(0);
      if (storage == kNone) throw Stop{Status::out_of_memory};
      outcome_.evictions.push_back({outcome_.executions, storage});
      undone.emplace_back();
      for (const uint32_t tensor : plan_.links[storage].tensors)
        if (defined_[tensor]) undone.back().push_back(tensor);
      evict(storage);
    }
    // What was chosen early may prove needless.
    for (size_t i = 0; i + 1 < undone.size();) {
      const auto at = outcome_.evictions.begin() + static_cast<std::ptrdiff_t>(first + i);
      const uint32_t storage = at->storage;
      if (memory_ + plan_.storages[storage].size_bytes + bytes > budget_) {
        ++i;
        continue;
      }
      memory_ += plan_.storages[storage].size_bytes;
      revive(storage, true);
      for (const uint32_t tensor : undone[i]) defined_[tensor] = 1;
      undone.erase(undone.begin() + static_cast<std::ptrdiff_t>(i));
      outcome_.evictions.erase(at);
    }
  }
  uint32_t choose(uint64_t least_bytes) {
    const double now = static_cast<double>(plan_.cost_before[position_]);
    const double total = static_cast<double>(plan_.cost_before.back());
    uint32_t best = kNone;
    double least = std::numeric_limits<double>::infinity();
    const auto offer = [&](uint32_t storage, double value) {
      if (value > least || (value == least && storage > best)) return;
      least = value;
      best = storage;
    };
    // A score without ancestors is a bound of the score with them; those whose ancestors are to be
    // summed anew come last, and only if their bound may win.
    late_.clear();
    for (size_t i = 0; i < pool_.size(); ++i) {
      if (pool_bytes_[i] < least_bytes) continue;
      const uint32_t storage = pool_[i];
      double rest = 0;
      const uint32_t next = next_use(storage);
      if (next == kNone && goes_first(storage)) rest -= kDeadFirst;
      if (score_.distance > 0) {
        const double until =
            next == kNone ? 2 * total : static_cast<double>(plan_.cost_before[next]) - now;
        rest -= score_.distance * quick_log2(std::max(until, 1.0));
      }
      if (score_.staleness > 0)
        rest -=
            score_.staleness *
            quick_log2(std::max(static_cast<double>(clock_ - in_use_[storage].last_access), 1.0));
      if (numerator_known_[storage])
        offer(storage, numerator_[storage] + rest);
      else
        late_.push_back({own_numerator(storage) + rest, rest, storage});
    }
    std::ranges::sort(late_, {}, &Late::bound);
    for (const Late& late : late_) {
      if (late.bound > least) break;
      // Beyond so much cost it cannot win.
      const double most = std::exp2(std::min(least - late.rest - scaled(late.storage, 1), 1000.0));
      const double value = numerator(late.storage, most * 1.01);
      if (numerator_known_[late.storage]) offer(late.storage, value + late.rest);
    }
    return best;
  }
  // Of what nothing needs: whether it goes before all else. A small storage that makes a large one
  // cheap to compute again may be worth its bytes.
  bool goes_first(uint32_t storage) {
    if (score_.spare == 0) return true;
    const double large = score_.spare * static_cast<double>(plan_.storages[storage].size_bytes);
    const std::vector<uint32_t>& children = plan_.links[storage].children;
    return std::ranges::none_of(children, [&](uint32_t child) {
      return state_[child] == kResident &&
             static_cast<double>(plan_.storages[child].size_bytes) >= large &&
             next_use(child) != kNone;
    });
  }
  void evict(uint32_t storage) {
    state_[storage] = kEvicted;
    memory_ -= plan_.storages[storage].size_bytes;
    leave(storage);
    for (const uint32_t tensor : plan_.links[storage].tensors) defined_[tensor] = 0;
    needed_[storage] = next_use(storage) != kNone;
    forget_ancestors_below(storage);
    forget_use_above(storage);
  }
  void revive(uint32_t storage, bool) {
    const bool again = state_[storage] == kEvicted;
    state_[storage] = kResident;
    numerator_known_[storage] = 0;
    enter(storage);
    if (!again) return;
    forget_ancestors_below(storage);
    forget_use_above(storage);
  }
  void enter(uint32_t storage) {
    // Nothing is gained by evicting what has no bytes.
    if (at_[storage] != kNone || plan_.storages[storage].size_bytes == 0) return;
    at_[storage] = static_cast<uint32_t>(pool_.size());
    pool_.push_back(storage);
    pool_bytes_.push_back(plan_.storages[storage].size_bytes);
  }
  void leave(uint32_t storage) {
    const uint32_t at = at_[storage];
    if (at == kNone) return;
    pool_[at] = pool_.back();
    at_[pool_[at]] = at;
    pool_.pop_back();
    pool_bytes_[at] = pool_bytes_.back();
    pool_bytes_.pop_back();
    at_[storage] = kNone;
  }
  // The next position of the program that reads it, from the present one on.
  uint32_t direct_use(uint32_t storage) {
    const std::vector<uint32_t>& uses = plan_.links[storage].uses;
    uint32_t& at = use_at_[storage];
    while (at < uses.size() && uses[at] < position_) ++at;
    return at < uses.size() ? uses[at] : kNone;
  }
  bool knows_use(uint32_t storage) const {
    if (use_[storage] == Use::being_found) return true;
    return use_[storage] == Use::known &&
           (next_use_[storage] == kNone || next_use_[storage] >= position_);
  }
  // The same, also by what is evicted and will have to be computed again. Views of several storages
  // can make circles: what is met again counts as what is known of it so far.
  uint32_t next_use(uint32_t wanted) {
    const auto open = [&](uint32_t storage) {
      next_use_[storage] = direct_use(storage);
      use_[storage] = Use::being_found;
      uses_.push_back({storage, 0});
    };
    if (knows_use(wanted)) return next_use_[wanted];
    open(wanted);
    while (!uses_.empty()) {
      const uint32_t at = uses_.back().storage;
      const std::vector<uint32_t>& children = plan_.links[at].children;
      if (uses_.back().next_child == children.size()) {
        use_[at] = Use::known;
        uses_.pop_back();
        if (!uses_.empty()) {
          uint32_t& above = next_use_[uses_.back().storage];
          above = std::min(above, next_use_[at]);
        }
        continue;
      }
      const uint32_t child = children[uses_.back().next_child++];
      if (state_[child] != kEvicted) continue;
      if (knows_use(child))
        next_use_[at] = std::min(next_use_[at], next_use_[child]);
      else
        open(child);
    }
    return next_use_[wanted];
  }
  // Gives up, and keeps nothing, once the cost is above `most`.
  double numerator(uint32_t storage, double most) {
    if (numerator_known_[storage]) return numerator_[storage];
    double sum = static_cast<double>(cost_[storage]);
    // What is evicted around it on one side, as far as counted() says; false once that is too much.
    const auto walk_to = [&](std::vector<uint32_t> Links::* side, auto&& counted) {
      mark_[storage] = ++marks_;
      std::vector<uint32_t>& walk = numerator_walk_;
      walk.assign(1, storage);
      while (!walk.empty()) {
        if (sum > most) return false;
        const uint32_t at = walk.back();
        walk.pop_back();
        for (const uint32_t other : plan_.links[at].*side) {
          if (mark_[other] == marks_ || state_[other] != kEvicted) continue;
          mark_[other] = marks_;
          if (counted(other)) walk.push_back(other);
        }
      }
      return true;
    };
    if (score_.ancestors > 0 || score_.pending > 0) {
      op_mark_[plan_.tensors[plan_.storages[storage].root].op] = marks_ + 1;
      const bool is_known = walk_to(&Links::parents, [&](uint32_t parent) {
        const uint32_t op = plan_.tensors[plan_.storages[parent].root].op;
        int64_t cost = cost_[parent];
        if (op_mark_[op] == marks_) cost -= plan_.ops[op].cost;
        op_mark_[op] = marks_;
        const bool is_pending = score_.pending != score_.ancestors && needed_[parent];
        sum += (is_pending ? score_.pending : score_.ancestors) * static_cast<double>(cost);
        return true;
      });
      if (!is_known) return 0;
    }
    if (score_.descendants > 0) {
      const bool is_known = walk_to(&Links::children, [&](uint32_t child) {
        if (next_use(child) == kNone) return false;
        sum += score_.descendants * static_cast<double>(cost_[child]);
        return true;
      });
      if (!is_known) return 0;
    }
    numerator_[storage] = scaled(storage, sum);
    numerator_known_[storage] = true;
    return numerator_[storage];
  }
  double own_numerator(uint32_t storage) const {
    return scaled(storage, static_cast<double>(cost_[storage]));
  }
  double scaled(uint32_t storage, double cost) const {
    return (weights_ != nullptr ? (*weights_)[storage] : 0) + (cost > 0 ? quick_log2(cost) : 0) -
           score_.size * log_size_[storage];
  }
  void forget_ancestors_below(uint32_t storage) {
    ++marks_;
    walk_.assign(1, storage);
    while (!walk_.empty()) {
      const uint32_t at = walk_.back();
      walk_.pop_back();
      for (const uint32_t child : plan_.links[at].children) {
        if (state_[child] == kUnborn || mark_[child] == marks_) continue;
        mark_[child] = marks_;
        numerator_known_[child] = 0;
        if (state_[child] == kEvicted) walk_.push_back(child);
      }
    }
  }
  // What is above a storage that came or went: its next use may have changed, and its evicted
  // descendants. Where an evicted one becomes needed, or is no longer, what is below it is told.
  void forget_use_above(uint32_t storage) {
    ++marks_;
    walk_.assign(1, storage);
    changed_.clear();
    while (!walk_.empty()) {
      const uint32_t at = walk_.back();
      walk_.pop_back();
      for (const uint32_t parent : plan_.links[at].parents) {
        if (mark_[parent] == marks_) continue;
        mark_[parent] = marks_;
        use_[parent] = Use::unknown;
        if (score_.descendants > 0) numerator_known_[parent] = 0;
        if (state_[parent] != kEvicted) continue;
        walk_.push_back(parent);
        changed_.push_back(parent);
      }
    }
    if (score_.pending == score_.ancestors) return;
    for (const uint32_t at : changed_) {
      const bool needed = next_use(at) != kNone;
      if (needed == needed_[at]) continue;
      needed_[at] = needed;
      forget_ancestors_below(at);
    }
  }

  // Of the run:
  const Plan& plan_;
  Score score_;
  const std::vector<float>* weights_ = nullptr;
  uint64_t budget_ = 0;
  int64_t most_ = 0;
  Outcome outcome_;
  uint32_t position_ = 0;  // the op of the program that runs, or waits

  // By storage:
  std::vector<State> state_;
  std::vector<int64_t> cost_;  // of all ops of its tensors so far
  std::vector<double> log_size_;
  std::vector<uint32_t> use_at_;    // where in Links::uses the next one stands
  std::vector<uint32_t> next_use_;  // as use_ says: forgotten where what is evicted below changes
  std::vector<Use> use_;
  std::vector<uint8_t> needed_;           // of what is evicted: whether it has a next use
  std::vector<double> numerator_;         // scaled; forgotten where what is evicted around changes
  std::vector<uint8_t> numerator_known_;  // whether it is up to date

  // The resident, unlocked storages of a size above 0, in no order, and where each stands.
  std::vector<uint32_t> pool_, at_;
  std::vector<uint64_t> pool_bytes_;  // parallel to pool_

  // Worklists, and marks of the walk of that number.
  std::vector<uint32_t> mark_, op_mark_;
  uint32_t marks_ = 0;
  std::vector<uint32_t> walk_, changed_, numerator_walk_;
  std::vector<UseStep> uses_;
  std::vector<Late> late_;
};

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
    static constexpr std::pair<double Score::*, double> kScales[] = {
        {&Score::distance, 0.2},    {&Score::staleness, 0.2}, {&Score::pending, 0.3},
        {&Score::descendants, 0.3}, {&Score::size, 0.1},      {&Score::ancestors, 0.2}};
    const uint64_t which = random_() % (std::size(kScales) + 2);
    if (which < std::size(kScales)) {
      const auto [part, scale] = kScales[which];
      score.*part = std::max(0.0, score.*part + scale * noise());
    } else if (which == std::size(kScales)) {
      score.spare = uniform() < 0.3 ? 0 : std::exp2(6 * uniform());
    } else {
      score.part = uniform() < 0.5 ? 0 : std::exp2(-8 * uniform());
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

}  // namespace

Found search(const Plan& plan, uint64_t budget_bytes, uint64_t seed, uint64_t steps,
             double seconds) {
  Search of(plan, budget_bytes, seed);
  of.sweep();
  const uint64_t made = of.walk(steps, seconds);
  return {of.best(), made};
}

}  // namespace dtr::schedule
