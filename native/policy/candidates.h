// candidates.h: what may be evicted from one pool, laid out for the search.
//
// The search finds the exact arg min of a score that changes with every nanosecond for every
// candidate, and evaluates only a few of them. For each candidate it keeps a lower bound of the
// score in columns of floats, passes over the least bounds of blocks, and asks for the exact score
// (a walk over records) only where the bound does not exceed the best exact score so far. What it
// then learns becomes the next bound. Of equal scores the storage of the smallest id wins.
//
// Rules, checked by the engine's check_invariants():
//   C1  bound <= score, up to kSlack, where
//         bound = max(numerator - decreased, own) * weight / s^a.
//       Of the parts, `weight` is exact (to rounding); the others may be out of date in the
//       direction that keeps the bound low:
//       - s counts from the last access that was looked at. Later ones make s smaller and the
//         score larger, so an access needs to tell nobody.
//       - numerator is the cost when it was last computed, plus what components had lost until
//         then (Components::decreased_ns). It may have grown since, so an eviction next door
//         needs to tell nobody. A component that loses a member tells everybody at once, through
//         `decreased`, and the member's own neighbors, which may lose the whole component, are
//         set to their own cost (lower()).
//       Where free bytes beside a block count with its size, the span of C3 and the free bytes of
//       the pool bound them, without a question to the pool. Objects of slabs have none.
//   C2  A parked candidate is one that the search met and that could not be evicted. Its weight is
//       infinite, so that the next search passes over it without a look. It is unparked when the
//       reason for parking may have ended.
//   C3  The order lists the candidates by address. A candidate's span is at least its size and the
//       free bytes beside its block, and at most its size and everything from its block to those of
//       the candidates on both sides; that of an object of a slab, its size. Free bytes that the pool
//       has told are its bound until something near becomes free.
//
//   C4  Between two passes over all, a search has `bounds_` and `least_`: what the bounds of C1 will
//       be at a later moment, the horizon, when all that lowers them with time has gone on. Until
//       then they are lower bounds themselves. A block whose columns have changed is computed again
//       before the next search, and one that may have the least score is computed as of now.
//
//   C5  The unneeded candidates that can be recomputed stand in an index by size, too. (Where there
//       are scores.)
//
// The bounds also say what a window (window_search.h) costs at least. A *run* is the candidates of a
// window: from a first one on, until with the free bytes between and beside them they have `wanted`
// bytes; none goes on over a block that is no candidate's. It costs at least the sum of its members'
// price bounds, the price being the score without the size. One pass over the order finds these sums
// for all runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/ranges.h"
#include "grain.h"
#include "graph/records.h"

namespace dtr {

// What the columns say of one candidate.
struct CandidateBounds {
  double own_ns = 1;        // the cost that no neighborhood can take away; at least 1
  double numerator_ns = 1;  // the cost, or a lower bound of it
  double weight = 1;        // all factors but cost and staleness
  double size = 1;          // of these, what the score divides by
  int64_t last_access_ns = 0;
};

class Candidates {
 public:
  // Rounding in the columns and in the pass is below this share of a bound.
  static constexpr double kSlack = 1e-6;

  // Scores count s^exponent.
  void set_exponent(double staleness_exponent) { exponent_ = staleness_exponent; }
  // Objects of slabs have addresses from this one on. Before the first add().
  void set_slabs_begin(uint64_t address) { slabs_begin_ = address; }

  size_t size() const { return list_.size(); }
  Storage* at(size_t index) const { return list_[index]; }

  // Adds a storage, at its address; its bounds must be set() before the next search. It is
  // at(storage->candidate) until others are removed: the last one fills the gap.
  void add(Storage* storage);
  void remove(Storage* storage);

  // decreased_ns: Components::decreased_ns() now.
  void set(const Storage* storage, const CandidateBounds& bounds, int64_t decreased_ns);
  void lower(const Storage* storage, double numerator_ns, int64_t decreased_ns);
  void weigh(const Storage* storage, double weight);
  void park(Storage* storage);

  // C5.
  void set_unneeded(Storage* storage, bool unneeded);
  // Of the unneeded ones of such sizes, in grains, the smallest that is_allowed() says yes to, among
  // equals the oldest; null if there is none.
  template <typename IsAllowed>
  Storage* find_unneeded(uint64_t least_bytes, uint64_t most_bytes, IsAllowed&& is_allowed) const {
    for (auto at = unneeded_.lower_bound({least_bytes, 0, nullptr});
         at != unneeded_.end() && std::get<0>(*at) <= most_bytes; ++at)
      if (is_allowed(std::get<2>(*at))) return std::get<2>(*at);
    return nullptr;
  }

  // Free bytes beside a block that do not count with its size.
  static constexpr uint64_t kNoFreeBytes = UINT64_MAX;

  static constexpr size_t kAny = SIZE_MAX;

