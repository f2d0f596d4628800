// candidates.cpp: the columns, and the pass over them.
#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "grain.h"
#include "power.h"

namespace dtr {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Columns are moved to a new base once times or decreases reach this: floats near it
// are 128 ns apart.
constexpr int64_t kFar = int64_t{1} << 31;

float rounded_up(double value) {
  const auto near = static_cast<float>(value);
  return near < value ? std::nextafter(near, kInfinity) : near;
}

struct Columns {
  const float *numerator, *own, *weight, *access, *size, *span;
};

struct Terms {
  float now, decreased, exponent, wanted;
};

enum class Power { none, one, some };

// Eight bounds, from `at` on; of windows: the products of C3.
template <Power power, bool windows>
[[gnu::always_inline]] inline void bounds_of(const Columns& of, size_t at, const Terms& terms,
                                             Lanes& out) {
  Lanes cost, other;
  std::memcpy(&cost, of.numerator + at, sizeof cost);
  std::memcpy(&other, of.own + at, sizeof other);
  cost -= terms.decreased;
  cost = cost > other ? cost : other;
  std::memcpy(&other, of.weight + at, sizeof other);
  cost *= other;
  if (power != Power::none) {
    std::memcpy(&other, of.access + at, sizeof other);
    other = terms.now - other;
    const Lanes one = other * 0 + 1;
    other = other > one ? other : one;
    if (power == Power::some) raise_above(other, terms.exponent);
    cost /= other;
  }
  if (windows) {
    std::memcpy(&other, of.size + at, sizeof other);
    cost *= other;
    std::memcpy(&other, of.span + at, sizeof other);
    const Lanes wanted = Lanes{} + terms.wanted;
    cost *= (other > wanted ? other : wanted) / other;
  }
  out = cost;
}

// Each block's least bound into least[], or, if bounds is not null, every bound.
template <Power power, bool windows>
[[gnu::always_inline]] inline void scan_blocks(const Columns& of, size_t first, size_t blocks,
                                               const Terms& terms, float* least, float* bounds) {
  for (size_t block = first; block < first + blocks; ++block) {
    const size_t at = block * Candidates::kBlock;
    Lanes lowest = Lanes{} + kInfinity;
    for (size_t i = 0; i < Candidates::kBlock; i += kLanes) {
      Lanes some;
      bounds_of<power, windows>(of, at + i, terms, some);
      if (bounds)
        std::memcpy(bounds + i, &some, sizeof some);
      else
        lowest = some < lowest ? some : lowest;
    }
    if (bounds) continue;
    float value = lowest[0];
    for (size_t lane = 1; lane < kLanes; ++lane) value = std::min(value, lowest[lane]);
    least[block] = value;
  }
}

template <bool windows>
[[gnu::always_inline]] inline void scan_power(Power power, const Columns& of, size_t first,
                                              size_t blocks, const Terms& terms, float* least,
                                              float* bounds) {
  switch (power) {
    case Power::none:
      return scan_blocks<Power::none, windows>(of, first, blocks, terms, least, bounds);
    case Power::one:
      return scan_blocks<Power::one, windows>(of, first, blocks, terms, least, bounds);
    case Power::some:
      return scan_blocks<Power::some, windows>(of, first, blocks, terms, least, bounds);
  }
}

[[gnu::always_inline]] inline void scan_any(Power power, const Columns& of, size_t first,
                                            size_t blocks, const Terms& terms, float* least,
                                            float* bounds) {
  if (terms.wanted > 0) return scan_power<true>(power, of, first, blocks, terms, least, bounds);
  scan_power<false>(power, of, first, blocks, terms, least, bounds);
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

// The same code for the processor that it runs on. Its results may differ in the last
// bit, of bounds, which have slack; so the choice does not.
#if defined(__x86_64__) && defined(__GNUC__)
#define DTR_FOR_AVX2 __attribute__((target("avx2,fma")))
DTR_FOR_AVX2 void scan_with_avx2(Power power, const Columns& of, size_t first, size_t blocks,
                                 const Terms& terms, float* least, float* bounds) {
  scan_any(power, of, first, blocks, terms, least, bounds);
}
DTR_FOR_AVX2 size_t least_with_avx2(const float* values, size_t count) {
  return least_of(values, count);
}
bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
#else
constexpr bool has_avx2() { return false; }
#endif

size_t index_of_least(const float* values, size_t count) {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return least_with_avx2(values, count);
#endif
  return least_of(values, count);
}

}  // namespace

void Candidates::grow(size_t blocks) {
  for (Column* column : {&numerator_, &own_, &access_, &size_, &span_})
    column->resize(blocks * kBlock, 1);
  weight_.resize(blocks * kBlock, kInfinity);
  for (Column* column : {&prices_, &products_}) column->resize(blocks * kBlock);
  slots_.resize(blocks * kBlock);
  least_.resize(blocks);
  for (auto* numbers : {&priced_, &opened_, &exact_, &begun_}) numbers->resize(blocks);
}

void Candidates::shrink(size_t blocks) {
  for (Column* column :
       {&numerator_, &own_, &access_, &size_, &span_, &weight_, &prices_, &products_})
    column->resize(blocks * kBlock);
  slots_.resize(blocks * kBlock);
  least_.resize(blocks);
  for (auto* numbers : {&priced_, &opened_, &exact_, &begun_}) numbers->resize(blocks);
}

void Candidates::clear(uint32_t slot) {
  weight_[slot] = kInfinity;
  slots_[slot] = nullptr;
}

void Candidates::move(uint32_t from, uint32_t to) {
  for (Column* column : {&numerator_, &own_, &weight_, &access_, &size_, &span_})
    (*column)[to] = (*column)[from];
  slots_[to] = slots_[from];
  slots_[to]->slot = to;
  clear(from);
}

// Its own range and all up to the candidates on both sides.
float Candidates::span(uint32_t slot) const {
  const uint32_t before = order_.previous(slot), behind = order_.next(slot);
  const uint64_t begin = order_.begin(slot), end = order_.end(slot);
  const uint64_t low = before == AddressOrder::kNone ? 0 : std::min(order_.end(before), begin);
  const uint64_t high =
      behind == AddressOrder::kNone ? UINT64_MAX : std::max(order_.begin(behind), end);
  return rounded_up(static_cast<double>(high - low));
}

void Candidates::respan(uint32_t slot) {
  if (slot != AddressOrder::kNone) span_[slot] = span(slot);
}

void Candidates::add(Storage* storage) {
  storage->candidate = static_cast<int64_t>(list_.size());
  storage->parked = false;
  list_.push_back(storage);
  bytes_ += storage->size_bytes;
  const auto begin = reinterpret_cast<uint64_t>(storage->address);
  // If the pool rounds to more, the rest counts as free here.
  const uint64_t end = begin + (storage->size_bytes + kGrain - 1) / kGrain * kGrain;
  const uint32_t slot = order_.insert(
      begin, end, [this](size_t blocks) { grow(blocks); },
      [this](uint32_t from, uint32_t to) { move(from, to); });
  storage->slot = slot;
  slots_[slot] = storage;
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
      slot, [this](size_t blocks) { shrink(blocks); },
      [this](uint32_t from, uint32_t to) { move(from, to); });
  for (const Storage* neighbor : neighbors)
    if (neighbor) respan(neighbor->slot);
}

