// Which chunks of the reservation have physical memory, and how many of them may be in use.
//
// A chunk is the unit of mapping. It is touched if a block lies over it, in part or whole, that is
// not free for everybody: in use, pending, or freed on a stream whose work is not known to be done.
// Any other chunk can be mapped or not, and its memory taken elsewhere.
//
// Rules, checked by check():
//   C1  mapped() is the number of chunks that have memory.
// and by the pool, which knows the blocks:
//   C2  A touched chunk is mapped.
//   C3  touched() is the number of touched chunks.
//
// Neighbors that are free for everybody are one hole, so that a chunk which is mapped is not
// touched if and only if it lies in one hole as a whole. So whoever says what becomes of a range
// also says in which hole it lies, and nothing is kept for each chunk. Costs O(1) plus one word per
// 64 chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "bitset.h"
#include "driver.h"
#include "errors.h"
#include "event_log.h"
#include "not_copied.h"

namespace dtr {

class Chunks : NotCopied {
 public:
  // Neighboring chunks, by their offsets.
  struct Run {
    uint64_t begin, end;
    bool empty() const { return begin >= end; }
  };

  // All offsets are from the base of the reservation, which must outlive this object.
  Chunks(Driver& driver, const Reservation& reservation, uint64_t chunk_bytes,
         const EventSource& events)
      : driver_(driver),
        events_(events),
        base_(reservation.base()),
        chunk_(chunk_bytes),
        chunk_shift_((chunk_bytes & (chunk_bytes - 1)) == 0 ? __builtin_ctzll(chunk_bytes) : -1),
        count_(reservation.size() / chunk_bytes),
        mapped_(count_) {}
  // Reports to stderr if the driver refuses to take memory back.
  ~Chunks() {
    or_say("memory not returned", [this] {
      for_each_mapped([&](Run run) { driver_.unmap(base_ + run.begin, run.end - run.begin); });
    });
  }

  uint64_t chunk_bytes() const { return chunk_; }
  // The chunk that an offset lies in.
  uint64_t number(uint64_t offset) const {
    return chunk_shift_ >= 0 ? offset >> chunk_shift_ : offset / chunk_;
  }
  // The chunks that lie in [begin, end) as a whole, and those that it lies over.
  Run inside(uint64_t begin, uint64_t end) const {
    return {number(begin + chunk_ - 1) * chunk_, number(end) * chunk_};
  }
  Run around(uint64_t begin, uint64_t end) const {
    return {number(begin) * chunk_, (number(end - 1) + 1) * chunk_};
  }
  uint64_t count(Run run) const { return run.empty() ? 0 : number(run.end - run.begin); }

  uint64_t mapped() const { return mapped_count_; }
  uint64_t touched() const { return touched_count_; }
  uint64_t mapped_bytes() const { return mapped_count_ * chunk_; }
  uint64_t peak_mapped() const { return peak_mapped_; }
  void reset_peak() { peak_mapped_ = mapped_count_; }
  uint64_t maps() const { return maps_; }
  uint64_t unmaps() const { return unmaps_; }

  // Whether all chunks are that [begin, end) lies over.
  bool all_mapped(uint64_t begin, uint64_t end) const {
    return mapped_.all(number(begin), number(end - 1) + 1);
  }
  // How many of a run's are.
  uint64_t mapped_in(Run run) const { return mapped_.count(number(run.begin), number(run.end)); }
  // Those of a run that are side by side and first, or last; empty if none is.
  Run first_mapped(Run run) const {
    const uint64_t to = number(run.end);
    const uint64_t from = mapped_.first_present(number(run.begin), to);
    return {from * chunk_, mapped_.first_absent(from, to) * chunk_};
  }
  Run last_mapped(Run run) const {
    const uint64_t floor = number(run.begin);
    const uint64_t top = run.empty() ? Bitset::kNone : mapped_.at_or_below(number(run.end) - 1);
    if (top == Bitset::kNone || top < floor) return {0, 0};
    uint64_t from = top;
    while (from > floor && mapped_.test(from - 1)) --from;
    return {from * chunk_, (top + 1) * chunk_};
  }

