#include "aliased_chunks.h"

#include <cstdio>
#include <exception>
#include <utility>

namespace dtr {

AliasedChunks::~AliasedChunks() {
  try {
    wait();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtr_alloc: addresses not given back: %s\n", error.what());
  }
}

void AliasedChunks::add(std::vector<Chunks::Run> runs, Driver::Event event) {
  batches_.push_back({std::move(runs), event});
  for (const Chunks::Run& run : batches_.back().runs)
    aliased_.set_range(run.begin / chunk_, run.end / chunk_);
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

// One run at a time: what the driver refuses stays, and is tried again.
void AliasedChunks::drop_front() {
  Batch& batch = batches_.front();
  while (!batch.runs.empty()) {
    const Chunks::Run run = batch.runs.back();
    driver_.unalias(base_ + run.begin, run.end - run.begin);
    aliased_.clear_range(run.begin / chunk_, run.end / chunk_);
    batch.runs.pop_back();
  }
  driver_.destroy_event(batch.event);
  batches_.pop_front();
}

}  // namespace dtr