void Candidates::set(const Storage* storage, const CandidateBounds& bounds, int64_t decreased_ns) {
  const uint32_t i = storage->slot;
  own_[i] = rounded_down(bounds.own_ns);
  access_[i] = rounded_down(static_cast<double>(bounds.last_access_ns - epoch_ns_));
  size_[i] = rounded_down(bounds.size);
  if (!storage->parked) weigh(storage, bounds.weight);
  lower(storage, bounds.numerator_ns, decreased_ns);
}

void Candidates::lower(const Storage* storage, double numerator_ns, int64_t decreased_ns) {
  numerator_[storage->slot] =
      rounded_down(numerator_ns + static_cast<double>(decreased_ns - base_ns_));
}

void Candidates::weigh(const Storage* storage, double weight) {
  weight_[storage->slot] = rounded_down(weight);
}

void Candidates::park(Storage* storage) {
  storage->parked = true;
  weight_[storage->slot] = kInfinity;
}

Candidates::Query Candidates::query(int64_t now_ns, int64_t decreased_ns) {
  if (now_ns - epoch_ns_ > kFar || decreased_ns - base_ns_ > kFar) move_base(now_ns, decreased_ns);
  return {rounded_up(static_cast<double>(now_ns - epoch_ns_)),
          rounded_up(static_cast<double>(decreased_ns - base_ns_)), static_cast<float>(exponent_)};
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
}

void Candidates::scan(const Query& query, size_t first_block, size_t blocks, float* bounds,
                      float wanted) {
  const Columns columns{numerator_.data(), own_.data(),  weight_.data(),
                        access_.data(),    size_.data(), span_.data()};
  const Terms terms{query.now, query.decreased, query.exponent, wanted};
  const Power power = exponent_ == 0 ? Power::none : exponent_ == 1 ? Power::one : Power::some;
#ifdef DTR_FOR_AVX2
  if (has_avx2())
    return scan_with_avx2(power, columns, first_block, blocks, terms, least_.data(), bounds);
#endif
  scan_any(power, columns, first_block, blocks, terms, least_.data(), bounds);
}

