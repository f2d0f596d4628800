// engine_api.cpp: the C functions of the engine; each translates arguments and errors.
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "engine.h"
#include "error.h"

namespace {

dtr::Engine* engine_of(dtr_engine* engine) { return reinterpret_cast<dtr::Engine*>(engine); }

dtr::Frame& frame_of(dtr_frame* frame) { return *reinterpret_cast<dtr::Frame*>(frame); }

// Runs body for a frame; its result, or -status with the message kept for dtr_last_error().
template <typename Body>
int64_t answer(dtr::Frame& frame, Body&& body) {
  const dtr::Bookkeeping time(frame.engine);
  int64_t result = 0;
  const int32_t status = dtr::guard([&] { result = body(); });
  return status == DTR_OK ? result : -status;
}

[[noreturn]] void invalid(const char* field, const std::string& value, const char* allowed) {
  throw dtr::InvalidArgument(std::string(field) + " is " + value + "; allowed: " + allowed);
}

void check(const char* field, int32_t value, int32_t last) {
  if (value < 0 || value > last)
    invalid(field, std::to_string(value), ("0 to " + std::to_string(last)).c_str());
}

void check(const char* field, double value, double least, double most, const char* allowed) {
  if (!(value >= least && value <= most)) invalid(field, std::to_string(value), allowed);
}

void check(const dtr_engine_options& options) {
  const dtr_heuristic& heuristic = options.heuristic;
  constexpr double kMost = std::numeric_limits<double>::max();
  check("heuristic.select", heuristic.select, DTR_SELECT_CALLBACK);
  check("heuristic.cost", heuristic.cost, DTR_COST_MARGINAL);
  check("heuristic.size", heuristic.size, DTR_SIZE_BYTES_AND_FREE);
  check("heuristic.staleness_exponent", heuristic.staleness_exponent, 0, 1, "0 to 1");
  check("heuristic.recompute_factor", heuristic.recompute_factor, 1, kMost, "1 and more, finite");
  check("min_evict_share", options.min_evict_share, 0, 1, "0 to 1");
  check("sampling", options.sampling, DTR_SAMPLING_SQRT);
  check("time_bookkeeping", options.time_bookkeeping, 1);
  check("ghosts", options.ghosts, DTR_GHOSTS_DISCOUNTED);
  check("waiting", options.waiting, DTR_WAITING_HOLDS);
  check("contents", options.contents, DTR_CONTENTS_WHOLE);
  check("room", options.room, DTR_ROOM_WINDOW);
  check("swap_out_bytes_per_s", options.swap_out_bytes_per_s, 0, kMost, "0 and more, finite");
  check("swap_in_bytes_per_s", options.swap_in_bytes_per_s, 0, kMost, "0 and more, finite");
  check("moving", options.moving, 1);
  check("move_bytes_per_s", options.move_bytes_per_s, 0, kMost, "0 and more, finite");
  if (heuristic.select == DTR_SELECT_CALLBACK && !options.score)
    invalid("score", "NULL", "a function, for heuristic.select DTR_SELECT_CALLBACK");
  if (options.history_ops < 1) invalid("history_ops", "0", "1 and more");
  dtr::Dealloc dealloc;
  if (dtr::dealloc_from_name(options.dealloc, &dealloc)) return;
  std::string allowed;
  for (const char* name : dtr::kDeallocNames)
    allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  invalid("dealloc", std::string("'") + options.dealloc + "'", allowed.c_str());
}

}  // namespace

int64_t dtr::end_op(Frame& frame, uint32_t results, uint32_t flags, int64_t cost_ns,
                    void* closure) {
  return answer(frame,
                [&] { return frame.engine.op_end(frame, results, flags, cost_ns, closure); });
}

