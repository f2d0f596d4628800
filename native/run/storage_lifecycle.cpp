#include "storage_lifecycle.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "graph/require.h"
#include "graph/verifier.h"

namespace dtr {

// ---- records that begin ----

Storage* StorageLifecycle::new_storage(const dtr_tensor_desc& desc, bool managed) {
  Storage* storage = parts_.graph.new_storage(desc, managed);
  storage->last_access_ns = parts_.environment.clock_ns;
  if (managed) storage->pins = parts_.pins.of(desc.handle);
  return storage;
}

Storage* StorageLifecycle::new_live(const dtr_tensor_desc& desc, Deferred& deferred) {
  Storage* storage = new_storage(desc, true);
  if (parts_.pins.holds_made()) storage->pins = parts_.pins.hold(desc.handle, deferred);
  storage->live = true;
  parts_.costs.foresight().lives(storage->size_bytes);
  parts_.environment.framework->retain_weak(desc.handle);
  parts_.graph.by_handle.insert(desc.handle, storage);
  parts_.graph.by_address.insert(desc.data, storage);
  if (parts_.swap_space.costs().is_on()) update_candidate(storage);
  return storage;
}

Storage* StorageLifecycle::find_or_adopt(const dtr_tensor_desc& desc, Deferred& deferred) {
  Storage* storage = parts_.graph.by_handle.find(desc.handle);
  if (storage && storage->address == desc.data) return storage;
  if (storage) content_replaced(storage, deferred);
  if (desc.owned) {
    // Others took the memory out of another storage and put it here.
    if (Storage* before = parts_.graph.by_address.find(desc.data))
      content_replaced(before, deferred);
    return new_live(desc, deferred);
  }
  // Nobody tells us when memory of others dies (ours seen through DLPack is such, too), so its
  // record lives only while something depends on it, and holds the storage strongly for that time.
  if (!parts_.environment.framework->retain_strong(desc.handle)) return nullptr;
  storage = new_storage(desc, false);
  parts_.graph.by_handle.insert(desc.handle, storage);
  storage->external = !desc.exclusive || given_away_.of(desc.handle) > 0;
  storage->constant_for_good = true;
  if (desc.device_type != 0) storage->captured = true;  // F2
  return storage;
}

Storage* StorageLifecycle::hand_over(Storage* old, const dtr_tensor_desc& desc) {
  Storage* fresh = new_storage(desc, old->managed);
  fresh->live = std::exchange(old->live, false);
  if (fresh->live) {
    parts_.costs.foresight().died(old->size_bytes);
    parts_.costs.foresight().lives(fresh->size_bytes);
  }
  fresh->log_number = old->log_number;
  fresh->log_version = old->log_version;
  fresh->used_on = old->used_on;
  fresh->on_streams = old->on_streams;
  fresh->last_use = old->last_use;
  fresh->due_ns = old->due_ns;
  parts_.graph.by_handle.insert(desc.handle, fresh);
  if (fresh->managed) parts_.graph.by_address.insert(desc.data, fresh);
  old->handle = nullptr;
  old->pins = 0;
  return fresh;
}

// ---- contents ----

void StorageLifecycle::content_replaced(Storage* storage, Deferred& deferred) {
  lose_handle(storage, deferred);
  if (storage->state == State::resident) {
    if (storage->managed) parts_.graph.by_address.erase(storage->address);
    if (!storage->parent) storage->lost = true;
    become_evicted(storage, EvictionCause::gone);
  }
  if (storage->state == State::swapped) parts_.swap_space.died(storage, deferred);
  maybe_remove(storage, deferred);
}

void StorageLifecycle::become_evicted(Storage* storage, EvictionCause cause) {
  parts_.environment.observers.notify(&Observer::lost, storage, cause);
  storage->address = nullptr;
  storage->state = State::evicted;
  storage->prefetched = false;
  storage->kept_for_later = false;
  parts_.unwritten.forget(storage);
  update_candidate(storage);
  if (!storage->lost) parts_.costs.evicted(storage);
}

void StorageLifecycle::become_resident(Storage* storage, void* address) {
  parts_.costs.returned(storage);
  storage->address = address;
  storage->state = State::resident;
  storage->last_access_ns = parts_.environment.clock_ns;
  update_candidate(storage);
}

void StorageLifecycle::escape(const dtr_tensor_desc& desc, bool is_shared, uint32_t place,
                              Deferred& deferred) {
  Storage* storage = find_or_adopt(desc, deferred);
  if (!storage) return;
  if (place) storage->place = place;
  if (!storage->external) {
    forget_parent(storage, deferred);
    storage->external = true;
    if (!storage->managed) given_away_.add(storage->handle, deferred);
    storage->constant_for_good = true;
    update_candidate(storage);
    parts_.contents.note_dependents(storage);
  }
  if (is_shared && storage->device_type != 0) {
    storage->captured = true;
    parts_.settling.settle(storage, nullptr, Settling::kAnyBytes, deferred);
  }
  maybe_remove(storage, deferred);
}

void StorageLifecycle::change_address(Storage* storage, void* address) {
  const bool is_placed = storage->candidate >= 0;  // they stand in the order of addresses
  Device& device = parts_.devices.of(storage);
  if (is_placed) device.candidates.remove(storage);
  parts_.graph.by_address.erase(storage->address);
  parts_.graph.by_address.insert(address, storage);
  storage->address = address;
  if (!is_placed) return;
  device.candidates.add(storage);
  parts_.costs.bounds().reset(device, storage);
}

bool StorageLifecycle::may_be_evicted(const Storage* storage) const {
  return storage->state == State::resident && storage->managed && !storage->unwritten &&
         (storage->parent || parts_.swap_space.costs().is_swappable(storage));
}

void StorageLifecycle::update_candidate(Storage* storage) {
  const bool wanted = may_be_evicted(storage);
  if (wanted == is_candidate(storage)) return;
  Device& device = parts_.devices.of(storage);
  parts_.graph.candidate_bytes += wanted ? storage->size_bytes : -storage->size_bytes;
  if (wanted) {
    storage->candidate = -2 - static_cast<int64_t>(device.unscored.size());
    device.unscored.push_back(storage);
  } else if (storage->candidate >= 0) {
    device.candidates.remove(storage);
  } else {
    Storage* last = device.unscored.back();
    last->candidate = storage->candidate;
    device.unscored[static_cast<size_t>(-2 - storage->candidate)] = last;
    device.unscored.pop_back();
    storage->candidate = kNoCandidate;
  }
}

// ---- records that end ----

// Cuts the storage from its parent; an op without recorded outputs goes (R3).
void StorageLifecycle::drop_output(Storage* storage, Deferred& deferred) {
  Op* op = storage->parent;
  if (!op) return;
  Verifier::forget_expected(storage, deferred);
  parts_.costs.loses_parent(storage);
  storage->parent = nullptr;
  parts_.unwritten.forget(storage);
  op->outputs[storage->output].storage = nullptr;
  --op->recorded_outputs;
  if (op->recorded_outputs == 0)
    discard_op(op, deferred);
  else
    parts_.dead.reconsider_inputs(op, deferred);
}

void StorageLifecycle::discard_op(Op* op, Deferred& deferred) {
  for (Edge& edge : op->edges) {
    Storage* input = edge.input;
    Graph::unlink(edge);
    parts_.dead.reconsider(input, deferred);
    maybe_remove(input, deferred);
  }
  if (op->closure) deferred.drop_closure(op->closure);
  --parts_.environment.stats.live_ops;
  parts_.graph.recycle(op);
}

void StorageLifecycle::forget_parent(Storage* storage, Deferred& deferred) {
  if (!storage->parent) return;
  storage->forgets = false;
  drop_output(storage, deferred);
  storage->constant_as = storage->constant_for_good ? DTR_KEPT_PARAMETER : DTR_KEPT_SETTLED;
  update_candidate(storage);
  if (storage->candidate >= 0) {
    // It goes on as a constant: what was known of its cost is of another kind.
    storage->ancestors_known = storage->descendants_known = false;
    parts_.costs.bounds().reset(storage);
  }
  if (!storage->live && storage->managed && storage->state == State::resident)
    parts_.dead.keep(storage);
  ++parts_.environment.stats.settled;
}

void StorageLifecycle::lose_handle(Storage* storage, Deferred& deferred) {
  if (!storage->handle) return;
  parts_.graph.by_handle.erase(storage->handle);
  if (storage->pins > 0 && parts_.environment.framework->strong_count(storage->handle) == 0)
    parts_.pins.forget(storage->handle, deferred);
  if (storage->live) {
    parts_.costs.foresight().died(storage->size_bytes);
    parts_.environment.observers.notify(&Observer::released, storage);
    deferred.release_weak(storage->handle);
  } else {
    deferred.release_strong(storage->handle);
  }
  storage->pins = 0;
  storage->handle = nullptr;
  storage->live = false;
  if (storage->unwritten) {
    parts_.unwritten.forget(storage);  // nobody will read it
    update_candidate(storage);
  }
  parts_.costs.died(storage);
}

void StorageLifecycle::unlock(Storage* storage, Deferred& deferred) {
  if (--storage->locks > 0) return;
  parts_.costs.bounds().unpark(storage);
  parts_.dead.reconsider(storage, deferred);
  if (storage->parent) parts_.dead.reconsider_inputs(storage->parent, deferred);
  maybe_remove(storage, deferred);
}

// Removing one record may make others removable, thousands deep: a worklist, no
// recursion. The outermost call empties it.
void StorageLifecycle::remove(Storage* first, Deferred& deferred) {
  removal_.push_back(first);
  if (removing_) return;
  removing_ = true;
  while (!removal_.empty()) {
    Storage* storage = removal_.back();
    removal_.pop_back();
    // It may stand in the list twice, or have been needed again in between.
    if (storage->state == State::freed || stays_recorded(storage)) continue;
    const bool is_ours = storage->state == State::resident && storage->managed;
    void* address = storage->address;
    if (is_ours) parts_.graph.by_address.erase(address);
    parts_.dead.let_go(storage);
    if (storage->host) parts_.swap_space.drop_copy(storage);
    Verifier::forget_expected(storage, deferred);
    if (is_ours) parts_.environment.observers.notify(&Observer::died, storage);
    storage->state = State::freed;
    storage->address = nullptr;
    parts_.dead.forget(storage);
    update_candidate(storage);
    if (storage->handle)
      lose_handle(storage, deferred);  // the strong reference's deleter frees the block
    else if (is_ours)
      deferred.free_block(*storage, address);
    drop_output(storage, deferred);
    graveyard_.push_back(storage);
  }
  removing_ = false;
  // Only now: a record may stand in the worklist more than once.
  for (Storage* storage : graveyard_) parts_.graph.recycle(storage);
  graveyard_.clear();
}

bool StorageLifecycle::memory_died(void* address, Deferred& deferred) {
  Storage* storage = parts_.graph.by_address.find(address);
  if (!storage) return true;
  lose_handle(storage, deferred);
  if (parts_.dead.keeps_memory(storage, deferred)) return false;
  parts_.graph.by_address.erase(address);
  if (storage->state == State::resident) {
    parts_.environment.observers.notify(&Observer::died, storage);
    if (!storage->parent) storage->lost = true;
    if (storage->children || storage->locks > 0) {
      become_evicted(storage, EvictionCause::gone);
    } else {
      // Nothing will ask for it again: no detour through an evicted component.
      parts_.environment.observers.notify(&Observer::lost, storage, EvictionCause::gone);
      storage->address = nullptr;
      storage->state = State::evicted;
      update_candidate(storage);
    }
  }
  maybe_remove(storage, deferred);
  return true;
}

void StorageLifecycle::evicted_died(Storage* storage, Deferred& deferred) {
  lose_handle(storage, deferred);
  if (storage->state == State::swapped) parts_.swap_space.died(storage, deferred);
  parts_.dead.evicted_died(storage, deferred);
  maybe_remove(storage, deferred);
}

std::vector<Storage*> StorageLifecycle::with_handles() const {
  std::vector<Storage*> all;
  parts_.graph.by_handle.for_each([&](const void*, Storage* storage) { all.push_back(storage); });
  return all;
}

std::vector<Storage*> StorageLifecycle::live_evicted() const {
  std::vector<Storage*> found;
  for (Storage* storage : with_handles())
    if (storage->live && storage->state != State::resident && !storage->lost)
      found.push_back(storage);
  std::ranges::sort(found, {}, &Storage::id);
  return found;
}

void StorageLifecycle::require_idle(std::vector<uint64_t> lost) const {
  std::ranges::sort(lost);
  for (const Storage* storage : live_evicted())
    if (!std::ranges::binary_search(lost, storage->id))
      throw StateError("storage " + std::to_string(storage->id) + ", " +
                       size_text(storage->size_bytes) + ", is evicted");
  for (const Storage* storage : with_handles())
    if (storage->locks > 0)
      throw StateError("storage " + std::to_string(storage->id) + " is locked by an op in flight");
}

void StorageLifecycle::lose_evicted(Deferred& deferred) {
  const std::vector<Storage*> all = live_evicted();
  for (const Storage* storage : all) parts_.environment.framework->lose(storage->handle);
  for (Storage* storage : all) {
    drop_output(storage, deferred);
    storage->lost = true;
    if (storage->state != State::swapped) continue;
    parts_.swap_space.drop_copy(storage);
    become_evicted(storage, EvictionCause::gone);
  }
}

// Without parents nothing depends on anything, so all that is dead vanishes.
void StorageLifecycle::forget_ops(Deferred& deferred) {
  while (Op* op = parts_.graph.newest_op()) {
    for (size_t i = 0; op == parts_.graph.newest_op() && i < op->outputs.size(); ++i) {
      Storage* storage = op->outputs[i].storage;
      if (!storage) continue;
      drop_output(storage, deferred);
      update_candidate(storage);
      if (!storage->live) maybe_remove(storage, deferred);
    }
  }
}

// The living need no record then.
void StorageLifecycle::forget_live(Storage* storage, Deferred& deferred) {
  storage->pins = 0;
  if (storage->managed) parts_.graph.by_address.erase(storage->address);
  lose_handle(storage, deferred);
  storage->state = State::freed;
  update_candidate(storage);
  parts_.graph.recycle(storage);
}

void StorageLifecycle::forget_all(Deferred& deferred) {
  forget_ops(deferred);
  given_away_.clear(deferred);
  for (Storage* storage : with_handles()) {
    storage->pins = 0;
    if (!(storage->live && storage->lost)) forget_live(storage, deferred);
  }
}

bool StorageLifecycle::forget_history(Deferred& deferred) {
  for (const Storage* storage : parts_.graph.storages()) {
    const bool is_gone = storage->live && storage->state != State::resident && !storage->lost;
    const bool comes_back = storage->state == State::recomputing;
    // Who uses it on another stream has to wait (O2).
    const bool is_remade = storage->remade_on != kNoStream;
    if (storage->locks > 0 || is_gone || comes_back || is_remade) return false;
  }
  forget_ops(deferred);
  for (Storage* storage : with_handles())
    if (!storage->lost && !storage->external && !storage->captured && storage->live)
      forget_live(storage, deferred);
  return true;
}

void StorageLifecycle::check(const std::vector<Storage*>& storages, Deferred& deferred) const {
  const dtr_engine_stats& stats = parts_.environment.stats;
  const dtr_framework* framework = parts_.environment.framework;
  uint64_t evicted = 0, candidates = 0;
  for (const Storage* storage : storages) {
    const bool resident = storage->state == State::resident;
    require(storage->state != State::freed, "R3: a removed record is still referred to", storage);
    require(resident == (storage->address != nullptr), "R4: address and state disagree", storage);
    require(!storage->expected || (!resident && storage->parent),
            "R2: a copy is kept of what cannot be recomputed", storage);
    require(storage->counted == (!has_content(storage) && !storage->lost),
            "R4: counted and state disagree", storage);
    if (storage->counted) ++evicted;
    require(has_content(storage) || storage->parent || storage->lost, "R2: a constant was evicted",
            storage);
    require(!(storage->lost && storage->parent), "R2: a lost storage has a parent", storage);
    require(!storage->live || storage->handle, "R5: live without a handle", storage);
    if (storage->handle)
      require(parts_.graph.by_handle.find(storage->handle) == storage,
              "R5: the handle leads elsewhere", storage);
    // Kept alive meanwhile: another thread may just be letting go of it.
    if (storage->handle && resident && framework->retain_strong(storage->handle)) {
      deferred.release_strong(storage->handle);
      require(framework->data(storage->handle) == storage->address,
              "R5: the handle's address is another", storage);
    }
    require(stays_recorded(storage), "R3: nobody needs the record", storage);
    require(may_be_evicted(storage) == is_candidate(storage), "R6: candidate or not", storage);
    if (is_candidate(storage)) {
      ++candidates;
      const Device& device = parts_.devices.of(storage);
      const Storage* listed = storage->candidate >= 0
                                  ? device.candidates.at(storage->candidate)
                                  : device.unscored[static_cast<size_t>(-2 - storage->candidate)];
      require(listed == storage, "R6: the index leads elsewhere", storage);
    }
    parts_.pins.check(storage);
    require(storage->overwriters <= storage->locks, "R8: what will overwrite it holds no lock",
            storage);
    require(storage->holds <= storage->locks, "R11: more holds than locks", storage);
    if (!resident || !storage->managed) continue;
    require(dtr_pool_block_bytes(parts_.devices.of(storage).pool, storage->address) >=
                storage->size_bytes,
            "R5: its block is gone, or smaller", storage);
    require(parts_.graph.by_address.find(storage->address) == storage,
            "R4: the address leads elsewhere", storage);
  }
  uint64_t listed = 0;
  for (const auto& device : parts_.devices)
    listed += device->candidates.size() + device->unscored.size();
  if (candidates != listed) throw StateError("R6: the list of candidates is too long");
  if (evicted != stats.evicted_storages)
    throw StateError("there are " + std::to_string(evicted) + " evicted storages, counted are " +
                     std::to_string(stats.evicted_storages));
}

}  // namespace dtr
