// candidates.cpp: the columns, and the pass over them.
#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "grain.h"
#include "lanes.h"

namespace dtr {

// The columns, and what is the same for all candidates.
struct Pass {
  const float *numerator, *own, *weight, *access, *size, *span;
  float now, decreased, exponent, bytes;
};

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Columns are moved to a new base once times or decreases reach this: floats near it
// are 128 ns apart.
constexpr int64_t kFar = int64_t{1} << 31;

enum class Power { none, one, some };

// Eight bounds (C1), from `at` on.
template <Power power>
[[gnu::always_inline]] inline void bounds_of(const Pass& of, size_t at, Lanes& cost) {
  Lanes other;
  load(of.numerator + at, cost);
  load(of.own + at, other);
  cost -= of.decreased;
  cost = cost > other ? cost : other;
  load(of.weight + at, other);
  cost *= other;
  if (power == Power::none) return;
  load(of.access + at, other);
  other = of.now - other;
  const Lanes one = other * 0 + 1;
  other = other > one ? other : one;
  if (power == Power::some) raise_above(other, of.exponent);
  cost /= other;
}

[[gnu::always_inline]] inline void bounds_of(const Pass& of, size_t at, Lanes& out) {
  if (of.exponent == 0) return bounds_of<Power::none>(of, at, out);
  if (of.exponent == 1) return bounds_of<Power::one>(of, at, out);
  bounds_of<Power::some>(of, at, out);
}

[[gnu::always_inline]] inline void value_at(const Pass& of, MemberValue value, size_t at,
                                            Lanes& some) {
  bounds_of(of, at, some);
  if (value == MemberValue::score) return;
  Lanes size, span;
  load(of.size + at, size);
  some *= size;
  if (value == MemberValue::price) return;
  load(of.span + at, span);
  size += of.bytes;
  if (value == MemberValue::beside) span = span < size ? span : size;
  some /= span;
}

[[gnu::always_inline]] inline void values_of(const Pass& of, MemberValue value, size_t block,
                                             float* values) {
  for (size_t i = 0; i < Candidates::kBlock; i += kLanes) {
    Lanes some;
    value_at(of, value, block * Candidates::kBlock + i, some);
    std::memcpy(values + i, &some, sizeof some);
  }
}

// The least value of a block's members.
[[gnu::always_inline]] inline float least_value(const Pass& of, MemberValue value, size_t block) {
  Lanes least = Lanes{} + kInfinity;
  for (size_t i = 0; i < Candidates::kBlock; i += kLanes) {
    Lanes some;
    value_at(of, value, block * Candidates::kBlock + i, some);
    least = some < least ? some : least;
  }
  return least_lane(least);
}

// The least floor that rises as 1/s^a does: of a moment within the horizon, `from` being that for
// which `first` is the least value of a block, `until` that of `last`. For one member 1/value to
// the power 1/a is linear in time, for the block it is convex: a chord is above it. For a < 1 the
// chord's power is below its tangent at `from`; if that is far from it, `last` serves alone.
BlockFloor floor_between(float first, float last, double from, double until, double exponent) {
  constexpr float kLeast = 1e-30f;     // its inverse is finite
  constexpr double kRounding = 5e-7;   // of inverses, sums of which are rounded
  constexpr double kMostAbove = 1.01;  // the tangent over the inverse at the end
  if (last == kInfinity) return {0, 0};
  if (last < kLeast) return {kInfinity, 0};
  const double low = 1 / static_cast<double>(first), high = 1 / static_cast<double>(last);
  const BlockFloor constant{static_cast<float>(high * (1 + kRounding)), 0};
  if (exponent == 0 || until <= from || low <= 0) return constant;
  const double growth = high / low;
  const double raised = exponent == 1     ? growth
                        : exponent == 0.5 ? growth * growth
                                          : std::pow(growth, 1 / exponent);
  const double rise = low * exponent * (raised - 1);
  if (low + rise > high * kMostAbove) return constant;
  const double slope = rise / (until - from);
  // Of a block that was computed anew long after the others, the sum would be lost in rounding.
  if (slope * from > high) return constant;
  return {static_cast<float>(low - slope * from + high * kRounding), static_cast<float>(slope)};
}

// Of blocks, or of what is in a block.
[[gnu::always_inline]] inline size_t least_of(const float* values, size_t count) {
  Lanes lowest = Lanes{} + kInfinity;
  IntLanes at = {}, here = {};
  for (int lane = 0; lane < static_cast<int>(kLanes); ++lane) here[lane] = lane;
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes, here += static_cast<int>(kLanes)) {
    Lanes some;
    std::memcpy(&some, values + i, sizeof some);
    at = some < lowest ? here : at;
    lowest = some < lowest ? some : lowest;
  }
  float value = kInfinity;
  size_t found = 0;
  for (size_t lane = 0; lane < kLanes; ++lane)
    if (lowest[lane] < value) {
      value = lowest[lane];
      found = static_cast<size_t>(at[lane]);
    }
  for (size_t i = whole; i < count; ++i)
    if (values[i] < value) value = values[found = i];
  return found;
}

