// core_table.cpp: what a framework may ask of the core (dtr/framework.h).

#include "base/error.h"
#include "engine.h"

namespace dtr {

namespace {

Engine* engine_of(void* engine) { return static_cast<Engine*>(engine); }

// A function of the table that calls one of the engine's.
template <auto member, typename Result, typename... Arguments>
Result of_engine(void* engine, Arguments... arguments) {
  return (engine_of(engine)->*member)(arguments...);
}

struct BridgeFrame : Frame {
  explicit BridgeFrame(Engine& of) : engine(of) {}
  Engine& engine;
};

BridgeFrame& frame_of(dtr_frame* frame) { return *reinterpret_cast<BridgeFrame*>(frame); }

int64_t* at_least(std::vector<int64_t>& numbers, uint64_t capacity) {
  if (numbers.size() < capacity) numbers.resize(capacity);
  return numbers.data();
}

// Runs body(engine, frame); its result, or -status with the message kept for last_error().
template <typename Body>
int64_t on(dtr_frame* frame, Body&& body) {
  BridgeFrame& of = frame_of(frame);
  return result_or_status([&] { return body(of.engine, of); });
}

// A function of the table that calls one of the engine's with its frame.
template <auto member, typename Result, typename... Arguments>
Result of_frame(dtr_frame* frame, Arguments... arguments) {
  return static_cast<Result>(
      on(frame, [&](Engine& engine, Frame& of) { return (engine.*member)(of, arguments...); }));
}

void add_memory(dtr_core& table) {
  table.allocate = &of_engine<&Engine::allocate>;
  table.allocate_workspace = &of_engine<&Engine::allocate_workspace>;
  table.freed = &of_engine<&Engine::freed>;
  table.evicted_died = [](void* engine, void* context) {
    engine_of(engine)->evicted_died(static_cast<Storage*>(context));
  };
  table.guard_evicted = &of_engine<&Engine::guard_evicted>;
  table.record_stream = &of_engine<&Engine::record_stream>;
  table.pool_of = &of_engine<&Engine::pool_of>;
  table.pool_get_stats = [](dtr_pool* pool, dtr_pool_stats* out) { dtr_pool_get_stats(pool, out); };
  table.pool_reset_peak = [](dtr_pool* pool) { dtr_pool_reset_peak(pool); };
  table.pool_set_budget = &dtr_pool_set_budget;
  table.pool_free_beyond = &dtr_pool_free_beyond;
  table.pool_add_peer = &dtr_pool_add_peer;
  table.pool_trim = &dtr_pool_trim;
  table.pool_snapshot = &dtr_pool_snapshot;
  table.pool_contains = &dtr_pool_contains;
  table.pool_block_start = &dtr_pool_block_start;
  table.pool_block_bytes = &dtr_pool_block_bytes;
  table.pool_arena_open = &dtr_pool_arena_open;
  table.pool_arena_allocate_at = &dtr_pool_arena_allocate_at;
  table.pool_arena_close = &dtr_pool_arena_close;
}

void add_operators(dtr_core& table) {
  table.frame_create = [](dtr_engine* engine, dtr_frame** out) {
    return guard([&] { *out = reinterpret_cast<dtr_frame*>(new BridgeFrame(*engine_of(engine))); });
  };
  table.frame_destroy = [](dtr_frame* frame) { delete &frame_of(frame); };
  table.frame_buffer = [](dtr_frame* frame, uint64_t capacity) {
    return at_least(frame_of(frame).buffer, capacity);
  };
  table.frame_step = [](dtr_frame* frame, uint64_t capacity) {
    return at_least(frame_of(frame).remat.step, capacity);
  };
  table.frame_device = [](dtr_frame* frame) { return int32_t{frame_of(frame).remat.step_device}; };
  table.op_begin = &of_frame<&Engine::op_begin>;
  table.op_prepare = &of_frame<&Engine::op_prepare>;
  table.op_reads = &of_frame<&Engine::op_reads>;
  table.op_end = &of_frame<&Engine::op_end>;
  table.op_abort = [](dtr_frame* frame, int32_t started) {
    frame_of(frame).engine.op_abort(frame_of(frame), started != 0);
  };
  table.op_begins_at_rest = [](dtr_engine* engine) -> int32_t {
    return engine_of(engine)->op_begins_at_rest();
  };
  table.op_ended_at_rest = [](dtr_engine* engine) { engine_of(engine)->op_ended_at_rest(); };
  table.remat_next = &of_frame<&Engine::remat_next>;
  table.step_closure = [](dtr_frame* frame) {
    return frame_of(frame).remat.stack.back().inputs.op->closure;
  };
  table.remat_commit = [](dtr_frame* frame, uint32_t tensors, uint32_t results) {
    return static_cast<int32_t>(on(frame, [&](Engine& engine, Frame& of) {
      engine.remat_commit(of, tensors, results);
      return 0;
    }));
  };
  table.remat_abort = [](dtr_frame* frame) { frame_of(frame).engine.remat_abort(frame_of(frame)); };
  table.settle = &of_frame<&Engine::settle>;
  table.remat_want = &of_frame<&Engine::remat_want>;
  table.remat_want_any = &of_frame<&Engine::remat_want_any>;
  table.op_log_name = [](dtr_frame* frame, int32_t name) {
    frame_of(frame).log.operator_name = name;
  };
  table.op_log_view = [](dtr_frame* frame, uint32_t tensors, uint32_t results, int32_t name,
                         int64_t cost_ns) {
    BridgeFrame& of = frame_of(frame);
    of.engine.on_op_log([&](OpLogRecorder& log, Deferred&) {
      log.viewed(of.buffer.data(), tensors, results, name, cost_ns);
    });
  };
}

}  // namespace

dtr_core core_table(Engine* engine) {
  dtr_core table{};
  table.abi_version = DTR_BRIDGE_ABI_VERSION;
  table.engine = engine;
  table.last_error = &dtr_last_error;
  add_memory(table);
  add_operators(table);
  table.pin = [](dtr_engine* engine, const void* tensor, int32_t escaped) {
    return guard([&] { engine_of(engine)->user_pin(tensor, escaped, 0, false); });
  };
  table.unpin = [](dtr_engine* engine, void* handle) {
    return static_cast<int32_t>(
        result_or_status([&] { return engine_of(engine)->user_unpin(handle); }));
  };
  table.engine_holders = [](dtr_engine* engine, dtr_holder* holders, uint64_t capacity) {
    return engine_of(engine)->holders(DTR_HOLDERS_NOW, holders, capacity);
  };
  table.place = &dtr_place;
  return table;
}

}  // namespace dtr
