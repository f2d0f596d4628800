// ends.cpp: see ends.h.
#include "ends.h"

#include <algorithm>
#include <cmath>

#include "run/engine.h"

namespace dtr {

namespace {

// Of the binary logarithm. The first steps find the median wherever it is, the last follow it.
constexpr double kFirstStep = 2;
constexpr double kLastStep = 1.0 / 16;

struct OfThread {
  Running op;
  Running step;  // a rematerialization: while it is under way, the op (if any) waits
};

OfThread& of_thread() {
  thread_local OfThread running;
  return running;
}

}  // namespace

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

// An op is about to run; its results become constants if it cannot be repeated, or overwrites
// what cannot be computed again.
void Engine::running_op(Frame& frame) {
  if (!heeds_ends_) return;
  Running& op = of_thread().op;
  op = {};
  frame.call = frame.signature.value();
  if (!frame.replayable || capture_.is_under_way()) return;
  uint64_t bytes = 0;
  for (const Input& input : frame.inputs) {
    if (!input.storage) continue;
    if (input.use == Use::mutate && !input.storage->parent) return;
    bytes += input.storage->size_bytes;
  }
  op = {this, frame.told_ns >= 0 ? std::max<int64_t>(frame.told_ns, 1) : calls_.find(frame.call),
        bytes};
}

void Engine::running_step(const Op* op) {
  if (heeds_ends_) of_thread().step = {this, std::max<int64_t>(op->cost_ns, 1), 0};
}

void Engine::op_is_over() const {
  if (heeds_ends_) of_thread().op = {};
}

void Engine::step_is_over() const {
  if (heeds_ends_) of_thread().step = {};
}

// Called without the mutex, as the pool is.
int32_t Engine::end_for(const Device& device, uint64_t size_bytes) {
  const OfThread& running = of_thread();
  const Running& op = running.step.engine == this ? running.step : running.op;
  if (op.engine != this || size_bytes == 0) return DTR_END_LOW;
  const int64_t cost_ns =
      op.cost_ns > 0 ? op.cost_ns : CostTable::prior(op.input_bytes + size_bytes, device.type);
  return densities_[device.number].is_below(static_cast<double>(cost_ns),
                                            static_cast<double>(size_bytes))
             ? DTR_END_HIGH
             : DTR_END_LOW;
}

}  // namespace dtr