#ifdef DTR_FOR_AVX2
DTR_FOR_AVX2 void values_with_avx2(const Pass& of, MemberValue value, size_t block, float* values) {
  values_of(of, value, block, values);
}
DTR_FOR_AVX2 float least_value_with_avx2(const Pass& of, MemberValue value, size_t block) {
  return least_value(of, value, block);
}
DTR_FOR_AVX2 size_t least_with_avx2(const float* values, size_t count) {
  return least_of(values, count);
}
#endif

size_t index_of_least(const float* values, size_t count) {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return least_with_avx2(values, count);
#endif
  return least_of(values, count);
}

float least_value_of(const Pass& of, MemberValue value, size_t block) {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return least_value_with_avx2(of, value, block);
#endif
  return least_value(of, value, block);
}

}  // namespace

void Candidates::resize(size_t blocks) {
  for (Column* column : {&numerator_, &own_, &access_, &size_, &span_})
    column->resize(blocks * kBlock, 1);
  weight_.resize(blocks * kBlock, kInfinity);
  for (Column* column : {&prices_, &firsts_}) column->resize(blocks * kBlock);
  slots_.resize(blocks * kBlock);
  least_.resize(blocks);
  least_runs_.resize(blocks);
  floors_.resize(blocks);
  floors_ahead_.resize(blocks);
  runs_ahead_.resize(blocks);
  run_floors_.resize(blocks);
  for (auto* numbers : {&priced_, &opened_, &summed_, &exact_}) numbers->resize(blocks);
}

void Candidates::clear(uint32_t slot) {
  weight_[slot] = kInfinity;
  slots_[slot] = nullptr;
  touch(slot);  // its floors may rise
}

void Candidates::move(uint32_t from, uint32_t to) {
  for (Column* column : {&numerator_, &own_, &weight_, &access_, &size_, &span_})
    (*column)[to] = (*column)[from];
  slots_[to] = slots_[from];
  slots_[to]->slot = to;
  touch(to);
  clear(from);
}

// The bytes of its own range and of all up to the candidates on both sides. Where there is none, as
// much as no pool has: what is evaluated shall not depend on where the pool happens to lie.
uint64_t Candidates::reach(uint32_t slot) const {
  const uint32_t before = order_.previous(slot), behind = order_.next(slot);
  const uint64_t begin = order_.begin(slot), end = order_.end(slot);
  const uint64_t below = before == AddressOrder::kNone
                             ? AddressOrder::kFar
                             : begin - std::min(order_.end(before), begin);
  const uint64_t above = behind == AddressOrder::kNone ? AddressOrder::kFar
                                                       : std::max(order_.begin(behind), end) - end;
  return below + (end - begin) + above;
}

float Candidates::span(uint32_t slot) const { return rounded_up(static_cast<double>(reach(slot))); }

