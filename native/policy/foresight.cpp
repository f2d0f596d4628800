#include "foresight.h"

#include <algorithm>

namespace dtr {

namespace {

constexpr int kMostVisits = 32;  // of evicted storages

}  // namespace

void Foresight::turn(bool on) {
  if (on == is_on_) return;
  is_on_ = on;
  steps_ = StepDetector(kMost);
  use_base_ += uses_.size();
  ran_ = {};
  uses_ = {};
  lag_ = 0;
}

bool Foresight::ran(uint64_t signature, int64_t own_ns, int64_t cost_ns) {
  const uint64_t before = lag_, first = steps_.first();
  if (uses_.size() >= kMostUses) steps_.forget_half();
  steps_.ran(signature, live_bytes_);
  if (const uint64_t gone = steps_.first() - first) {
    const uint64_t uses = ran_[gone].first_use - use_base_;
    ran_.erase(ran_.begin(), ran_.begin() + static_cast<std::ptrdiff_t>(gone));
    uses_.erase(uses_.begin(), uses_.begin() + static_cast<std::ptrdiff_t>(uses));
    use_base_ += uses;
  }
  ran_.push_back({use_base_ + uses_.size(), own_ns, own_ns + cost_ns});
  if (lag_ > 0 && steps_.matched(lag_, 1) == 0) lag_ = 0;
  if (lag_ == 0) lag_ = steps_.longest();
  const uint64_t now = steps_.last();
  if (lag_ > 0) use_ = op(now - lag_).first_use;
  if (lag_ == before) return false;
  if (lag_ > 0) lag_ns_ = own_ns - op(now - lag_).begin_ns;
  return true;
}

void Foresight::uses(Storage* storage) {
  const uint64_t now = steps_.last();
  if (storage->last_use >= use_base_ && storage->last_use < use_base_ + uses_.size())
    uses_[storage->last_use - use_base_] = now;
  storage->last_use = use_base_ + uses_.size();
  uses_.push_back(kNever);
  if (lag_ == 0) {
    storage->due_ns = kNoForesight;
    return;
  }
  const uint64_t then = now - lag_;
  const uint64_t end = op(then + 1).first_use;
  if (use_ >= end) {  // not the same tensors
    storage->due_ns = kNoForesight;
    return;
  }
  const uint64_t next = uses_[use_++ - use_base_];
  storage->due_ns =
      next == kNever ? kNeverDue : op(now).end_ns + op(next).begin_ns - op(then).end_ns;
}

// Of what nothing is known: half of what was repeated.
double Foresight::until_own_use(const Storage* storage) const {
  const auto lag_ns = static_cast<double>(lag_ns_);
  if (storage->due_ns == kNeverDue) return 2 * lag_ns;
  if (storage->due_ns == kNoForesight) return lag_ns / 2;
  return static_cast<double>(std::max<int64_t>(storage->due_ns - ran_.back().end_ns, 0));
}

double Foresight::until_use(const Storage* storage) const {
  double least = until_own_use(storage);
  if (storage->needed_by == 0) return least;
  const Storage* pending[kMostVisits];
  int count = 0, next = 0;
  const auto visit = [&](const Storage* of) {
    for (const Edge* edge = of->children; edge; edge = edge->next) {
      if (edge->op->needed_outputs == 0) continue;
      for (const Output& output : edge->op->outputs) {
        if (!output.storage || !output.storage->needed) continue;
        if (count == kMostVisits) return;
        if (std::find(pending, pending + count, output.storage) == pending + count)
          pending[count++] = output.storage;
      }
    }
  };
  visit(storage);
  while (next < count) {
    const Storage* of = pending[next++];
    if (of->live) least = std::min(least, until_own_use(of));
    visit(of);
  }
  return least;
}

}  // namespace dtr
