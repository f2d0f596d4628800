// engine_api.cpp: the C functions of the engine; each translates arguments and errors.
//
// What the bridge calls at every operator stands in core_table.cpp and is not checked: here are the
// same steps for callers that may err, with what they must not do told apart.
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "base/handles.h"
#include "learn/step_tuner.h"
#include "run/engine.h"
#include "toy/simulated_framework.h"

namespace dtr {

// The frame of a caller, and what the steps of an op may assume of it.
struct OwnedFrame : Frame {
  explicit OwnedFrame(dtr_engine* of) : engine(dtr::of(of)), owner(of) { use(owner); }
  ~OwnedFrame() { unuse(owner); }

  Engine& engine;
  dtr_engine* owner;
  bool ready = false;                  // the open op may run: nothing is left to prepare
  std::vector<const void*> arguments;  // simulated tensors that may not be released meanwhile
  std::atomic<bool> busy{false};       // a call uses it
};

}  // namespace dtr

namespace {

using dtr::answer;
using dtr::give;
using dtr::guard;
using dtr::invalid;
using dtr::of;
using dtr::OwnedFrame;
using dtr::require;
using dtr::require_array;
using dtr::require_between;
using dtr::result_or_status;
using dtr::StateError;

// No op has so many tensors, and no step describes so many numbers.
constexpr uint64_t kMostNumbers = 1 << 24;

void check_sum(const char* what, uint64_t first, uint64_t second, const std::vector<int64_t>& in) {
  if (first + second > in.size())
    invalid(what, std::to_string(first + second),
            "0 to " + std::to_string(in.size()) + ", for which there is room");
}

// A frame in use by this call alone.
class Busy {
 public:
  explicit Busy(dtr_frame* handle) : frame_(of(handle)) {
    if (frame_.busy.exchange(true))
      throw StateError("the frame is in use by another call; allowed: one at a time");
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() { frame_.busy = false; }
  OwnedFrame& frame() const { return frame_; }

 private:
  OwnedFrame& frame_;
};

// Runs body for a frame; its result, or -status.
template <typename Body>
int64_t on(dtr_frame* handle, Body&& body) {
  return result_or_status([&] {
    const Busy busy(handle);
    return body(busy.frame());
  });
}

template <typename Body>
int32_t int_on(dtr_frame* handle, Body&& body) {
  return static_cast<int32_t>(on(handle, body));
}

template <typename Body>
int32_t status_on(dtr_frame* handle, Body&& body) {
  return -int_on(handle, [&](OwnedFrame& frame) {
    body(frame);
    return 0;
  });
}

// Of a storage; what body() returns, or -status.
template <typename Body>
int32_t on_handle(dtr_engine* engine, const void* handle, Body&& body) {
  return static_cast<int32_t>(result_or_status([&] {
    dtr::Engine& in = of(engine);
    require(handle, "handle");
    return body(in);
  }));
}

// What body() writes into an array, counted.
template <typename T, typename Body>
uint64_t listed(dtr_engine* engine, T* to, uint64_t capacity, const char* name, Body&& body) {
  return answer(uint64_t{0}, [&] {
    dtr::Engine& in = of(engine);
    require_array(to, capacity, name);
    return body(in);
  });
}

// Throws for what can be told to be no tensor of the connected framework.
void check_tensor(const dtr::Engine& engine, const void* tensor) {
  engine.check_connected();
  if (!tensor || reinterpret_cast<uintptr_t>(tensor) % 8 != 0)
    dtr::invalid("a tensor", dtr::address_text(reinterpret_cast<uint64_t>(tensor)),
                 "the address of one, a multiple of 8");
  dtr::check_simulated(engine, engine.framework(), tensor);
}

// Tensors of a caller stand in numbers[first] and so on, each with what bits says beside it.
void check_tensors(const dtr::Engine& engine, const std::vector<int64_t>& numbers, uint64_t first,
                   uint64_t count, bool may_be_null, int64_t bits = 0) {
  engine.check_connected();
  for (uint64_t i = first; i < first + count; ++i) {
    const auto* tensor = reinterpret_cast<const void*>(numbers[i] & ~bits);
    if (tensor || !may_be_null) check_tensor(engine, tensor);
  }
}

void no_step(const dtr::Frame& frame, const char* call) {
  if (frame.remat.step_open)
    throw StateError(std::string(call) +
                     ": a step is in progress; allowed: dtr_remat_commit, dtr_remat_abort");
}

void no_stack(const dtr::Frame& frame, const char* call) {
  no_step(frame, call);
  if (!frame.remat.stack.empty())
    throw StateError(std::string(call) +
                     ": the frame's stack is not empty; allowed: "
                     "dtr_remat_next until it is, or dtr_remat_abort");
}

void op_is_over(OwnedFrame& frame) {
  frame.ready = false;
  dtr::in_use(frame.arguments, -1);
  frame.arguments.clear();
}

void check(const char* field, int32_t value, int32_t last) {
  require_between(field, value, 0, last);
}

constexpr int64_t kMostReplayNs = int64_t{1} << 40;

void check(const dtr_engine_options& options) {
  const dtr_heuristic& heuristic = options.heuristic;
  constexpr double kMost = std::numeric_limits<double>::max();
  const auto rate = [&](const char* field, double value) {
    dtr::require_number(field, value, 0, kMost, "0 and more, finite");
  };
  dtr::check(heuristic);
  check("contents", options.contents, DTR_CONTENTS_WHOLE);
  check("room", options.room, DTR_ROOM_WINDOW);
  rate("swap_out_bytes_per_s", options.swap_out_bytes_per_s);
  rate("swap_in_bytes_per_s", options.swap_in_bytes_per_s);
  check("moving", options.moving, 1);
  rate("move_bytes_per_s", options.move_bytes_per_s);
  check("learn", options.learn, DTR_LEARN_AT_ONCE);
  require_between("replay_ns", options.replay_ns, 0, kMostReplayNs);
  if (options.thrash != 0)
    dtr::require_number("thrash", options.thrash, 1, kMost, "0, or more than 1, finite");
  if (heuristic.select == DTR_SELECT_CALLBACK && !options.score)
    invalid("score", "NULL", "a function, for heuristic.select DTR_SELECT_CALLBACK");
  if (options.history_ops < 1) invalid("history_ops", "0", "1 and more");
  dtr::Dealloc dealloc;
  if (dtr::dealloc_from_name(options.dealloc, &dealloc)) return;
  std::string allowed;
  for (const char* name : dtr::kDeallocNames)
    allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  invalid("dealloc", std::string("'") + options.dealloc + "'", allowed);
}

constexpr int64_t kUseBits = 7;
constexpr int64_t kOpFlags = DTR_OP_RECOMPUTABLE | DTR_OP_KEEPS_OLD | DTR_OP_COPIES;

int64_t* numbers_of(std::vector<int64_t>& numbers, uint64_t capacity) {
  if (capacity > kMostNumbers)
    invalid("capacity", std::to_string(capacity), "0 to " + std::to_string(kMostNumbers));
  if (numbers.size() < capacity) numbers.resize(capacity);
  return numbers.data();
}

void* pin(dtr_engine* engine, const void* tensor, int32_t escaped, uint32_t place, bool owned) {
  dtr::Engine& in = of(engine);
  require_between("escaped", escaped, 0, 2);
  check_tensor(in, tensor);
  return in.user_pin(tensor, escaped, place, owned);
}

void require_no_pin(const std::string& function, const dtr_pin_owner& owner) {
  if (owner.handle || owner.thread)
    throw dtr::StateError(function + ": the owner has a pin already");
}

}  // namespace

extern "C" {

int32_t dtr_engine_create(const dtr_engine_options* options, dtr_engine** out) {
  return give(out, "out", [&] {
    require(options, "options");
    check(*options);
    return dtr::make_handle<dtr_engine>(
        std::make_unique<dtr::Engine>(*options, dtr::make_step_tuner));
  });
}

int32_t dtr_engine_destroy(dtr_engine* engine) {
  return guard([&] {
    dtr::destroy(engine, [](dtr::Engine& closing) {
      dtr_engine_stats stats;
      closing.get_stats(&stats);
      if (stats.live_storages > 0)
        throw StateError("the engine has " + std::to_string(stats.live_storages) + " records");
    });
  });
}

int32_t dtr_engine_configure(dtr_engine* engine, const dtr_engine_options* options) {
  return guard([&] {
    dtr::Engine& changed = of(engine);
    require(options, "options");
    check(*options);
    changed.configure(*options);
  });
}

int32_t dtr_engine_connect(dtr_engine* engine, const void* framework) {
  return guard([&] {
    dtr::Engine& to = of(engine);
    require(framework, "framework");
    to.connect(static_cast<const dtr_framework*>(framework));
  });
}

const void* dtr_engine_core(dtr_engine* engine) {
  return answer(static_cast<const void*>(nullptr), [&] { return of(engine).core(); });
}

int32_t dtr_engine_add_pool(dtr_engine* engine, int32_t device_type, int32_t device_index,
                            dtr_pool* pool) {
  return guard([&] {
    dtr::Engine& to = of(engine);
    require_between("device_type", device_type, 0, UINT8_MAX);
    require_between("device_index", device_index, -1, INT8_MAX);
    to.add_pool(static_cast<uint8_t>(device_type), static_cast<int8_t>(device_index), pool);
  });
}

int32_t dtr_begin_capture(dtr_engine* engine, dtr_capture_owner* owner) {
  return guard([&] {
    dtr::Engine& in = of(engine);
    require(owner, "owner");
    if (owner->engine) throw dtr::StateError("dtr_begin_capture: the owner's capture is under way");
    dtr::use(engine);
    in.begin_capture();
    owner->engine = engine;
  });
}

int32_t dtr_end_capture(dtr_capture_owner* owner) {
  return guard([&] {
    require(owner, "owner");
    if (dtr_engine* engine = std::exchange(owner->engine, nullptr)) {
      of(engine).end_capture();
      dtr::unuse(engine);
    }
  });
}

uint64_t dtr_engine_get_evicted(dtr_engine* engine, dtr_evicted* evicted, uint64_t capacity) {
  return listed(engine, evicted, capacity, "evicted",
                [&](dtr::Engine& in) { return in.get_evicted(evicted, capacity); });
}

int32_t dtr_engine_reset(dtr_engine* engine, const uint64_t* lost, uint64_t count) {
  return guard([&] {
    dtr::Engine& in = of(engine);
    require_array(lost, count, "lost");
    in.reset({lost, lost + count});
  });
}

int32_t dtr_engine_get_stats(dtr_engine* engine, dtr_engine_stats* out, dtr_pool_stats* pools,
                             uint64_t capacity) {
  return guard([&] {
    dtr::Engine& from = of(engine);
    require(out, "out");
    require_array(pools, capacity, "pools");
    from.get_stats(out, pools, capacity);
  });
}

int32_t dtr_engine_set_costs(dtr_engine* engine, const dtr_cost* costs, uint64_t count) {
  return guard([&] {
    dtr::Engine& to = of(engine);
    require_array(costs, count, "costs");
    to.set_costs(costs, count);
  });
}

uint64_t dtr_engine_get_costs(dtr_engine* engine, dtr_cost* costs, uint64_t capacity) {
  return listed(engine, costs, capacity, "costs",
                [&](dtr::Engine& from) { return from.get_costs(costs, capacity); });
}

int32_t dtr_engine_check_invariants(dtr_engine* engine) {
  return guard([&] { of(engine).check_invariants(); });
}

void dtr_place(uint32_t place) { dtr::place_of_thread() = place; }

uint64_t dtr_engine_holders(dtr_engine* engine, int32_t when, dtr_holder* holders,
                            uint64_t capacity) {
  return listed(engine, holders, capacity, "holders", [&](dtr::Engine& in) {
    require_between("when", when, DTR_HOLDERS_NOW, DTR_HOLDERS_FULLEST);
    return in.holders(when, holders, capacity);
  });
}

int32_t dtr_engine_keep_account(dtr_engine* engine, int32_t on) {
  return guard([&] { of(engine).keep_account(on != 0); });
}

uint64_t dtr_engine_repeats(dtr_engine* engine, dtr_repeats* repeats, uint64_t capacity) {
  return listed(engine, repeats, capacity, "repeats",
                [&](dtr::Engine& in) { return in.repeats(repeats, capacity); });
}

int32_t dtr_engine_reset_peak(dtr_engine* engine) {
  return guard([&] { of(engine).reset_peak(); });
}

uint64_t dtr_engine_drain_dropped(dtr_engine* engine, int64_t* op_ids, uint64_t capacity) {
  return listed(engine, op_ids, capacity, "op_ids",
                [&](dtr::Engine& from) { return from.drain_dropped(op_ids, capacity); });
}

int32_t dtr_frame_create(dtr_engine* engine, dtr_frame** out) {
  return give(out, "out",
              [&] { return dtr::make_handle<dtr_frame>(std::make_unique<OwnedFrame>(engine)); });
}

int32_t dtr_frame_destroy(dtr_frame* frame) {
  return guard([&] {
    dtr::destroy(frame, [](const OwnedFrame& closing) {
      if (closing.busy) throw StateError("the frame is in use by another call");
      if (closing.open) throw StateError("the frame's last op has not ended");
      if (!closing.remat.stack.empty()) throw StateError("the frame's stack is not empty");
    });
  });
}

int64_t* dtr_frame_buffer(dtr_frame* frame, uint64_t capacity) {
  return answer(static_cast<int64_t*>(nullptr), [&] {
    const Busy busy(frame);
    return numbers_of(busy.frame().buffer, capacity);
  });
}

int64_t* dtr_frame_step(dtr_frame* frame, uint64_t capacity) {
  return answer(static_cast<int64_t*>(nullptr), [&] {
    const Busy busy(frame);
    return numbers_of(busy.frame().remat.step, capacity);
  });
}

int32_t dtr_op_begin(dtr_frame* frame, uint32_t tensors, uint32_t flags, uint64_t op_key) {
  return int_on(frame, [&](OwnedFrame& of) {
    if (of.open) throw StateError("dtr_op_begin: the frame's last op has not ended");
    no_stack(of, "dtr_op_begin");
    check_sum("tensors", tensors, 0, of.buffer);
    require_between("flags", flags, 0, kOpFlags);
    check_tensors(of.engine, of.buffer, 0, tensors, false, kUseBits);
    const int32_t need = of.engine.op_begin(of, tensors, flags, op_key);
    of.ready = !(need & DTR_NEED_WORK);
    for (const dtr::Input& input : of.inputs) of.arguments.push_back(input.tensor);
    dtr::in_use(of.arguments, 1);
    return need;
  });
}

int32_t dtr_op_prepare(dtr_frame* frame) {
  return int_on(frame, [&](OwnedFrame& of) {
    if (!of.open) throw StateError("dtr_op_prepare: no op was begun");
    no_stack(of, "dtr_op_prepare");
    const int32_t work = of.ready ? 0 : of.engine.op_prepare(of);
    of.ready = work == 0;
    return work;
  });
}

int64_t dtr_op_end(dtr_frame* frame, uint32_t results, uint32_t flags, int64_t cost_ns) {
  return on(frame, [&](OwnedFrame& of) {
    if (!of.open) throw StateError("dtr_op_end: no op was begun");
    if (!of.ready) throw StateError("dtr_op_end: the op may not run yet: call dtr_op_prepare");
    no_stack(of, "dtr_op_end");
    check_sum("results", results, 0, of.buffer);
    require_between("flags", flags, 0, kOpFlags);
    if (cost_ns > dtr::CostTable::kMostNs)
      invalid("cost_ns", std::to_string(cost_ns),
              "up to " + std::to_string(dtr::CostTable::kMostNs) + ", or negative: as measured");
    check_tensors(of.engine, of.buffer, 0, results, true);
    const int64_t id = of.engine.op_end(of, results, flags, cost_ns);
    op_is_over(of);
    return id;
  });
}

int32_t dtr_op_abort(dtr_frame* frame, int32_t started) {
  return status_on(frame, [&](OwnedFrame& of) {
    require_between("started", started, 0, 1);
    of.engine.op_abort(of, started != 0 && of.ready);
    op_is_over(of);
  });
}

int32_t dtr_op_begins_at_rest(dtr_engine* engine) {
  return static_cast<int32_t>(
      dtr::result_or_status([&] { return int64_t{of(engine).op_begins_at_rest()}; }));
}

int32_t dtr_op_ended_at_rest(dtr_engine* engine) {
  return guard([&] { of(engine).op_ended_at_rest(); });
}

int64_t dtr_remat_next(dtr_frame* frame) {
  return on(frame, [&](OwnedFrame& of) {
    no_step(of, "dtr_remat_next");
    return of.engine.remat_next(of);
  });
}

int32_t dtr_remat_commit(dtr_frame* frame, uint32_t tensors, uint32_t results) {
  return int_on(frame, [&](OwnedFrame& of) {
    if (!of.remat.step_open) throw StateError("dtr_remat_commit: no step is in progress");
    check_sum("tensors and results", tensors, results, of.remat.step);
    check_tensors(of.engine, of.remat.step, 0, uint64_t{tensors} + results, true);
    of.engine.remat_commit(of, tensors, results);
    return 0;
  });
}

int32_t dtr_remat_abort(dtr_frame* frame) {
  return status_on(frame, [&](OwnedFrame& of) { of.engine.remat_abort(of); });
}

int32_t dtr_remat_want(dtr_frame* frame, void* handle) {
  return int_on(frame, [&](OwnedFrame& of) {
    require(handle, "handle");
    no_step(of, "dtr_remat_want");
    return of.engine.remat_want(of, handle);
  });
}

int32_t dtr_remat_want_any(dtr_frame* frame) {
  return int_on(frame, [&](OwnedFrame& of) {
    no_stack(of, "dtr_remat_want_any");
    return of.engine.remat_want_any(of);
  });
}

int32_t dtr_op_log_set(dtr_engine* engine, int32_t mode) {
  return guard([&] {
    dtr::Engine& of_engine = of(engine);
    require_between("mode", mode, DTR_OP_LOG_OFF, DTR_OP_LOG_WRITING);
    of_engine.stop_tuner();
    of_engine.on_op_log([&](dtr::OpLogRecorder& log, dtr::Deferred& deferred) {
      log.set_mode(static_cast<dtr::OpLogRecorder::Mode>(mode), deferred);
    });
  });
}

int32_t dtr_op_log_name(dtr_frame* frame, int32_t name) {
  return status_on(frame, [&](OwnedFrame& of) {
    require_between("name", name, 0, INT32_MAX);
    of.log.operator_name = name;
  });
}

int32_t dtr_op_log_view(dtr_frame* frame, uint32_t tensors, uint32_t results, int32_t name,
                        int64_t cost_ns) {
  return status_on(frame, [&](OwnedFrame& of) {
    require_between("name", name, 0, INT32_MAX);
    require_between("cost_ns", cost_ns, 0, dtr::CostTable::kMostNs);
    check_sum("tensors and results", tensors, results, of.buffer);
    check_tensors(of.engine, of.buffer, 0, tensors, false);
    check_tensors(of.engine, of.buffer, tensors, results, true);
    of.engine.on_op_log([&](dtr::OpLogRecorder& log, dtr::Deferred&) {
      log.viewed(of.buffer.data(), tensors, results, name, cost_ns);
    });
  });
}

uint64_t dtr_op_log_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity) {
  return listed(engine, numbers, capacity, "numbers", [&](dtr::Engine& from) {
    return from.on_op_log(
        [&](dtr::OpLogRecorder& log, dtr::Deferred&) { return log.drain(numbers, capacity); });
  });
}

int32_t dtr_decisions_set(dtr_engine* engine, int32_t on) {
  return guard([&] {
    dtr::Engine& in = of(engine);
    require_between("on", on, 0, 1);
    in.on_op_log([&](dtr::OpLogRecorder& log, dtr::Deferred&) { log.set_deciding(on != 0); });
  });
}

uint64_t dtr_decisions_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity) {
  return listed(engine, numbers, capacity, "numbers", [&](dtr::Engine& from) {
    return from.on_op_log([&](dtr::OpLogRecorder& log, dtr::Deferred&) {
      return log.drain_decisions(numbers, capacity);
    });
  });
}

