#include "aliased_chunks.h"

#include <utility>

#include "errors.h"

namespace dtr {

AliasedChunks::~AliasedChunks() {
  or_say("addresses not given back", [this] { wait(); });
}

void AliasedChunks::add(std::vector<uint64_t> chunks, Driver::Event event) {
  batches_.push_back({std::move(chunks), event});
  for (uint64_t chunk : batches_.back().chunks) aliased_.set(chunk);
}

void AliasedChunks::poll() {
  while (!batches_.empty() && driver_.event_complete(batches_.front().event)) drop_front();
}

void AliasedChunks::wait() {
  while (!batches_.empty()) {
    driver_.synchronize_event(batches_.front().event);
    drop_front();
  }
}

// One at a time: what the driver refuses stays, and is tried again.
void AliasedChunks::drop_front() {
  Batch& batch = batches_.front();
  while (!batch.chunks.empty()) {
    const uint64_t chunk = batch.chunks.back();
    driver_.unalias(base_ + chunk * chunk_, chunk_);
    aliased_.clear(chunk);
    batch.chunks.pop_back();
  }
  driver_.destroy_event(batch.event);
  batches_.pop_front();
}

}  // namespace dtr
