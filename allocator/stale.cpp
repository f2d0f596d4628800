#include "stale.h"

#include <cstdio>
#include <exception>
#include <utility>

namespace dtr {

Stale::~Stale() {
  try {
    wait();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtr_alloc: addresses not given back: %s\n", error.what());
  }
}

void Stale::add(std::vector<uint64_t> chunks, Driver::Event event) {
  batches_.push_back({std::move(chunks), event});
  for (uint64_t chunk : batches_.back().chunks) stale_.set(chunk);
}

void Stale::poll() {
  while (!batches_.empty() && driver_.event_complete(batches_.front().event)) drop_front();
}

void Stale::wait() {
  while (!batches_.empty()) {
    driver_.synchronize_event(batches_.front().event);
    drop_front();
  }
}

// One at a time: what the driver refuses stays, and is tried again.
void Stale::drop_front() {
  Batch& batch = batches_.front();
  while (!batch.chunks.empty()) {
    const uint64_t chunk = batch.chunks.back();
    driver_.unalias(base_ + chunk * chunk_, chunk_);
    stale_.clear(chunk);
    batch.chunks.pop_back();
  }
  driver_.destroy_event(batch.event);
  batches_.pop_front();
}

}  // namespace dtr
