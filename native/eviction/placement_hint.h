// placement_hint.h: at which end of the heap a request shall be placed, where the placement is
// two-ended (Zhang et al., Coop, NeurIPS 2023: cheap and expensive tensors at two ends of the heap).
//
// A request is expensive if its density, the cost of its operator over the bytes of the request, is
// the median or above. Expensive requests go to the low end, cheap ones to the high end. To the low
// end also go requests of unknown cost, and constants: allocations outside of an operator, or of one
// that cannot be repeated.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "dtr_alloc.h"
#include "policy/costs.h"

namespace dtr {

// A running median of densities, as their binary logarithm: each reading moves it a step towards
// itself, the first ones a longer step. The same readings in the same order give the same medians;
// two threads at once may lose a reading, no more.
class MedianDensity {
 public:
  // Whether the reading, cost over bytes, is below the median of those before it (the first is
  // not); then counts it. Both above 0.
  bool is_below(double cost_ns, double bytes) {
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

 private:
  // Of the binary logarithm. The first steps find the median wherever it is, the last follow it.
  static constexpr double kFirstStep = 2;
  static constexpr double kLastStep = 1.0 / 16;

  std::atomic<uint64_t> readings_{0};
  std::atomic<double> log2_{0};
};

// What one engine's operators cost, for the requests that they make.
class PlacementHint {
 public:
  // What a thread runs (run/current_op.h).
  struct Running {
    const PlacementHint* of = nullptr;  // null: nothing, or what it makes becomes constant
    int64_t cost_ns = 0;                // 0: not known; then the bytes decide
    uint64_t input_bytes = 0;
  };

  // One that uses hints. Said before anything runs.
  void add_pool(const dtr_pool* pool) { pools_.emplace_back(pool); }
  bool is_used() const { return !pools_.empty(); }

  // ---- under the engine's mutex ----
  // call: a hash of operator and arguments. cost_ns: of the operator if that is known beforehand,
  // else below 0. input_bytes: nothing if its results become constants.
  void op_begins(uint64_t call, int64_t cost_ns, std::optional<uint64_t> input_bytes) const {
    running_of_thread() = {};
    if (!input_bytes) return;
    running_of_thread() = {this, cost_ns >= 0 ? std::max<int64_t>(cost_ns, 1) : known_cost_ns(call),
                           *input_bytes};
  }
  void op_cost(uint64_t call, int64_t cost_ns) {
    if (!is_used()) return;
    if (calls_.empty()) calls_.resize(kPlaces);
    calls_[call % kPlaces] = {call, cost_ns};
  }

  // ---- by the thread of the operator ----
  static Running& running_of_thread() {
    thread_local Running running;
    return running;
  }
  // of a rematerialization
  void step_begins(int64_t cost_ns) const {
    if (is_used()) running_of_thread() = {this, std::max<int64_t>(cost_ns, 1), 0};
  }
  // DTR_HINT_... for a request of this thread to one of the pools, of a device of this type.
  int32_t hint_for(const dtr_pool* pool, uint8_t device_type, uint64_t size_bytes) {
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

 private:
  // What calls cost. Two hashes may share a place: then the later call has it. (The hash is without
  // the sizes of the results, which the signature has, too, but which are not known before.)
  static constexpr size_t kPlaces = 16384;
  struct Call {
    uint64_t hash = 0;
    int64_t cost_ns = 0;
  };
  int64_t known_cost_ns(uint64_t call) const {
    if (calls_.empty()) return 0;
    const Call& place = calls_[call % kPlaces];
    return place.hash == call ? place.cost_ns : 0;
  }

  struct OfPool {
    explicit OfPool(const dtr_pool* of) : pool(of) {}
    const dtr_pool* pool;
    MedianDensity densities;  // of what operators allocated there
  };

  std::deque<OfPool> pools_;
  std::vector<Call> calls_;
};

}  // namespace dtr
