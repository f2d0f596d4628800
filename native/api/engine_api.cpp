// engine_api.cpp: the C functions of the engine; each translates arguments and errors. What the bridge
// calls at every operator stands in core_table.cpp, and is not checked.
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "base/handles.h"
#include "learn/step_tuner.h"
#include "run/engine.h"

namespace dtr {

namespace {

// Of a storage; what body() returns, or -status.
template <typename Body>
int32_t on_handle(dtr_engine* engine, const void* handle, Body&& body) {
  return static_cast<int32_t>(result_or_status([&] {
    Engine& in = of(engine);
    require(handle, "handle");
    return body(in);
  }));
}

// What body() writes into an array, counted.
template <typename T, typename Body>
uint64_t listed(dtr_engine* engine, T* to, uint64_t capacity, const char* name, Body&& body) {
  return answer(uint64_t{0}, [&] {
    Engine& in = of(engine);
    require_array(to, capacity, name);
    return body(in);
  });
}

// Throws for what can be told to be no tensor: a wrong address is found, no more.
void check_tensor(const Engine& engine, const void* tensor) {
  engine.check_connected();
  if (!tensor || reinterpret_cast<uintptr_t>(tensor) % 8 != 0)
    invalid("a tensor", address_text(reinterpret_cast<uint64_t>(tensor)),
            "the address of one, a multiple of 8");
}

constexpr int64_t kMostReplayNs = int64_t{1} << 40;

void check(const dtr_engine_options& options) {
  const dtr_heuristic& heuristic = options.heuristic;
  constexpr double kMost = std::numeric_limits<double>::max();
  const auto rate = [&](const char* field, double value) {
    require_number(field, value, 0, kMost, "0 and more, finite");
  };
  dtr::check(heuristic);
  require_between("contents", options.contents, 0, DTR_CONTENTS_WHOLE);
  require_between("room", options.room, 0, DTR_ROOM_WINDOW);
  rate("swap_out_bytes_per_s", options.swap_out_bytes_per_s);
  rate("swap_in_bytes_per_s", options.swap_in_bytes_per_s);
  require_between("moving", options.moving, 0, 1);
  rate("move_bytes_per_s", options.move_bytes_per_s);
  require_between("learn", options.learn, 0, DTR_LEARN_AT_ONCE);
  require_between("replay_ns", options.replay_ns, 0, kMostReplayNs);
  if (options.thrash != 0)
    require_number("thrash", options.thrash, 1, kMost, "0, or more than 1, finite");
  if (heuristic.select == DTR_SELECT_CALLBACK && !options.score)
    invalid("score", "NULL", "a function, for heuristic.select DTR_SELECT_CALLBACK");
  if (options.history_ops < 1) invalid("history_ops", "0", "1 and more");
  Dealloc dealloc;
  if (dealloc_from_name(options.dealloc, &dealloc)) return;
  std::string allowed;
  for (const char* name : kDeallocNames)
    allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  invalid("dealloc", std::string("'") + options.dealloc + "'", allowed);
}

void* pin(dtr_engine* engine, const void* tensor, int32_t escaped, uint32_t place, bool owned) {
  Engine& in = of(engine);
  require_between("escaped", escaped, 0, 2);
  check_tensor(in, tensor);
  return in.user_pin(tensor, escaped, place, owned);
}

void require_no_pin(const std::string& function, const dtr_pin_owner& owner) {
  if (owner.handle || owner.thread) throw StateError(function + ": the owner has a pin already");
}

}  // namespace

extern "C" {

int32_t dtr_engine_create(const dtr_engine_options* options, dtr_engine** out) {
  return give(out, "out", [&] {
    require(options, "options");
    check(*options);
    return make_handle<dtr_engine>(std::make_unique<Engine>(*options, make_step_tuner));
  });
}

int32_t dtr_engine_destroy(dtr_engine* engine) {
  return guard([&] {
    destroy(engine, [](Engine& closing) {
      dtr_engine_stats stats;
      closing.get_stats(&stats);
      if (stats.live_storages > 0)
        throw StateError("the engine has " + std::to_string(stats.live_storages) + " records");
    });
  });
}

int32_t dtr_engine_configure(dtr_engine* engine, const dtr_engine_options* options) {
  return guard([&] {
    Engine& changed = of(engine);
    require(options, "options");
    check(*options);
    changed.configure(*options);
  });
}

int32_t dtr_engine_connect(dtr_engine* engine, const void* framework) {
  return guard([&] {
    Engine& to = of(engine);
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
    Engine& to = of(engine);
    require_between("device_type", device_type, 0, UINT8_MAX);
    require_between("device_index", device_index, -1, INT8_MAX);
    to.add_pool(static_cast<uint8_t>(device_type), static_cast<int8_t>(device_index), pool);
  });
}

int32_t dtr_begin_capture(dtr_engine* engine, dtr_capture_owner* owner) {
  return guard([&] {
    Engine& in = of(engine);
    require(owner, "owner");
    if (owner->engine) throw StateError("dtr_begin_capture: the owner's capture is under way");
    use(engine);
    in.begin_capture();
    owner->engine = engine;
  });
}

int32_t dtr_end_capture(dtr_capture_owner* owner) {
  return guard([&] {
    require(owner, "owner");
    if (dtr_engine* engine = std::exchange(owner->engine, nullptr)) {
      of(engine).end_capture();
      unuse(engine);
    }
  });
}

uint64_t dtr_engine_get_evicted(dtr_engine* engine, dtr_evicted* evicted, uint64_t capacity) {
  return listed(engine, evicted, capacity, "evicted",
                [&](Engine& in) { return in.get_evicted(evicted, capacity); });
}

int32_t dtr_engine_reset(dtr_engine* engine, const uint64_t* lost, uint64_t count) {
  return guard([&] {
    Engine& in = of(engine);
    require_array(lost, count, "lost");
    in.reset({lost, lost + count});
  });
}

int32_t dtr_engine_get_stats(dtr_engine* engine, dtr_engine_stats* out, dtr_pool_stats* pools,
                             uint64_t capacity) {
  return guard([&] {
    Engine& from = of(engine);
    require(out, "out");
    require_array(pools, capacity, "pools");
    from.get_stats(out, pools, capacity);
  });
}

int32_t dtr_engine_set_costs(dtr_engine* engine, const dtr_cost* costs, uint64_t count) {
  return guard([&] {
    Engine& to = of(engine);
    require_array(costs, count, "costs");
    to.set_costs(costs, count);
  });
}

uint64_t dtr_engine_get_costs(dtr_engine* engine, dtr_cost* costs, uint64_t capacity) {
  return listed(engine, costs, capacity, "costs",
                [&](Engine& from) { return from.get_costs(costs, capacity); });
}

int32_t dtr_engine_check_invariants(dtr_engine* engine) {
  return guard([&] { of(engine).check_invariants(); });
}

void dtr_place(uint32_t place) { place_of_thread() = place; }

uint64_t dtr_engine_holders(dtr_engine* engine, int32_t when, dtr_holder* holders,
                            uint64_t capacity) {
  return listed(engine, holders, capacity, "holders", [&](Engine& in) {
    require_between("when", when, DTR_HOLDERS_NOW, DTR_HOLDERS_FULLEST);
    return in.holders(when, holders, capacity);
  });
}

int32_t dtr_engine_keep_account(dtr_engine* engine, int32_t on) {
  return guard([&] { of(engine).keep_account(on != 0); });
}

uint64_t dtr_engine_repeats(dtr_engine* engine, dtr_repeats* repeats, uint64_t capacity) {
  return listed(engine, repeats, capacity, "repeats",
                [&](Engine& in) { return in.repeats(repeats, capacity); });
}

int32_t dtr_engine_reset_peak(dtr_engine* engine) {
  return guard([&] { of(engine).reset_peak(); });
}

int32_t dtr_op_log_set(dtr_engine* engine, int32_t mode) {
  return guard([&] {
    Engine& of_engine = of(engine);
    require_between("mode", mode, DTR_OP_LOG_OFF, DTR_OP_LOG_WRITING);
    of_engine.stop_tuner();
    of_engine.on_op_log([&](OpLogRecorder& log, Deferred& deferred) {
      log.set_mode(static_cast<OpLogRecorder::Mode>(mode), deferred);
    });
  });
}

uint64_t dtr_op_log_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity) {
  return listed(engine, numbers, capacity, "numbers", [&](Engine& from) {
    return from.on_op_log(
        [&](OpLogRecorder& log, Deferred&) { return log.drain(numbers, capacity); });
  });
}

int32_t dtr_decisions_set(dtr_engine* engine, int32_t on) {
  return guard([&] {
    Engine& in = of(engine);
    require_between("on", on, 0, 1);
    in.on_op_log([&](OpLogRecorder& log, Deferred&) { log.set_deciding(on != 0); });
  });
}

uint64_t dtr_decisions_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity) {
  return listed(engine, numbers, capacity, "numbers", [&](Engine& from) {
    return from.on_op_log(
        [&](OpLogRecorder& log, Deferred&) { return log.drain_decisions(numbers, capacity); });
  });
}

