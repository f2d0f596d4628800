// fragment_api.cpp: the C functions of the replay of allocation traces.
#include <memory>

#include "error.h"
#include "replay_events.h"
#include "walk.h"

using dtr::fragment::Columns;
using dtr::fragment::Events;
using dtr::fragment::ReplayOutcome;
using dtr::fragment::Walk;

namespace {

template <typename T>
const T* first_of(const std::vector<T>& values, uint64_t* count) {
  *count = values.size();
  return values.data();
}

const ReplayOutcome& outcome(const dtr_fragment_replay* replay) {
  return *reinterpret_cast<const ReplayOutcome*>(replay);
}

}  // namespace

extern "C" {

int32_t dtr_fragment_load(const uint8_t* kind, const uint64_t* address, const uint64_t* size_bytes,
                          const uint64_t* stream, const uint16_t* device, uint64_t count,
                          uint16_t which, dtr_fragment_events** out) {
  *out = nullptr;
  return dtr::guard([&] {
    const Columns columns{kind, address, size_bytes, stream, device, count};
    *out = reinterpret_cast<dtr_fragment_events*>(new Events(columns, which));
  });
}

void dtr_fragment_unload(dtr_fragment_events* events) { delete reinterpret_cast<Events*>(events); }

void dtr_fragment_counts(const dtr_fragment_events* events, uint64_t* steps, uint64_t* allocations,
                         uint64_t* peak_live_bytes) {
  const auto& of = *reinterpret_cast<const Events*>(events);
  *steps = of.steps().size();
  *allocations = of.allocations().size();
  *peak_live_bytes = of.peak_live_bytes();
}

int32_t dtr_fragment_run(const dtr_fragment_events* events, const dtr_fragment_options* options,
                         dtr_fragment_replay** out) {
  *out = nullptr;
  return dtr::guard([&] {
    auto done = std::make_unique<ReplayOutcome>();
    dtr::fragment::replay_events(*reinterpret_cast<const Events*>(events), *options, *done);
    *out = reinterpret_cast<dtr_fragment_replay*>(done.release());
  });
}

void dtr_fragment_destroy(dtr_fragment_replay* replay) {
  delete reinterpret_cast<ReplayOutcome*>(replay);
}

void dtr_fragment_get_result(const dtr_fragment_replay* replay, dtr_fragment_result* out) {
  *out = outcome(replay).result;
}

const dtr_fragment_sample* dtr_fragment_samples(const dtr_fragment_replay* replay,
                                                uint64_t* count) {
  return first_of(outcome(replay).samples, count);
}

const uint64_t* dtr_fragment_places(const dtr_fragment_replay* replay, uint64_t* count) {
  return first_of(outcome(replay).places, count);
}

const dtr_fragment_block* dtr_fragment_blocks(const dtr_fragment_replay* replay, int32_t worst,
                                              uint64_t* count) {
  return first_of(worst ? outcome(replay).worst : outcome(replay).last, count);
}

const dtr_fragment_segment* dtr_fragment_segments(const dtr_fragment_replay* replay,
                                                  uint64_t* count) {
  return first_of(outcome(replay).segments, count);
}

int32_t dtr_fragment_walk_run(const dtr_fragment_walk_options* options, dtr_fragment_walk** out) {
  *out = nullptr;
  return dtr::guard([&] { *out = reinterpret_cast<dtr_fragment_walk*>(new Walk(*options)); });
}

void dtr_fragment_walk_destroy(dtr_fragment_walk* walk) { delete reinterpret_cast<Walk*>(walk); }

void dtr_fragment_walk_heap(const dtr_fragment_walk* walk, dtr_fragment_heap* out) {
  *out = reinterpret_cast<const Walk*>(walk)->heap();
}

int32_t dtr_fragment_walk_holes(dtr_fragment_walk* walk, uint64_t row, const uint64_t** sizes,
                                uint64_t* count) {
  return dtr::guard(
      [&] { *sizes = first_of(reinterpret_cast<Walk*>(walk)->holes_at(row), count); });
}

}  // extern "C"
