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

Chunks::Run Chunks::first_absent(uint64_t begin, uint64_t end) const {
  const uint64_t to = last(end) + 1;
  const uint64_t from = mapped_.first_absent(first(begin), to);
  return {from * chunk_, from == to ? from * chunk_ : mapped_.first_present(from, to) * chunk_};
}

Chunks::Run Chunks::last_idle(uint64_t most, uint64_t begin, uint64_t end, uint64_t border) const {
  const uint64_t keep_from = begin < end ? first(begin) : count_;
  const uint64_t keep_to = begin < end ? last(end) + 1 : count_;
  uint64_t top = idle_.at_or_below(count_ - 1);
  if (top != Bitset::kNone && top >= keep_from && top < keep_to)
    top = keep_from == 0 ? Bitset::kNone : idle_.at_or_below(keep_from - 1);
  if (top == Bitset::kNone) return {0, 0};
  uint64_t floor = top >= keep_to ? keep_to : 0;
  if (top >= first(border)) floor = std::max(floor, first(border));
  uint64_t from = top;
  while (from > floor && top - from + 1 < most && idle_.test(from - 1)) --from;
  return {from * chunk_, (top + 1) * chunk_};
}

void Chunks::map(Run run) {
  driver_.map(base_ + run.begin, run.end - run.begin);
  const uint64_t from = first(run.begin), to = first(run.end), count = to - from;
  mapped_.set_range(from, to);
  idle_.set_range(from, to);
  mapped_count_ += count;
  peak_mapped_ = std::max(peak_mapped_, mapped_count_);
  idle_count_ += count;
  maps_ += count;
  events_.add(EventKind::kSegmentAllocate, base_ + run.begin, run.end - run.begin);
}

void Chunks::unmap(Run run) {
  driver_.unmap(base_ + run.begin, run.end - run.begin);
  const uint64_t from = first(run.begin), to = first(run.end), count = to - from;
  mapped_.clear_range(from, to);
  idle_.clear_range(from, to);
  mapped_count_ -= count;
  idle_count_ -= count;
  unmaps_ += count;
  events_.add(EventKind::kSegmentFree, base_ + run.begin, run.end - run.begin);
}

void Chunks::move(uint64_t from, uint64_t to) {
  driver_.alias(base_ + to, base_ + from);
  mapped_.set(first(to));
  idle_.set(first(to));
  mapped_.clear(first(from));
  idle_.clear(first(from));
  ++maps_;
  ++unmaps_;
  events_.add(EventKind::kSegmentFree, base_ + from, chunk_);
  events_.add(EventKind::kSegmentAllocate, base_ + to, chunk_);
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