extern "C" {

int32_t dtr_engine_create(const dtr_engine_options* options, dtr_engine** out) {
  *out = nullptr;
  return dtr::guard([&] {
    check(*options);
    *out = reinterpret_cast<dtr_engine*>(new dtr::Engine(*options));
  });
}

int32_t dtr_engine_destroy(dtr_engine* engine) {
  return dtr::guard([&] {
    dtr_engine_stats stats;
    engine_of(engine)->get_stats(&stats);
    if (stats.live_storages > 0)
      throw dtr::StateError("the engine has " + std::to_string(stats.live_storages) + " records");
    delete engine_of(engine);
  });
}

int32_t dtr_engine_configure(dtr_engine* engine, const dtr_engine_options* options) {
  return dtr::guard([&] {
    check(*options);
    engine_of(engine)->configure(*options);
  });
}

int32_t dtr_engine_connect(dtr_engine* engine, const void* framework) {
  return dtr::guard(
      [&] { engine_of(engine)->connect(static_cast<const dtr_framework*>(framework)); });
}

const void* dtr_engine_core(dtr_engine* engine) { return engine_of(engine)->core(); }

int32_t dtr_engine_add_pool(dtr_engine* engine, int32_t device_type, int32_t device_index,
                            dtr_pool* pool) {
  return dtr::guard([&] {
    engine_of(engine)->add_pool(static_cast<uint8_t>(device_type),
                                static_cast<int8_t>(device_index), pool);
  });
}

int32_t dtr_engine_freeze(dtr_engine* engine, int32_t on) {
  return dtr::guard([&] { engine_of(engine)->freeze(on != 0); });
}

int32_t dtr_engine_reset(dtr_engine* engine) {
  return dtr::guard([&] { engine_of(engine)->reset(); });
}

void dtr_engine_get_stats(dtr_engine* engine, dtr_engine_stats* out) {
  engine_of(engine)->get_stats(out);
}

int32_t dtr_engine_set_costs(dtr_engine* engine, const dtr_cost* costs, uint64_t count) {
  return dtr::guard([&] { engine_of(engine)->set_costs(costs, count); });
}

uint64_t dtr_engine_get_costs(dtr_engine* engine, dtr_cost* costs, uint64_t capacity) {
  return engine_of(engine)->get_costs(costs, capacity);
}

int32_t dtr_engine_check_invariants(dtr_engine* engine) {
  return dtr::guard([&] { engine_of(engine)->check_invariants(); });
}

int32_t dtr_engine_rate_choice(dtr_engine* engine, dtr_pool* pool, double* chosen, double* least) {
  return dtr::guard([&] { engine_of(engine)->rate_choice(pool, chosen, least); });
}

uint64_t dtr_engine_holders(dtr_engine* engine, uint64_t* op_keys, uint64_t* size_bytes,
                            uint64_t capacity) {
  return engine_of(engine)->holders(op_keys, size_bytes, capacity);
}

uint64_t dtr_engine_drain_dropped(dtr_engine* engine, int64_t* op_ids, uint64_t capacity) {
  return engine_of(engine)->drain_dropped(op_ids, capacity);
}

int32_t dtr_frame_create(dtr_engine* engine, dtr_frame** out) {
  *out = nullptr;
  return dtr::guard(
      [&] { *out = reinterpret_cast<dtr_frame*>(new dtr::Frame(*engine_of(engine))); });
}

void dtr_frame_destroy(dtr_frame* frame) { delete &frame_of(frame); }

int64_t* dtr_frame_buffer(dtr_frame* frame, uint64_t capacity) {
  std::vector<int64_t>& buffer = frame_of(frame).buffer;
  if (buffer.size() < capacity) buffer.resize(capacity);
  return buffer.data();
}

int64_t* dtr_frame_step(dtr_frame* frame, uint64_t capacity) {
  std::vector<int64_t>& step = frame_of(frame).step;
  if (step.size() < capacity) step.resize(capacity);
  return step.data();
}

int32_t dtr_frame_device(dtr_frame* frame) { return frame_of(frame).step_device; }

int32_t dtr_op_begin(dtr_frame* frame, uint32_t tensors, uint32_t flags, uint64_t op_key) {
  dtr::Frame& of = frame_of(frame);
  return static_cast<int32_t>(
      answer(of, [&] { return of.engine.op_begin(of, tensors, flags, op_key); }));
}

int32_t dtr_op_prepare(dtr_frame* frame) {
  dtr::Frame& of = frame_of(frame);
  return static_cast<int32_t>(answer(of, [&] { return of.engine.op_prepare(of); }));
}

int64_t dtr_op_end(dtr_frame* frame, uint32_t results, uint32_t flags, int64_t cost_ns) {
  return dtr::end_op(frame_of(frame), results, flags, cost_ns, nullptr);
}

void dtr_op_abort(dtr_frame* frame, int32_t started) {
  const dtr::Bookkeeping time(frame_of(frame).engine);
  frame_of(frame).engine.op_abort(frame_of(frame), started != 0);
}

int64_t dtr_remat_next(dtr_frame* frame) {
  dtr::Frame& of = frame_of(frame);
  return answer(of, [&] { return of.engine.remat_next(of); });
}

int32_t dtr_remat_commit(dtr_frame* frame, uint32_t tensors, uint32_t results) {
  dtr::Frame& of = frame_of(frame);
  return static_cast<int32_t>(answer(of, [&] {
    of.engine.remat_commit(of, tensors, results);
    return 0;
  }));
}

void dtr_remat_abort(dtr_frame* frame) {
  const dtr::Bookkeeping time(frame_of(frame).engine);
  frame_of(frame).engine.remat_abort(frame_of(frame));
}

int32_t dtr_remat_want(dtr_frame* frame, void* handle) {
  dtr::Frame& of = frame_of(frame);
  return static_cast<int32_t>(answer(of, [&] { return of.engine.remat_want(of, handle); }));
}

int32_t dtr_remat_want_any(dtr_frame* frame) {
  dtr::Frame& of = frame_of(frame);
  return static_cast<int32_t>(answer(of, [&] { return of.engine.remat_want_any(of); }));
}

void dtr_journal_set(dtr_engine* engine, int32_t mode) { engine_of(engine)->journal_set(mode); }

void dtr_journal_name(dtr_frame* frame, int32_t name) { frame_of(frame).log.operator_name = name; }

void dtr_journal_view(dtr_frame* frame, uint32_t tensors, uint32_t results, int32_t name,
                      int64_t cost_ns) {
  dtr::Frame& of = frame_of(frame);
  of.engine.journal_view(of, tensors, results, name, cost_ns);
}

uint64_t dtr_journal_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity) {
  return engine_of(engine)->journal_drain(numbers, capacity);
}

