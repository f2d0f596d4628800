// core_table.cpp: what a framework may ask of the core (dtr/framework.h).

#include "base/error.h"
#include "base/scoped_timer.h"
#include "engine.h"

namespace dtr {

namespace {

constexpr int64_t kMeasured = -1;  // the cost of an op: what the clock says

Engine* engine_of(void* engine) { return static_cast<Engine*>(engine); }

void* allocate(void* engine, uint8_t device_type, int8_t device_index, uint64_t size_bytes,
               uint64_t stream, uint64_t arena, int32_t* status, const char** message) {
  return engine_of(engine)->allocate(device_type, device_index, size_bytes, stream, arena, status,
                                     message);
}

void freed(void* engine, void* address) { engine_of(engine)->freed(address); }

void evicted_died(void* engine, void* context) {
  engine_of(engine)->evicted_died(static_cast<Storage*>(context));
}

void record_stream(void* engine, void* address, uint64_t stream) {
  engine_of(engine)->record_stream(address, stream);
}

dtr_pool* pool_of(void* engine, uint8_t device_type, int8_t device_index) {
  return engine_of(engine)->pool_of(device_type, device_index);
}

// The bridge's frames are no handles, and nothing of them is checked: these are the steps of every
// operator.
struct BridgeFrame : Frame {
  explicit BridgeFrame(Engine& of) : engine(of) {}
  Engine& engine;
};

BridgeFrame& frame_of(dtr_frame* frame) { return *reinterpret_cast<BridgeFrame*>(frame); }

int32_t frame_create(dtr_engine* engine, dtr_frame** out) {
  return guard([&] { *out = reinterpret_cast<dtr_frame*>(new BridgeFrame(*engine_of(engine))); });
}

void frame_destroy(dtr_frame* frame) { delete &frame_of(frame); }

int64_t* at_least(std::vector<int64_t>& numbers, uint64_t capacity) {
  if (numbers.size() < capacity) numbers.resize(capacity);
  return numbers.data();
}

int64_t* frame_buffer(dtr_frame* frame, uint64_t capacity) {
  return at_least(frame_of(frame).buffer, capacity);
}

int64_t* frame_step(dtr_frame* frame, uint64_t capacity) {
  return at_least(frame_of(frame).remat.step, capacity);
}

int32_t frame_device(dtr_frame* frame) { return frame_of(frame).remat.step_device; }

// Runs body(engine, frame); its result, or -status with the message kept for last_error().
template <typename Body>
int64_t on(dtr_frame* frame, Body&& body) {
  BridgeFrame& of = frame_of(frame);
  return result_or_status([&] { return body(of.engine, of); });
}

int32_t op_begin(dtr_frame* frame, uint32_t tensors, uint32_t flags, uint64_t op_key) {
  return static_cast<int32_t>(on(frame, [&](Engine& engine, Frame& of) {
    return engine.op_begin(of, tensors, flags, op_key);
  }));
}

int32_t op_prepare(dtr_frame* frame) {
  return static_cast<int32_t>(
      on(frame, [](Engine& engine, Frame& of) { return engine.op_prepare(of); }));
}

int32_t op_reads(dtr_frame* frame, const void* tensor) {
  return static_cast<int32_t>(
      on(frame, [&](Engine& engine, Frame& of) { return engine.op_reads(of, tensor); }));
}

int64_t op_end(dtr_frame* frame, uint32_t results, uint32_t flags, void* closure) {
  return on(frame, [&](Engine& engine, Frame& of) {
    return engine.op_end(of, results, flags, kMeasured, closure);
  });
}

void op_abort(dtr_frame* frame, int32_t started) {
  BridgeFrame& of = frame_of(frame);
  of.engine.op_abort(of, started != 0);
}

int64_t remat_next(dtr_frame* frame) {
  return on(frame, [](Engine& engine, Frame& of) { return engine.remat_next(of); });
}

void* step_closure(dtr_frame* frame) {
  return frame_of(frame).remat.stack.back().inputs.op->closure;
}

int32_t remat_commit(dtr_frame* frame, uint32_t tensors, uint32_t results) {
  return static_cast<int32_t>(on(frame, [&](Engine& engine, Frame& of) {
    engine.remat_commit(of, tensors, results);
    return 0;
  }));
}

void remat_abort(dtr_frame* frame) {
  BridgeFrame& of = frame_of(frame);
  of.engine.remat_abort(of);
}

int32_t settle(dtr_frame* frame, uint32_t tensors) {
  return static_cast<int32_t>(
      on(frame, [&](Engine& engine, Frame& of) { return engine.settle(of, tensors); }));
}

int32_t remat_want(dtr_frame* frame, void* handle) {
  return static_cast<int32_t>(
      on(frame, [&](Engine& engine, Frame& of) { return engine.remat_want(of, handle); }));
}

int32_t remat_want_any(dtr_frame* frame) {
  return static_cast<int32_t>(
      on(frame, [](Engine& engine, Frame& of) { return engine.remat_want_any(of); }));
}

int32_t pin(dtr_engine* engine, const void* tensor, int32_t escaped) {
  return guard([&] { engine_of(engine)->user_pin(tensor, escaped, 0, false); });
}

int32_t unpin(dtr_engine* engine, void* handle) {
  return static_cast<int32_t>(
      result_or_status([&] { return engine_of(engine)->user_unpin(handle); }));
}

uint64_t engine_holders(dtr_engine* engine, dtr_holder* holders, uint64_t capacity) {
  return engine_of(engine)->holders(DTR_HOLDERS_NOW, holders, capacity);
}

void op_log_name(dtr_frame* frame, int32_t name) { frame_of(frame).log.operator_name = name; }

void op_log_view(dtr_frame* frame, uint32_t tensors, uint32_t results, int32_t name,
                 int64_t cost_ns) {
  BridgeFrame& of = frame_of(frame);
  of.engine.on_op_log([&](OpLogRecorder& log, Deferred&) {
    log.viewed(of.buffer.data(), tensors, results, name, cost_ns);
  });
}

}  // namespace

dtr_core core_table(Engine* engine) {
  dtr_core table{};
  table.abi_version = DTR_BRIDGE_ABI_VERSION;
  table.engine = engine;
  table.allocate = &allocate;
  table.room_ns = [] { return room_ns_of_thread(); };
  table.freed = &freed;
  table.evicted_died = &evicted_died;
  table.guard_evicted = [](void* engine) { engine_of(engine)->guard_evicted(); };
  table.record_stream = &record_stream;
  table.pool_of = &pool_of;
  table.pool_get_stats = [](dtr_pool* pool, dtr_pool_stats* out) { dtr_pool_get_stats(pool, out); };
  table.pool_reset_peak = [](dtr_pool* pool) { dtr_pool_reset_peak(pool); };
  table.pool_set_budget = &dtr_pool_set_budget;
  table.pool_trim = &dtr_pool_trim;
  table.pool_snapshot = &dtr_pool_snapshot;
  table.pool_contains = &dtr_pool_contains;
  table.pool_block_start = &dtr_pool_block_start;
  table.pool_block_bytes = &dtr_pool_block_bytes;
  table.pool_arena_open = &dtr_pool_arena_open;
  table.pool_arena_close = &dtr_pool_arena_close;
  table.last_error = &dtr_last_error;
  table.frame_create = &frame_create;
  table.frame_destroy = &frame_destroy;
  table.frame_buffer = &frame_buffer;
  table.frame_step = &frame_step;
  table.frame_device = &frame_device;
  table.op_begin = &op_begin;
  table.op_prepare = &op_prepare;
  table.op_reads = &op_reads;
  table.op_end = &op_end;
  table.op_abort = &op_abort;
  table.remat_next = &remat_next;
  table.step_closure = &step_closure;
  table.remat_commit = &remat_commit;
  table.remat_abort = &remat_abort;
  table.settle = &settle;
  table.remat_want = &remat_want;
  table.remat_want_any = &remat_want_any;
  table.pin = &pin;
  table.unpin = &unpin;
  table.engine_holders = &engine_holders;
  table.place = &dtr_place;
  table.op_log_name = &op_log_name;
  table.op_log_view = &op_log_view;
  return table;
}

}  // namespace dtr