int32_t dtr_evict(dtr_engine* engine, void* handle) {
  return on_handle(engine, handle, [&](dtr::Engine& in) { return in.user_evict(handle); });
}

int32_t dtr_engine_relocate(dtr_engine* engine, void* handle, const void* avoid_begin,
                            const void* avoid_end) {
  return on_handle(engine, handle, [&](dtr::Engine& in) {
    dtr::require_range("avoid_begin", avoid_begin, avoid_end);
    return in.user_move(handle, avoid_begin, avoid_end);
  });
}

int32_t dtr_engine_compact(dtr_engine* engine, dtr_pool* pool, uint64_t* moved_bytes) {
  return guard([&] {
    dtr::Engine& in = of(engine);
    of(pool);
    const uint64_t bytes = in.compact(pool);
    if (moved_bytes) *moved_bytes = bytes;
  });
}

int32_t dtr_engine_move_some(dtr_engine* engine, dtr_pool* pool, uint64_t seed, uint64_t count,
                             uint64_t* moved) {
  return guard([&] {
    dtr::Engine& in = of(engine);
    of(pool);
    const uint64_t done = in.move_some(pool, seed, count);
    if (moved) *moved = done;
  });
}

int32_t dtr_is_resident(dtr_engine* engine, void* handle) {
  return on_handle(engine, handle, [&](dtr::Engine& in) { return in.user_is_resident(handle); });
}

