#include "step_detector.h"

#include <algorithm>
#include <cmath>

#include "costs.h"

namespace dtr {

namespace {

constexpr uint64_t kContext = 8;       // operators
constexpr uint64_t kFew = 64;          // operators
constexpr uint64_t kBlock = 64;        // operators
constexpr uint64_t kSlots = 1 << 14;   // of contexts
constexpr uint64_t kMostLooks = 2048;  // at operators of the same context
constexpr uint64_t kLongest = 4096;    // repetitions count for no more
// Of the most memory that was in use.
constexpr double kBalance = 0.005, kSwing = 0.05;

}  // namespace

void StepDetector::ran(uint64_t signature, uint64_t live_bytes) {
  if (!ran_.empty()) most_live_bytes_ = std::max(most_live_bytes_, ran_.back().live_bytes);
  if (ran_.size() == most_) forget_half();
  if (contexts_.empty()) contexts_.assign(kSlots, 0);
  Signature context(signature);
  for (size_t back = 1; back < kContext && back <= ran_.size(); ++back)
    context.add(ran_[ran_.size() - back].signature);
  uint64_t& slot = contexts_[context.value() % kSlots];
  ran_.push_back({signature, context.value(), slot, 0, 0, 0});
  slot = last() + 1;
  leaves(live_bytes);
}

void StepDetector::leaves(uint64_t live_bytes) {
  Ran& now = ran_.back();
  now.live_bytes = now.block_low = now.block_high = live_bytes;
  if (last() % kBlock == 0 || ran_.size() == 1) return;
  const Ran& before = op(last() - 1);
  now.block_low = std::min(live_bytes, before.block_low);
  now.block_high = std::max(live_bytes, before.block_high);
}

// What is behind is as good as never having been.
void StepDetector::forget_half() {
  const uint64_t half = ran_.size() / 2;
  ran_.erase(ran_.begin(), ran_.begin() + static_cast<std::ptrdiff_t>(half));
  first_ += half;
}

uint64_t StepDetector::matched(uint64_t lag, uint64_t most) const {
  const uint64_t count = ran_.size();
  uint64_t length = 0;
  while (length < most && lag + length < count &&
         ran_[count - 1 - length].signature == ran_[count - 1 - lag - length].signature)
    ++length;
  return length;
}

// The latest operator from which on much more was in use at some point than at another; 0: none. A block
// in which that begins nowhere is passed as a whole.
uint64_t StepDetector::swings_from() const {
  const double swing = kSwing * static_cast<double>(most_live_bytes_);
  uint64_t low = op(last() - 1).live_bytes, high = low;
  for (uint64_t from = last(); from > first_;) {
    const Ran& of = op(from - 1);
    const uint64_t lowest = std::min(low, of.block_low), highest = std::max(high, of.block_high);
    if (static_cast<double>(highest - lowest) < swing) {
      low = lowest;
      high = highest;
      from = std::max(first_, (from - 1) / kBlock * kBlock);
      continue;
    }
    low = std::min(low, of.live_bytes);
    high = std::max(high, of.live_bytes);
    --from;
    if (static_cast<double>(high - low) >= swing) return from;
  }
  return 0;
}

// The lags of repetitions that are steps by their memory, the shortest first, until one is not taken.
// The first operators have no whole context: while there are few, all are looked at.
// What dies behind the last operator may do so because the job ends, so its memory does not count.
template <typename Takes>
void StepDetector::for_each_lag(Takes&& takes) const {
  if (ran_.size() < 2) return;
  const uint64_t end = swings_from();
  const auto live_bytes = static_cast<double>(op(last() - 1).live_bytes);
  const bool are_few = ran_.size() <= kFew;
  const auto is_same = [&](const Ran& a, const Ran& b) {
    return are_few ? a.signature == b.signature : a.context == b.context;
  };
  uint64_t looks = 0;
  for (uint64_t entry = are_few ? last() : ran_.back().before;
       entry > first_ + 1 && ++looks < kMostLooks;
       entry = are_few ? entry - 1 : op(entry - 1).before) {
    const uint64_t then = entry - 1;
    if (then > end || !is_same(op(then), ran_.back())) continue;
    const double left = std::abs(static_cast<double>(op(then - 1).live_bytes) - live_bytes);
    if (left <= kBalance * static_cast<double>(most_live_bytes_) && !takes(last() - then)) return;
  }
}

uint64_t StepDetector::longest() const {
  uint64_t found = 0, longest = kContext - 1;
  for_each_lag([&](uint64_t lag) {
    const uint64_t length = matched(lag, kLongest);
    if (length > longest) {
      found = lag;
      longest = length;
    }
    return length < kLongest;
  });
  return found;
}

uint64_t StepDetector::complete(uint64_t share) const {
  uint64_t found = 0;
  for_each_lag([&](uint64_t lag) {
    const uint64_t length = matched(lag);
    if (length >= lag && share * (lag + length) >= ran_.size()) found = lag;
    return found == 0;
  });
  return found;
}

}  // namespace dtr