void Candidates::respan(uint32_t slot) {
  if (slot == AddressOrder::kNone) return;
  const float before = span_[slot];
  span_[slot] = span(slot);
  if (span_[slot] > before) touch(slot);
}

void Candidates::add(Storage* storage) {
  storage->candidate = static_cast<int64_t>(list_.size());
  storage->parked = false;
  list_.push_back(storage);
  bytes_ += storage->size_bytes;
  const auto begin = reinterpret_cast<uint64_t>(storage->address);
  // If the pool rounds to more, the rest counts as free here.
  const uint64_t end = begin + in_grains(storage->size_bytes);
  const uint32_t slot = order_.insert(
      begin, end, [this](size_t blocks) { resize(blocks); },
      [this](uint32_t from, uint32_t to) { move(from, to); });
  storage->slot = slot;
  slots_[slot] = storage;
  touch(slot);
  respan(slot);
  respan(order_.previous(slot));
  respan(order_.next(slot));
}

void Candidates::remove(Storage* storage) {
  list_.back()->candidate = storage->candidate;
  list_[static_cast<size_t>(storage->candidate)] = list_.back();
  list_.pop_back();
  bytes_ -= storage->size_bytes;
  storage->candidate = -1;
  storage->parked = false;
  const uint32_t slot = storage->slot;
  const uint32_t before = order_.previous(slot), behind = order_.next(slot);
  Storage* const neighbors[] = {before == AddressOrder::kNone ? nullptr : slots_[before],
                                behind == AddressOrder::kNone ? nullptr : slots_[behind]};
  clear(slot);
  order_.erase(
      slot, [this](size_t blocks) { resize(blocks); },
      [this](uint32_t from, uint32_t to) { move(from, to); });
  for (const Storage* neighbor : neighbors)
    if (neighbor) respan(neighbor->slot);
}

void Candidates::set(const Storage* storage, const CandidateBounds& bounds, int64_t decreased_ns) {
  const uint32_t i = storage->slot;
  // What was right all the time needs no new floors.
  const auto take = [&](Column& column, double value) {
    const float rounded = rounded_down(value);
    if (column[i] == rounded) return;
    column[i] = rounded;
    touch(i);
  };
  take(own_, bounds.own_ns);
  take(access_, static_cast<double>(bounds.last_access_ns - epoch_ns_));
  take(size_, bounds.size);
  if (!storage->parked) take(weight_, bounds.weight);
  take(numerator_, bounds.numerator_ns + static_cast<double>(decreased_ns - base_ns_));
}

void Candidates::lower(const Storage* storage, double numerator_ns, int64_t decreased_ns) {
  numerator_[storage->slot] =
      rounded_down(numerator_ns + static_cast<double>(decreased_ns - base_ns_));
  touch(storage->slot);
}

void Candidates::weigh(const Storage* storage, double weight) {
  weight_[storage->slot] = rounded_down(weight);
  touch(storage->slot);
}

void Candidates::park(Storage* storage) {
  storage->parked = true;
  weight_[storage->slot] = kInfinity;
}

Candidates::Query Candidates::query(int64_t now_ns, int64_t decreased_ns, uint64_t bytes) {
  if (now_ns - epoch_ns_ > kFar || decreased_ns - base_ns_ > kFar) move_base(now_ns, decreased_ns);
  return query_at(now_ns, decreased_ns, bytes);
}

Candidates::Query Candidates::query_at(int64_t now_ns, int64_t decreased_ns, uint64_t bytes) const {
  return {rounded_up(static_cast<double>(now_ns - epoch_ns_)),
          rounded_up(static_cast<double>(decreased_ns - base_ns_)),
          rounded_up(static_cast<double>(bytes))};
}

void Candidates::move_base(int64_t now_ns, int64_t decreased_ns) {
  const auto fallen = static_cast<double>(decreased_ns - base_ns_);
  epoch_ns_ = now_ns;
  base_ns_ = decreased_ns;
  for (const Storage* storage : list_) {
    const uint32_t i = storage->slot;
    numerator_[i] = std::max(rounded_down(numerator_[i] - fallen), own_[i]);
    access_[i] = rounded_down(static_cast<double>(storage->last_access_ns - epoch_ns_));
  }
  touch_all();
}

