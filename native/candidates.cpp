// candidates.cpp: the columns, and the pass over them.
#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "power.h"

namespace dtr {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Columns are moved to a new base once times or decreases reach this: floats near it
// are 128 ns apart.
constexpr int64_t kFar = int64_t{1} << 31;

float rounded_down(double value) {
  const auto near = static_cast<float>(value);
  return near > value ? std::nextafter(near, -kInfinity) : near;
}

float rounded_up(double value) {
  const auto near = static_cast<float>(value);
  return near < value ? std::nextafter(near, kInfinity) : near;
}

struct Columns {
  const float *numerator, *own, *weight, *access;
};

struct Terms {
  float now, decreased, exponent;
};

enum class Power { none, one, some };

// Eight bounds, from `at` on.
template <Power power>
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
  out = cost;
}

// Each block's least bound into least[], or, if bounds is not null, every bound.
template <Power power>
[[gnu::always_inline]] inline void scan_blocks(const Columns& of, size_t first, size_t blocks,
                                               const Terms& terms, float* least, float* bounds) {
  for (size_t block = first; block < first + blocks; ++block) {
    const size_t at = block * Candidates::kBlock;
    Lanes lowest = Lanes{} + kInfinity;
    for (size_t i = 0; i < Candidates::kBlock; i += kLanes) {
      Lanes some;
      bounds_of<power>(of, at + i, terms, some);
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

[[gnu::always_inline]] inline void scan_any(Power power, const Columns& of, size_t first,
                                            size_t blocks, const Terms& terms, float* least,
                                            float* bounds) {
  switch (power) {
    case Power::none:
      return scan_blocks<Power::none>(of, first, blocks, terms, least, bounds);
    case Power::one:
      return scan_blocks<Power::one>(of, first, blocks, terms, least, bounds);
    case Power::some:
      return scan_blocks<Power::some>(of, first, blocks, terms, least, bounds);
  }
}

[[gnu::always_inline]] inline size_t least_of(const float* values, size_t count) {
  Lanes lowest = Lanes{} + kInfinity;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes some;
    std::memcpy(&some, values + i, sizeof some);
    lowest = some < lowest ? some : lowest;
  }
  float value = kInfinity;
  for (size_t lane = 0; lane < kLanes; ++lane) value = std::min(value, lowest[lane]);
  for (; i < count; ++i) value = std::min(value, values[i]);
  for (i = 0; i + 1 < count && values[i] != value;) ++i;
  return i;
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

}  // namespace

void Candidates::add(Storage* storage) {
  storage->candidate = static_cast<int64_t>(list_.size());
  storage->parked = false;
  list_.push_back(storage);
  bytes_ += storage->size_bytes;
  if (list_.size() <= weight_.size()) return;
  const size_t padded = weight_.size() + kBlock;
  for (Column* column : {&numerator_, &own_, &access_}) column->resize(padded, 1);
  weight_.resize(padded, kInfinity);
  least_.resize(padded / kBlock);
}

void Candidates::remove(Storage* storage) {
  const auto gap = static_cast<size_t>(storage->candidate);
  const size_t last = list_.size() - 1;
  list_[gap] = list_[last];
  list_[gap]->candidate = static_cast<int64_t>(gap);
  list_.pop_back();
  for (Column* column : {&numerator_, &own_, &weight_, &access_}) (*column)[gap] = (*column)[last];
  weight_[last] = kInfinity;
  bytes_ -= storage->size_bytes;
  storage->candidate = -1;
  storage->parked = false;
  if (last % kBlock == 0 && weight_.size() > 2 * last + kBlock) {
    // Fewer than half are left: a search would pass over empty blocks.
    for (Column* column : {&numerator_, &own_, &weight_, &access_}) column->resize(last);
    least_.resize(last / kBlock);
  }
}

void Candidates::set(const Storage* storage, const CandidateBounds& bounds, int64_t decreased_ns) {
  const auto i = static_cast<size_t>(storage->candidate);
  own_[i] = rounded_down(bounds.own_ns);
  access_[i] = rounded_down(static_cast<double>(bounds.last_access_ns - epoch_ns_));
  if (!storage->parked) weigh(storage, bounds.weight);
  lower(storage, bounds.numerator_ns, decreased_ns);
}

void Candidates::lower(const Storage* storage, double numerator_ns, int64_t decreased_ns) {
  numerator_[static_cast<size_t>(storage->candidate)] =
      rounded_down(numerator_ns + static_cast<double>(decreased_ns - base_ns_));
}

void Candidates::weigh(const Storage* storage, double weight) {
  weight_[static_cast<size_t>(storage->candidate)] = rounded_down(weight);
}

void Candidates::park(Storage* storage) {
  storage->parked = true;
  weight_[static_cast<size_t>(storage->candidate)] = kInfinity;
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
  for (size_t i = 0; i < list_.size(); ++i) {
    numerator_[i] = std::max(rounded_down(numerator_[i] - fallen), own_[i]);
    access_[i] = rounded_down(static_cast<double>(list_[i]->last_access_ns - epoch_ns_));
  }
}

void Candidates::scan(const Query& query, size_t first_block, size_t blocks, float* bounds) {
  const Columns columns{numerator_.data(), own_.data(), weight_.data(), access_.data()};
  const Terms terms{query.now, query.decreased, query.exponent};
  const Power power = exponent_ == 0 ? Power::none : exponent_ == 1 ? Power::one : Power::some;
#ifdef DTR_FOR_AVX2
  if (has_avx2())
    return scan_with_avx2(power, columns, first_block, blocks, terms, least_.data(), bounds);
#endif
  scan_any(power, columns, first_block, blocks, terms, least_.data(), bounds);
}

float Candidates::bound_beside_free(const Query& query, const Storage* storage) const {
  const auto i = static_cast<size_t>(storage->candidate);
  const double cost = std::max(numerator_[i] - query.decreased, own_[i]);
  const double staleness = std::max(query.now - access_[i], 1.0f);
  const double size = std::max(static_cast<double>(storage->size_bytes), 1.0);
  const double share = size / (size + static_cast<double>(storage->free_bytes));
  return static_cast<float>(cost * weight_[i] * share / std::pow(staleness, exponent_));
}

size_t Candidates::least_block() const {
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return least_with_avx2(least_.data(), least_.size());
#endif
  return least_of(least_.data(), least_.size());
}

double Candidates::bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns) {
  const Query asked = query(now_ns, decreased_ns);
  const auto index = static_cast<size_t>(storage->candidate);
  float bounds[kBlock];
  scan(asked, index / kBlock, 1, bounds);
  return bounds[index % kBlock];
}

}  // namespace dtr
