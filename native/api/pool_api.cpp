// The pool's part of the C interface: arguments are translated, nothing is decided here.
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/handles.h"
#include "counted_pool.h"
#include "cuda_api.h"
#include "dtr_alloc.h"
#include "event_log.h"
#include "guarded_pool.h"
#include "pool.h"

namespace dtr {

namespace {

// The one place that knows all kinds.
std::unique_ptr<AnyPool> make_pool(const dtr_pool_options& options) {
  const std::string_view driver = options.driver;
  if (driver == "counted") return std::make_unique<CountedPool>(options.budget_bytes);
  if (driver == "guarded") return std::make_unique<GuardedPool>(options.budget_bytes);
  return std::make_unique<Pool>(options);
}

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }

// Memory that a copy reads or writes: in a block in use, for elsewhere nothing may be mapped.
void require_in_block(AnyPool& pool, const char* call, const void* address, uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t at = number(address);
  const uint64_t start = pool.contains(at) ? pool.block_start(at) : 0;
  if (start != 0 && bytes <= pool.block_bytes(start) - (at - start)) return;
  throw InvalidArgument(std::string(call) + ": address " + address_text(at) + " with " +
                        size_text(bytes) +
                        " is not in this pool's blocks; allowed: a range in a block in use");
}

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

template <typename Body>
int32_t on_device(dtr_pool* pool, Body&& body) {
  return guard([&] { of(pool).on_device(body); });
}

}  // namespace

extern "C" {

int32_t dtr_abi_version(void) { return 1; }

const char* dtr_last_error(void) { return last_error(); }

int32_t dtr_pool_create(const dtr_pool_options* options, dtr_pool** out) {
  return give(out, "out", [&] {
    require(options, "options");
    require(options->driver, "driver");
    return make_handle<dtr_pool>(make_pool(*options));
  });
}

int32_t dtr_pool_destroy(dtr_pool* pool) {
  return guard([&] { destroy(pool, [](AnyPool& closing) { closing.close(); }); });
}

int32_t dtr_pool_set_room(dtr_pool* pool, dtr_room_fn room, void* context) {
  return guard([&] { of(pool).set_room(room, context); });
}

int32_t dtr_pool_allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out) {
  return give(out, "out", [&] { return pointer(of(pool).allocate(size_bytes, stream)); });
}

int32_t dtr_pool_allocate_hinted(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, int32_t hint,
                                 void** out) {
  return give(out, "out", [&] {
    require_between("hint", hint, DTR_HINT_NONE, DTR_HINT_WORKSPACE);
    return pointer(of(pool).allocate(size_bytes, stream, hint));
  });
}

int32_t dtr_pool_uses_hints(const dtr_pool* pool, uint64_t size_bytes) {
  return answer(0, [&] { return of(pool).uses_hints(size_bytes) ? 1 : 0; });
}

int32_t dtr_pool_free(dtr_pool* pool, void* address) {
  return guard([&] { of(pool).free(number(address)); });
}

int32_t dtr_pool_record_stream(dtr_pool* pool, void* address, uint64_t stream) {
  return guard([&] { of(pool).record_stream(number(address), stream); });
}

int32_t dtr_pool_arena_open(dtr_pool* pool, uint64_t* arena) {
  return give(arena, "arena", [&] { return of(pool).arena_open(); });
}

int32_t dtr_pool_arena_allocate(dtr_pool* pool, uint64_t arena, uint64_t size_bytes,
                                uint64_t stream, void** out) {
  return give(out, "out",
              [&] { return pointer(of(pool).arena_allocate(arena, size_bytes, stream)); });
}

int32_t dtr_pool_arena_allocate_at(dtr_pool* pool, uint64_t arena, void* address,
                                   uint64_t size_bytes, uint64_t stream) {
  return guard([&] { of(pool).arena_allocate_at(arena, number(address), size_bytes, stream); });
}

