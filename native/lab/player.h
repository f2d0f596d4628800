// player.h: runs a plan under a budget, with scores that know what comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan.h"
#include "playback.h"

namespace dtr::schedule {

// What the smallest of is evicted, as logarithms:
//   weight + log(numerator) - size log(bytes) - distance log(to next use) - staleness log(...)
struct Score {
  double ancestors = 1;    // of its evicted ancestors' cost, each op once
  double pending = 0.5;    // of that part of it that something evicted needs anyway
  double descendants = 0;  // of its evicted descendants' cost, of those that are needed again
  double size = 1;         // exponents
  double distance = 0.5;
  double staleness = 0;
  double keep = 1;        // 1: what dies stays until its room is needed
  double part = 0.03125;  // what frees less than this part of what is missing goes last
  double spare = 0;       // above 0: what something resident, needed and so many times as large was
                          // computed from does not go first
};

enum class Status : int32_t { ok = 0, out_of_memory = 1, too_costly = 2 };

// After so many executions the storage is evicted.
struct Eviction {
  uint32_t after;
  uint32_t storage;
};

struct Outcome {
  Status status = Status::ok;
  bool keeps = false;  // whether what dies stays until the list says that it goes
  int64_t remat_cost = 0;
  uint32_t executions = 0;
  std::vector<Eviction> evictions;
  std::vector<uint32_t> remats;  // by storage
};

class Player : private simrd::Playback<Player> {
  friend simrd::Playback<Player>;

 public:
  explicit Player(const Plan& plan);
  // weights: by storage, or none. Ends as too costly above most_remat_cost.
  const Outcome& run(uint64_t budget_bytes, const Score& score, const std::vector<float>* weights,
                     int64_t most_remat_cost);
  const Outcome& outcome() const { return outcome_; }

 private:
  enum State : uint8_t { kUnborn, kResident, kEvicted };
  enum class Use : uint8_t { unknown, being_found, known };
  struct Stop {
    Status status;
  };
  // A candidate whose ancestors are to be summed anew: its score without them, and that without
  // its numerator.
  struct Late {
    double bound, rest;
    uint32_t storage;
  };
  struct UseStep {
    uint32_t storage;
    size_t next_child;
  };

  void reset();
  void compute(uint32_t op);
  void unreferenced(uint32_t storage);
  bool is_resident(uint32_t storage) const { return state_[storage] == kResident; }
  void check(bool) const {}  // the plan is one
  const std::vector<uint32_t>& begin(uint32_t tensor);
  void executed(const Op& op, const Step& step);
  void make_room(uint64_t bytes);
  uint32_t choose(uint64_t least_bytes);
  bool goes_first(uint32_t storage);
  void evict(uint32_t storage);
  void revive(uint32_t storage, bool);
  void enter(uint32_t storage);
  void leave(uint32_t storage);
  uint32_t direct_use(uint32_t storage);
  bool knows_use(uint32_t storage) const;
  uint32_t next_use(uint32_t storage);
  double numerator(uint32_t storage, double most);
  double own_numerator(uint32_t storage) const;
  double scaled(uint32_t storage, double cost) const;
  void forget_ancestors_below(uint32_t storage);
  void forget_use_above(uint32_t storage);

  // Of the run:
  const Plan& plan_;
  Score score_;
  const std::vector<float>* weights_ = nullptr;
  uint64_t budget_ = 0;
  int64_t most_ = 0;
  Outcome outcome_;
  uint32_t position_ = 0;  // the op of the program that runs, or waits

  // By storage:
  std::vector<State> state_;
  std::vector<int64_t> cost_;  // of all ops of its tensors so far
  std::vector<double> log_size_;
  std::vector<uint32_t> use_at_;    // where in Links::uses the next one stands
  std::vector<uint32_t> next_use_;  // as use_ says: forgotten where what is evicted below changes
  std::vector<Use> use_;
  std::vector<uint8_t> needed_;           // of what is evicted: whether it has a next use
  std::vector<double> numerator_;         // scaled; forgotten where what is evicted around changes
  std::vector<uint8_t> numerator_known_;  // whether it is up to date

  // The resident, unlocked storages of a size above 0, in no order, and where each stands.
  std::vector<uint32_t> pool_, at_;
  std::vector<uint64_t> pool_bytes_;  // parallel to pool_

  // Worklists, and marks of the walk of that number.
  std::vector<uint32_t> mark_, op_mark_;
  uint32_t marks_ = 0;
  std::vector<uint32_t> walk_, changed_, numerator_walk_;
  std::vector<UseStep> uses_;
  std::vector<Late> late_;
};

}  // namespace dtr::schedule
