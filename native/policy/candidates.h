// candidates.h: what may be evicted from one pool, laid out for the search.
//
// The search finds the exact arg min of a score that changes with every nanosecond for
// every candidate, and evaluates only a few of them. It keeps, for each candidate, a
// lower bound of its score in columns of floats, passes over all bounds with vector
// instructions, and asks for the exact score (a walk over records) only where the bound
// does not exceed the best exact score so far. What it then learns becomes the next bound.
// Nor does it pass over all bounds each time: a block of 64 candidates has floors, below which
// none of its bounds falls for a while (C4), and a search reads them and a few blocks.
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
//       Where free bytes beside a block count with its size, they are bounded, too, without
//       asking the pool: by all that lies up to the candidates on both sides (the span of C3),
//       and by what the pool has free altogether.
//       This is the exact bound. A search computes one that is not above it, up to kSlack, but may
//       be below it, by another share each time: by that of a power (power.h), and by what the
//       clock is rounded by.
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
// as free:
//
//   C3  A candidate's span is its own range and all up to the candidates on both sides.
//
// How windows are found: candidate_windows.h, run_floors.h.
//
//   C4  A block's floor is not above its members' exact bounds (or prices by span, where free bytes
//       count), nor is a price that runs are bounded with above what a search computes of a member;
//       up to kSlack, as long as what was computed of the block holds (ahead.h). What changes a
//       member makes its block dirty; a search computes those anew.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "address_order.h"
#include "ahead.h"
#include "graph/records.h"
#include "least_of.h"
#include "run_floors.h"

namespace dtr {

// What the columns say of one candidate.
struct CandidateBounds {
  double own_ns = 1;        // the cost that no neighborhood can take away; at least 1
  double numerator_ns = 1;  // the cost, or a lower bound of it
  double weight = 1;        // all factors but cost and staleness
  double size = 1;          // of these, what the score divides by
  int64_t last_access_ns = 0;
};

// What is computed of each member of a block.
enum class MemberValue {
  score,   // C1's bound
  beside,  // the same where free bytes count
  price,   // the bound without the size
  rate,    // that by the span: no bound where free bytes count is below it
};

struct Pass;  // candidates.cpp

// C4: 1 / (inverse + slope * ns since all floors were computed).
struct BlockFloor {
  float inverse;
  float slope;
  float at(float since_ns) const { return 1 / (inverse + slope * since_ns); }
};

class Candidates {
 public:
  static constexpr size_t kBlock = 64;  // candidates; a block has one least bound
  // Rounding in the columns and in the pass is below this share of a bound.
  static constexpr double kSlack = 1e-6;

  // Scores count s^exponent.
  void set_exponent(double staleness_exponent) {
    exponent_ = staleness_exponent;
    touch_all();
  }

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

  // Free bytes beside a block that do not count with its size.
  static constexpr uint64_t kNoFreeBytes = UINT64_MAX;

  // The candidate of the least exact score; null if none can be evicted.
  // evaluate(storage, least, &score): the exact score, or if that is above `least` any that is;
  // false: it cannot be evicted, and is parked. most_free: no candidate has more free bytes beside
  // it that count with its size; or kNoFreeBytes.
  template <typename Evaluate>
  Storage* search(int64_t now_ns, int64_t decreased_ns, uint64_t most_free, Evaluate&& evaluate);

  // No more bytes are free beside its block.
  uint64_t most_free_beside(const Storage* storage) const;

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

  // The exact bound of one candidate.
  double bound(const Storage* storage, int64_t now_ns, int64_t decreased_ns,
               uint64_t most_free) const;
  // Empty, or the rule that is broken: those of address_order.h, what is computed of C1's bounds,
  // C3's spans and C4.
  std::string check(int64_t now_ns, int64_t decreased_ns);

