#include "player.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace dtr::schedule {

namespace {

constexpr double kDeadFirst = 40;  // as a logarithm: more than scores differ

// log2, within 1e-3: scores are compared, not reported.
double quick_log2(double x) {
  if (!(x > 0)) return -1000;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const double exponent = static_cast<double>(static_cast<int64_t>(bits >> 52) - 1023);
  bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m;
  std::memcpy(&m, &bits, sizeof m);
  m -= 1;
  return exponent + m + m * (1 - m) * (0.422865 - 0.15921963 * m);
}

}  // namespace

Player::Player(const Plan& plan) : Playback(plan), plan_(plan) {
  for (const simrd::LogStorage& storage : plan.storages)
    log_size_.push_back(quick_log2(static_cast<double>(storage.size_bytes)));
  mark_.resize(plan.storages.size());
  op_mark_.resize(plan.ops.size());
}

void Player::reset() {
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

const Outcome& Player::run(uint64_t budget_bytes, const Score& score,
                           const std::vector<float>* weights, int64_t most_remat_cost) {
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

void Player::compute(uint32_t id) {
  const Op& op = plan_.ops[id];
  for (uint32_t t = op.first_output; t < op.end_output(); ++t) {
    const uint32_t storage = plan_.tensors[t].storage;
    ++in_use_[storage].references;
    if (t == op.first_output || plan_.tensors[t - 1].storage != storage) cost_[storage] += op.cost;
    numerator_known_[storage] = 0;
  }
  materialize(op.first_output, false);
  for (uint32_t t = op.first_output; t < op.end_output(); ++t) of(t).last_access = clock_;
  if (op.constant) return pin(op.first_output);
  for (const uint32_t input : op.inputs) use_[plan_.tensors[input].storage] = Use::unknown;
  ++position_;
}

void Player::unreferenced(uint32_t storage) {
  if (score_.keep == 0 && is_resident(storage) && !in_use_[storage].pinned) evict(storage);
}

const std::vector<uint32_t>& Player::begin(uint32_t tensor) {
  const std::vector<uint32_t>& inputs = op_of(tensor).inputs;
  for (const uint32_t input : inputs) of(input).last_access = clock_;
  return inputs;
}

void Player::executed(const Op& op, const Step& step) {
  ++outcome_.executions;
  if (step.again) {
    outcome_.remat_cost += op.cost;
    ++outcome_.remats[storage_of(step.tensor)];
  }
  for (const uint32_t input : op.inputs) unlock(storage_of(input));
  if (outcome_.remat_cost > most_) throw Stop{Status::too_costly};
}

void Player::make_room(uint64_t bytes) {
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

void Player::evict(uint32_t storage) {
  state_[storage] = kEvicted;
  memory_ -= plan_.storages[storage].size_bytes;
  leave(storage);
  for (const uint32_t tensor : plan_.links[storage].tensors) defined_[tensor] = 0;
  needed_[storage] = next_use(storage) != kNone;
  forget_ancestors_below(storage);
  forget_use_above(storage);
}

void Player::revive(uint32_t storage, bool) {
  const bool again = state_[storage] == kEvicted;
  state_[storage] = kResident;
  numerator_known_[storage] = 0;
  enter(storage);
  if (!again) return;
  forget_ancestors_below(storage);
  forget_use_above(storage);
}

void Player::enter(uint32_t storage) {
  // Nothing is gained by evicting what has no bytes.
  if (at_[storage] != kNone || plan_.storages[storage].size_bytes == 0) return;
  at_[storage] = static_cast<uint32_t>(pool_.size());
  pool_.push_back(storage);
  pool_bytes_.push_back(plan_.storages[storage].size_bytes);
}

void Player::leave(uint32_t storage) {
  const uint32_t at = at_[storage];
  if (at == kNone) return;
  pool_[at] = pool_.back();
  at_[pool_[at]] = at;
  pool_.pop_back();
  pool_bytes_[at] = pool_bytes_.back();
  pool_bytes_.pop_back();
  at_[storage] = kNone;
}

// ---- what is known of the future ----

// The next position of the program that reads it, from the present one on.
uint32_t Player::direct_use(uint32_t storage) {
  const std::vector<uint32_t>& uses = plan_.links[storage].uses;
  uint32_t& at = use_at_[storage];
  while (at < uses.size() && uses[at] < position_) ++at;
  return at < uses.size() ? uses[at] : kNone;
}

bool Player::knows_use(uint32_t storage) const {
  if (use_[storage] == Use::being_found) return true;
  return use_[storage] == Use::known &&
         (next_use_[storage] == kNone || next_use_[storage] >= position_);
}

// The same, also by what is evicted and will have to be computed again. Views of several storages
// can make circles: what is met again counts as what is known of it so far.
uint32_t Player::next_use(uint32_t wanted) {
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

void Player::forget_ancestors_below(uint32_t storage) {
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
void Player::forget_use_above(uint32_t storage) {
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

double Player::scaled(uint32_t storage, double cost) const {
  return (weights_ != nullptr ? (*weights_)[storage] : 0) + (cost > 0 ? quick_log2(cost) : 0) -
         score_.size * log_size_[storage];
}

double Player::own_numerator(uint32_t storage) const {
  return scaled(storage, static_cast<double>(cost_[storage]));
}

// Gives up, and keeps nothing, once the cost is above `most`.
double Player::numerator(uint32_t storage, double most) {
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

// Of what nothing needs: whether it goes before all else. A small storage that makes a large one
// cheap to compute again may be worth its bytes.
bool Player::goes_first(uint32_t storage) {
  if (score_.spare == 0) return true;
  const double large = score_.spare * static_cast<double>(plan_.storages[storage].size_bytes);
  const std::vector<uint32_t>& children = plan_.links[storage].children;
  return std::none_of(children.begin(), children.end(), [&](uint32_t child) {
    return state_[child] == kResident &&
           static_cast<double>(plan_.storages[child].size_bytes) >= large &&
           next_use(child) != kNone;
  });
}

uint32_t Player::choose(uint64_t least_bytes) {
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
      rest -= score_.staleness *
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

}  // namespace dtr::schedule
