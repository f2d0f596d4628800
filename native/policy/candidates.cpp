// candidates.cpp: the columns, and the passes over them.
#include "candidates.h"

#include <cmath>

#include "score.h"

namespace dtr {

namespace {

// Columns are moved to a new base once times or decreases reach this: floats near it are 128 ns
// apart.
constexpr int64_t kFar = int64_t{1} << 31;
// Bytes: more than any pool has.
constexpr double kFarBytes = 1e15;

float rounded_down(double value) {
  const auto near = static_cast<float>(value);
  return near > value ? std::nextafter(near, -std::numeric_limits<float>::infinity()) : near;
}

float rounded_up(double value) { return -rounded_down(-value); }

}  // namespace

void Candidates::add(Storage* storage) {
  const size_t index = list_.size();
  storage->candidate = static_cast<int64_t>(index);
  storage->parked = false;
  list_.push_back(storage);
  const auto begin = reinterpret_cast<uint64_t>(storage->address);
  begins_.push_back(begin);
  ends_.push_back(begin + storage->size_bytes);
  if (index == weight_.size()) {
    for (Column* column :
         {&numerator_, &own_, &access_, &size_, &span_, &bounds_, &prices_, &run_bounds_})
      column->resize(index + kBlock, 1);
    weight_.resize(index + kBlock, kInfinity);
    for (Column* column : {&least_, &price_least_, &run_least_}) column->push_back(0);
    refined_in_.push_back(0);
    is_touched_.push_back(0);
  }
  touch(index);
  const auto before = [this](uint64_t value, uint32_t other) { return value < begins_[other]; };
  const auto place = std::upper_bound(order_.begin(), order_.end(), begin, before);
  const auto rank = static_cast<size_t>(place - order_.begin());
  order_.insert(place, static_cast<uint32_t>(index));
  set_span(rank, span(rank));
  for (const size_t beside : {rank - 1, rank + 1})
    if (beside < order_.size())
      set_span(beside, std::min<double>(span(beside), span_[order_[beside]]));
}

void Candidates::set_unneeded(Storage* storage, bool unneeded) {
  if (storage->in_unneeded == unneeded) return;
  storage->in_unneeded = unneeded;
  if (unneeded)
    unneeded_.emplace(in_grains(storage->size_bytes), storage->id, storage);
  else
    unneeded_.erase({in_grains(storage->size_bytes), storage->id, storage});
}

void Candidates::remove(Storage* storage) {
  set_unneeded(storage, false);
  const size_t rank = rank_of(storage), gap = static_cast<size_t>(storage->candidate);
  const size_t last = list_.size() - 1;
  order_[rank_of(list_[last])] = static_cast<uint32_t>(gap);
  order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(rank));
  for (Column* column : {&numerator_, &own_, &weight_, &access_, &size_, &span_})
    (*column)[gap] = (*column)[last];
  weight_[last] = kInfinity;
  touch(gap);
  touch(last);
  list_[gap] = list_[last];
  list_[gap]->candidate = static_cast<int64_t>(gap);
  begins_[gap] = begins_[last];
  ends_[gap] = ends_[last];
  list_.pop_back();
  begins_.pop_back();
  ends_.pop_back();
  storage->candidate = kNoCandidate;
  storage->parked = false;
}

size_t Candidates::rank_of(const Storage* storage) const {
  const auto index = static_cast<uint32_t>(storage->candidate);
  const auto before = [this](uint32_t other, uint64_t value) { return begins_[other] < value; };
  auto place = std::lower_bound(order_.begin(), order_.end(), begins_[index], before);
  while (*place != index) ++place;  // two versions of a buffer begin at the same for a moment
  return static_cast<size_t>(place - order_.begin());
}

// Where there is no candidate on one side, the span is as much as no pool has: what is evaluated
// shall not depend on where the pool happens to lie.
double Candidates::span(size_t rank) const {
  const uint64_t begin = begins_[order_[rank]], end = block_end(order_[rank]);
  auto bytes = static_cast<double>(ends_[order_[rank]] - begin);
  if (begin >= slabs_begin_) return bytes;
  bytes += rank == 0 ? kFarBytes : static_cast<double>(begin - std::min(low_end(rank), begin));
  bytes += rank + 1 == order_.size()
               ? kFarBytes
               : static_cast<double>(std::max(begins_[order_[rank + 1]], end) - end);
  return bytes;
}

