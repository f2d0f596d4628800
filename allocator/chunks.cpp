#include "chunks.h"

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
      mapped_(count_) {}

Chunks::~Chunks() {
  or_say("memory not returned", [this] {
    for_each_mapped([&](Run run) { driver_.unmap(base_ + run.begin, run.end - run.begin); });
  });
}

Chunks::Run Chunks::first_mapped(Run run) const {
  const uint64_t to = number(run.end);
  const uint64_t from = mapped_.first_present(number(run.begin), to);
  return {from * chunk_, mapped_.first_absent(from, to) * chunk_};
}

Chunks::Run Chunks::last_mapped(Run run) const {
  const uint64_t floor = number(run.begin);
  const uint64_t top = run.empty() ? Bitset::kNone : mapped_.at_or_below(number(run.end) - 1);
  if (top == Bitset::kNone || top < floor) return {0, 0};
  uint64_t from = top;
  while (from > floor && mapped_.test(from - 1)) --from;
  return {from * chunk_, (top + 1) * chunk_};
}

void Chunks::map(Run run) {
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

void Chunks::unmap(Run run) {
  driver_.unmap(base_ + run.begin, run.end - run.begin);
  mapped_.clear_range(number(run.begin), number(run.end));
  mapped_count_ -= count(run);
  unmaps_ += count(run);
  events_.add(DTR_EVENT_SEGMENT_FREE, base_ + run.begin, run.end - run.begin);
}

void Chunks::move(uint64_t from, uint64_t to) {
  driver_.alias(base_ + to, base_ + from);
  mapped_.set(number(to));
  mapped_.clear(number(from));
  ++maps_;
  ++unmaps_;
  events_.add(DTR_EVENT_SEGMENT_FREE, base_ + from, chunk_);
  events_.add(DTR_EVENT_SEGMENT_ALLOCATE, base_ + to, chunk_);
}

std::string Chunks::check() const {
  if (mapped_.count() != mapped_count_) return "C1: the mapped chunks are miscounted";
  return "";
}

}  // namespace dtr