  // The candidate of the least exact score, or of the least among so many that can be evicted, by
  // the order of their bounds; null if none can.
  // evaluate(storage, least, &score): the exact score, or if that is above `least` any that is;
  // false: it cannot be evicted, and is parked. most_free: no candidate has more free bytes beside
  // it that count with its size; or kNoFreeBytes.
  template <typename Evaluate>
  Storage* search(int64_t now_ns, int64_t decreased_ns, uint64_t most_free, size_t most_scores,
                  Evaluate&& evaluate);

  // No more bytes are free beside its block.
  uint64_t most_free_beside(const Storage* storage) const;
  // So many are free beside its block.
  void narrow(const Storage* storage, uint64_t free_bytes);
  // Memory between two addresses became free; or anywhere.
  void widen(uint64_t begin, uint64_t end);
  void widen_all();

  // Calls visit(first, members, price, bytes) for each candidate with which a window of `wanted` bytes
  // begins that costs at most `limit`, which visit() may lower: the members from it on are as few as
  // suffice. Ends after so many looks at candidates, by the order of their bounds, if one such was
  // found. taken: all blocks that are not free, in the order of addresses, within `heap`.
  // price(storage): the exact price of a member, infinite if it cannot be evicted.
  template <typename Price, typename Visit>
  void search_windows(int64_t now_ns, int64_t decreased_ns, const Range& heap,
                      const std::vector<Range>& taken, uint64_t wanted, const double& limit,
                      size_t most_looks, Price&& price, Visit&& visit);

  // Candidates by address: how many come before one, and the one that so many come before.
  size_t rank_of(const Storage* storage) const;
  Storage* at_rank(size_t rank) const { return list_[order_[rank]]; }

  // The exact bound of one candidate.
  double bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns,
               uint64_t most_free) const;
  // Empty, or the rule that is broken: C3, or C1 of what a search computes.
  std::string check(int64_t now_ns, int64_t decreased_ns);

 private:
  static constexpr size_t kBlock = 64;  // candidates that share a least bound
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kMost = std::numeric_limits<float>::max();
  using Column = std::vector<float>;
  enum class Value {
    score,   // C1's bound
    beside,  // the same where free bytes count
    price,   // the bound without the size
  };
  // What bounds depend on besides the columns. All of it lowers them as it grows.
  struct Moment {
    int64_t now_ns;
    int64_t decreased_ns;
    uint64_t most_free;
  };
  void compute(Value value, const Moment& at, size_t block, Column& bounds, Column& least) const;
  void look_ahead(const Moment& now);
  // The block is computed as of now; false if it was in this search.
  bool refine(const Moment& now, size_t block);
  // A column of the candidate has changed.
  void touch(size_t index) {
    const size_t block = index / kBlock;
    if (std::exchange(is_touched_[block], 1)) return;
    touched_.push_back(block);
  }
  static Value value_of(const Moment& at) {
    return at.most_free == kNoFreeBytes ? Value::score : Value::beside;
  }
  void find_gaps(const Range& heap, const std::vector<Range>& taken);
  void bound_runs(int64_t now_ns, int64_t decreased_ns, uint64_t wanted);
  // Calls visit(place) where the column's bound is at most limit(), which visit() may lower.
  // refine(block): true if it has raised the block's bounds.
  template <typename Limit, typename Refine, typename Visit>
  static void visit_from_the_lowest(Column& bounds, Column& least, Limit&& limit, Refine&& refine,
                                    Visit&& visit);
  // Of the candidates of these ranks, with the free bytes between and beside them.
  uint64_t bytes_of(size_t first, size_t end) const {
    return gaps_[end - 1].high - gaps_[first].low;
  }
  uint64_t low_end(size_t rank) const { return rank == 0 ? 0 : block_end(order_[rank - 1]); }
  // If the pool rounds to more, the rest counts as free.
  uint64_t block_end(size_t index) const { return in_grains(ends_[index]); }
  // Of 8 bounds or more. Eight at a time, which a compiler makes one vector instruction of.
  static float minimum(const float* bounds, size_t count) {
    float lanes[8];
    std::copy_n(bounds, 8, lanes);
    for (size_t i = 8; i + 8 <= count; i += 8)
      for (size_t lane = 0; lane < 8; ++lane) lanes[lane] = std::min(lanes[lane], bounds[i + lane]);
    for (size_t i = count / 8 * 8; i < count; ++i) lanes[0] = std::min(lanes[0], bounds[i]);
    return *std::min_element(lanes, lanes + 8);
  }
  static float block_minimum(const float* bounds) { return minimum(bounds, kBlock); }
  static size_t index_of_least(const Column& of) {
    if (of.size() < 8)
      return static_cast<size_t>(std::min_element(of.begin(), of.end()) - of.begin());
    const float least = minimum(of.data(), of.size());
    return static_cast<size_t>(std::find(of.begin(), of.end(), least) - of.begin());
  }
  void move_base(int64_t now_ns, int64_t decreased_ns);
  double exact_value(Value value, size_t index, int64_t now_ns, int64_t decreased_ns,
                     uint64_t most_free) const;
  double span(size_t rank) const;
  void set_span(size_t rank, double bytes);

