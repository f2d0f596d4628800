// step_plan.cpp: see step_plan.h.
#include "step_plan.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace dtr {

namespace {

struct Running {
  const PlanFollower* of = nullptr;  // null: nothing runs that has a plan
  uint64_t plan = 0;
  uint32_t op = 0, run = 0, ordinal = 0;
};

Running& running_of_thread() {
  thread_local Running running;
  return running;
}

}  // namespace

void PlanFollower::follow(StepPlan plan, bool at_beginning) {
  leave();
  plan_ = std::move(plan);
  ++number_;
  const std::vector<uint64_t>& signatures = plan_.signatures;
  first_place_.assign(signatures.size() + 1, 0);
  for (const StepPlan::Place& place : plan_.places) ++first_place_[place.op + 1];
  for (size_t op = 0; op < signatures.size(); ++op) first_place_[op + 1] += first_place_[op];

  std::vector<uint64_t> calls;
  std::copy_if(signatures.begin(), signatures.end(), std::back_inserter(calls),
               [](uint64_t signature) { return signature != StepPlan::kSameCall; });
  // How far what comes before any other point of the round is the same as before its end.
  size_t longest = 0;
  const size_t count = calls.size();
  for (size_t end = 1; end < count; ++end) {
    size_t same = 0;
    while (same < count && calls[(end + count - 1 - same) % count] == calls[count - 1 - same])
      ++same;
    longest = std::max(longest, same);
  }
  const size_t needed = std::min(longest + 1, count);
  ending_.assign(calls.end() - static_cast<std::ptrdiff_t>(needed), calls.end());
  recent_.assign(needed, 0);
  heard_ = 0;
  tries_ = kTries;
  is_on_ = count > 0;
  if (is_on_ && at_beginning) at_ = 0;
}

void PlanFollower::leave() {
  is_on_ = false;
  at_ = kLost;
  plan_ = {};
}

std::vector<StepPlan::Held> PlanFollower::take_held() {
  --tries_;
  return std::exchange(plan_.held, {});
}

void PlanFollower::op_begins() const {
  if (at_ != kLost) running_of_thread() = {this, number_, static_cast<uint32_t>(at_), 0, 0};
}

void PlanFollower::step_begins(Op* op) const {
  if (op->planned_by != number_ || at_ == kLost) return;
  running_of_thread() = {this, number_, op->planned_as, ++op->planned_runs, 0};
}

void PlanFollower::op_ends() { running_of_thread().of = nullptr; }

// A step begins where the last operators are those with which one ends.
void PlanFollower::listen(uint64_t signature) {
  const size_t count = ending_.size();
  recent_[heard_++ % count] = signature;
  if (heard_ < count || signature != ending_.back()) return;
  for (size_t i = 0; i < count; ++i)
    if (recent_[(heard_ + i) % count] != ending_[i]) return;
  at_ = 0;
}

void PlanFollower::ended(uint64_t signature, Op* op) {
  if (at_ != kLost && plan_.signatures[at_] == signature) {
    if (op) {
      op->planned_by = number_;
      op->planned_as = static_cast<uint32_t>(at_);
      op->planned_runs = 0;
    }
    do ++at_;
    while (at_ < plan_.signatures.size() && plan_.signatures[at_] == StepPlan::kSameCall);
    if (at_ == plan_.signatures.size()) at_ = 0;
    return;
  }
  if (at_ != kLost) heard_ = 0;
  at_ = kLost;
  listen(signature);
}

uint64_t PlanFollower::next(uint64_t size_bytes) {
  Running& running = running_of_thread();
  if (running.of != this || running.plan != number_ || !is_on()) return kNowhere;
  const auto begin = plan_.places.begin();
  const auto from = begin + static_cast<std::ptrdiff_t>(first_place_[running.op]);
  const auto to = begin + static_cast<std::ptrdiff_t>(first_place_[running.op + 1]);
  auto place = std::lower_bound(
      from, to, std::make_tuple(running.run, running.ordinal),
      [](const StepPlan::Place& a, auto b) { return std::make_tuple(a.run, a.ordinal) < b; });
  for (; place != to && place->run == running.run; ++place) {
    if (place->size_bytes != size_bytes) continue;
    running.ordinal = place->ordinal + 1;
    return place->offset;
  }
  return kNowhere;
}

}  // namespace dtr