int32_t dtr_pool_arena_close(dtr_pool* pool, uint64_t arena) {
  return guard([&] { of(pool).arena_close(arena); });
}

int32_t dtr_pool_set_budget(dtr_pool* pool, uint64_t budget_bytes) {
  return guard([&] { of(pool).set_budget(budget_bytes); });
}

int32_t dtr_pool_allocate_beyond(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out) {
  return give(out, "out", [&] { return pointer(of(pool).allocate_beyond(size_bytes, stream)); });
}

int32_t dtr_pool_free_beyond(dtr_pool* pool, void* address) {
  return guard([&] { of(pool).free_beyond(number(address)); });
}

int32_t dtr_pool_add_peer(dtr_pool* pool, int32_t device) {
  return guard([&] {
    AnyPool& at = of(pool);
    require_between("device", device, 0, INT32_MAX);
    at.add_peer(device);
  });
}

int32_t dtr_pool_trim(dtr_pool* pool, uint64_t* returned_bytes) {
  return guard([&] {
    uint64_t returned = of(pool).trim();
    if (returned_bytes != nullptr) *returned_bytes = returned;
  });
}

uint64_t dtr_pool_block_bytes(dtr_pool* pool, const void* address) {
  return answer(uint64_t{0}, [&] {
    AnyPool& in = of(pool);
    return in.contains(number(address)) ? in.block_bytes(number(address)) : 0;
  });
}

void* dtr_pool_block_start(dtr_pool* pool, const void* address) {
  return answer(static_cast<void*>(nullptr), [&] {
    AnyPool& in = of(pool);
    return in.contains(number(address)) ? pointer(in.block_start(number(address))) : nullptr;
  });
}

uint64_t dtr_pool_free_beside(dtr_pool* pool, const void* address) {
  return answer(uint64_t{0}, [&] {
    AnyPool& in = of(pool);
    return in.contains(number(address)) ? in.free_beside(number(address)) : 0;
  });
}

int32_t dtr_pool_take_openings(dtr_pool* pool, dtr_opening* openings, uint64_t capacity,
                               uint64_t* count) {
  return give(count, "count", [&] {
    require_array(openings, capacity, "openings");
    return of(pool).take_openings(openings, capacity);
  });
}

void* dtr_pool_slabs_begin(const dtr_pool* pool) {
  return answer(static_cast<void*>(nullptr), [&] { return pointer(of(pool).slabs_begin()); });
}

uint64_t dtr_pool_unused_bytes(dtr_pool* pool) {
  return answer(uint64_t{0}, [&] { return of(pool).unused_bytes(); });
}

int32_t dtr_pool_get_room(dtr_pool* pool, uint64_t size_bytes, dtr_pool_room* out) {
  return give(out, "out", [&] { return of(pool).room_info(size_bytes); });
}

uint64_t dtr_pool_lacking_chunks(dtr_pool* pool, uint64_t size_bytes) {
  return answer(UINT64_MAX, [&] { return of(pool).lacking_chunks(size_bytes); });
}

int32_t dtr_pool_run(dtr_pool* pool, const void* address, dtr_run_block* blocks, uint64_t capacity,
                     uint64_t* count) {
  return give(count, "count", [&] {
    require_array(blocks, capacity, "blocks");
    return of(pool).run(number(address), blocks, capacity);
  });
}

int32_t dtr_pool_contains(const dtr_pool* pool, const void* address) {
  return answer(0, [&] { return of(pool).contains(number(address)) ? 1 : 0; });
}

int32_t dtr_pool_order(dtr_pool* pool, uint64_t stream, uint64_t after) {
  return on_device(pool, [&](DeviceWork& work) { work.order(stream, after); });
}

int32_t dtr_pool_order_uses(dtr_pool* pool, void* address, uint64_t stream) {
  return guard([&] { of(pool).order_uses(number(address), stream); });
}

int32_t dtr_pool_time_begin(dtr_pool* pool, uint64_t stream, uint64_t* timer) {
  return give(timer, "timer", [&] {
    return of(pool).on_device([&](DeviceWork& work) { return work.timers().begin(stream); });
  });
}