void Candidates::set_span(size_t rank, double bytes) {
  span_[order_[rank]] = rounded_up(bytes);
  touch(order_[rank]);
}

void Candidates::narrow(const Storage* storage, uint64_t free_bytes) {
  const auto i = static_cast<size_t>(storage->candidate);
  if (begins_[i] >= slabs_begin_) return;
  span_[i] =
      std::min(span_[i], rounded_up(static_cast<double>(ends_[i] - begins_[i] + free_bytes)));
  touch(i);
}

void Candidates::widen(uint64_t begin, uint64_t end) {
  const auto before = [this](uint64_t value, uint32_t other) { return value < begins_[other]; };
  const auto above = std::upper_bound(order_.begin(), order_.end(), begin, before);
  auto rank = static_cast<size_t>(above - order_.begin());
  if (rank > 0) set_span(rank - 1, span(rank - 1));
  bool is_inside = true;
  for (; is_inside && rank < order_.size(); ++rank) {
    is_inside = begins_[order_[rank]] < end;
    set_span(rank, span(rank));
  }
}

void Candidates::widen_all() {
  for (size_t rank = 0; rank < order_.size(); ++rank) set_span(rank, span(rank));
}

uint64_t Candidates::most_free_beside(const Storage* storage) const {
  return static_cast<uint64_t>(span_[static_cast<size_t>(storage->candidate)]) -
         storage->size_bytes;
}

void Candidates::set(const Storage* storage, const CandidateBounds& bounds, int64_t decreased_ns) {
  const auto i = static_cast<size_t>(storage->candidate);
  own_[i] = rounded_down(bounds.own_ns);
  access_[i] = rounded_down(static_cast<double>(bounds.last_access_ns - epoch_ns_));
  size_[i] = rounded_down(bounds.size);
  if (!storage->parked) weigh(storage, bounds.weight);
  lower(storage, bounds.numerator_ns, decreased_ns);
}

void Candidates::lower(const Storage* storage, double numerator_ns, int64_t decreased_ns) {
  const auto i = static_cast<size_t>(storage->candidate);
  numerator_[i] = rounded_down(numerator_ns + static_cast<double>(decreased_ns - base_ns_));
  touch(i);
}

void Candidates::weigh(const Storage* storage, double weight) {
  const auto i = static_cast<size_t>(storage->candidate);
  weight_[i] = rounded_down(weight);
  touch(i);
}

void Candidates::park(Storage* storage) {
  const auto i = static_cast<size_t>(storage->candidate);
  storage->parked = true;
  weight_[i] = kInfinity;
  touch(i);
}

void Candidates::move_base(int64_t now_ns, int64_t decreased_ns) {
  const auto fallen = static_cast<double>(decreased_ns - base_ns_);
  epoch_ns_ = now_ns;
  base_ns_ = decreased_ns;
  is_passed_ = false;
  for (size_t i = 0; i < list_.size(); ++i) {
    numerator_[i] = std::max(rounded_down(numerator_[i] - fallen), own_[i]);
    access_[i] = rounded_down(static_cast<double>(list_[i]->last_access_ns - epoch_ns_));
  }
}

