#include "planner.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "grain.h"

namespace dtr {

namespace {

class InUse {
 public:
  explicit InUse(uint64_t length) : changes_(length + 1, 0) {}
  void add(const Lifetime& of) {
    const auto bytes = static_cast<int64_t>(of.size_bytes);
    changes_[of.begin] += bytes;
    changes_[of.end + 1] -= bytes;
    if (of.end < of.begin) changes_[0] += bytes;
  }
  uint64_t most() const {
    int64_t now = 0, most = 0;
    for (const int64_t change : changes_) most = std::max(most, now += change);
    return static_cast<uint64_t>(most);
  }

 private:
  std::vector<int64_t> changes_;
};

}  // namespace

StepBlocks::StepBlocks(const AllocationTrace& trace, uint64_t first_op, uint64_t period) {
  const std::vector<uint64_t>& begin_of = trace.begin_of;
  const uint64_t end_op = first_op + period;
  const uint64_t first = begin_of[first_op];
  const uint64_t last = end_op < begin_of.size() ? begin_of[end_op] : trace.end;
  length_ = last - first;
  // A time in the next step as one in this: as far behind the beginning of its operator.
  const auto wrapped = [&](uint64_t time) {
    const auto after = std::ranges::upper_bound(begin_of, time);
    const auto op = static_cast<uint64_t>(after - begin_of.begin()) - 1;
    if (op < end_op) return uint64_t{0};
    return std::min(begin_of[op - period] + (time - begin_of[op]) - first, length_ - 1);
  };
  const auto in_step = [&](uint64_t op) {
    return static_cast<uint32_t>((op + period - first_op % period) % period);
  };
  static_assert(AllocationTrace::kNoResult == StepPlan::kNone);
  InUse small(length_), large(length_);
  for (const AllocationTrace::Block& block : trace.blocks) {
    if (block.begin < first || block.begin >= last || block.op == AllocationTrace::kNoOp) continue;
    Lifetime of{block.begin - first, block.end - first, in_grains(block.size_bytes)};
    if (block.end >= last) of.end = wrapped(block.end);
    // What goes on as long as a step takes is there all the time.
    if (block.end >= last && of.end >= of.begin) of = {0, length_ - 1, of.size_bytes};
    const StepPlan::Place place{
        in_step(block.op),
        block.run,
        block.ordinal,
        block.result,
        block.last_op == AllocationTrace::kNoOp ? StepPlan::kNone : in_step(block.last_op),
        block.last_run,
        block.size_bytes,
        StepPlan::kNowhere,
        block.is_ahead,
        block.dropped - block.end <= 1};
    if (block.size_bytes < kLeastBytes) {
      of.size_bytes = block.size_bytes;
      small.add(of);
      if (place.result != StepPlan::kNone) small_.push_back(place);
      continue;
    }
    large.add(of);
    places_.push_back(place);
    lifetimes_.push_back(of);
  }
  small_bytes_ = small.most();
  most_bytes_ = large.most();
}

uint64_t StepBlocks::bytes_with(const std::vector<HeldBlock>& held) const {
  uint64_t bytes = most_bytes_;
  for (const HeldBlock& block : held) bytes += in_grains(block.size_bytes);
  return bytes;
}

std::optional<StepPlan> StepBlocks::lay_out(const std::vector<HeldBlock>& held,
                                            uint64_t limit) const {
  if (bytes_with(held) > limit) return std::nullopt;
  StepPlan plan;
  std::vector<Obstacle> obstacles;
  const auto add = [&](uint64_t offset, uint64_t size_bytes) {
    const Obstacle obstacle{offset, offset + in_grains(size_bytes)};
    obstacles.insert(std::ranges::upper_bound(obstacles, offset, {}, &Obstacle::begin), obstacle);
  };
  for (const HeldBlock& block : held)
    if (!block.handle) add(block.offset, block.size_bytes);
  // The others as low as they can be.
  for (const HeldBlock& block : held) {
    if (!block.handle) continue;
    const uint64_t offset = lowest_gap(obstacles, in_grains(block.size_bytes));
    plan.held.push_back({block.handle, offset});
    add(offset, block.size_bytes);
  }
  const Layout layout = dtr::lay_out(lifetimes_, obstacles, limit);
  if (layout.missing_bytes > 0) return std::nullopt;
  plan.places = places_;
  for (size_t i = 0; i < plan.places.size(); ++i) plan.places[i].offset = layout.addresses[i];
  plan.places.insert(plan.places.end(), small_.begin(), small_.end());
  std::ranges::sort(plan.places, {},
                    [](const StepPlan::Place& of) { return std::tie(of.op, of.run, of.ordinal); });
  return plan;
}

}  // namespace dtr