Pass Candidates::pass(const Query& query) const {
  return {numerator_.data(), own_.data(),     weight_.data(),
          access_.data(),    size_.data(),    span_.data(),
          query.now,         query.decreased, static_cast<float>(exponent_),
          query.bytes};
}

void Candidates::scan(const Query& query, MemberValue value, size_t block, float* values) const {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return values_with_avx2(pass(query), value, block, values);
#endif
  values_of(pass(query), value, block, values);
}

// What the floors are now, in least_.
void Candidates::take_floors(int64_t now_ns, int64_t decreased_ns, MemberValue value) {
  if (value != floors_of_) {
    floors_of_ = value;
    floors_ahead_.touch_all();
  }
  floors_ahead_.advance(now_ns, decreased_ns);
  // Both with what has been lost until the last.
  const Pass first = pass(query_at(now_ns, floors_ahead_.until_decreased()));
  const Pass last = pass(query_at(floors_ahead_.until_ns(), floors_ahead_.until_decreased()));
  const auto since = static_cast<double>(now_ns - floors_ahead_.from_ns());
  const auto until = static_cast<double>(floors_ahead_.until_ns() - floors_ahead_.from_ns());
  floors_ahead_.refresh([&](uint32_t block) {
    floors_[block] = floor_between(least_value_of(first, value, block),
                                   least_value_of(last, value, block), since, until, exponent_);
  });
  for (size_t block = 0; block < floors_.size(); ++block)
    least_[block] = floors_[block].at(static_cast<float>(since));
}

// What bounds runs.
void Candidates::refresh_runs(int64_t now_ns, int64_t decreased_ns) {
  runs_ahead_.advance(now_ns, decreased_ns);
  const Query last = query_at(runs_ahead_.until_ns(), runs_ahead_.until_decreased());
  runs_ahead_.refresh([&](uint32_t block) {
    float prices[kBlock];
    scan(last, MemberValue::price, block, prices);
    run_floors_.set(order_, block, prices, span_.data() + block * kBlock);
  });
  run_floors_.finish(order_);
}

size_t Candidates::least_block() const { return index_of_least(least_.data(), least_.size()); }

// The price of a slot's candidate, or a bound of it; a block's bounds are computed once in a
// search.
float& Candidates::price(const Query& query, uint32_t slot) {
  const size_t block = slot / kBlock;
  if (priced_[block] != search_) {
    priced_[block] = search_;
    exact_[block] = 0;
    float* const prices = prices_.data() + block * kBlock;
    scan(query, MemberValue::price, block, prices);
  }
  return prices_[slot];
}

// Where what may be free before a candidate begins.
uint64_t Candidates::low_end(uint32_t slot) const {
  const uint32_t before = order_.previous(slot);
  return before == AddressOrder::kNone ? 0 : order_.end(before);
}

// From now on least_runs_ has the least bound of the runs that begin in the block.
void Candidates::open(uint32_t block, uint64_t wanted) {
  opened_[block] = search_;
  float* const floors = firsts_.data() + block * kBlock;
  least_runs_.set(block, run_floors_.of_members(order_, block, wanted, floors));
}

// The first member of the run of the least bound in an opened block, which does not count from now
// on.
uint32_t Candidates::take_first(uint32_t block) {
  float* const floors = firsts_.data() + block * kBlock;
  const size_t rank = index_of_least(floors, kBlock);
  floors[rank] = kInfinity;
  least_runs_.set(block, floors[index_of_least(floors, kBlock)]);
  return order_.slot_at(block, static_cast<uint32_t>(rank));
}

// Whether a run goes on with the slot.
bool Candidates::is_in_run(uint32_t slot, uint32_t first, uint64_t low, uint64_t wanted) const {
  if (slot == AddressOrder::kNone) return false;
  return slot == first || order_.begin(slot) - std::min(order_.begin(slot), low) < wanted;
}