// Fills a block of two columns. The inner loops are what a compiler makes vector instructions of.
void Candidates::compute(Value value, const Moment& at, size_t block, Column& bounds,
                         Column& least) const {
  const float now = rounded_up(static_cast<double>(at.now_ns - epoch_ns_));
  const float decreased = rounded_up(static_cast<double>(at.decreased_ns - base_ns_));
  const float bytes = rounded_up(static_cast<double>(at.most_free));
  const auto exponent = static_cast<float>(exponent_);
  const size_t first = block * kBlock;
  const float *numerator = &numerator_[first], *own = &own_[first], *weight = &weight_[first],
              *access = &access_[first], *size = &size_[first], *span = &span_[first];
  float out[kBlock];
  for (size_t i = 0; i < kBlock; ++i)
    out[i] = std::max(numerator[i] - decreased, own[i]) * weight[i];
  const auto divide_by = [&](auto&& power) {
    for (size_t i = 0; i < kBlock; ++i) out[i] /= power(std::max(now - access[i], 1.0F));
  };
  if (exponent == 1)
    divide_by([](float s) { return s; });
  else if (exponent == 0.5F)
    divide_by([](float s) { return std::sqrt(s); });
  else if (exponent != 0)
    divide_by([&](float s) { return std::pow(s, exponent); });
  if (value != Value::score)
    for (size_t i = 0; i < kBlock; ++i) out[i] *= size[i];
  if (value == Value::beside)
    for (size_t i = 0; i < kBlock; ++i) out[i] /= std::min(span[i], size[i] + bytes);
  std::copy_n(out, kBlock, &bounds[first]);
  least[block] = block_minimum(out);
}

// The farther the horizon, the fewer passes, and the more blocks are refined between them: both
// should cost the same.
void Candidates::look_ahead(const Moment& now) {
  ++searches_;
  if (now.now_ns - epoch_ns_ > kFar || now.decreased_ns - base_ns_ > kFar)
    move_base(now.now_ns, now.decreased_ns);
  const size_t blocks = least_.size();
  const bool is_reached = now.now_ns > horizon_.now_ns || now.most_free > horizon_.most_free;
  if (!is_passed_ || is_reached || refined_ > blocks || now.decreased_ns != horizon_.decreased_ns ||
      value_of(now) != value_of(horizon_)) {
    if (refined_ > blocks)
      ahead_ns_ = std::max<int64_t>(ahead_ns_ / 2, 1);
    else if (is_reached)
      ahead_ns_ = std::min(ahead_ns_ * 2, kFar);
    horizon_ = {now.now_ns + ahead_ns_, now.decreased_ns, now.most_free};
    if (value_of(now) == Value::beside) horizon_.most_free += now.most_free;
    for (size_t block = 0; block < blocks; ++block)
      compute(value_of(now), horizon_, block, bounds_, least_);
    is_passed_ = true;
    refined_ = 0;
  } else {
    for (const size_t block : touched_) compute(value_of(now), horizon_, block, bounds_, least_);
  }
  for (const size_t block : touched_) is_touched_[block] = 0;
  touched_.clear();
}

bool Candidates::refine(const Moment& now, size_t block) {
  if (std::exchange(refined_in_[block], searches_) == searches_) return false;
  compute(value_of(now), now, block, bounds_, least_);
  touch(block * kBlock);
  ++refined_;
  return true;
}

// What lies between the candidates. Objects of slabs, which are no blocks, are in no run.
void Candidates::find_gaps(const Range& heap, const std::vector<Range>& taken) {
  const size_t count = order_.size();
  // resize() doubles memory that does not suffice; assign() takes as much as it needs.
  gaps_.resize(count);
  std::fill(gaps_.begin(), gaps_.end(), Gap{});
  size_t rank = 0;
  uint64_t end = heap.begin;
  for (const Range& block : taken) {
    for (; rank < count && begins_[order_[rank]] < block.begin; ++rank) {
      gaps_[rank].has_wall = true;
      gaps_[rank].low = gaps_[rank].high = begins_[order_[rank]];
    }
    if (rank > 0 && gaps_[rank - 1].high == 0) gaps_[rank - 1].high = block.begin;
    if (rank == count) return;
    if (begins_[order_[rank]] == block.begin)
      gaps_[rank++].low = end;
    else
      gaps_[rank].has_wall = true;
    end = block.end;
  }
  if (rank > 0 && gaps_[rank - 1].high == 0) gaps_[rank - 1].high = heap.end;
  for (; rank < count; ++rank) gaps_[rank].has_wall = true;
}

