// waiting_inputs.h: rematerializations that wait for others, where memory is short.
//
// While a step's missing inputs are brought back one after the other, those that are there
// already wait; likewise the inputs of the op that all this is for. Their locks are *waiting locks*
// (R11). Such a storage is not chosen for eviction as long as anything else can be evicted. Where
// the alternative is to fail, it is preempted: its step looks at its inputs again before it
// runs, finds it missing and brings it back, now with what preempted it at its side.
//
// Order. What is brought back first waits longest, so the input that needs most memory besides
// itself comes first: the order of registers in expressions (Sethi and Ullman, 1970), with bytes
// for registers. peak_beside() is an estimate: it takes the evicted storages as they are when the
// round first asks (each op_prepare() is one) and assumes that nothing is evicted meanwhile.
//
// Cost. A step looks at all its inputs when it begins, and when all that it knew to be missing is
// back. In between it has them in a heap, and hears which inputs of waiting steps were lost. So an
// op with n inputs costs n log n, and as much for each input that is lost while it waits.
//
// Termination. A *request* is an op that needs evicted inputs, or a storage that is wanted by
// name. During a request each storage is preempted at most kMost times; then its waiting locks are
// as firm as any lock. Between two preemptions, steps and locks are those of a rematerialization
// without any: each step that is begun locks what was brought back for it, and the storages
// that wait are a path of the graph, which has no cycles, so it ends. As records are finite, so
// is a request. (Another thread's request begins the count anew, but only finitely many requests
// begin without one that ends.) It may still run an op very often: a budget near the floor costs
// compute, as the DTR paper's thrashing does.
#pragma once

#include <cmath>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/op_call.h"
#include "score.h"
#include "search_context.h"

namespace dtr {

// Inputs that steps of one frame lack: of each step that waits a heap by `peak_beside`, and of equal
// ones by the order of the edges; the outermost step's first.
struct MissingInput {
  uint64_t peak_beside;
  Edge* edge;

  bool operator<(const MissingInput& other) const {
    return peak_beside != other.peak_beside ? peak_beside < other.peak_beside : edge > other.edge;
  }
};
using MissingInputs = std::vector<MissingInput>;

class WaitingInputs final : public Observer {
 public:
  explicit WaitingInputs(const Environment& environment) : environment_(environment) {}

  void begin_request() {
    preemptions_.clear();
    begin_round();
  }
  void begin_round() { peaks_.clear(); }

  // The locks of the op's inputs become waiting locks, or cease to be.
  static void set_waiting(OpCall& call, bool waiting);

  // Sorts storages that are all needed, the first to be brought back first.
  void order_by_peak(std::vector<Storage*>& wanted);

  // One step of a frame, from its first look to its end. While others are brought back for it, its
  // list is the end of the frame's.
  struct Step {
    Op* op = nullptr;
    size_t first = 0;  // its list begins there
    size_t heard = 0;  // so many of the losses
  };
  Step begin(Op* op, const MissingInputs& missing);
  void end(const Step& step, MissingInputs& missing);
  // Lists all inputs that are missing.
  void look(Step& step, MissingInputs& missing);
  // Takes the next one to be brought back off the list; null if it is empty.
  Edge* next_missing(Step& step, MissingInputs& missing);
  void lost(const Storage* storage, EvictionCause cause) override;

  // Which to preempt, where nothing else can be evicted: of those that were preempted least
  // often, the one of the least cost / (size * sqrt(staleness)), under every heuristic. (What waits
  // longest is needed last, and what stands behind it is in the making: costs of ancestors say
  // little here.) Null if there is none. cost_of: nanoseconds to bring a storage back alone.
  template <typename CostOf>
  Storage* choose(const Device& device, const SearchContext& context, CostOf&& cost_of) const;
  // It was chosen, also if it cannot be evicted just now.
  void note_preemption(const Storage* storage) { ++preemptions_[storage->id]; }

 private:
  static constexpr uint32_t kMost = 4;

  // An input of an op whose step waits is no longer there.
  struct Loss {
    const Op* op;
    Edge* edge;
  };

  uint64_t peak_beside(const Storage* wanted);
  void arrange(const Step& step, size_t known, MissingInputs& missing);
  static void drop_returned(const Step& step, MissingInputs& missing);

  const Environment& environment_;
  std::unordered_map<uint64_t, uint64_t> peaks_;        // bytes, by storage's id; of one round
  std::unordered_map<uint64_t, uint32_t> preemptions_;  // by storage's id; of one request
  std::vector<const Storage*> pending_;                 // of peak_beside()
  uint64_t looks_ = 0;                                  // Op::peak_look counts them
  std::vector<Loss> losses_;                            // since the first waiting step began
  size_t steps_ = 0;                                    // that wait
};

template <typename CostOf>
Storage* WaitingInputs::choose(const Device& device, const SearchContext& context,
                               CostOf&& cost_of) const {
  Storage* best = nullptr;
  std::tuple<uint32_t, double, uint64_t> least;
  for (size_t i = 0; i < device.candidates.size(); ++i) {
    Storage* storage = device.candidates.at(i);
    if (storage->locks == 0 || storage->locks > storage->holds || storage->pins > 0) continue;
    const auto known = preemptions_.find(storage->id);
    const uint32_t preemptions = known == preemptions_.end() ? 0 : known->second;
    if (preemptions >= kMost) continue;
    const double staleness =
        at_least_1(static_cast<double>(context.now_ns - storage->last_access_ns));
    const double value = at_least_1(cost_of(storage)) /
                         (static_cast<double>(storage->size_bytes) * std::sqrt(staleness));
    const auto rank = std::make_tuple(preemptions, value, storage->id);
    if (best && rank > least) continue;
    best = storage;
    least = rank;
  }
  return best;
}

}  // namespace dtr