void dtr_decisions_set(dtr_engine* engine, int32_t on) {
  engine_of(engine)->decisions_set(on != 0);
}

uint64_t dtr_decisions_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity) {
  return engine_of(engine)->decisions_drain(numbers, capacity);
}

int32_t dtr_evict(dtr_engine* engine, void* handle) {
  bool done = false;
  const int32_t status = dtr::guard([&] { done = engine_of(engine)->hand_evict(handle); });
  return status == DTR_OK ? done : -status;
}

int32_t dtr_engine_relocate(dtr_engine* engine, void* handle, const void* avoid_begin,
                            const void* avoid_end) {
  bool done = false;
  const int32_t status =
      dtr::guard([&] { done = engine_of(engine)->hand_move(handle, avoid_begin, avoid_end); });
  return status == DTR_OK ? done : -status;
}

int32_t dtr_engine_compact(dtr_engine* engine, dtr_pool* pool, uint64_t* moved_bytes) {
  return dtr::guard([&] {
    const uint64_t bytes = engine_of(engine)->compact(pool);
    if (moved_bytes) *moved_bytes = bytes;
  });
}

int32_t dtr_engine_move_some(dtr_engine* engine, dtr_pool* pool, uint64_t seed, uint64_t count,
                             uint64_t* moved) {
  return dtr::guard([&] {
    const uint64_t done = engine_of(engine)->move_some(pool, seed, count);
    if (moved) *moved = done;
  });
}

int32_t dtr_is_resident(dtr_engine* engine, void* handle) {
  return engine_of(engine)->hand_is_resident(handle);
}

int32_t dtr_pin(dtr_engine* engine, const void* tensor, int32_t escaped) {
  return dtr::guard([&] { engine_of(engine)->hand_pin(tensor, escaped, false); });
}

int32_t dtr_unpin(dtr_engine* engine, void* handle) {
  return engine_of(engine)->hand_unpin(handle);
}

int32_t dtr_pin_for(dtr_engine* engine, const void* tensor, int32_t escaped, dtr_pin_owner* owner) {
  return dtr::guard([&] {
    if (owner->handle) throw dtr::StateError("dtr_pin_for: the owner has a pin already");
    owner->engine = engine;
    owner->handle = engine_of(engine)->hand_pin(tensor, escaped, true);
  });
}

void dtr_end_pin(dtr_pin_owner* owner) {
  if (void* handle = std::exchange(owner->handle, nullptr))
    engine_of(owner->engine)->hand_end_pin(handle);
}

void* dtr_handle_of(dtr_engine* engine, const void* tensor) {
  dtr_tensor_desc desc;
  engine_of(engine)->describe(tensor, &desc);
  return engine_of(engine)->pool_of(desc.device_type, desc.device_index) ? desc.handle : nullptr;
}

int32_t dtr_scalar_type_of(dtr_engine* engine, const void* tensor) {
  dtr_tensor_desc desc;
  engine_of(engine)->describe(tensor, &desc);
  return desc.scalar_type;
}

int32_t dtr_device_type_of(dtr_engine* engine, const void* tensor) {
  dtr_tensor_desc desc;
  engine_of(engine)->describe(tensor, &desc);
  return desc.device_type;
}

}  // extern "C"
