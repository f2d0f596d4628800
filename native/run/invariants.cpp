// invariants.cpp: the engine checks its own rules (records.h). Costs time in the
// number of records: for tests and debug builds.
#include <unordered_set>

#include "engine.h"

namespace dtr {

void Engine::check_invariants() {
  Transaction call(*this);
  graph_.check(environment_.stats.live_ops);
  const std::unordered_set<Storage*> storages = graph_.all_storages();
  lifecycle_.check(storages, call.deferred);
  dead_.check(storages);
  unwritten_.check(storages);
  swap_space_.check(storages);
  cost_model_.check(storages);
  // Not each time: those that no search has met stay as they are, and bounds age between searches.
  if (++checks_ % 4 == 1) return;
  search_.check(checks_ % 4 == 0);
  if (checks_ % 4 == 0) windows_.check();
}

}  // namespace dtr