float Candidates::bound_beside_free(const Query& query, const Storage* storage) const {
  const uint32_t i = storage->slot;
  const double cost = std::max(numerator_[i] - query.decreased, own_[i]);
  const double staleness = std::max(query.now - access_[i], 1.0f);
  const double size = std::max(static_cast<double>(storage->size_bytes), 1.0);
  const double share = size / (size + static_cast<double>(storage->free_bytes));
  return static_cast<float>(cost * weight_[i] * share / std::pow(staleness, exponent_));
}

size_t Candidates::least_block() const { return index_of_least(least_.data(), least_.size()); }

// The price of a slot's candidate, or a bound of it; a block's bounds are computed once in a
// search.
float& Candidates::price(const Query& query, uint32_t slot) {
  const size_t block = slot / kBlock;
  if (priced_[block] != search_) {
    priced_[block] = search_;
    exact_[block] = begun_[block] = 0;
    float* const prices = prices_.data() + block * kBlock;
    scan(query, block, 1, prices);
    for (size_t i = 0; i < kBlock; ++i) prices[i] *= size_[block * kBlock + i];
  }
  return prices_[slot];
}

// Where what may be free before a candidate begins.
uint64_t Candidates::low_end(uint32_t slot) const {
  const uint32_t before = order_.previous(slot);
  return before == AddressOrder::kNone ? 0 : order_.end(before);
}

// The member of the least product in a block, which does not count from now on.
uint32_t Candidates::take_least(const Query& query, size_t block, float wanted) {
  float* const products = products_.data() + block * kBlock;
  if (opened_[block] != search_) {
    opened_[block] = search_;
    scan(query, block, 1, products, wanted);
  }
  const size_t taken = index_of_least(products, kBlock);
  products[taken] = kInfinity;
  least_[block] = products[index_of_least(products, kBlock)];
  return static_cast<uint32_t>(block * kBlock + taken);
}

// Adds the runs that have the member, and were not there before, if their bounds sum up to no more
// than `most`.
void Candidates::find_runs(const Query& query, uint32_t member, uint64_t wanted, double most) {
  constexpr uint32_t kNone = AddressOrder::kNone;
  const uint64_t begin = order_.begin(member);
  uint32_t left = member, before = order_.previous(member);
  for (double sum = price(query, member); before != kNone;) {
    const uint32_t further = order_.previous(before);
    const uint64_t low = further == kNone ? 0 : order_.end(further);
    sum += price(query, before);
    // What begins there spans enough without the member, or costs too much.
    if (begin - std::min(begin, low) >= wanted || sum > most || sum == kInfinity) break;
    left = before;
    before = further;
  }
  constexpr double kRounding = 1e-12;
  double sum = 0;
  for (uint32_t right = left;; left = order_.next(left)) {
    const uint64_t low = low_end(left);
    while (sum <= most) {
      const uint64_t high = right == kNone ? UINT64_MAX : order_.begin(right);
      if (right != left && high - std::min(high, low) >= wanted) break;
      const float added = price(query, right);
      if (added == kInfinity) return;  // all that follow end there, too
      sum += added;
      right = order_.next(right);
    }
    uint64_t& begun = begun_[left / kBlock];
    const uint64_t bit = uint64_t{1} << left % kBlock;
    if (sum <= most && !(begun & bit)) {
      begun |= bit;
      runs_.push_back({sum, left});
      std::push_heap(runs_.begin(), runs_.end());
    }
    if (left == member) return;
    // Sums and differences of what differs by orders of magnitude are rounded: stays below.
    sum = std::max(sum * (1 - kRounding) - price(query, left), 0.0);
  }
}

double Candidates::bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns) {
  const Query asked = query(now_ns, decreased_ns);
  float bounds[kBlock];
  scan(asked, storage->slot / kBlock, 1, bounds);
  return bounds[storage->slot % kBlock];
}

std::string Candidates::check() const {
  std::string broken = order_.check();
  for (const Storage* storage : list_) {
    if (slots_[storage->slot] != storage ||
        (storage->address != nullptr &&
         order_.begin(storage->slot) != reinterpret_cast<uint64_t>(storage->address)))
      broken = "R6: a candidate stands in another's slot";
    else if (span_[storage->slot] != span(storage->slot))
      broken = "C3: a candidate's span is wrong";
  }
  return broken;
}

}  // namespace dtr