 private:
  struct Query {
    float now;        // since epoch_ns_, rounded up
    float decreased;  // since base_ns_, rounded up
    float bytes;      // most_free
  };
  using Column = std::vector<float>;
  Query query(int64_t now_ns, int64_t decreased_ns, uint64_t bytes = 0);
  Query query_at(int64_t now_ns, int64_t decreased_ns, uint64_t bytes = 0) const;
  void move_base(int64_t now_ns, int64_t decreased_ns);
  void scan(const Query& query, MemberValue value, size_t block, float* values) const;
  double exact_value(MemberValue value, uint32_t slot, int64_t now_ns, int64_t decreased_ns,
                     uint64_t bytes) const;
  Pass pass(const Query& query) const;
  void touch(uint32_t slot) {
    floors_ahead_.touch(slot / kBlock);
    runs_ahead_.touch(slot / kBlock);
  }
  void touch_all() {
    floors_ahead_.touch_all();
    runs_ahead_.touch_all();
  }
  void take_floors(int64_t now_ns, int64_t decreased_ns, MemberValue value);
  void refresh_runs(int64_t now_ns, int64_t decreased_ns);
  // candidate_windows.h
  struct Run {
    double sum;  // of its members' prices, or bounds of them
    uint32_t first;
    bool operator<(const Run& other) const { return sum > other.sum; }  // the heap's top: the least
  };
  float& price(const Query& query, uint32_t slot);
  uint64_t low_end(uint32_t slot) const;
  void open(uint32_t block, uint64_t wanted);
  uint32_t take_first(uint32_t block);
  void sum_all(const Query& query, uint32_t block, uint64_t wanted);
  bool is_in_run(uint32_t slot, uint32_t first, uint64_t low, uint64_t wanted) const;
  template <typename Price, typename Begin>
  void look_into(const Query& query, uint32_t first, uint64_t wanted, double most, double other,
                 Price&& price_of, Begin&& begin);
  uint64_t reach(uint32_t slot) const;
  float span(uint32_t slot) const;
  void respan(uint32_t slot);
  void resize(size_t blocks);
  void move(uint32_t from, uint32_t to);
  void clear(uint32_t slot);
  // The block of the least value in least_.
  size_t least_block() const;

  std::vector<Storage*> list_;
  uint64_t bytes_ = 0;  // of all candidates
  double exponent_ = 1;

  AddressOrder order_;
  std::vector<Storage*> slots_;
  // Columns by slot; the bounds of empty slots are infinite.
  Column numerator_, own_, weight_, access_;
  Column size_, span_;  // what a score divides by; C3
  // C4
  Ahead floors_ahead_{4}, runs_ahead_{4};
  std::vector<BlockFloor> floors_;              // by block
  MemberValue floors_of_ = MemberValue::score;  // or rate
  Column least_;                                // scratch: what the floors are now
  RunFloors run_floors_;
  // Scratch of the search for windows. Of the blocks whose number is that of this search:
  std::vector<uint64_t> priced_, opened_, summed_;
  LeastOf least_runs_;           // by block, a bound of the runs that begin there
  Column firsts_;                // by rank, the same; infinite once taken
  Column prices_;                // prices, or bounds of them
  std::vector<uint64_t> exact_;  // bits: prices that are exact
  std::vector<Run> runs_;        // a heap
  uint64_t search_ = 0;
  // The columns' times and decreases count from here, so that floats hold them finely.
  int64_t epoch_ns_ = 0;
  int64_t base_ns_ = 0;
};

template <typename Evaluate>
Storage* Candidates::search(int64_t now_ns, int64_t decreased_ns, uint64_t most_free,
                            Evaluate&& evaluate) {
  constexpr float kDone = std::numeric_limits<float>::infinity();
  // Blocks that are tried in the order of their floors, before the rest is swept: after
  // them the best score is so near the least that the sweep stops at hardly any other.
  constexpr int kProbes = 3;
  if (list_.empty()) return nullptr;
  const Query asked = query(now_ns, decreased_ns, most_free);
  const bool beside = most_free != kNoFreeBytes;
  take_floors(now_ns, decreased_ns, beside ? MemberValue::rate : MemberValue::score);
  Storage* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  float limit = std::numeric_limits<float>::max();  // bounds above it cannot win
  const auto visit = [&](Storage* storage) {
    double score = 0;
    if (!evaluate(storage, least, &score)) return;
    if (best && (score > least || (score == least && storage->id >= best->id))) return;
    best = storage;
    least = score;
    limit = static_cast<float>(score * (1 + kSlack));
  };
  const auto visit_block = [&](size_t block) {
    float bounds[kBlock];
    scan(asked, beside ? MemberValue::beside : MemberValue::score, block, bounds);
    least_[block] = kDone;
    size_t lowest = 0;
    for (size_t i = 1; i < kBlock; ++i)
      if (bounds[i] < bounds[lowest]) lowest = i;
    if (bounds[lowest] > limit) {
      floors_ahead_.count_vain();
      return;
    }
    visit(slots_[block * kBlock + lowest]);
    for (size_t i = 0; i < kBlock; ++i)
      if (bounds[i] <= limit && i != lowest) visit(slots_[block * kBlock + i]);
  };
  for (int probe = 0; probe < kProbes; ++probe) {
    const size_t block = least_block();
    if (least_[block] > limit) break;
    visit_block(block);
  }
  for (size_t block = 0; block < least_.size(); ++block)
    if (least_[block] <= limit) visit_block(block);
  return best;
}

}  // namespace dtr

#include "candidate_windows.h"
