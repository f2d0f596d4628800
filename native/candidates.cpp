// candidates.cpp: the columns, and the pass over them.
#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "grain.h"
#include "power.h"

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

float rounded_up(double value) {
  const auto near = static_cast<float>(value);
  return near < value ? std::nextafter(near, kInfinity) : near;
}

enum class Power { none, one, some };

[[gnu::always_inline]] inline void load(const float* from, Lanes& out) {
  std::memcpy(&out, from, sizeof out);
}

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

[[gnu::always_inline]] inline void values_of(const Pass& of, MemberValue value, size_t block,
                                             float* values) {
  const Lanes bytes = Lanes{} + of.bytes;
  for (size_t i = 0; i < Candidates::kBlock; i += kLanes) {
    const size_t at = block * Candidates::kBlock + i;
    Lanes some, size, span;
    bounds_of(of, at, some);
    if (value != MemberValue::score) {
      load(of.size + at, size);
      load(of.span + at, span);
      some *= size;
      size += bytes;
      if (value == MemberValue::beside) some /= span < size ? span : size;
      if (value == MemberValue::product) some *= (span > bytes ? span : bytes) / span;
    }
    std::memcpy(values + i, &some, sizeof some);
  }
}

[[gnu::always_inline]] inline float least_lane(const Lanes& of) {
  Lanes lanes = of;
  for (int apart : {4, 2, 1}) {
    const IntLanes here = {0, 1, 2, 3, 4, 5, 6, 7};
    const Lanes other = __builtin_shuffle(lanes, here ^ apart);
    lanes = other < lanes ? other : lanes;
  }
  return lanes[0];
}

// The least score, and the least price by span, of a block.
struct Leasts {
  float score, rate;
};

[[gnu::always_inline]] inline Leasts leasts_of(const Pass& of, size_t block) {
  Lanes score = Lanes{} + kInfinity, rate = score;
  for (size_t i = 0; i < Candidates::kBlock; i += kLanes) {
    const size_t at = block * Candidates::kBlock + i;
    Lanes some, other;
    bounds_of(of, at, some);
    score = some < score ? some : score;
    load(of.size + at, other);
    some *= other;
    load(of.span + at, other);
    some /= other;
    rate = some < rate ? some : rate;
  }
  return {least_lane(score), least_lane(rate)};
}

