// run_floors.cpp: bounds of runs.
#include "run_floors.h"

#include <algorithm>
#include <limits>

#include "lanes.h"

namespace dtr {

namespace {

constexpr uint32_t kNone = AddressOrder::kNone;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kRoundedUp = 1 + 2 * std::numeric_limits<float>::epsilon();
constexpr float kRoundedDown = 1 - RunFloors::kSlack;  // sums of kMost, and products

// What a block knows of its members, by rank.
struct Line {
  const float *prices, *begins, *lows;
  size_t count;
};

// B1 of all members of a block; the least of them, and the same without the rest.
struct Leasts {
  float all, without_rest;
};
[[gnu::always_inline]] inline Leasts floors_of(const Line& of, float wanted,
                                               const RunFloors::Rest& rest, float* floors) {
  Lanes least = Lanes{} + kInfinity, without = least, ranks = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto end = static_cast<float>(of.count);
  for (size_t at = 0; at < of.count; at += kLanes, ranks += static_cast<float>(kLanes)) {
    Lanes sum, low, behind, price;
    load(of.prices + at, sum);
    load(of.lows + at, low);
    // What is spanned already gets no more members.
    for (size_t members = 1; members < RunFloors::kMost; ++members) {
      load(of.begins + at + members, behind);
      load(of.prices + at + members, price);
      const IntLanes goes_on = behind - low < wanted;
      sum += (Lanes)(goes_on & (IntLanes)price);
    }
    sum *= kRoundedDown;
    sum = ranks < end ? sum : Lanes{} + kInfinity;
    without = sum < without ? sum : without;
    load(of.begins + at + RunFloors::kMost, behind);
    Lanes more = (wanted - (behind - low)) * rest.rate;
    more = more < rest.price ? more : Lanes{} + rest.price;
    sum += more > 0 ? more : Lanes{};
    std::memcpy(floors + at, &sum, sizeof sum);
    least = sum < least ? sum : least;
  }
  return {least_lane(least), least_lane(without)};
}

// What is known of all blocks: B2, and B3.
struct Rows {
  const float *prices, *rates, *behind;
  const uint32_t *changed, *asked;
  const float *asked_sizes, *asked_floors;
};

[[gnu::always_inline]] inline void floors_of_blocks(const Rows& of, size_t count, float wanted,
                                                    float* floors) {
  for (size_t at = 0; at < count; ++at) {
    const float price = of.prices[at], rate = of.rates[at] * wanted, behind = of.behind[at];
    const float product = price < rate ? price : rate;
    const float floor = product < behind ? product : behind;
    const float asked_floor = of.asked_floors[at];
    const bool holds = (of.asked[at] > of.changed[at]) & (of.asked_sizes[at] <= wanted);
    const float kept = holds ? asked_floor : 0;
    floors[at] = floor > kept ? floor : kept;
  }
}

#ifdef DTR_FOR_AVX2
DTR_FOR_AVX2 Leasts floors_with_avx2(const Line& of, float wanted, const RunFloors::Rest& rest,
                                     float* floors) {
  return floors_of(of, wanted, rest, floors);
}
DTR_FOR_AVX2 void floors_of_blocks_with_avx2(const Rows& of, size_t count, float wanted,
                                             float* floors) {
  floors_of_blocks(of, count, wanted, floors);
}
#endif

}  // namespace

void RunFloors::resize(size_t blocks) {
  for (auto* column : {&prices_, &spans_, &begins_}) column->resize(blocks * kLine);
  lows_.resize(blocks * kBlock);
  bases_.resize(blocks);
  counts_.resize(blocks);
  is_set_.resize(blocks);
  set_.reserve(blocks);
  behind_.resize(blocks);
  changed_.resize(blocks);
  blocks_ = blocks;
  if (blocks <= capacity_) return;
  const size_t before = capacity_;
  capacity_ = std::max<size_t>(2 * capacity_, 16);
  asked_.assign(kPowers * capacity_, 0);
  for (auto* table : {&asked_sizes_, &asked_floors_}) table->assign(kPowers * capacity_, 0);
  for (auto* table : {&least_prices_, &least_rates_}) {
    table->resize(kPowers * capacity_);
    for (size_t power = kPowers; power-- > 0;)
      std::copy_backward(table->begin() + power * before, table->begin() + (power + 1) * before,
                         table->begin() + power * capacity_ + before);
  }
}

void RunFloors::set(const AddressOrder& order, uint32_t block, const float* prices,
                    const float* spans) {
  const uint64_t base = order.floor_of(block);
  const uint32_t count = order.count(block);
  const uint32_t before = order.block_before(block);
  const auto from_base = [&](uint64_t address) {
    return static_cast<double>(static_cast<int64_t>(address - base));
  };
  double low = before == kNone ? -static_cast<double>(AddressOrder::kFar)
                               : from_base(order.end(order.last_of(before)));
  for (uint32_t rank = 0; rank < count; ++rank) {
    const uint32_t slot = order.slot_at(block, rank);
    const size_t at = block * kLine + rank;
    prices_[at] = prices[slot % kBlock];
    spans_[at] = spans[slot % kBlock];
    begins_[at] = rounded_up(from_base(order.begin(slot)));
    lows_[block * kBlock + rank] = rounded_down(low);
    low = from_base(order.end(slot));
  }
  bases_[block] = base;
  counts_[block] = count;
  is_set_[block] = 1;
  set_.push_back(block);
}

void RunFloors::finish(const AddressOrder& order) {
  if (set_.empty()) return;
  if (++times_set_ == 0) {  // the numbers are used up
    std::fill(asked_.begin(), asked_.end(), 0);
    std::fill(changed_.begin(), changed_.end(), 0);
    times_set_ = 1;
  }
  for (const uint32_t block : set_) {
    set_ahead(block, order.block_behind(block));
    set_products(block);
    const uint32_t before = order.block_before(block);
    if (before != kNone && !is_set_[before] && set_ahead(before, block)) set_products(before);
  }
  for (const uint32_t block : set_) is_set_[block] = 0;
  set_.clear();
}

// Puts the first members behind a block behind its own; what follows spans all, for nothing. False
// if they stood there.
bool RunFloors::set_ahead(uint32_t block, uint32_t behind) {
  float* const prices = &prices_[block * kLine + counts_[block]];
  float* const spans = &spans_[block * kLine + counts_[block]];
  float* const begins = &begins_[block * kLine + counts_[block]];
  const size_t count = behind == kNone ? 0 : std::min<size_t>(counts_[behind], kAhead);
  const float apart =
      count ? rounded_up(static_cast<double>(bases_[behind]) - static_cast<double>(bases_[block]))
            : 0;
  bool changed = false;
  const auto put = [&](float& old, float value) {
    changed |= old != value;
    old = value;
  };
  for (size_t i = 0; i < kAhead; ++i) {
    const size_t at = behind * kLine + i;
    put(prices[i], i < count ? prices_[at] : 0);
    put(spans[i], i < count ? spans_[at] : 1);
    put(begins[i], i < count ? (begins_[at] + apart) * kRoundedUp : kInfinity);
  }
  float together = 0;
  for (size_t i = 0; i < count; ++i) together += prices[i];
  // All that follows is in the run, then, and all of it was looked at.
  behind_[block] = count ? together * kRoundedDown : kInfinity;
  return changed;
}

void RunFloors::set_products(uint32_t block) {
  changed_[block] = times_set_;
  float prices[kPowers], rates[kPowers];
  std::fill_n(prices, kPowers, kInfinity);
  std::fill_n(rates, kPowers, kInfinity);
  const size_t first = block * kLine;
  for (size_t at = first; at < first + counts_[block] + kAhead; ++at) {
    const int power = power_of(spans_[at]);
    if (at >= first + counts_[block] && prices_[at] == 0) break;
    prices[power] = std::min(prices[power], prices_[at]);
    rates[power] = std::min(rates[power], prices_[at] / spans_[at]);
  }
  float rate = kInfinity;
  for (int power = 0; power < kPowers; ++power) {
    least_rates_[power * capacity_ + block] = rate * kRoundedDown;
    rate = std::min(rate, rates[power]);
  }
  float price = kInfinity;
  for (int power = kPowers; power-- > 0;) {
    price = std::min(price, prices[power]);
    least_prices_[power * capacity_ + block] = price;
  }
}

void RunFloors::of_blocks(uint64_t wanted, float* floors) const {
  const auto bytes = rounded_down(static_cast<double>(wanted));
  const size_t row = static_cast<size_t>(power_of(bytes)) * capacity_;
  const Rows rows{&least_prices_[row], &least_rates_[row], behind_.data(),     changed_.data(),
                  &asked_[row],        &asked_sizes_[row], &asked_floors_[row]};
#ifdef DTR_FOR_AVX2
  if (has_avx2()) return floors_of_blocks_with_avx2(rows, blocks_, bytes, floors);
#endif
  floors_of_blocks(rows, blocks_, bytes, floors);
}

float RunFloors::of_members(const AddressOrder& order, uint32_t block, uint64_t wanted,
                            float* floors) {
  const auto bytes = rounded_down(static_cast<double>(wanted));
  const float span = bytes * static_cast<float>(1 - kSlack);
  const size_t count = counts_[block];
  const Line line{&prices_[block * kLine], &begins_[block * kLine], &lows_[block * kBlock], count};
  const Rest rest = rest_of(order, block, wanted);
  std::fill(floors + (count + kLanes - 1) / kLanes * kLanes, floors + kBlock, kInfinity);
  Leasts least;
#ifdef DTR_FOR_AVX2
  if (has_avx2())
    least = floors_with_avx2(line, span, rest, floors);
  else
#endif
    least = floors_of(line, span, rest, floors);
  const size_t at = static_cast<size_t>(power_of(bytes)) * capacity_ + block;
  if (asked_[at] <= changed_[block] || asked_sizes_[at] > bytes) {
    asked_[at] = times_set_ + 1;
    asked_sizes_[at] = bytes;
    asked_floors_[at] = least.without_rest;
  }
  return least.all;
}

// Of all blocks that a run from this one may reach.
RunFloors::Rest RunFloors::rest_of(const AddressOrder& order, uint32_t block,
                                   uint64_t wanted) const {
  constexpr int kReach = 8;  // blocks; runs that go further are bounded by the first kMost members
  const size_t row = static_cast<size_t>(power_of(static_cast<float>(wanted))) * capacity_;
  const uint64_t end = order.end(order.last_of(block)) + wanted;
  // Finite, as it is multiplied with what may be 0.
  Rest rest{std::min(least_rates_[row + block], std::numeric_limits<float>::max()),
            least_prices_[row + block]};
  uint32_t next = order.block_behind(block);
  for (int i = 0; next != kNone && bases_[next] < end; ++i, next = order.block_behind(next)) {
    if (i == kReach) return {0, 0};
    rest.rate = std::min(rest.rate, least_rates_[row + next]);
    rest.price = std::min(rest.price, least_prices_[row + next]);
  }
  return rest;
}

// The power, counted from the first one; for the ends also what is beyond.
int RunFloors::power_of(float bytes) {
  constexpr int32_t kRoot = 0x3504F3;  // of two, the fraction's bits
  int32_t bits;
  std::memcpy(&bits, &bytes, sizeof bits);
  const int power = 2 * ((bits >> 23) - 127) + ((bits & 0x7FFFFF) >= kRoot);
  return std::clamp(power - kFirstPower, 0, kPowers - 1);
}

}  // namespace dtr
