#include "placement_hint.h"

#include <algorithm>
#include <cmath>

#include "policy/costs.h"

namespace dtr {

namespace {

// Of the binary logarithm. The first steps find the median wherever it is, the last follow it.
constexpr double kFirstStep = 2;
constexpr double kLastStep = 1.0 / 16;

}  // namespace

PlacementHint::Running& PlacementHint::running_of_thread() {
  thread_local Running running;
  return running;
}

bool MedianDensity::is_below(double cost_ns, double bytes) {
  const double reading = std::log2(cost_ns / bytes);
  const uint64_t before = readings_.fetch_add(1, std::memory_order_relaxed);
  double median = log2_.load(std::memory_order_relaxed);
  if (before == 0) median = reading;
  const bool below = reading < median;
  const double step =
      std::max(kLastStep, kFirstStep / static_cast<double>(std::max<uint64_t>(before, 1)));
  if (below)
    median -= std::min(step, median - reading);
  else
    median += std::min(step, reading - median);
  log2_.store(median, std::memory_order_relaxed);
  return below;
}

int64_t PlacementHint::known_cost_ns(uint64_t call) const {
  if (calls_.empty()) return 0;
  const Call& place = calls_[call % kPlaces];
  return place.hash == call ? place.cost_ns : 0;
}

void PlacementHint::op_cost(uint64_t call, int64_t cost_ns) {
  if (!is_used()) return;
  if (calls_.empty()) calls_.resize(kPlaces);
  calls_[call % kPlaces] = {call, cost_ns};
}

void PlacementHint::op_begins(uint64_t call, int64_t cost_ns,
                              std::optional<uint64_t> input_bytes) const {
  running_of_thread() = {};
  if (!input_bytes) return;
  running_of_thread() = {this, cost_ns >= 0 ? std::max<int64_t>(cost_ns, 1) : known_cost_ns(call),
                         *input_bytes};
}

void PlacementHint::step_begins(int64_t cost_ns) const {
  if (is_used()) running_of_thread() = {this, std::max<int64_t>(cost_ns, 1), 0};
}

int32_t PlacementHint::hint_for(const dtr_pool* pool, uint8_t device_type, uint64_t size_bytes) {
  const Running& op = running_of_thread();
  if (op.of != this || size_bytes == 0) return DTR_HINT_EXPENSIVE;
  const int64_t cost_ns =
      op.cost_ns > 0 ? op.cost_ns : CostTable::prior(op.input_bytes + size_bytes, device_type);
  for (OfPool& of : pools_)
    if (of.pool == pool &&
        of.densities.is_below(static_cast<double>(cost_ns), static_cast<double>(size_bytes)))
      return DTR_HINT_CHEAP;
  return DTR_HINT_EXPENSIVE;
}

}  // namespace dtr