int32_t dtr_pool_time_end(dtr_pool* pool, uint64_t timer) {
  return on_device(pool, [&](DeviceWork& work) { work.timers().end(timer); });
}

int32_t dtr_pool_time_drop(dtr_pool* pool, uint64_t timer) {
  return on_device(pool, [&](DeviceWork& work) { work.timers().drop(timer); });
}

uint64_t dtr_pool_times(dtr_pool* pool, uint64_t* timers, int64_t* ns, uint64_t capacity) {
  return answer(uint64_t{0}, [&] {
    AnyPool& in = of(pool);
    require_array(timers, capacity, "timers");
    require_array(ns, capacity, "ns");
    return in.on_device([&](DeviceWork& work) { return work.timers().read(timers, ns, capacity); });
  });
}

int32_t dtr_pool_try_allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out) {
  return give(out, "out", [&] { return pointer(of(pool).try_allocate(size_bytes, stream)); });
}

int32_t dtr_pool_try_outside(dtr_pool* pool, uint64_t size_bytes, uint64_t stream,
                             const void* begin, const void* end, int32_t packed, void** out) {
  return give(out, "out", [&] {
    require_range("begin", begin, end);
    require_between("packed", packed, 0, 1);
    return pointer(
        of(pool).try_outside(size_bytes, stream, number(begin), number(end), packed != 0));
  });
}

int32_t dtr_pool_try_at(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, const void* address,
                        void** in_the_way, uint64_t capacity, uint64_t* count, void** out) {
  return guard([&] {
    require(out, "out");
    require(count, "count");
    *out = nullptr;
    *count = 0;
    require_array(in_the_way, capacity, "in_the_way");
    thread_local std::vector<uint64_t> blocks;
    *out = pointer(of(pool).try_at(size_bytes, stream, number(address), &blocks));
    if (*out) return;
    *count = blocks.size();
    for (size_t i = 0; i < std::min<size_t>(blocks.size(), capacity); ++i)
      in_the_way[i] = pointer(blocks[i]);
  });
}

int32_t dtr_pool_copy(dtr_pool* pool, void* to, const void* from, uint64_t size_bytes,
                      uint64_t stream, uint64_t* timer) {
  return guard([&] {
    AnyPool& in = of(pool);
    require_in_block(in, "copy", to, size_bytes);
    require_in_block(in, "copy", from, size_bytes);
    if (timer != nullptr) *timer = 0;
    const uint64_t made = in.copy(number(to), number(from), size_bytes, stream, timer != nullptr);
    if (timer != nullptr) *timer = made;
  });
}

int32_t dtr_pool_host_allocate(dtr_pool* pool, uint64_t size_bytes, void** out) {
  return give(out, "out", [&] {
    return pointer(
        of(pool).on_device([&](DeviceWork& work) { return work.host_allocate(size_bytes); }));
  });
}

int32_t dtr_pool_host_free(dtr_pool* pool, void* host) {
  return on_device(pool, [&](DeviceWork& work) {
    if (host) work.host_free(number(host));
  });
}

int32_t dtr_pool_copy_out(dtr_pool* pool, void* host, const void* address, uint64_t size_bytes,
                          uint64_t stream) {
  return guard([&] {
    require_in_block(of(pool), "copy_out", address, size_bytes);
    of(pool).on_device([&](DeviceWork& work) {
      work.copy_out(number(host), number(address), size_bytes, stream);
    });
  });
}

int32_t dtr_pool_copy_in(dtr_pool* pool, void* address, const void* host, uint64_t size_bytes,
                         uint64_t stream) {
  return guard([&] {
    require_in_block(of(pool), "copy_in", address, size_bytes);
    of(pool).on_device(
        [&](DeviceWork& work) { work.copy_in(number(address), number(host), size_bytes, stream); });
  });
}

