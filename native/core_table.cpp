// core_table.cpp: what a framework may ask of the core (bridge_table.h).
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

void freed(void* engine, void* address) {
  const Bookkeeping time(*engine_of(engine));
  engine_of(engine)->freed(address);
}

void evicted_died(void* engine, void* context) {
  const Bookkeeping time(*engine_of(engine));
  engine_of(engine)->evicted_died(static_cast<Storage*>(context));
}

void record_stream(void* engine, void* address, uint64_t stream) {
  engine_of(engine)->record_stream(address, stream);
}

dtr_pool* pool_of(void* engine, uint8_t device_type, int8_t device_index) {
  return engine_of(engine)->pool_of(device_type, device_index);
}

int64_t op_end(dtr_frame* frame, uint32_t results, uint32_t flags, void* closure) {
  return end_op(*reinterpret_cast<Frame*>(frame), results, flags, kMeasured, closure);
}

void* step_closure(dtr_frame* frame) {
  return reinterpret_cast<const Frame*>(frame)->stack.back().op->closure;
}

}  // namespace

dtr_core core_table(Engine* engine) {
  dtr_core table{};
  table.abi_version = DTR_BRIDGE_ABI_VERSION;
  table.engine = engine;
  table.allocate = &allocate;
  table.freed = &freed;
  table.evicted_died = &evicted_died;
  table.record_stream = &record_stream;
  table.pool_of = &pool_of;
  table.pool_get_stats = &dtr_pool_get_stats;
  table.pool_reset_peak = &dtr_pool_reset_peak;
  table.pool_set_budget = &dtr_pool_set_budget;
  table.pool_trim = &dtr_pool_trim;
  table.pool_snapshot = &dtr_pool_snapshot;
  table.pool_contains = &dtr_pool_contains;
  table.pool_block_start = &dtr_pool_block_start;
  table.pool_block_bytes = &dtr_pool_block_bytes;
  table.pool_arena_open = &dtr_pool_arena_open;
  table.pool_arena_close = &dtr_pool_arena_close;
  table.last_error = &dtr_last_error;
  table.frame_create = &dtr_frame_create;
  table.frame_destroy = &dtr_frame_destroy;
  table.frame_buffer = &dtr_frame_buffer;
  table.frame_step = &dtr_frame_step;
  table.frame_device = &dtr_frame_device;
  table.op_begin = &dtr_op_begin;
  table.op_prepare = &dtr_op_prepare;
  table.op_end = &op_end;
  table.op_abort = &dtr_op_abort;
  table.remat_next = &dtr_remat_next;
  table.step_closure = &step_closure;
  table.remat_commit = &dtr_remat_commit;
  table.remat_abort = &dtr_remat_abort;
  table.remat_want = &dtr_remat_want;
  table.remat_want_any = &dtr_remat_want_any;
  table.pin = &dtr_pin;
  table.unpin = &dtr_unpin;
  table.engine_holders = &dtr_engine_holders;
  table.journal_name = &dtr_journal_name;
  table.journal_view = &dtr_journal_view;
  return table;
}

}  // namespace dtr