  // Calls visit(run) for each run of mapped chunks.
  template <typename Visit>
  void for_each_mapped(Visit visit) const {
    Run run{0, 0};
    while (!(run = first_mapped({run.end, count_ * chunk_})).empty()) visit(run);
  }

  // What is not mapped of a run is mapped. If the driver refuses half way (DriverError), what was
  // mapped so far stays.
  void map(Run run) {
    const uint64_t to = number(run.end);
    uint64_t from = mapped_.first_absent(number(run.begin), to);
    while (from < to) {
      const uint64_t stop = mapped_.first_present(from, to);
      driver_.map(base_ + from * chunk_, (stop - from) * chunk_);
      mapped_.set_range(from, stop);
      mapped_count_ += stop - from;
      peak_mapped_ = std::max(peak_mapped_, mapped_count_);
      maps_ += stop - from;
      events_.add(DTR_EVENT_SEGMENT_ALLOCATE, base_ + from * chunk_, (stop - from) * chunk_);
      from = mapped_.first_absent(stop, to);
    }
  }
  // Of a run that is mapped. Nothing has changed if the driver refuses.
  void unmap(Run run) {
    driver_.unmap(base_ + run.begin, run.end - run.begin);
    mapped_.clear_range(number(run.begin), number(run.end));
    mapped_count_ -= count(run);
    unmaps_ += count(run);
    events_.add(DTR_EVENT_SEGMENT_FREE, base_ + run.begin, run.end - run.begin);
  }
  // The memory of a chunk is shown in one that was not mapped (Driver::alias). The first one is not
  // mapped then, nor is it to be (aliased_chunks.h). Nothing has changed if the driver refuses.
  void move(uint64_t from, uint64_t to) {
    driver_.alias(base_ + to, base_ + from);
    mapped_.set(number(to));
    mapped_.clear(number(from));
    ++maps_;
    ++unmaps_;
    events_.add(DTR_EVENT_SEGMENT_FREE, base_ + from, chunk_);
    events_.add(DTR_EVENT_SEGMENT_ALLOCATE, base_ + to, chunk_);
  }

  // [begin, end) of a hole is used from now on, or becomes part of the hole: one that is free for
  // everybody, with its neighbors. Where a heap ends, a chunk does.
  void touch(uint64_t begin, uint64_t end, uint64_t hole_begin, uint64_t hole_end) {
    touched_count_ += whole_under(begin, end, hole_begin, hole_end);
  }
  void untouch(uint64_t begin, uint64_t end, uint64_t hole_begin, uint64_t hole_end) {
    touched_count_ -= whole_under(begin, end, hole_begin, hole_end);
  }
  // The chunks that [begin, end) lies over and that lie in the hole as a whole.
  uint64_t whole_under(uint64_t begin, uint64_t end, uint64_t hole_begin, uint64_t hole_end) const {
    const uint64_t from = std::max(number(begin), number(hole_begin + chunk_ - 1));
    const uint64_t to = std::min(number(end - 1) + 1, number(hole_end));
    return from < to ? to - from : 0;
  }

  // Empty if all rules hold, else the broken one.
  std::string check() const {
    if (mapped_.count() != mapped_count_) return "C1: the mapped chunks are miscounted";
    return "";
  }

 private:
  friend struct Corruptor;  // tests/allocator/corrupt_heap.cpp

  Driver& driver_;
  const EventSource& events_;
  uint64_t base_;
  uint64_t chunk_;
  int chunk_shift_;  // -1: the chunk is no power of two
  uint64_t count_;
  Bitset mapped_;
  uint64_t mapped_count_ = 0;
  uint64_t touched_count_ = 0;
  uint64_t peak_mapped_ = 0;
  uint64_t maps_ = 0;
  uint64_t unmaps_ = 0;
};

}  // namespace dtr
