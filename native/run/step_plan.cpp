#include "step_plan.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace dtr {

namespace {

std::pair<uint32_t, uint32_t> last_use_of(const StepPlan::Place& place) {
  return {place.last_op, place.last_run};
}

}  // namespace

CallMatcher::CallMatcher(std::vector<uint64_t> calls)
    : calls_(std::move(calls)), fallback_(calls_.size(), 0) {
  for (size_t i = 1; i < calls_.size(); ++i) fallback_[i] = after(fallback_[i - 1], calls_[i]);
}

size_t CallMatcher::after(size_t matched, uint64_t call) const {
  while (matched > 0 && (matched == calls_.size() || calls_[matched] != call))
    matched = fallback_[matched - 1];
  return matched + (calls_[matched] == call);
}

PlanFollower::Running& PlanFollower::running_of_thread() {
  thread_local Running running;
  return running;
}

void PlanFollower::follow(StepPlan plan, bool at_beginning) {
  plan_ = std::move(plan);
  // A part of an operator has no end of its own.
  for (StepPlan::Place& place : plan_.places)
    while (place.last_op != StepPlan::kNone && plan_.calls[place.last_op] == StepPlan::kSameCall)
      --place.last_op;
  ++number_;
  go_to(kLost);
  first_place_.assign(plan_.calls.size() + 1, 0);
  for (const StepPlan::Place& place : plan_.places) ++first_place_[place.op + 1];
  for (size_t op = 0; op < plan_.calls.size(); ++op) first_place_[op + 1] += first_place_[op];
  ahead_ = 0;
  by_last_use_.clear();
  for (size_t i = 0; i < plan_.places.size(); ++i)
    if (plan_.places[i].result != StepPlan::kNone && plan_.places[i].last_op != StepPlan::kNone)
      by_last_use_.push_back(i);
  std::sort(by_last_use_.begin(), by_last_use_.end(), [this](size_t a, size_t b) {
    return last_use_of(plan_.places[a]) < last_use_of(plan_.places[b]);
  });
  given_.assign(plan_.places.size(), Given());

  std::vector<uint64_t> calls;
  std::copy_if(plan_.calls.begin(), plan_.calls.end(), std::back_inserter(calls),
               [](uint64_t call) { return call != StepPlan::kSameCall; });
  // From the end backwards: what is the same before the end of a round and before another point of it.
  const size_t count = calls.size();
  const CallMatcher backwards({calls.rbegin(), calls.rend()});
  size_t needed = std::min<size_t>(count, 1), same = 0;
  for (size_t i = 1; i + 1 < 2 * count; ++i) {
    same = backwards.after(same, calls[(2 * count - 1 - i) % count]);
    if (i + 1 < count + same) needed = std::min(count, std::max(needed, same + 1));
  }
  ending_ = CallMatcher({calls.end() - static_cast<std::ptrdiff_t>(needed), calls.end()});
  heard_ = 0;
  tries_ = kTries;
  is_on_ = count > 0;
  if (is_on_ && at_beginning) go_to(0);
}

void PlanFollower::go_to(uint64_t op) {
  at_ = op;
  if (op == 0)
    steps_.begins();
  else if (op == kLost)
    steps_.is_unknown();
}

void PlanFollower::op_begins() const {
  running_of_thread() = {};
  if (at_ != kLost) running_of_thread() = {this, number_, static_cast<uint32_t>(at_), 0, 0};
}

void PlanFollower::step_begins(Op* op) const {
  running_of_thread() = {};
  if (op->planned_by != number_ || at_ == kLost) return;
  running_of_thread() = {this, number_, op->planned_as, ++op->planned_runs, 0};
}

void PlanFollower::ended(uint64_t signature, Op* op) {
  const uint64_t call = StepPlan::call_of(signature);
  if (at_ == kLost || plan_.calls[at_] != call) {
    if (at_ != kLost) {
      heard_ = 0;
      std::fill(given_.begin(), given_.end(), Given());
    }
    heard_ = ending_.after(heard_, call);
    go_to(heard_ == ending_.size() ? 0 : kLost);
    return;
  }
  if (op) {
    for (const Output& output : op->outputs) note(output, at_, 0);
    op->planned_by = number_;
    op->planned_as = static_cast<uint32_t>(at_);
    op->planned_runs = 0;
  }
  do ++at_;
  while (at_ < plan_.calls.size() && plan_.calls[at_] == StepPlan::kSameCall);
  if (at_ == plan_.calls.size()) go_to(0);
  ahead_ = first_place_[at_];
}

void PlanFollower::gave(const Output& output) {
  const Running& running = running_of_thread();
  if (running.plan == number_) note(output, running.op, running.run);
}

void PlanFollower::note(const Output& output, uint64_t op, uint32_t run) {
  if (!output.storage || output.rank < 0) return;
  for (size_t i = first_place_[op]; i < first_place_[op + 1]; ++i) {
    const StepPlan::Place& place = plan_.places[i];
    if (place.run == run && place.result == static_cast<uint32_t>(output.rank))
      given_[i] = {output.storage->address, output.storage->id};
  }
}

void PlanFollower::take_last_used(const Running& running, std::vector<Given>* all) {
  all->clear();
  if (running.plan != number_) return;
  const auto run = std::make_pair(running.op, running.run);
  auto place = std::lower_bound(
      by_last_use_.begin(), by_last_use_.end(), run,
      [this](size_t i, const auto& b) { return last_use_of(plan_.places[i]) < b; });
  for (; place != by_last_use_.end() && last_use_of(plan_.places[*place]) == run; ++place)
    if (const Given given = std::exchange(given_[*place], Given()); given.address)
      all->push_back(given);
}

uint64_t PlanFollower::next(uint64_t size_bytes) {
  Running& running = running_of_thread();
  if (!is_on()) return StepPlan::kNowhere;
  if (running.of == nullptr) return next_ahead(size_bytes);
  if (running.of != this || running.plan != number_) return StepPlan::kNowhere;
  const auto begin = plan_.places.begin();
  const auto from = begin + static_cast<std::ptrdiff_t>(first_place_[running.op]);
  const auto to = begin + static_cast<std::ptrdiff_t>(first_place_[running.op + 1]);
  auto place = std::lower_bound(
      from, to, std::make_tuple(running.run, running.ordinal),
      [](const StepPlan::Place& a, auto b) { return std::make_tuple(a.run, a.ordinal) < b; });
  for (; place != to && place->run == running.run; ++place) {
    if (place->is_ahead || place->size_bytes != size_bytes || place->offset == StepPlan::kNowhere)
      continue;
    running.ordinal = place->ordinal + 1;
    return place->offset;
  }
  return StepPlan::kNowhere;
}

uint64_t PlanFollower::next_ahead(uint64_t size_bytes) {
  if (at_ == kLost) return StepPlan::kNowhere;
  const size_t end = std::min(plan_.places.size(), first_place_[at_] + kFarAhead);
  for (size_t i = ahead_; i < end; ++i) {
    const StepPlan::Place& place = plan_.places[i];
    if (!place.is_ahead || place.size_bytes != size_bytes) continue;
    ahead_ = i + 1;
    return place.offset;
  }
  return StepPlan::kNowhere;
}

}  // namespace dtr
