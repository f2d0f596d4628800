// candidate_pool.h: the candidates for eviction in simrd's order, and the search among them.
//
// The order decides ties: the last of the smallest scores is chosen, but a score of exactly zero
// ends the search. Evaluating a score may mean to visit many other storages, so what is kept
// beside each candidate is a lower bound of its score, and only those are evaluated whose bound
// does not exceed the least score so far. A bound is
//
//     max(own + owed, noted - dropped) / (weight * age)
//
// own: the storage's own cost; owed: the sum of all costs below zero, of whatever it may be next
// to; noted: its numerator when it was last evaluated, plus what
// `dropped` was then; dropped: all by which numerators have fallen since, of whatever candidate.
// So the growth of a cost needs no bookkeeping, and its fall is one addition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace dtr::simrd {

class CandidatePool {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  size_t size() const { return size_; }
  bool has(uint32_t id) const { return id < at_.size() && at_[id] != kNone; }

  // At the end of the order. weight 0: a score of infinity.
  void enter(uint32_t id, double own, double weight, double access) {
    // Holes are closed when they are the most of it, so that entering stays cheap on average.
    if (end_ > 64 && end_ > size_ + size_ / 4) close_holes();
    if (id >= at_.size()) at_.resize(id + 1, kNone);
    at_[id] = static_cast<uint32_t>(end_);
    if (end_ == ids_.size()) resize(std::max(2 * end_, kLanes));
    ids_[end_] = id;
    own_[end_] = own;
    noted_[end_] = -std::numeric_limits<double>::infinity();
    weight_[end_] = weight;
    access_[end_] = access;
    ++end_;
    ++size_;
  }
  bool leave(uint32_t id) {
    if (!has(id)) return false;
    ids_[at_[id]] = kNone;
    own_[at_[id]] = std::numeric_limits<double>::infinity();
    at_[id] = kNone;
    --size_;
    return true;
  }
  void set_access(uint32_t id, double access) {
    if (has(id)) access_[at_[id]] = access;
  }
  void set_own(uint32_t id, double own) {
    if (has(id)) own_[at_[id]] = own;
  }
  // Its numerator may have fallen to its own cost.
  void forget_noted(uint32_t id) {
    if (has(id)) noted_[at_[id]] = -std::numeric_limits<double>::infinity();
  }
  // Any numerator may have fallen by so much.
  void drop(double amount) {
    dropped_ += amount;
    if (dropped_ < kMostDropped) return;  // beyond it, differences would lose digits
    for (double& noted : noted_) noted -= dropped_;
    dropped_ = 0;
  }

  // In the order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const uint32_t id : ids_)
      if (id != kNone) visit(id);
  }

  // The n-th in the order.
  uint32_t nth(size_t n) const {
    for (const uint32_t id : ids_)
      if (id != kNone && n-- == 0) return id;
    return kNone;
  }

  // The candidate of the smallest score. evaluate(id, &numerator) gives a score. ages: whether
  // the denominator has the age, clock - access. bounded: whether the bounds hold, that is,
  // scores are numerator / (weight * age). owed: at most 0. *evaluations: how many a
  // search without bounds would evaluate.
  template <typename Evaluate>
  uint32_t choose(double clock, bool ages, bool bounded, double owed, Evaluate&& evaluate,
                  uint64_t* evaluations) {
    return ages ? search<true>(clock, bounded, owed, evaluate, evaluations)
                : search<false>(clock, bounded, owed, evaluate, evaluations);
  }

 private:
  static constexpr double kMostDropped = 1ull << 50;
  static constexpr size_t kLanes = 4;

  // Four candidates at a time: the compiler's vectors, in registers of whatever width it has.
  using Lanes = double __attribute__((vector_size(32)));
  using Mask = int64_t __attribute__((vector_size(32)));
  static void load(const std::vector<double>& column, size_t i, Lanes* lanes) {
    std::memcpy(lanes, &column[i], sizeof(*lanes));
  }
  // Of which of the four the score may be within the limit: all bits set, else none.
  template <bool kAges>
  void may_win(size_t i, double limit, double clock, double owed, Mask* chances) const {
    Lanes own, noted, weight, access;
    load(own_, i, &own);
    load(noted_, i, &noted);
    load(weight_, i, &weight);
    load(access_, i, &access);
    own += owed;
    noted -= dropped_;
    const Lanes numerator = own > noted ? own : noted;
    weight *= limit;
    *chances = numerator <= (kAges ? weight * (clock - access) : weight);
  }

  template <bool kAges, typename Evaluate>
  uint32_t search(double clock, bool bounded, double owed, Evaluate& evaluate,
                  uint64_t* evaluations) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr double kSlack = 1e-9;  // bounds are rounded, scores compared exactly
    uint32_t best = kNone;
    double least = kInfinity;
    // No score above that of any one candidate is chosen: one beside the last choice is a good
    // guess, because what is alike tends to stand together.
    double guess = kInfinity;
    for (size_t i = last_; bounded && i < end_ && guess == kInfinity; ++i) {
      double numerator = 0;
      if (ids_[i] != kNone) guess = evaluate(ids_[i], &numerator);
    }
    for (size_t at = 0; at < end_; at += kLanes) {
      Mask chances = {-1, -1, -1, -1};
      // A score of zero ends the search, even where one below zero was found.
      const double limit = std::max(std::min(least, guess), 0.0);
      if (bounded && limit < kInfinity) {
        may_win<kAges>(at, limit + std::abs(limit) * kSlack, clock, owed, &chances);
        if (!(chances[0] | chances[1] | chances[2] | chances[3])) continue;
      }
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const size_t i = at + lane;
        if (!chances[lane] || ids_[i] == kNone) continue;
        double numerator = 0;
        const double value = evaluate(ids_[i], &numerator);
        noted_[i] = numerator + dropped_;
        if (value <= least) {
          least = value;
          best = ids_[i];
          last_ = i;
        }
        if (value != 0) continue;
        *evaluations += static_cast<uint64_t>(
            std::count_if(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                          [](uint32_t id) { return id != kNone; }));
        return best;
      }
    }
    *evaluations += size_;
    return best;
  }

  void close_holes() {
    size_t kept = 0;
    for (size_t i = 0; i < end_; ++i) {
      if (ids_[i] == kNone) continue;
      at_[ids_[i]] = static_cast<uint32_t>(kept);
      ids_[kept] = ids_[i];
      own_[kept] = own_[i];
      noted_[kept] = noted_[i];
      weight_[kept] = weight_[i];
      access_[kept++] = access_[i];
    }
    const size_t capacity = ids_.size();
    resize(kept);  // what is behind becomes holes
    end_ = kept;
    resize(capacity);
  }
  void resize(size_t size) {
    ids_.resize(size, kNone);
    own_.resize(size, std::numeric_limits<double>::infinity());
    for (std::vector<double>* column : {&noted_, &weight_, &access_}) column->resize(size);
  }

  std::vector<uint32_t> ids_;  // kNone: a hole, whose own cost is infinite
  size_t end_ = 0;             // behind the last; from here on all are holes
  std::vector<double> own_, noted_, weight_, access_;
  std::vector<uint32_t> at_;  // by id: where it stands
  size_t size_ = 0;
  size_t last_ = 0;  // where the last choice stood
  double dropped_ = 0;
};

}  // namespace dtr::simrd