int32_t dtr_pool_synchronize(dtr_pool* pool, uint64_t stream) {
  return guard([&] { of(pool).synchronize(stream); });
}

int32_t dtr_pool_side_stream(dtr_pool* pool, uint64_t* stream) {
  return give(stream, "stream", [&] {
    return of(pool).on_device([](DeviceWork& work) { return work.side_stream(); });
  });
}

int32_t dtr_pool_get_stats(dtr_pool* pool, dtr_pool_stats* out) {
  return give(out, "out", [&] { return of(pool).stats(); });
}

int32_t dtr_pool_reset_peak(dtr_pool* pool) {
  return guard([&] { of(pool).reset_peak(); });
}

int32_t dtr_pool_snapshot(dtr_pool* pool, dtr_block* blocks, uint64_t capacity, uint64_t* count) {
  return guard([&] {
    require(count, "count");
    require_array(blocks, capacity, "blocks");
    const std::vector<BlockInfo> all = of(pool).snapshot();
    std::copy_n(all.begin(), std::min<uint64_t>(all.size(), capacity), blocks);
    *count = all.size();
  });
}

int32_t dtr_pool_check_invariants(dtr_pool* pool) {
  return guard([&] {
    const std::string broken = of(pool).check_invariants();
    if (!broken.empty()) throw StateError(broken);
  });
}

int32_t dtr_cuda_probe(const char* library_path, int32_t* device_count) {
  return guard([&] {
    int32_t count = cuda_probe(library_path);
    if (device_count != nullptr) *device_count = count;
  });
}

int32_t dtr_cuda_set_library(const char* library_path) {
  return guard([&] { cuda_set_library(library_path); });
}

int32_t dtr_event_log_create(dtr_event_log** out) {
  return give(out, "out", [&] { return make_handle<dtr_event_log>(std::make_unique<EventLog>()); });
}

int32_t dtr_event_log_destroy(dtr_event_log* log) {
  if (log == nullptr) return DTR_OK;
  return guard([&] {
    destroy(log, [](const EventLog& closing) {
      if (const uint32_t writers = closing.writers())
        throw StateError("the log is written to by " + std::to_string(writers) +
                         " pools; take it from them first (dtr_pool_set_log)");
    });
  });
}

uint64_t dtr_event_log_drain(dtr_event_log* log, const dtr_event_columns* columns,
                             uint64_t capacity) {
  return answer(uint64_t{0}, [&] {
    EventLog& from = of(log);
    require(columns, "columns");
    require_array(columns->kind, capacity, "columns.kind");
    require_array(columns->time_ns, capacity, "columns.time_ns");
    require_array(columns->address, capacity, "columns.address");
    require_array(columns->size_bytes, capacity, "columns.size_bytes");
    require_array(columns->stream, capacity, "columns.stream");
    require_array(columns->device, capacity, "columns.device");
    require_array(columns->op, capacity, "columns.op");
    require_array(columns->place, capacity, "columns.place");
    return from.drain(*columns, capacity);
  });
}

uint64_t dtr_event_log_lost(const dtr_event_log* log) {
  return answer(uint64_t{0}, [&] { return of(log).lost(); });
}

int32_t dtr_pool_set_log(dtr_pool* pool, dtr_event_log* log, uint16_t device) {
  return guard([&] { of(pool).set_log(log == nullptr ? nullptr : &of(log), device); });
}

int32_t dtr_pool_note(dtr_pool* pool, int32_t kind, const void* address, uint64_t size_bytes) {
  return guard([&] {
    AnyPool& at = of(pool);
    require_between("kind", kind, 0, DTR_EVENT_KINDS - 1);
    at.note(static_cast<uint8_t>(kind), number(address), size_bytes);
  });
}

int32_t dtr_pool_note_move(dtr_pool* pool, const void* from, const void* to, uint64_t size_bytes) {
  return guard([&] { of(pool).note_move(number(from), number(to), size_bytes); });
}

}  // extern "C"

}  // namespace dtr
