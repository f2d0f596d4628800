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
// For the least score order is of no account: the smallest wins, among equals the smallest id.
//
// Windows. The columns' blocks are in the order of addresses (address_order.h), so that they also
// tell what a *window* costs at least: a run of candidates at consecutive addresses that, with what
// is free between and beside them, spans the bytes wanted (window.h). The price of a member is its
// score without the size. Until somebody asks the pool, all that lies between two candidates counts
// as free. So, of a window that spans `wanted` bytes,
//
//   C3  its price >= the least of its members' price * max(wanted, span) / span, up to kSlack,
//       where a member's span is its own range and all up to the candidates on both sides: one
//       member is paid in full, and together their spans cover the window.
//
// How they are found with that: candidate_windows.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "address_order.h"
#include "records.h"

namespace dtr {

inline float rounded_down(double value) {
  const auto near = static_cast<float>(value);
  return near > value ? std::nextafter(near, -std::numeric_limits<float>::infinity()) : near;
}

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
  static constexpr size_t kBlock = 64;  // candidates; a block has one least bound
  // Rounding in the columns and in the pass is below this share of a bound.
  static constexpr double kSlack = 1e-6;

  // Scores count s^exponent.
  void set_exponent(double staleness_exponent) { exponent_ = staleness_exponent; }

  size_t size() const { return list_.size(); }
  Storage* at(size_t index) const { return list_[index]; }
  uint64_t bytes() const { return bytes_; }

  // Adds a storage, at its address; its bounds must be set() before the next search. It is
  // at(storage->candidate) until others are removed: the last one fills the gap.
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

  // Calls begin(storage) for candidates with which a window of `wanted` bytes may begin, none left
  // out that begins one of a price of at most `limit`, which begin() may lower meanwhile.
  // price(storage): the exact price of a member, infinite if it cannot be evicted; asked once for
  // each at most, and only where the bounds alone do not rule a window out.
  template <typename Price, typename Begin>
  void search_windows(int64_t now_ns, int64_t decreased_ns, uint64_t wanted, const double& limit,
                      Price&& price, Begin&& begin);

  // The candidate that follows by address, or null.
  Storage* next(const Storage* storage) const {
    const uint32_t slot = order_.next(storage->slot);
    return slot == AddressOrder::kNone ? nullptr : slots_[slot];
  }
  Storage* first() const {
    return order_.first() == AddressOrder::kNone ? nullptr : slots_[order_.first()];
  }

  // Of one candidate, for the check of C1.
  double bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns);
  // Empty, or the rule that is broken: those of address_order.h, and spans (C3).
  std::string check() const;

 private:
  struct Query {
    float now;        // since epoch_ns_, rounded up
    float decreased;  // since base_ns_, rounded up
    float exponent;
  };
  using Column = std::vector<float>;

  Query query(int64_t now_ns, int64_t decreased_ns);
  void move_base(int64_t now_ns, int64_t decreased_ns);
  // The least bound of each block; with `wanted`, of C3's products. bounds not null: every
  // one's instead.
  void scan(const Query& query, size_t first_block, size_t blocks, float* bounds, float wanted = 0);
  // candidate_windows.h
  struct Run {
    double sum;  // of its members' prices, or bounds of them
    uint32_t first;
    bool operator<(const Run& other) const { return sum > other.sum; }  // the heap's top: the least
  };
  float& price(const Query& query, uint32_t slot);
  uint64_t low_end(uint32_t slot) const;
  uint32_t take_least(const Query& query, size_t block, float wanted);
  void find_runs(const Query& query, uint32_t member, uint64_t wanted, double most);
  template <typename Price, typename Begin>
  void look_into(const Query& query, uint32_t first, uint64_t wanted, double most, double other,
                 Price&& price_of, Begin&& begin);
  float span(uint32_t slot) const;
  void respan(uint32_t slot);
  void grow(size_t blocks);
  void shrink(size_t blocks);
  void move(uint32_t from, uint32_t to);
  void clear(uint32_t slot);
  float bound_beside_free(const Query& query, const Storage* storage) const;
  // The block of the least bound.
  size_t least_block() const;

  std::vector<Storage*> list_;
  uint64_t bytes_ = 0;  // of all candidates
  double exponent_ = 1;

  AddressOrder order_;
  std::vector<Storage*> slots_;
  // Columns by slot; the bounds of empty slots are infinite.
  Column numerator_, own_, weight_, access_;
  Column size_, span_;  // what a score divides by; C3
  Column least_;        // scratch: the least bound of each block
  // Scratch of the search for windows. Of the blocks whose number is that of this search:
  std::vector<uint64_t> priced_, opened_;
  Column prices_;                        // prices, or bounds of them
  std::vector<uint64_t> exact_, begun_;  // bits: prices that are exact; firsts of runs_ that were
  Column products_;                      // C3's, of opened blocks; infinite once taken
  std::vector<Run> runs_;                // a heap
  uint64_t search_ = 0;
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
  const size_t blocks = order_.blocks();
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
    visit(slots_[block * kBlock + lowest]);
    for (size_t i = 0; i < kBlock; ++i)
      if (bounds[i] <= limit && i != lowest) visit(slots_[block * kBlock + i]);
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

#include "candidate_windows.h"
