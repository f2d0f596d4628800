#include "chunks.h"

#include <cstdio>

#include "errors.h"

namespace dtr {

Chunks::Chunks(Driver& driver, const Reservation& reservation, uint64_t chunk_bytes,
               const EventSource& events)
    : driver_(driver),
      events_(events),
      base_(reservation.base()),
      chunk_(chunk_bytes),
      chunk_shift_((chunk_bytes & (chunk_bytes - 1)) == 0 ? __builtin_ctzll(chunk_bytes) : -1),
      count_(reservation.size() / chunk_bytes),
      mapped_(count_),
      idle_(count_) {}

Chunks::~Chunks() {
  try {
    for_each_mapped(
        [&](uint64_t begin, uint64_t end) { driver_.unmap(base_ + begin, end - begin); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtr_alloc: memory not returned: %s\n", error.what());
  }
}

uint64_t Chunks::absent_in(uint64_t begin, uint64_t end) const {
  uint64_t from = first(begin), to = last(end) + 1;
  if (mapped_.first_absent(from, to) == to) return 0;  // nearly always
  return to - from - mapped_.count(from, to);
}

uint64_t Chunks::idle_in(uint64_t begin, uint64_t end) const {
  return idle_.count(first(begin), last(end) + 1);
}

uint64_t Chunks::reach(uint64_t begin, uint64_t end, uint64_t allowed) const {
  uint64_t to = last(end) + 1;
  uint64_t at = mapped_.first_absent(first(begin), to);
  while (at < to) {
    uint64_t next = mapped_.first_present(at, to);
    if (next - at > allowed) return std::max(begin, (at + allowed) * chunk_);
    allowed -= next - at;
    at = mapped_.first_absent(next, to);
  }
  return end;
}

uint64_t Chunks::first_mapped(uint64_t begin, uint64_t end) const {
  uint64_t to = last(end) + 1;
  uint64_t at = mapped_.first_present(first(begin), to);
  return at == to ? end : std::max(begin, at * chunk_);
}

void Chunks::map(uint64_t begin, uint64_t end) {
  uint64_t to = last(end) + 1;
  uint64_t from = mapped_.first_absent(first(begin), to);
  while (from < to) {
    uint64_t stop = mapped_.first_present(from, to);
    driver_.map(base_ + from * chunk_, (stop - from) * chunk_);
    mapped_.set_range(from, stop);
    idle_.set_range(from, stop);
    mapped_count_ += stop - from;
    peak_mapped_ = std::max(peak_mapped_, mapped_count_);
    idle_count_ += stop - from;
    maps_ += stop - from;
    events_.add(EventKind::kSegmentAllocate, base_ + from * chunk_, (stop - from) * chunk_);
    from = mapped_.first_absent(stop, to);
  }
}

uint64_t Chunks::give_back(uint64_t count, uint64_t begin, uint64_t end) {
  uint64_t keep_from = 0, keep_to = 0;
  if (begin < end) keep_from = first(begin), keep_to = last(end) + 1;
  uint64_t done = 0;
  uint64_t top = idle_.at_or_below(count_ - 1);
  while (done < count && top != Bitset::kNone) {
    if (top >= keep_from && top < keep_to) {
      top = keep_from == 0 ? Bitset::kNone : idle_.at_or_below(keep_from - 1);
      continue;
    }
    // A run of neighbors goes back in one call.
    uint64_t floor = top >= keep_to ? keep_to : 0;
    uint64_t from = top;
    while (from > floor && top - from + 1 < count - done && idle_.test(from - 1)) --from;
    uint64_t run = top - from + 1;
    driver_.unmap(base_ + from * chunk_, run * chunk_);
    mapped_.clear_range(from, top + 1);
    idle_.clear_range(from, top + 1);
    mapped_count_ -= run;
    idle_count_ -= run;
    unmaps_ += run;
    events_.add(EventKind::kSegmentFree, base_ + from * chunk_, run * chunk_);
    done += run;
    top = from == 0 ? Bitset::kNone : idle_.at_or_below(from - 1);
  }
  return done;
}

void Chunks::move(uint64_t count, uint64_t begin, uint64_t end, std::vector<uint64_t>* moved) {
  uint64_t keep_from = first(begin), keep_to = last(end) + 1;
  moved->reserve(count);
  uint64_t to = mapped_.first_absent(keep_from, keep_to);
  uint64_t from = idle_.at_or_below(count_ - 1);
  while (moved->size() < count && to < keep_to && from != Bitset::kNone) {
    if (from >= keep_from && from < keep_to) {
      from = keep_from == 0 ? Bitset::kNone : idle_.at_or_below(keep_from - 1);
      continue;
    }
    driver_.alias(base_ + to * chunk_, base_ + from * chunk_);
    mapped_.set(to);
    idle_.set(to);
    mapped_.clear(from);
    idle_.clear(from);
    ++maps_;
    ++unmaps_;
    events_.add(EventKind::kSegmentFree, base_ + from * chunk_, chunk_);
    events_.add(EventKind::kSegmentAllocate, base_ + to * chunk_, chunk_);
    moved->push_back(from);
    to = mapped_.first_absent(to + 1, keep_to);
    from = from == 0 ? Bitset::kNone : idle_.at_or_below(from - 1);
  }
}

std::string Chunks::check() const {
  if (mapped_.count() != mapped_count_) return "C2: the mapped chunks are miscounted";
  if (idle_.count() != idle_count_) return "C3: the idle chunks are miscounted";
  for (uint64_t i = idle_.at_or_above(0); i != Bitset::kNone; i = idle_.at_or_above(i + 1)) {
    if (!mapped_.test(i)) return "C1: an idle chunk is not mapped";
  }
  return "";
}

}  // namespace dtr