// Of each block, the least product (C3) of the prices given, with those by span.
[[gnu::always_inline]] inline void least_products(const float* prices, const float* rates,
                                                  size_t blocks, float wanted, float* least) {
  for (size_t block = 0; block < blocks; ++block) {
    Lanes lowest = Lanes{} + kInfinity;
    for (size_t i = 0; i < Candidates::kBlock; i += kLanes) {
      Lanes some, other;
      load(prices + block * Candidates::kBlock + i, some);
      load(rates + block * Candidates::kBlock + i, other);
      other *= wanted;
      some = some > other ? some : other;
      lowest = some < lowest ? some : lowest;
    }
    least[block] = least_lane(lowest);
  }
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

// The same code for the processor that it runs on. Its results may differ in the last
// bit, of bounds, which have slack; so the choice does not.
#if defined(__x86_64__) && defined(__GNUC__)
#define DTR_FOR_AVX2 __attribute__((target("avx2,fma")))
DTR_FOR_AVX2 void values_with_avx2(const Pass& of, MemberValue value, size_t block, float* values) {
  values_of(of, value, block, values);
}
DTR_FOR_AVX2 Leasts leasts_with_avx2(const Pass& of, size_t block) { return leasts_of(of, block); }
DTR_FOR_AVX2 void least_products_with_avx2(const float* prices, const float* rates, size_t blocks,
                                           float wanted, float* least) {
  least_products(prices, rates, blocks, wanted, least);
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

Leasts leasts_at(const Pass& of, size_t block) {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return leasts_with_avx2(of, block);
#endif
  return leasts_of(of, block);
}

}  // namespace

void Candidates::grow(size_t blocks) {
  for (Column* column : {&numerator_, &own_, &access_, &size_, &span_})
    column->resize(blocks * kBlock, 1);
  weight_.resize(blocks * kBlock, kInfinity);
  for (Column* column : {&prices_, &products_, &least_prices_, &least_rates_})
    column->resize(blocks * kBlock);
  slots_.resize(blocks * kBlock);
  least_.resize(blocks);
  score_floors_.resize(blocks);
  rate_floors_.resize(blocks);
  is_dirty_.resize(blocks);
  dirty_.reserve(2 * blocks);
  for (auto* numbers : {&priced_, &opened_, &exact_, &begun_}) numbers->resize(blocks);
}

void Candidates::shrink(size_t blocks) {
  for (Column* column : {&numerator_, &own_, &access_, &size_, &span_, &weight_, &prices_,
                         &products_, &least_prices_, &least_rates_})
    column->resize(blocks * kBlock);
  slots_.resize(blocks * kBlock);
  least_.resize(blocks);
  score_floors_.resize(blocks);
  rate_floors_.resize(blocks);
  is_dirty_.resize(blocks);
  for (auto* numbers : {&priced_, &opened_, &exact_, &begun_}) numbers->resize(blocks);
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
  constexpr uint64_t kMost = uint64_t{1} << 48;
  const uint32_t before = order_.previous(slot), behind = order_.next(slot);
  const uint64_t begin = order_.begin(slot), end = order_.end(slot);
  const uint64_t below =
      before == AddressOrder::kNone ? kMost : begin - std::min(order_.end(before), begin);
  const uint64_t above =
      behind == AddressOrder::kNone ? kMost : std::max(order_.begin(behind), end) - end;
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
      begin, end, [this](size_t blocks) { grow(blocks); },
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

void Candidates::touch(uint32_t slot) {
  const uint32_t block = slot / kBlock;
  if (is_dirty_[block]) return;
  is_dirty_[block] = 1;
  dirty_.push_back(block);
}

void Candidates::compute_floors(const Query& now, const Query& latest, double from, size_t block) {
  // Both with what has been lost until the last.
  const Query first{now.now, latest.decreased, 0};
  const Leasts begin = leasts_at(pass(first), block), end = leasts_at(pass(latest), block);
  const auto until = static_cast<double>(until_.now_ns - computed_.now_ns);
  score_floors_[block] = floor_between(begin.score, end.score, from, until, exponent_);
  rate_floors_[block] = floor_between(begin.rate, end.rate, from, until, exponent_);
  float* const prices = least_prices_.data() + block * kBlock;
  scan(latest, MemberValue::price, block, prices);
  for (size_t i = 0; i < kBlock; ++i)
    least_rates_[block * kBlock + i] = prices[i] / span_[block * kBlock + i];
  is_dirty_[block] = 0;
}

void Candidates::refresh_floors(int64_t now_ns, int64_t decreased_ns) {
  // Of a pass over everything, which serves several searches: a search's share, in blocks.
  constexpr int64_t kBlocksOfSearch = 4;
  const Query now = query(now_ns, decreased_ns);  // the base may move: before anything is computed
  const size_t blocks = least_.size();
  const bool all = now_ns > until_.now_ns || now_ns < computed_.now_ns ||
                   decreased_ns > until_.decreased_ns || vain_ > blocks;
  if (all) {
    // Never before: nothing is known of how fast time passes.
    const auto ahead = [&](int64_t to, int64_t from) {
      if (from < 0) return to;
      return to + (to - from) / std::max<int64_t>(searches_, 1) * static_cast<int64_t>(blocks) /
                      kBlocksOfSearch;
    };
    until_ = {ahead(now_ns, computed_.now_ns), ahead(decreased_ns, computed_.decreased_ns)};
    computed_ = {now_ns, decreased_ns};
    searches_ = 0;
    vain_ = 0;
  }
  ++searches_;
  const Query latest = query_at(until_.now_ns, until_.decreased_ns);
  const auto from = static_cast<double>(now_ns - computed_.now_ns);
  if (all)
    for (size_t block = 0; block < blocks; ++block) compute_floors(now, latest, from, block);
  else
    for (const uint32_t block : dirty_)
      if (block < blocks && is_dirty_[block]) compute_floors(now, latest, from, block);
  dirty_.clear();
}

// Into least_.
void Candidates::take_floors(const std::vector<BlockFloor>& floors, int64_t now_ns) {
  const auto since = static_cast<float>(now_ns - computed_.now_ns);
  for (size_t block = 0; block < floors.size(); ++block)
    least_[block] = 1 / (floors[block].inverse + floors[block].slope * since);
}

void Candidates::take_least_products(float wanted) {
#ifdef DTR_FOR_AVX2
  if (has_avx2())
    return least_products_with_avx2(least_prices_.data(), least_rates_.data(), least_.size(),
                                    wanted, least_.data());
#endif
  least_products(least_prices_.data(), least_rates_.data(), least_.size(), wanted, least_.data());
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
    scan(query, MemberValue::price, block, prices);
  }
  return prices_[slot];
}

// Where what may be free before a candidate begins.
uint64_t Candidates::low_end(uint32_t slot) const {
  const uint32_t before = order_.previous(slot);
  return before == AddressOrder::kNone ? 0 : order_.end(before);
}

// From now on least_ has the least product of the block.
void Candidates::open(const Query& query, size_t block) {
  opened_[block] = search_;
  float* const products = products_.data() + block * kBlock;
  scan(query, MemberValue::product, block, products);
  least_[block] = products[index_of_least(products, kBlock)];
}

// The member of the least product in an opened block, which does not count from now on.
uint32_t Candidates::take_least(size_t block) {
  float* const products = products_.data() + block * kBlock;
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

uint64_t Candidates::most_free_beside(const Storage* storage) const {
  return reach(storage->slot) - storage->size_bytes;
}

double Candidates::bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns,
                         uint64_t most_free) {
  const Query asked = query(now_ns, decreased_ns, most_free);
  const MemberValue value = most_free == kNoFreeBytes ? MemberValue::score : MemberValue::beside;
  float bounds[kBlock];
  scan(asked, value, storage->slot / kBlock, bounds);
  return bounds[storage->slot % kBlock];
}

std::string Candidates::check(int64_t now_ns, int64_t decreased_ns) {
  std::string broken = order_.check();
  const Query asked = query(now_ns, decreased_ns);
  const bool floors_hold =
      now_ns >= computed_.now_ns && now_ns <= until_.now_ns && decreased_ns <= until_.decreased_ns;
  const auto since = static_cast<float>(now_ns - computed_.now_ns);
  const auto at = [&](const BlockFloor& floor) {
    return 1 / (floor.inverse + floor.slope * since);
  };
  for (const Storage* storage : list_) {
    const uint32_t slot = storage->slot, block = slot / kBlock;
    if (slots_[slot] != storage ||
        (storage->address != nullptr &&
         order_.begin(slot) != reinterpret_cast<uint64_t>(storage->address)))
      broken = "R6: a candidate stands in another's slot";
    else if (span_[slot] != span(slot))
      broken = "C3: a candidate's span is wrong";
    if (!floors_hold || is_dirty_[block]) continue;
    float scores[kBlock], prices[kBlock];
    scan(asked, MemberValue::score, block, scores);
    scan(asked, MemberValue::price, block, prices);
    const double price = prices[slot % kBlock] * (1 + kSlack);
    if (at(score_floors_[block]) > scores[slot % kBlock] * (1 + kSlack) ||
        at(rate_floors_[block]) > price / span_[slot] || least_prices_[slot] > price ||
        least_rates_[slot] > price / span_[slot])
      broken = "C4: a block's floor is above a member";
  }
  return broken;
}

}  // namespace dtr
