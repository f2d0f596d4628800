// fragment_api.cpp: the C functions of the run of allocation traces.
#include <memory>

#include "base/error.h"
#include "base/handles.h"
#include "run_model.h"
#include "walk.h"

namespace dtr::fragment {

extern "C" {

int32_t dtr_fragment_load(const int64_t* start, const int64_t* end, const uint64_t* size_bytes,
                          const uint64_t* stream, uint64_t count, dtr_fragment_events** out) {
  return give(out, "out", [&] {
    require_array(start, count, "start");
    require_array(end, count, "end");
    require_array(size_bytes, count, "size_bytes");
    require_array(stream, count, "stream");
    return make_handle<dtr_fragment_events>(
        std::make_unique<Events>(start, end, size_bytes, stream, count));
  });
}

int32_t dtr_fragment_unload(dtr_fragment_events* events) {
  return guard([&] { destroy(events); });
}

int32_t dtr_fragment_counts(const dtr_fragment_events* events, uint64_t* steps,
                            uint64_t* allocations, uint64_t* peak_live_bytes) {
  return guard([&] {
    const Events& from = of(events);
    require(steps, "steps");
    require(allocations, "allocations");
    require(peak_live_bytes, "peak_live_bytes");
    *steps = from.steps().size();
    *allocations = from.allocations().size();
    *peak_live_bytes = from.peak_live_bytes();
  });
}

int32_t dtr_fragment_run_model(const dtr_fragment_events* events,
                               const dtr_fragment_options* options, dtr_fragment_result* result,
                               dtr_fragment_run** out) {
  return give(out, "out", [&] {
    require(options, "options");
    require(result, "result");
    require_between("places", options->places, 0, 1);
    require_array(options->segment_addresses, options->segment_address_count, "segment_addresses");
    auto done = std::make_unique<ModelRun>();
    run_model(of(events), *options, *done);
    *result = done->whole();
    return make_handle<dtr_fragment_run>(std::move(done));
  });
}

int32_t dtr_fragment_destroy(dtr_fragment_run* run) {
  return guard([&] { destroy(run); });
}

int32_t dtr_fragment_walk_run(const dtr_fragment_walk_options* options, dtr_fragment_heap* heap,
                              dtr_fragment_walk** out) {
  return give(out, "out", [&] {
    require(options, "options");
    require(heap, "heap");
    require_between("walled", options->walled, 0, 1);
    require_array(options->kind, options->count, "kind");
    require_array(options->address, options->count, "address");
    require_array(options->size_bytes, options->count, "size_bytes");
    auto walk = std::make_unique<Walk>(*options);
    *heap = walk->heap();
    return make_handle<dtr_fragment_walk>(std::move(walk));
  });
}

int32_t dtr_fragment_walk_destroy(dtr_fragment_walk* walk) {
  return guard([&] { destroy(walk); });
}

int32_t dtr_fragment_walk_holes(dtr_fragment_walk* walk, uint64_t row, const uint64_t** sizes,
                                uint64_t* count) {
  return guard([&] {
    require(sizes, "sizes");
    require(count, "count");
    const std::vector<uint64_t>& holes = of(walk).holes_at(row);
    *sizes = holes.data();
    *count = holes.size();
  });
}

}  // extern "C"

}  // namespace dtr::fragment