int32_t dtr_why_kept(dtr_engine* engine, void* handle, dtr_holder* out) {
  return guard([&] {
    dtr::Engine& in = of(engine);
    require(handle, "handle");
    require(out, "out");
    *out = in.user_why_kept(handle);
  });
}

int32_t dtr_pin(dtr_engine* engine, const void* tensor, int32_t escaped, uint32_t place) {
  return guard([&] { pin(engine, tensor, escaped, place, false); });
}

int32_t dtr_unpin(dtr_engine* engine, void* handle) {
  return on_handle(engine, handle, [&](dtr::Engine& in) { return in.user_unpin(handle); });
}

int32_t dtr_pin_for(dtr_engine* engine, const void* tensor, dtr_pin_owner* owner) {
  return guard([&] {
    require(owner, "owner");
    require_no_pin("dtr_pin_for", *owner);
    owner->handle = pin(engine, tensor, 0, 0, true);
    owner->engine = engine;
  });
}

int32_t dtr_pin_made(dtr_engine* engine, dtr_pin_owner* owner) {
  return guard([&] {
    require(owner, "owner");
    require_no_pin("dtr_pin_made", *owner);
    owner->thread = of(engine).user_pin_made();
    owner->engine = engine;
  });
}

int32_t dtr_end_pin(dtr_pin_owner* owner) {
  return guard([&] {
    require(owner, "owner");
    if (void* handle = std::exchange(owner->handle, nullptr))
      of(owner->engine).user_end_pin(handle);
    if (const uint64_t thread = std::exchange(owner->thread, 0))
      of(owner->engine).user_release_made(thread);
  });
}

void* dtr_handle_of(dtr_engine* engine, const void* tensor) {
  return answer(static_cast<void*>(nullptr), [&] {
    const dtr::Engine& in = of(engine);
    check_tensor(in, tensor);
    dtr_tensor_desc desc;
    in.describe(tensor, &desc);
    return in.pool_of(desc.device_type, desc.device_index) ? desc.handle : nullptr;
  });
}

}  // extern "C"
