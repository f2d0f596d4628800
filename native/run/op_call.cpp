// op_call.cpp: the steps of an operator call, and of bringing content back.
#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/spare_memory.h"
#include "engine.h"
#include "graph/heap_blocks.h"

namespace dtr {

namespace {

// More than the calls between two operators allocate: a list that grows may need this much for each
// record, and the rest serves new records. The results of an operator are records to come.
constexpr uint64_t kSpareBytesOfRecord = 128;
constexpr uint64_t kSpareBytes = 1 << 20;
// Records of more results may need more than was kept back for the operator.
constexpr uint64_t kManyResults = kSpareBytes / kSpareBytesOfRecord / 4;

}  // namespace

// Before a call with so many tensors changes anything.
void Engine::keep_spare(uint64_t tensors) const {
  const uint64_t records = graph_.storages().capacity() + tensors;
  keep_spare_memory(kSpareBytes + records * kSpareBytesOfRecord);
}

// All that the operator needs is there. Its timer starts without the mutex.
void Engine::start(Frame& frame, Transaction& call) {
  if (const uint64_t returned = std::exchange(frame.returned, 0))
    swap_space_.prefetch(returned, capture_, call);
  call.lock.unlock();
  CallTimer::start(frame.timing);
}

int32_t Engine::op_begin(Frame& frame, uint32_t tensors, uint32_t flags, uint64_t op_key) {
  if (frame.open) throw StateError("op_begin: the frame's last op has not ended");
  Transaction call(*this);
  keep_spare(tensors);
  // Now and not when the step before ended: what it made may have been dropped since.
  plan_executor_.move_held(call);
  const int32_t need = recorder_.begin(frame, tensors, flags, op_key, call.deferred);
  if (!(need & DTR_NEED_WORK)) start(frame, call);
  return need;
}

int32_t Engine::op_prepare(Frame& frame) {
  Transaction call(*this);
  if (recorder_.prepare(frame, call.deferred)) return 1;
  start(frame, call);
  return 0;
}

int32_t Engine::op_reads(Frame& frame, const void* tensor) {
  Transaction call(*this);
  return frame.runs ? recorder_.reads_inside(frame, tensor, call.deferred)
                    : int32_t{DTR_READS_UNKNOWN};
}

int64_t Engine::op_end(Frame& frame, uint32_t results, uint32_t flags, int64_t cost_ns,
                       void* closure) {
  if (!frame.open) throw StateError("op_end: no op was begun");
  const PlanFollower::Running ran = PlanFollower::running_of_thread();
  OpRecorder::stop(frame, cost_ns < 0);
  Transaction call(*this);
  if (results > kManyResults) keep_spare(results);
  const int64_t id = recorder_.end(frame, results, flags, cost_ns, closure, call.deferred);
  plan_executor_.evict_last_used(ran, call);
  if (tuner_) tuner_->op_ended(call);
  memory_use_.look_for_peak();
  look_at_repeats(call);
  rest_if_steady(call);
  return id;
}

void Engine::op_abort(Frame& frame, bool started) {
  if (!frame.open) return;
  CallTimer::drop(frame.timing);
  Transaction call(*this);
  recorder_.abort(frame, started, call.deferred);
}

// ---- bringing content back ----

// Only where that may be too much. Else each op settles when it begins, as a log of ops tells it.
bool Engine::settle(Frame& frame, uint32_t tensors) {
  uint64_t budget = 0;
  for (const auto& device : devices_) {
    const dtr_pool_stats stats = stats_of(device->pool);
    budget += std::min(stats.budget_bytes, kNoBudget);
  }
  if (budget >= kNoBudget) return false;
  Transaction call(*this);
  keep_spare(tensors);
  const uint64_t most = budget / 4 * 3;
  const uint64_t constants = memory_use_.held().constant + environment_.stats.host_bytes;
  const uint64_t least = most > constants ? most - constants : 0;
  return recorder_.settle(frame, tensors, least, call.deferred);
}

bool Engine::remat_want(Frame& frame, void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* storage = graph_.by_handle.find(handle);
  if (!storage || storage->state == State::resident) return false;
  begin_within(frame);
  Rematerializer::want(frame.remat, storage, false);
  return true;
}

// A rematerialization that is not for the frame's op.
void Engine::begin_within(Frame& frame) {
  waiting_.begin_request();
  if (frame.remat.stack.empty()) frame.remat.is_within = true;
}

// Nothing live is evicted while a frame brings everything back.
void Engine::keep(Frame& frame, bool on) {
  if (frame.keeps == on) return;
  frame.keeps = on;
  if (on)
    capture_.begin_bringing_back();
  else if (capture_.end_bringing_back())
    cost_model_.bounds().reset_all();
}

bool Engine::remat_want_any(Frame& frame) {
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* found = nullptr;
  graph_.by_handle.any_of([&](const void*, Storage* storage) {
    if (!storage->live || storage->state == State::resident || storage->lost) return false;
    found = storage;
    return true;
  });
  keep(frame, found != nullptr);
  if (found) {
    begin_within(frame);
    Rematerializer::want(frame.remat, found, false);
  }
  return found != nullptr;
}

int64_t Engine::remat_next(Frame& frame) {
  Transaction call(*this);
  const auto swap_in = [&](Storage* storage) {
    try {
      if (!swap_space_.swap_in(storage, call)) return false;
    } catch (const OutOfMemory& error) {
      throw OutOfMemory(memory_use_.why_none(
          error.what(), memory_use_.shortage(storage->size_bytes, devices_.of(storage).pool)));
    }
    swap_space_.note_return(storage, &frame.returned);
    return true;
  };
  for (;;) {
    const int64_t id = rematerializer_.next(frame.remat, std::cref(swap_in), call.deferred);
    if (id == 0) frame.remat.is_within = false;
    if (id != Rematerializer::kRefused) return id;
    call.lock.unlock();
    rematerializer_.hold_refused(frame.remat);
    call.lock.lock();
  }
}

void Engine::remat_commit(Frame& frame, uint32_t tensors, uint32_t results) {
  if (!frame.remat.step_open) throw StateError("remat_commit: no step is in progress");
  const PlanFollower::Running ran = PlanFollower::running_of_thread();
  Transaction call(*this);
  std::vector<Rematerializer::Held> held = rematerializer_.hold(frame.remat);
  const Storage* const target = frame.remat.stack.back().target;
  call.lock.unlock();
  rematerializer_.retain(held, call.deferred);
  call.lock.lock();
  rematerializer_.commit(frame.remat, held, tensors, results, call.deferred);
  plan_executor_.evict_last_used(ran, call, target);
  if (tuner_) tuner_->ran_again();
  look_at_repeats(call);
}

void Engine::remat_abort(Frame& frame) {
  Transaction call(*this);
  rematerializer_.abort(frame.remat, call.deferred);
  frame.remat.is_within = false;
  keep(frame, false);
}

}  // namespace dtr
