// victim_search.h: the search for the one storage to evict next: of the least score (candidates.h),
// at random, or as a callback says. Windows of several: window_search.h.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "cost_model.h"
#include "devices.h"
#include "graph/environment.h"
#include "graph/graph_capture.h"
#include "locks.h"
#include "score.h"
#include "search_context.h"

namespace dtr {

class VictimSearch {
 public:
  VictimSearch(Environment& environment, const Devices& devices, const GraphCapture& capture,
               CostModel& costs)
      : environment_(environment), devices_(devices), capture_(capture), costs_(costs) {}

  // The options have changed, and with reseed also what random numbers begin with.
  void configure(bool reseed) {
    if (reseed) random_ = Random(environment_.options.heuristic.seed);
  }

  // Most results die before memory is short. So candidates come into the columns, and their costs
  // are looked at, only when somebody searches: this is called before.
  void promote(Device& device);
  SearchContext context_of(Device& device);

  // The candidate of the least score, or a random one; null if none can be evicted.
  Storage* choose(Device& device, const SearchContext& context);
  Storage* choose(Device& device, const SearchContext& context, size_t most_scores);
  // An unneeded storage whose block serves a request whole: as large, or up to an eighth larger.
  // Null if there is none.
  Storage* choose_whole(Device& device, uint64_t size_bytes);
  // Asks the heuristic's callback about all candidates with the mutex let go, and takes the best of
  // those that are still there. Null if there is none to ask about. Throws StateError if the
  // callback fails.
  Storage* choose_by_callback(Device& device, const SearchContext& context,
                              std::unique_lock<EngineMutex>& lock);

  // Not locked by a running op, not pinned, not frozen, and not without a place to go to.
  bool is_free_to_go(const Storage* storage) const {
    return storage->locks == 0 && storage->pins == 0 && !capture_.is_frozen(storage) &&
           (storage->parent || costs_.swap_costs().has_room(storage));
  }
  // The same; parks the candidate if not.
  bool is_eligible(Device& device, Storage* storage);
  // The cost of a candidate, from which its bounds learn: exact, or above most_ns.
  double learn_cost_ns(Device& device, Storage* storage, double most_ns);

  // Constants that found no room in host memory may go there now.
  void host_memory_freed();

  // C1 and C2; and, if it searches, that the search finds what brute force finds.
  void check(bool searches);

 private:
  Storage* choose_randomly(Device& device);
  uint64_t free_bytes(const Storage* storage, const SearchContext& context);
  const dtr_heuristic& heuristic() const { return environment_.options.heuristic; }

  Environment& environment_;
  const Devices& devices_;
  const GraphCapture& capture_;
  CostModel& costs_;
  Random random_{environment_.options.heuristic.seed};
  bool parked_for_host_ = false;  // some constants are parked for lack of host memory
};

}  // namespace dtr