// Bounds all runs that begin in an opened block with the sums of their members' bounds.
void Candidates::sum_all(const Query& query, uint32_t block, uint64_t wanted) {
  constexpr double kRounding = 1e-12;
  summed_[block] = search_;
  float* const floors = firsts_.data() + block * kBlock;
  uint32_t right = order_.first_of(block);
  double sum = 0;         // from the left one up to the right one, without what is infinite
  uint32_t infinite = 0;  // how many are
  const auto add = [&](float price, int sign) {
    if (price == kInfinity) {
      infinite += static_cast<uint32_t>(sign);
    } else {
      // Sums and differences of what differs by orders of magnitude are rounded: stays below.
      sum = std::max(sum * (1 - kRounding) + sign * static_cast<double>(price), 0.0);
    }
  };
  for (uint32_t rank = 0; rank < order_.count(block); ++rank) {
    const uint32_t left = order_.slot_at(block, rank);
    const uint64_t low = low_end(left);
    for (; is_in_run(right, left, low, wanted); right = order_.next(right))
      add(price(query, right), 1);
    floors[rank] = std::max(floors[rank], infinite ? kInfinity : rounded_down(sum));
    add(price(query, left), -1);
  }
  least_runs_.set(block, floors[index_of_least(floors, kBlock)]);
}

uint64_t Candidates::most_free_beside(const Storage* storage) const {
  return reach(storage->slot) - storage->size_bytes;
}

// What a search computes from below (C1).
double Candidates::exact_value(MemberValue value, uint32_t slot, int64_t now_ns,
                               int64_t decreased_ns, uint64_t bytes) const {
  const double lost = static_cast<double>(decreased_ns - base_ns_);
  const double staleness = static_cast<double>(now_ns - epoch_ns_) - access_[slot];
  const double score = std::max(numerator_[slot] - lost, static_cast<double>(own_[slot])) *
                       weight_[slot] / std::pow(std::max(staleness, 1.0), exponent_);
  if (value == MemberValue::score) return score;
  const double price = score * size_[slot];
  if (value == MemberValue::price) return price;
  if (value == MemberValue::rate) return price / span_[slot];
  return price / std::min<double>(span_[slot], size_[slot] + static_cast<double>(bytes));
}

double Candidates::bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns,
                         uint64_t most_free) const {
  const MemberValue value = most_free == kNoFreeBytes ? MemberValue::score : MemberValue::beside;
  return exact_value(value, storage->slot, now_ns, decreased_ns, most_free);
}

std::string Candidates::check(int64_t now_ns, int64_t decreased_ns) {
  std::string broken = order_.check();
  const Query asked = query(now_ns, decreased_ns);
  const auto since = static_cast<float>(now_ns - floors_ahead_.from_ns());
  for (const Storage* storage : list_) {
    const uint32_t slot = storage->slot, block = slot / kBlock;
    if (slots_[slot] != storage ||
        (storage->address != nullptr &&
         order_.begin(slot) != reinterpret_cast<uint64_t>(storage->address)))
      broken = "R6: a candidate stands in another's slot";
    else if (span_[slot] != span(slot))
      broken = "C3: a candidate's span is wrong";
    float values[kBlock];
    scan(asked, floors_of_, block, values);
    const double exact = exact_value(floors_of_, slot, now_ns, decreased_ns, 0);
    if (values[slot % kBlock] > exact * (1 + kSlack))
      broken = "C1: what is computed is above a bound";
    if (floors_ahead_.holds(now_ns, decreased_ns, block) &&
        floors_[block].at(since) > exact * (1 + kSlack))
      broken = "C4: a block's floor is above a member";
    if (runs_ahead_.holds(now_ns, decreased_ns, block)) {
      scan(asked, MemberValue::price, block, values);
      if (run_floors_.price(block, order_.rank_of(slot)) > values[slot % kBlock] * (1 + kSlack))
        broken = "C4: runs are bounded with more than a member's price";
    }
  }
  return broken;
}

}  // namespace dtr