// Fills run_bounds_ and run_least_: what a run costs at least, as the difference of two sums.
void Candidates::bound_runs(int64_t now_ns, int64_t decreased_ns, uint64_t wanted) {
  // Of a sum, and more than an addition to it is rounded by.
  constexpr double kRounding = std::numeric_limits<double>::epsilon();
  if (now_ns - epoch_ns_ > kFar || decreased_ns - base_ns_ > kFar) move_base(now_ns, decreased_ns);
  for (size_t block = 0; block < price_least_.size(); ++block)
    compute(Value::price, {now_ns, decreased_ns, 0}, block, prices_, price_least_);
  const size_t count = order_.size();
  sums_.resize(count + 1);
  // Writes to the columns do not move them.
  const uint32_t* const order = order_.data();
  const float* const prices = prices_.data();
  double* const sums = sums_.data();
  double sum = 0;         // of the members before the right one, but for infinite ones
  size_t right = 0;       // the first one that the run does not need
  size_t after_wall = 0;  // the first one behind the last infinite one
  for (size_t left = 0; left < count; ++left) {
    for (; right < count; ++right) {
      if (right > left && bytes_of(left, right) >= wanted) break;
      if (gaps_[right].has_wall) after_wall = std::max(after_wall, right);
      const float price = prices[order[right]];
      if (price == kInfinity)
        after_wall = right + 1;
      else
        sum += static_cast<double>(price);
      sums[right + 1] = sum;
    }
    const double rounded = kRounding * static_cast<double>(right - left + 1) * sum;
    run_bounds_[left] = after_wall > left
                            ? kInfinity
                            : static_cast<float>(std::max(sum - sums[left] - rounded, 0.0));
  }
  std::fill(run_bounds_.begin() + static_cast<std::ptrdiff_t>(count), run_bounds_.end(), kInfinity);
  for (size_t block = 0; block < run_least_.size(); ++block)
    run_least_[block] = block_minimum(&run_bounds_[block * kBlock]);
}

// What a search computes from below (C1).
double Candidates::exact_value(Value value, size_t index, int64_t now_ns, int64_t decreased_ns,
                               uint64_t most_free) const {
  const double lost = static_cast<double>(decreased_ns - base_ns_);
  const double staleness = static_cast<double>(now_ns - epoch_ns_) - access_[index];
  const double score = std::max(numerator_[index] - lost, static_cast<double>(own_[index])) *
                       weight_[index] / power(std::max(staleness, 1.0), exponent_);
  if (value == Value::score) return score;
  const double price = score * size_[index];
  if (value == Value::price) return price;
  return price / std::min<double>(span_[index], size_[index] + static_cast<double>(most_free));
}

double Candidates::bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns,
                         uint64_t most_free) const {
  return exact_value(most_free == kNoFreeBytes ? Value::score : Value::beside,
                     static_cast<size_t>(storage->candidate), now_ns, decreased_ns, most_free);
}

std::string Candidates::check(int64_t now_ns, int64_t decreased_ns) {
  constexpr uint64_t kSomeFree = 1 << 20;
  for (size_t rank = 0; rank < order_.size(); ++rank) {
    const uint32_t index = order_[rank];
    const Storage* storage = list_[index];
    if (storage->candidate != static_cast<int64_t>(index) ||
        (storage->address && begins_[index] != reinterpret_cast<uint64_t>(storage->address)))
      return "R6: a candidate stands in another's place";
    if (rank > 0 && begins_[index] < begins_[order_[rank - 1]])
      return "C3: candidates are out of order";
    if (span_[index] > rounded_up(span(rank))) return "C3: a candidate's span is too large";
  }
  const Moment now{now_ns, decreased_ns, kSomeFree};
  for (const Value value : {Value::score, Value::beside, Value::price}) {
    for (size_t block = 0; block < price_least_.size(); ++block)
      compute(value, now, block, prices_, price_least_);
    for (size_t i = 0; i < list_.size(); ++i)
      if (prices_[i] > exact_value(value, i, now_ns, decreased_ns, kSomeFree) * (1 + kSlack))
        return "C1: what is computed is above a bound";
  }
  if (!is_passed_ || now_ns > horizon_.now_ns || decreased_ns != horizon_.decreased_ns) return "";
  for (size_t i = 0; i < list_.size(); ++i)
    if (!is_touched_[i / kBlock] &&
        bounds_[i] > exact_value(value_of(horizon_), i, now_ns, decreased_ns, horizon_.most_free) *
                         (1 + kSlack))
      return "C4: what was computed ahead is above a bound";
  return "";
}

}  // namespace dtr
