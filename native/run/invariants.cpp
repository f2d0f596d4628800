// invariants.cpp: the engine checks its own rules (records.h). Costs time in the
// number of records: for tests and debug builds.
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "engine.h"

namespace dtr {

void Engine::check_invariants() {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  const auto require = [](bool holds, const char* rule, uint64_t id) {
    if (!holds) throw StateError("storage " + std::to_string(id) + " breaks " + rule);
  };
  graph_.check(stats_.live_ops);
  const std::unordered_set<Storage*> storages = graph_.all_storages();
  if (storages.size() != stats_.live_storages)
    throw StateError("there are " + std::to_string(storages.size()) + " storages, counted are " +
                     std::to_string(stats_.live_storages));
  dead_.check(storages);
  unwritten_.check(storages);
  swap_space_.check(storages);
  uint64_t evicted = 0, candidates = 0;
  for (Storage* storage : storages) {
    const bool resident = storage->state == State::resident;
    require(storage->state != State::freed, "R3: a removed record is still referred to",
            storage->id);
    require(resident == (storage->address != nullptr), "R4: address and state disagree",
            storage->id);
    require(!storage->expected || (!resident && storage->parent),
            "R2: a copy is kept of what cannot be recomputed", storage->id);
    require(storage->counted == (!has_content(storage) && !storage->lost),
            "R4: counted and state disagree", storage->id);
    if (storage->counted) ++evicted;
    require(has_content(storage) || storage->parent || storage->lost, "R2: a constant was evicted",
            storage->id);
    require(!(storage->lost && storage->parent), "R2: a lost storage has a parent", storage->id);
    require(!storage->live || storage->handle, "R5: live without a handle", storage->id);
    if (storage->handle)
      require(graph_.by_handle.find(storage->handle) == storage, "R5: the handle leads elsewhere",
              storage->id);
    // Kept alive meanwhile: another thread may just be letting go of it.
    if (storage->handle && resident && framework_->retain_strong(storage->handle)) {
      deferred.release_strong(storage->handle);
      require(framework_->data(storage->handle) == storage->address,
              "R5: the handle's address is another", storage->id);
    }
    require(storage->live || storage->children || storage->locks > 0, "R3: nobody needs the record",
            storage->id);
    const bool candidate = resident && storage->managed && !storage->unwritten &&
                           (storage->parent || swap_costs_.is_swappable(storage));
    require(candidate == is_candidate(storage), "R6: candidate or not", storage->id);
    if (candidate) {
      ++candidates;
      const Device& device = device_of(storage);
      const Storage* listed = storage->candidate >= 0
                                  ? device.candidates.at(storage->candidate)
                                  : device.young[static_cast<size_t>(-2 - storage->candidate)];
      require(listed == storage, "R6: the index leads elsewhere", storage->id);
    }
    pins_.check(storage);
    require(storage->holds <= storage->locks, "R11: more holds than locks", storage->id);
    if (resident && storage->managed)
      require(dtr_pool_block_bytes(pool_of(storage->device_type, storage->device_index),
                                   storage->address) >= storage->size_bytes,
              "R5: its block is gone, or smaller", storage->id);
    if (resident && storage->managed)
      require(graph_.by_address.find(storage->address) == storage,
              "R4: the address leads elsewhere", storage->id);
  }
  uint64_t listed = 0;
  for (const auto& device : devices_) listed += device->candidates.size() + device->young.size();
  if (candidates != listed) throw StateError("R6: the list of candidates is too long");
  if (evicted != stats_.evicted_storages)
    throw StateError("there are " + std::to_string(evicted) + " evicted storages, counted are " +
                     std::to_string(stats_.evicted_storages));
  cost_model_.check(storages);
  // Not each time: those that no search has met stay as they are, and bounds age between searches.
  if (++checks_ % 4 == 1) return;
  search_.check(checks_ % 4 == 0);
  if (checks_ % 4 == 0) windows_.check();
}

}  // namespace dtr
