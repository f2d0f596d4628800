// candidates.h: what may be evicted from one pool, laid out for the search.
//
// The search finds the exact arg min of a score that changes with every nanosecond for
// every candidate, and evaluates only a few of them. It keeps, for each candidate, a
// lower bound of its score in columns of floats, passes over all bounds with vector
// instructions, and asks for the exact score (a walk over records) only where the bound
// does not exceed the best exact score so far. What it then learns becomes the next bound.
//
// Rules, checked by the engine's check_invariants():
//   C1  bound <= score, up to kSlack, where
//         bound = max(numerator - decreased, own) * weight / s^a.
//       Of the parts, `weight` is exact (to rounding); the others may be out of date
//       in the direction that keeps the bound low:
//       - s counts from the last access that was looked at. Later ones make it
//         smaller and the score larger: an access needs to tell nobody.
//       - numerator is the cost when it was last computed, plus what components had
//         lost until then (Components::decreased_ns). It may have grown since: an
//         eviction next door needs to tell nobody. A component that loses a member
//         tells everybody at once, through `decreased`, and the member's own neighbors,
//         who may lose the whole component, are set to their own cost (lower()).
//       Free bytes beside a block lower its score further; the few candidates that have
//       such are named to the search, which looks at each of them.
//   C2  A parked candidate is one that the search met and that could not be evicted: its
//       weight is infinite, so that the next search passes over it without a look. It
//       is unparked when what it was parked for may have ended.
//
// Order is of no account: the smallest score wins, among equals the smallest id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "records.h"

namespace dtr {

// What the columns say of one candidate.
struct CandidateBounds {
  double own_ns = 1;        // the cost that no neighborhood can take away; at least 1
  double numerator_ns = 1;  // the cost, or a lower bound of it
  double weight = 1;        // all factors but cost and staleness
  int64_t last_access_ns = 0;
};

class Candidates {
 public:
  static constexpr size_t kBlock = 64;  // candidates; a block has one least bound
  // Rounding in the columns and in the pass is below this share of a bound.
  static constexpr double kSlack = 1e-6;

  // Scores count s^exponent.
  void set_exponent(double staleness_exponent) { exponent_ = staleness_exponent; }

  size_t size() const { return list_.size(); }
  Storage* at(size_t index) const { return list_[index]; }
  uint64_t bytes() const { return bytes_; }

  // Adds a storage; its bounds must be set() before the next search. Its place is
  // storage->candidate until others are removed: the last one fills the gap.
  void add(Storage* storage);
  void remove(Storage* storage);

  // decreased_ns: Components::decreased_ns() now.
  void set(const Storage* storage, const CandidateBounds& bounds, int64_t decreased_ns);
  void lower(const Storage* storage, double numerator_ns, int64_t decreased_ns);
  void weigh(const Storage* storage, double weight);
  void park(Storage* storage);

  // The candidate of the least exact score, and the score; null if none can be evicted.
  // evaluate(storage, &score): the exact score; false: it cannot be evicted, and is
  // parked. beside_free: those whose free_bytes count with their size.
  template <typename Evaluate>
  Storage* search(int64_t now_ns, int64_t decreased_ns, const std::vector<Storage*>& beside_free,
                  Evaluate&& evaluate);

  // Of one candidate, for the check of C1.
  double bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns);

 private:
  struct Query {
    float now;        // since epoch_ns_, rounded up
    float decreased;  // since base_ns_, rounded up
    float exponent;
  };
  using Column = std::vector<float>;

  Query query(int64_t now_ns, int64_t decreased_ns);
  void move_base(int64_t now_ns, int64_t decreased_ns);
  void scan(const Query& query, size_t first_block, size_t blocks, float* bounds);
  float bound_beside_free(const Query& query, const Storage* storage) const;
  // The block of the least bound.
  size_t least_block() const;

  std::vector<Storage*> list_;
  uint64_t bytes_ = 0;  // of all candidates
  double exponent_ = 1;

  // Columns, padded to whole blocks with bounds of infinity.
  Column numerator_, own_, weight_, access_;
  Column least_;  // scratch: the least bound of each block
  // The columns' times and decreases count from here, so that floats hold them finely.
  int64_t epoch_ns_ = 0;
  int64_t base_ns_ = 0;
};

template <typename Evaluate>
Storage* Candidates::search(int64_t now_ns, int64_t decreased_ns,
                            const std::vector<Storage*>& beside_free, Evaluate&& evaluate) {
  constexpr float kDone = std::numeric_limits<float>::infinity();
  // Blocks that are tried in the order of their bounds, before the rest is swept: after
  // them the best score is so near the least that the sweep stops at hardly any other.
  constexpr int kProbes = 3;
  if (list_.empty()) return nullptr;
  const Query asked = query(now_ns, decreased_ns);
  const size_t blocks = weight_.size() / kBlock;
  scan(asked, 0, blocks, nullptr);
  Storage* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  float limit = std::numeric_limits<float>::max();  // bounds above it cannot win
  const auto visit = [&](Storage* storage) {
    double score = 0;
    if (!evaluate(storage, &score)) return;
    if (best && (score > least || (score == least && storage->id >= best->id))) return;
    best = storage;
    least = score;
    limit = static_cast<float>(score * (1 + kSlack));
  };
  const auto visit_block = [&](size_t block) {
    float bounds[kBlock];
    scan(asked, block, 1, bounds);
    least_[block] = kDone;
    size_t lowest = 0;
    for (size_t i = 1; i < kBlock; ++i)
      if (bounds[i] < bounds[lowest]) lowest = i;
    if (bounds[lowest] > limit) return;
    visit(list_[block * kBlock + lowest]);
    for (size_t i = 0; i < kBlock; ++i)
      if (bounds[i] <= limit && i != lowest) visit(list_[block * kBlock + i]);
  };
  for (int probe = 0; probe < kProbes; ++probe) {
    const size_t block = least_block();
    if (least_[block] > limit) break;
    visit_block(block);
  }
  for (size_t block = 0; block < blocks; ++block)
    if (least_[block] <= limit) visit_block(block);
  for (Storage* storage : beside_free)
    if (bound_beside_free(asked, storage) <= limit) visit(storage);
  return best;
}

}  // namespace dtr