int32_t dtr_evict(dtr_engine* engine, void* handle) {
  return on_handle(engine, handle, [&](Engine& in) { return in.user_evict(handle); });
}

int32_t dtr_engine_relocate(dtr_engine* engine, void* handle, const void* avoid_begin,
                            const void* avoid_end) {
  return on_handle(engine, handle, [&](Engine& in) {
    require_range("avoid_begin", avoid_begin, avoid_end);
    return in.user_move(handle, avoid_begin, avoid_end);
  });
}

int32_t dtr_engine_compact(dtr_engine* engine, dtr_pool* pool, uint64_t* moved_bytes) {
  return guard([&] {
    Engine& in = of(engine);
    of(pool);
    const uint64_t bytes = in.compact(pool);
    if (moved_bytes) *moved_bytes = bytes;
  });
}

int32_t dtr_is_resident(dtr_engine* engine, void* handle) {
  return on_handle(engine, handle, [&](Engine& in) { return in.user_is_resident(handle); });
}

int32_t dtr_why_kept(dtr_engine* engine, void* handle, dtr_holder* out) {
  return guard([&] {
    Engine& in = of(engine);
    require(handle, "handle");
    require(out, "out");
    *out = in.user_why_kept(handle);
  });
}

int32_t dtr_pin(dtr_engine* engine, const void* tensor, int32_t escaped, uint32_t place) {
  return guard([&] { pin(engine, tensor, escaped, place, false); });
}

int32_t dtr_unpin(dtr_engine* engine, void* handle) {
  return on_handle(engine, handle, [&](Engine& in) { return in.user_unpin(handle); });
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
    const Engine& in = of(engine);
    check_tensor(in, tensor);
    dtr_tensor_desc desc;
    in.describe(tensor, &desc);
    return in.pool_of(desc.device_type, desc.device_index) ? desc.handle : nullptr;
  });
}

}  // extern "C"

}  // namespace dtr