  std::set<std::tuple<uint64_t, uint64_t, Storage*>> unneeded_;  // C5
  std::vector<Storage*> list_;
  std::vector<uint32_t> order_;  // C3: indices in the list
  std::vector<uint64_t> begins_, ends_;
  double exponent_ = 1;
  uint64_t slabs_begin_ = std::numeric_limits<uint64_t>::max();
  // Columns, filled up to a multiple of kBlock with infinite weights.
  Column numerator_, own_, weight_, access_;
  Column size_, span_;  // what a score divides by; C3
  // The columns' times and decreases count from here, so that floats hold them finely.
  int64_t epoch_ns_ = 0, base_ns_ = 0;
  // C4: of each candidate, and the least of each block.
  Column bounds_, least_;
  Moment horizon_{0, 0, 0};
  int64_t ahead_ns_ = 1;              // from a pass to its horizon
  size_t refined_ = 0;                // blocks, since the last pass
  bool is_passed_ = false;            // there was one, and the columns are on the base that it had
  std::vector<uint64_t> refined_in_;  // by block: number of the last search that refined it
  uint64_t searches_ = 0;
  std::vector<char> is_touched_;  // by block
  std::vector<size_t> touched_;
  // Scratch of a search for windows: the price of each candidate; of the run that begins with each,
  // by rank, and the sums of the prices before; the least of each block.
  Column prices_, price_least_, run_bounds_, run_least_;
  std::vector<double> sums_;
  // What lies beside a candidate: where the free bytes before it begin and those behind it end, and
  // whether a block that is no candidate's comes directly before.
  struct Gap {
    uint64_t low = 0, high = 0;
    bool has_wall = false;
  };
  std::vector<Gap> gaps_;  // by rank
};

template <typename Limit, typename Refine, typename Visit>
void Candidates::visit_from_the_lowest(Column& bounds, Column& least, Limit&& limit,
                                       Refine&& refine, Visit&& visit) {
  // After so many the limit is so near the least that hardly any other bound is below it.
  constexpr int kProbes = 8;
  for (int probe = 0; probe < kProbes; ++probe) {
    const size_t block = index_of_least(least);
    if (!(least[block] <= limit())) return;
    if (refine(block) && !(least[block] <= limit())) continue;
    float* const first = &bounds[block * kBlock];
    float* const lowest = std::min_element(first, first + kBlock);
    *lowest = kInfinity;
    least[block] = block_minimum(first);
    visit(static_cast<size_t>(lowest - bounds.data()));
  }
  for (size_t block = 0; block < least.size(); ++block) {
    if (!(least[block] <= limit())) continue;
    if (refine(block) && !(least[block] <= limit())) continue;
    for (size_t i = block * kBlock; i < (block + 1) * kBlock; ++i)
      if (bounds[i] <= limit()) visit(i);
  }
}

template <typename Evaluate>
Storage* Candidates::search(int64_t now_ns, int64_t decreased_ns, uint64_t most_free,
                            size_t most_scores, Evaluate&& evaluate) {
  if (list_.empty()) return nullptr;
  const Moment now{now_ns, decreased_ns, most_free};
  look_ahead(now);
  Storage* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  float limit = kMost;  // bounds above it cannot win
  size_t scores = 0;
  visit_from_the_lowest(
      bounds_, least_, [&] { return scores < most_scores ? limit : -1; },
      [&](size_t block) { return refine(now, block); },
      [&](size_t index) {
        Storage* storage = list_[index];
        double score = 0;
        if (!evaluate(storage, least, &score)) return;
        ++scores;
        if (best && (score > least || (score == least && storage->id >= best->id))) return;
        best = storage;
        least = score;
        limit = static_cast<float>(score * (1 + kSlack));
      });
  return best;
}

template <typename Price, typename Visit>
void Candidates::search_windows(int64_t now_ns, int64_t decreased_ns, const Range& heap,
                                const std::vector<Range>& taken, uint64_t wanted,
                                const double& limit, size_t most_looks, Price&& price,
                                Visit&& visit) {
  if (list_.empty()) return;
  find_gaps(heap, taken);
  bound_runs(now_ns, decreased_ns, wanted);
  size_t looks = 0;
  bool found = false;
  // Rounding is below the slack.
  const auto most = [&] { return limit * (1 + 2 * kSlack); };
  visit_from_the_lowest(
      run_bounds_, run_least_,
      [&] {
        return looks < most_looks || !found ? static_cast<float>(std::min<double>(most(), kMost))
                                            : -1;
      },
      [](size_t) { return false; },
      [&](size_t first) {
        ++looks;
        double sum = 0;
        size_t end = first;
        do sum += price(at_rank(end++));
        while (end < order_.size() && sum <= most() && bytes_of(first, end) < wanted);
        if (sum > most() || sum == std::numeric_limits<double>::infinity()) return;
        if (bytes_of(first, end) < wanted) return;
        found = true;
        visit(at_rank(first), end - first, sum, bytes_of(first, end));
      });
}

}  // namespace dtr
