#include "foresight.h"

#include <algorithm>

#include "repetition.h"

namespace dtr {

namespace {

constexpr int kMostVisits = 32;  // of evicted storages

}  // namespace

void Foresight::turn(bool on) {
  if (on == is_on_) return;
  is_on_ = on;
  base_ += ran_.size();
  use_base_ += uses_.size();
  ran_ = {};
  uses_ = {};
  contexts_ = {};
  if (on) contexts_.assign(kSlots, 0);
  lag_ = 0;
}

// Half of it. (What is behind is as good as never having been.)
void Foresight::forget_the_oldest() {
  const uint64_t half = ran_.size() / 2;
  const uint64_t uses = op(base_ + half).first_use - use_base_;
  ran_.erase(ran_.begin(), ran_.begin() + static_cast<std::ptrdiff_t>(half));
  uses_.erase(uses_.begin(), uses_.begin() + static_cast<std::ptrdiff_t>(uses));
  base_ += half;
  use_base_ += uses;
}

bool Foresight::ran(uint64_t signature, int64_t own_ns, int64_t cost_ns) {
  const uint64_t before = lag_;
  if (ran_.size() == kMost || uses_.size() >= kMostUses) forget_the_oldest();
  const uint64_t now = base_ + ran_.size();
  uint64_t context = signature;
  for (uint64_t back = 1; back < kContext && back <= ran_.size(); ++back)
    context = (context ^ op(now - back).signature) * 0x9E3779B97F4A7C15ull + back;
  uint64_t& slot = contexts_[context >> 50 & (kSlots - 1)];
  most_live_bytes_ = std::max(most_live_bytes_, live_bytes_);
  uint64_t low = live_bytes_, high = live_bytes_;
  if (now % kBlock > 0 && !ran_.empty()) {
    low = std::min(low, ran_.back().block_low);
    high = std::max(high, ran_.back().block_high);
  }
  ran_.push_back({signature, context, slot, use_base_ + uses_.size(), own_ns, own_ns + cost_ns,
                  live_bytes_, low, high});
  slot = now + 1;
  if (lag_ > 0 && (now - lag_ < base_ || op(now - lag_).signature != signature)) lag_ = 0;
  if (lag_ == 0) find_lag();
  if (lag_ > 0) use_ = op(now - lag_).first_use;
  if (lag_ == before) return false;
  if (lag_ > 0) lag_ns_ = own_ns - op(now - lag_).begin_ns;
  return true;
}

// The latest operator from which on much more was in use at some point than at another; 0: none.
uint64_t Foresight::swings_from() const {
  uint64_t from = base_ + ran_.size();
  uint64_t low = live_bytes_, high = live_bytes_;
  const auto takes = [&](uint64_t least, uint64_t most) {
    low = std::min(low, least);
    high = std::max(high, most);
    return swings(low, high, most_live_bytes_);
  };
  while (from > base_) {
    const uint64_t before_low = low, before_high = high;
    const Ran& last = op(from - 1);
    if (takes(last.block_low, last.block_high)) {
      low = before_low;
      high = before_high;
      break;
    }
    from = std::max(base_, (from - 1) / kBlock * kBlock);
  }
  while (from > base_)
    if (const Ran& last = op(--from); takes(last.live_bytes, last.live_bytes)) return from;
  return 0;
}

// E1. Entries come from the latest to the earliest.
void Foresight::find_lag() {
  const uint64_t now = base_ + ran_.size() - 1;
  const uint64_t end = swings_from();
  if (end == 0) return;
  const Ran& last = ran_.back();
  uint64_t longest = kContext - 1, looks = 0;
  for (uint64_t entry = last.before; entry > base_ && ++looks < kMostLooks;
       entry = op(entry - 1).before) {
    const uint64_t then = entry - 1;
    const Ran& other = op(then);
    if (then >= end || other.context != last.context ||
        !is_balanced(other.live_bytes, last.live_bytes, most_live_bytes_))
      continue;
    uint64_t length = 0;
    while (length < kLongest && then - length >= base_ && then >= length &&
           op(then - length).signature == op(now - length).signature)
      ++length;
    if (length <= longest) continue;
    longest = length;
    lag_ = now - then;
    if (length == kLongest) return;
  }
}

void Foresight::uses(Storage* storage) {
  const uint64_t now = base_ + ran_.size() - 1;
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
