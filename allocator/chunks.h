// Which chunks of the reservation have physical memory, and which of them could give it back.
//
// A chunk is the unit of mapping. It is
//   absent    no memory behind it: only free blocks lie over it;
//   idle      mapped, and nothing that may still be used lies over it: it can be unmapped;
//   touched   mapped, and a block that is in use, pending, or freed on a stream whose work is
//             not known to be done lies over it, in part or whole.
//
// Rules, checked by check():
//   C1  A touched chunk is mapped.
//   C2  mapped() is the number of chunks that are not absent.
//   C3  idle() is the number of idle chunks.
//
// Neighbors that are free for everybody are one hole, so that a chunk is idle if and only if it
// lies in one hole as a whole. So whoever says what becomes of a range also says in which hole it
// lies, and nothing is counted. Costs O(1) plus one word per 64 chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bitset.h"
#include "driver.h"
#include "event_log.h"

namespace dtr {

class Chunks {
 public:
  // All offsets are from the base of the reservation, which must outlive this object.
  Chunks(Driver& driver, const Reservation& reservation, uint64_t chunk_bytes,
         const EventSource& events);
  // Reports to stderr if the driver refuses to take memory back.
  ~Chunks();
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;

  uint64_t chunk_bytes() const { return chunk_; }
  // The chunk that an offset lies in.
  uint64_t number(uint64_t offset) const {
    return chunk_shift_ >= 0 ? offset >> chunk_shift_ : offset / chunk_;
  }
  uint64_t mapped() const { return mapped_count_; }
  uint64_t idle() const { return idle_count_; }
  uint64_t mapped_bytes() const { return mapped_count_ * chunk_; }
  uint64_t peak_mapped() const { return peak_mapped_; }
  void reset_peak() { peak_mapped_ = mapped_count_; }
  uint64_t maps() const { return maps_; }
  uint64_t unmaps() const { return unmaps_; }

  // Of the chunks that [begin, end) lies over:
  uint64_t absent_in(uint64_t begin, uint64_t end) const;
  uint64_t idle_in(uint64_t begin, uint64_t end) const;
  // Where in [begin, end) the chunk after the first `allowed` absent ones begins, or end.
  uint64_t reach(uint64_t begin, uint64_t end, uint64_t allowed) const;

  // Neighboring chunks, by offsets; none if begin is end.
  struct Run {
    uint64_t begin, end;
  };
  // The lowest absent ones under [begin, end).
  Run first_absent(uint64_t begin, uint64_t end) const;
  // The highest idle ones of which none lies under [begin, end), up to `most`; on one side of
  // `border`, where a chunk begins.
  Run last_idle(uint64_t most, uint64_t begin, uint64_t end, uint64_t border) const;

  // Each throws what the driver says (DriverError), and then nothing has changed. Absent chunks
  // become idle ones;
  void map(Run run);
  // idle ones become absent;
  void unmap(Run run);
  // the memory of an idle chunk is shown in an absent one, which is idle then (Driver::alias). The
  // first is absent then, but not to be mapped (stale.h).
  void move(uint64_t from, uint64_t to);

  // Calls visit(begin, end) for each run of mapped chunks.
  template <typename Visit>
  void for_each_mapped(Visit visit) const {
    uint64_t begin = 0;
    while ((begin = mapped_.first_present(begin, count_)) < count_) {
      const uint64_t end = mapped_.first_absent(begin, count_);
      visit(begin * chunk_, end * chunk_);
      begin = end;
    }
  }

  // Mapped memory [begin, end) of a hole is used from now on, or becomes part of the hole: one that
  // is free for everybody, with its neighbors. Where a heap ends, a chunk does.
  void touch(uint64_t begin, uint64_t end, uint64_t hole_begin, uint64_t hole_end) {
    const uint64_t from = std::max(first(begin), first(hole_begin + chunk_ - 1));
    const uint64_t to = std::min(last(end) + 1, first(hole_end));
    if (from < to) idle_count_ -= idle_.clear_range(from, to);
  }
  void untouch(uint64_t begin, uint64_t end, uint64_t hole_begin, uint64_t hole_end) {
    const uint64_t from = std::max(first(begin), first(hole_begin + chunk_ - 1));
    const uint64_t to = std::min(last(end) + 1, first(hole_end));
    if (from < to) idle_count_ += idle_.set_range(from, to);
  }

  bool all_mapped(uint64_t begin, uint64_t end) const {
    return mapped_.all(first(begin), last(end) + 1);
  }
  bool is_absent(uint64_t chunk) const { return !mapped_.test(chunk); }
  bool is_idle(uint64_t chunk) const { return idle_.test(chunk); }

  // Empty if all rules hold, else the broken one.
  std::string check() const;

 private:
  friend struct Corruptor;  // tests/allocator/corrupt_heap.cpp

  uint64_t first(uint64_t begin) const { return number(begin); }
  uint64_t last(uint64_t end) const { return number(end - 1); }

  Driver& driver_;
  const EventSource& events_;
  uint64_t base_;
  uint64_t chunk_;
  int chunk_shift_;  // -1: the chunk is no power of two
  uint64_t count_;
  Bitset mapped_;
  Bitset idle_;
  uint64_t mapped_count_ = 0;
  uint64_t idle_count_ = 0;
  uint64_t peak_mapped_ = 0;
  uint64_t maps_ = 0;
  uint64_t unmaps_ = 0;
};

}  // namespace dtr
