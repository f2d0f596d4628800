// Addresses that still show memory which has moved elsewhere.
//
// Idle memory may be needed at other addresses while work that was queued before it became
// idle still runs on it. The driver can show one piece of memory at two addresses: it is shown
// at the new one at once, for work that is queued from now on and so comes behind, and remains
// at the old one until an event says that the earlier work is done. So nobody waits.
//
// Rules:
//   T1  An aliased chunk is absent: it counts as having no memory, and only idle blocks lie over it.
//   T2  Nothing is mapped in an aliased chunk before it is dropped, and it is dropped only once the
//       work before its event is done.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "bitset.h"
#include "driver.h"
#include "errors.h"
#include "not_copied.h"

namespace dtr {

class AliasedChunks : NotCopied {
 public:
  AliasedChunks(Driver& driver, uint64_t base, uint64_t chunk_bytes, uint64_t chunks)
      : driver_(driver), base_(base), chunk_(chunk_bytes), aliased_(chunks) {}
  // Reports to stderr if the driver refuses.
  ~AliasedChunks() {
    or_say("addresses not given back", [this] { wait(); });
  }

  // Chunks, by their numbers, that are aliased until the event, which is this object's from now on.
  // Events come in the order in which they complete.
  void add(std::vector<uint64_t> chunks, Driver::Event event) {
    batches_.push_back({std::move(chunks), event});
    for (uint64_t chunk : batches_.back().chunks) aliased_.set(chunk);
  }
  // Drops what is done; never waits.
  void poll() {
    while (!batches_.empty() && driver_.event_complete(batches_.front().event)) drop_front();
  }
  // Drops everything, after waiting for it.
  void wait() {
    while (!batches_.empty()) {
      driver_.synchronize_event(batches_.front().event);
      drop_front();
    }
  }
  bool empty() const { return batches_.empty(); }
  bool any_in(uint64_t first, uint64_t end) const {
    return !empty() && aliased_.first_present(first, end) < end;
  }
  bool test(uint64_t chunk) const { return aliased_.test(chunk); }

 private:
  struct Batch {
    std::vector<uint64_t> chunks;
    Driver::Event event;
  };
  // One at a time: what the driver refuses stays, and is tried again.
  void drop_front() {
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

  Driver& driver_;
  uint64_t base_;
  uint64_t chunk_;
  Bitset aliased_;
  std::deque<Batch> batches_;
};

}  // namespace dtr
