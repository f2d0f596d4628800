// engine.cpp: life and death of records.
#include "engine.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/handles.h"

namespace dtr {

Engine::Engine(const dtr_engine_options& options) {
  options_ = options;
  cost_model_.configure();
  search_.configure(true);
  dead_.configure();
  Deferred deferred(environment_, *this);
  swap_space_.configure(deferred);
  environment_.observers.add(&op_log_);
  core_ = core_table(this);
}

Engine::~Engine() {
  {
    Deferred deferred(environment_, *this);
    swap_space_.give_back_kept(true, deferred);
  }
  for (const auto& device : devices_) {
    dtr_pool_set_room(device->pool, nullptr, nullptr);
    unuse(device->pool);
  }
}

void Engine::configure(const dtr_engine_options& options) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  const bool reseed = options.heuristic.select != options_.heuristic.select ||
                      options.heuristic.seed != options_.heuristic.seed;
  const bool notes_contents = options.contents != options_.contents;
  options_ = options;
  if (notes_contents) contents_.note_all();
  dead_.configure();
  bookkeeping_.is_timed = options.time_bookkeeping != 0;
  cost_model_.configure();
  search_.configure(reseed);
  swap_space_.configure(deferred);
  mover_.configure();
  costs_changed();
}

void Engine::connect(const dtr_framework* framework) {
  if (framework_ && framework_ != framework)
    throw StateError("the engine is connected to another framework already");
  if (framework->abi_version != DTR_BRIDGE_ABI_VERSION)
    throw InvalidArgument("the bridge speaks version " + std::to_string(framework->abi_version) +
                          " of the table; this core speaks " +
                          std::to_string(DTR_BRIDGE_ABI_VERSION));
  framework_ = framework;
}

void Engine::add_pool(uint8_t device_type, int8_t device_index, dtr_pool* pool) {
  if (pool_of(device_type, device_index))
    throw StateError("device type " + std::to_string(device_type) + ", index " +
                     std::to_string(device_index) + " has a pool already");
  use(pool, true);
  environment_.pools.push_back({device_type, device_index, pool});
  Device& device = devices_.add(device_type, device_index, pool);
  swap_space_.add_device(device);
  mover_.add_device(device);
  dtr_pool_room room{};
  dtr_pool_get_room(pool, 1, &room);
  device.one_range = room.chunk_bytes != 0;
  if (dtr_pool_uses_hints(pool, UINT64_MAX)) hints_.add_pool(pool);
  room_callers_.push_back({this, &device});
  costs_changed();
  dtr_pool_set_room(
      pool,
      [](void* context, uint64_t size_bytes, uint64_t) -> int32_t {
        const auto& [engine, device] = *static_cast<RoomCaller*>(context);
        const Bookkeeping::Scope time(engine->bookkeeping_);
        engine->tell_of_room(size_bytes);
        return engine->make_room(*device, size_bytes);
      },
      &room_callers_.back());
}

dtr_pool* Engine::pool_of(uint8_t device_type, int8_t device_index) const {
  return environment_.pool_of(device_type, device_index);
}

void* Engine::allocate(uint8_t device_type, int8_t device_index, uint64_t size_bytes,
                       uint64_t stream, uint64_t arena, int32_t* status, const char** message) {
  thread_local std::string text;
  void* address = nullptr;
  dtr_pool* pool = pool_of(device_type, device_index);
  if (arena)
    *status = dtr_pool_arena_allocate(pool, arena, size_bytes, stream, &address);
  else if (hints_.is_used() && dtr_pool_uses_hints(pool, size_bytes))
    *status = dtr_pool_allocate_hinted(pool, size_bytes, stream,
                                       hints_.hint_for(pool, device_type, size_bytes), &address);
  else
    *status = dtr_pool_allocate(pool, size_bytes, stream, &address);
  if (*status == DTR_OK) {
    if (!arena) op_log_.allocated(address, size_bytes);
    return address;
  }
  text = dtr_last_error();
  if (*status == DTR_OUT_OF_MEMORY) out_of_memory_text(&text, size_bytes, pool);
  *message = text.c_str();
  return nullptr;
}

// ---- records ----

Storage* Engine::new_storage(const dtr_tensor_desc& desc, bool managed) {
  Storage* storage = graph_.new_storage(desc, managed);
  storage->last_access_ns = clock_ns_;
  if (managed) storage->pins = pins_.of(desc.handle);
  ++stats_.live_storages;
  return storage;
}

// The record of a tensor's storage. One never seen before becomes a constant: it
// was made where the recorder did not look. Null if it cannot be tracked now.
Storage* Engine::find_or_adopt(const dtr_tensor_desc& desc, Deferred& deferred) {
  Storage* storage = graph_.by_handle.find(desc.handle);
  if (storage && storage->address != desc.data) {
    content_replaced(storage, deferred);
    storage = nullptr;
  }
  if (storage) return storage;
  const bool managed = desc.owned != 0;
  // Nobody tells us when memory of others dies (ours seen through DLPack is such, too), so its
  // record lives only while something depends on it, and holds the storage strongly for that time.
  if (!managed && !framework_->retain_strong(desc.handle)) return nullptr;
  storage = new_storage(desc, managed);
  graph_.by_handle.insert(desc.handle, storage);
  if (managed) {
    storage->live = true;
    framework_->retain_weak(desc.handle);
    graph_.by_address.insert(desc.data, storage);
    if (swap_costs_.is_on()) update_candidate(storage);
  } else {
    storage->external = true;
    storage->constant_for_good = true;
    if (desc.device_type != 0) storage->captured = true;  // F2
  }
  contents_.note(storage);
  return storage;
}

// The handle lives on but holds other memory (resize_, set_data): the content that
// the record speaks of is gone.
void Engine::content_replaced(Storage* storage, Deferred& deferred) {
  lose_handle(storage, deferred);
  if (storage->state == State::resident) {
    if (storage->managed) graph_.by_address.erase(storage->address);
    if (!storage->parent) storage->lost = true;
    become_evicted(storage);
  }
  if (storage->state == State::swapped) swap_space_.died(storage, deferred);
  maybe_remove(storage, deferred);
}

// The framework no longer refers to the storage.
void Engine::lose_handle(Storage* storage, Deferred& deferred) {
  if (!storage->handle) return;
  graph_.by_handle.erase(storage->handle);
  if (storage->pins > 0 && framework_->strong_count(storage->handle) == 0)
    pins_.forget(storage->handle, deferred);
  if (storage->live) environment_.observers.notify(&Observer::released, storage);
  if (storage->live)
    deferred.release_weak(storage->handle);
  else
    deferred.release_strong(storage->handle);
  storage->pins = 0;
  storage->handle = nullptr;
  storage->live = false;
  if (storage->unwritten) {
    unwritten_.forget(storage);  // nobody will read it
    update_candidate(storage);
  }
  cost_model_.died(storage);
}

void Engine::update_candidate(Storage* storage) {
  const bool wanted = storage->state == State::resident && storage->managed &&
                      !storage->unwritten &&
                      (storage->parent || swap_costs_.is_swappable(storage));  // R6
  if (wanted == is_candidate(storage)) return;
  Device& device = device_of(storage);
  if (wanted) {
    storage->candidate = -2 - static_cast<int64_t>(device.young.size());
    device.young.push_back(storage);
  } else if (storage->candidate >= 0) {
    device.candidates.remove(storage);
  } else {
    Storage* last = device.young.back();
    last->candidate = storage->candidate;
    device.young[static_cast<size_t>(-2 - storage->candidate)] = last;
    device.young.pop_back();
    storage->candidate = kNoCandidate;
  }
}

// The content is gone: from here on the storage counts for the costs of its neighbors.
void Engine::become_evicted(Storage* storage, EvictionCause cause) {
  environment_.observers.notify(&Observer::lost, storage, cause);
  storage->address = nullptr;
  storage->state = State::evicted;
  storage->prefetched = false;
  unwritten_.forget(storage);
  update_candidate(storage);
  if (!storage->lost) cost_model_.evicted(storage);
}

void Engine::change_address(Storage* storage, void* address) {
  const bool is_placed = storage->candidate >= 0;  // they stand in the order of addresses
  Device& device = devices_.of(storage);
  if (is_placed) device.candidates.remove(storage);
  graph_.by_address.erase(storage->address);
  graph_.by_address.insert(address, storage);
  storage->address = address;
  if (!is_placed) return;
  device.candidates.add(storage);
  cost_model_.bounds().reset(device, storage);
}

void Engine::become_resident(Storage* storage, void* address) {
  cost_model_.returned(storage);
  storage->address = address;
  storage->state = State::resident;
  storage->last_access_ns = clock_ns_;
  update_candidate(storage);
}

// Cuts the storage from its parent; an op without recorded outputs goes (R3).
void Engine::drop_output(Storage* storage, Deferred& deferred) {
  Op* op = storage->parent;
  if (!op) return;
  Verifier::forget_expected(storage, deferred);
  cost_model_.loses_parent(storage);
  storage->parent = nullptr;
  unwritten_.forget(storage);
  op->outputs[storage->output].storage = nullptr;
  --op->recorded_outputs;
  if (op->recorded_outputs == 0)
    discard_op(op, deferred);
  else
    dead_.reconsider_inputs(op, deferred);
}

void Engine::discard_op(Op* op, Deferred& deferred) {
  for (Edge& edge : op->edges) {
    Storage* input = edge.input;
    Graph::unlink(edge);
    dead_.reconsider(input, deferred);
    maybe_remove(input, deferred);
  }
  if (op->closure)
    deferred.drop_closure(op->closure);
  else if (op->id)
    dropped_ops_.push_back(static_cast<int64_t>(op->id));
  --stats_.live_ops;
  graph_.recycle(op);
}

// A resident storage becomes a constant.
void Engine::forget_parent(Storage* storage, Deferred& deferred) {
  if (!storage->parent) return;
  drop_output(storage, deferred);
  update_candidate(storage);
  if (storage->candidate >= 0) {
    // It goes on as a constant: what was known of its cost is of another kind.
    storage->ancestors_known = storage->descendants_known = false;
    cost_model_.bounds().reset(storage);
  }
  if (!storage->live && storage->managed && storage->state == State::resident) dead_.keep(storage);
  ++stats_.settled;
}

void Engine::maybe_remove(Storage* storage, Deferred& deferred) {
  if (storage->live || storage->children || storage->locks > 0 || storage->state == State::freed)
    return;
  remove(storage, deferred);
}

// Removing one record may make others removable, thousands deep: a worklist, no
// recursion. The outermost call empties it.
void Engine::remove(Storage* first, Deferred& deferred) {
  removal_.push_back(first);
  if (removing_) return;
  removing_ = true;
  while (!removal_.empty()) {
    Storage* storage = removal_.back();
    removal_.pop_back();
    // It may stand in the list twice, or have been needed again in between.
    if (storage->state == State::freed || storage->live || storage->children || storage->locks > 0)
      continue;
    const bool resident = storage->state == State::resident;
    void* address = storage->address;
    if (resident && storage->managed) graph_.by_address.erase(address);
    dead_.let_go(storage);
    if (storage->host) swap_space_.drop_copy(storage);
    Verifier::forget_expected(storage, deferred);
    storage->state = State::freed;
    storage->address = nullptr;
    dead_.forget(storage);
    update_candidate(storage);
    if (resident && storage->managed) environment_.observers.notify(&Observer::died, storage);
    if (storage->handle)
      lose_handle(storage, deferred);  // the strong reference's deleter frees the block
    else if (resident && storage->managed)
      deferred.free_block(*storage, address);
    drop_output(storage, deferred);
    --stats_.live_storages;
    graveyard_.push_back(storage);
  }
  removing_ = false;
  // Only now: a record may stand in the worklist more than once.
  for (Storage* storage : graveyard_) graph_.recycle(storage);
  graveyard_.clear();
}

void Engine::unlock(Storage* storage, Deferred& deferred) {
  if (--storage->locks > 0) return;
  cost_model_.bounds().unpark(storage);
  dead_.reconsider(storage, deferred);
  if (storage->parent) dead_.reconsider_inputs(storage->parent, deferred);
  maybe_remove(storage, deferred);
}

void Engine::banish_queued(Deferred& deferred) {
  std::lock_guard<EngineMutex> lock(mutex_);
  dead_.banish_queued(deferred);
}

// ---- what the framework tells ----

void Engine::freed(void* address) {
  if (!address) return;
  op_log_.freed(address);
  Deferred deferred(environment_, *this);
  bool give_back = true;
  dtr_pool* pool = nullptr;
  for (const auto& device : devices_)
    if (dtr_pool_contains(device->pool, address)) pool = device->pool;
  {
    std::lock_guard<EngineMutex> lock(mutex_);
    Storage* storage = graph_.by_address.find(address);
    if (storage) {
      lose_handle(storage, deferred);
      give_back = !dead_.keeps_memory(storage, deferred);
      if (give_back) {
        graph_.by_address.erase(address);
        if (storage->state == State::resident) {
          environment_.observers.notify(&Observer::died, storage);
          if (!storage->parent) storage->lost = true;
          if (storage->children || storage->locks > 0) {
            become_evicted(storage);
          } else {
            // Nothing will ask for it again: no detour through an evicted component.
            environment_.observers.notify(&Observer::lost, storage, EvictionCause::gone);
            storage->address = nullptr;
            storage->state = State::evicted;
            update_candidate(storage);
          }
        }
        maybe_remove(storage, deferred);
      }
    }
  }
  if (give_back) dtr_pool_free(pool, address);
}

void Engine::record_stream(void* address, uint64_t stream) {
  for (const auto& device : devices_)
    if (dtr_pool_contains(device->pool, address))
      dtr_pool_record_stream(device->pool, address, stream);
}

void Engine::describe(const void* tensor, dtr_tensor_desc* out) const {
  check_connected();
  framework_->describe(tensor, out);
}

void Engine::check_connected() const {
  if (!framework_) throw StateError("the engine is not connected to a framework");
}

void Engine::evicted_died(Storage* storage) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  lose_handle(storage, deferred);
  if (storage->state == State::swapped) swap_space_.died(storage, deferred);
  dead_.evicted_died(storage, deferred);
  maybe_remove(storage, deferred);
}

void Engine::reset() {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  std::vector<Storage*> all;
  graph_.by_handle.for_each([&](const void*, Storage* storage) { all.push_back(storage); });
  for (const Storage* storage : all)
    if (storage->live && storage->state != State::resident)
      throw StateError("storage " + std::to_string(storage->id) + " (" +
                       std::to_string(storage->size_bytes) + " bytes) is evicted");
  for (const Storage* storage : all)
    if (storage->locks > 0)
      throw StateError("storage " + std::to_string(storage->id) + " is locked by an op in flight");
  op_log_.reset(deferred);  // that records vanish is nothing that the job does
  // Without parents nothing depends on anything, so all that is dead vanishes, and
  // the living need no record.
  while (graph_.newest_op()) {
    Op* op = graph_.newest_op();
    for (size_t i = 0; op == graph_.newest_op() && i < op->outputs.size(); ++i) {
      Storage* storage = op->outputs[i].storage;
      if (!storage) continue;
      drop_output(storage, deferred);
      update_candidate(storage);
      if (!storage->live) maybe_remove(storage, deferred);
    }
  }
  all.clear();
  graph_.by_handle.for_each([&](const void*, Storage* storage) { all.push_back(storage); });
  for (Storage* storage : all) {
    if (storage->managed) graph_.by_address.erase(storage->address);
    lose_handle(storage, deferred);
    storage->state = State::freed;
    update_candidate(storage);
    --stats_.live_storages;
    graph_.recycle(storage);
  }
  pins_.clear(deferred);
  swap_space_.give_back_kept(true, deferred);
}

// ---- counters ----

void Engine::get_stats(dtr_engine_stats* out) {
  std::lock_guard<EngineMutex> lock(mutex_);
  *out = stats_;
  out->clock_ns = static_cast<uint64_t>(clock_ns_);
  out->storage_accesses += cost_model_.visited_components();
  out->bookkeeping_ns = static_cast<uint64_t>(bookkeeping_.total_ns.load());
}

void Engine::set_costs(const dtr_cost* costs, uint64_t count) {
  std::lock_guard<EngineMutex> lock(mutex_);
  costs_.clear();
  if (count > CostTable::kMost) {
    const std::string most = std::to_string(CostTable::kMost);
    throw InvalidArgument("costs[" + most + "] is one too many; allowed: " + most);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const dtr_cost& cost = costs[i];
    const auto refuse = [&](const std::string& what) {
      costs_.clear();
      throw InvalidArgument("costs[" + std::to_string(i) + "]" + what);
    };
    if (cost.signature == 0) refuse(".signature is 0; allowed: any other");
    if (cost.cost_ns < 1 || cost.cost_ns > CostTable::kMostNs)
      refuse(".cost_ns is " + std::to_string(cost.cost_ns) + "; allowed: 1 to " +
             std::to_string(CostTable::kMostNs));
    if (!costs_.fix(cost.signature, cost.op_key, cost.cost_ns, cost.readings))
      refuse(".signature is " + std::to_string(cost.signature) +
             ", which stands there already; allowed: each once");
  }
}

uint64_t Engine::get_costs(dtr_cost* costs, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  uint64_t count = 0;
  costs_.for_each([&](const CostTable::Entry& entry) {
    if (count < capacity)
      costs[count] = {entry.signature, entry.op_key, CostTable::cost_of(entry), entry.readings};
    ++count;
  });
  return count;
}

void Engine::watch(Observer* observer) {
  std::lock_guard<EngineMutex> lock(mutex_);
  environment_.observers.add(observer);
}

void Engine::unwatch(Observer* observer) {
  std::lock_guard<EngineMutex> lock(mutex_);
  environment_.observers.remove(observer);
}

void Engine::tell_of_room(uint64_t size_bytes) {
  std::lock_guard<EngineMutex> lock(mutex_);
  environment_.observers.notify(&Observer::asked_for_room, size_bytes);
}

uint64_t Engine::id_of(const void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const Storage* storage = graph_.by_handle.find(handle);
  return storage ? storage->id : 0;
}

uint64_t Engine::drain_dropped(int64_t* op_ids, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const uint64_t count = std::min<uint64_t>(capacity, dropped_ops_.size());
  std::copy(dropped_ops_.end() - static_cast<int64_t>(count), dropped_ops_.end(), op_ids);
  dropped_ops_.resize(dropped_ops_.size() - count);
  return count;
}

uint64_t Engine::holders(uint64_t* op_keys, uint64_t* size_bytes, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  uint64_t count = 0;
  for (const auto& device : devices_) {
    search_.grow_up(*device);
    for (size_t i = 0; i < device->candidates.size(); ++i, ++count) {
      if (count >= capacity) continue;
      const Storage* storage = device->candidates.at(i);
      op_keys[count] = storage->parent ? storage->parent->op_key : 0;
      size_bytes[count] = storage->size_bytes;
    }
  }
  return count;
}

void Engine::held_bytes(uint64_t* constant, uint64_t* running, uint64_t* waiting) {
  std::lock_guard<EngineMutex> lock(mutex_);
  *constant = *running = *waiting = 0;
  graph_.by_address.for_each([&](const void*, const Storage* storage) {
    if (!storage->parent || storage->unwritten)
      *constant += storage->size_bytes;
    else if (storage->locks > storage->holds)
      *running += storage->size_bytes;
    else if (storage->locks > 0)
      *waiting += storage->size_bytes;
  });
}

// *out: what the pool said.
void Engine::out_of_memory_text(std::string* out, uint64_t size_bytes, dtr_pool* pool) {
  const size_t refusal = out->find(kRefusedByDriver);
  const std::string advice = refusal == std::string::npos
                                 ? "; raise the budget or shrink the batch."
                                 : ", but the system grants less than that" + out->substr(refusal) +
                                       ". Raise that limit or shrink the batch.";
  uint64_t locked = 0, pinned = 0, evictable = 0, constants = 0;
  std::string swapped;
  {
    std::lock_guard<EngineMutex> lock(mutex_);
    if (swap_costs_.is_on())
      swapped = "; swapped to host memory " + std::to_string(swap_space_.memory().in_use_bytes()) +
                " of " + std::to_string(swap_space_.memory().cap_bytes()) + " bytes";
    graph_.by_address.for_each([&](const void* address, const Storage* storage) {
      if (!dtr_pool_contains(pool, address)) return;
      if (storage->locks > 0)
        locked += storage->size_bytes;
      else if (storage->unwritten || (!storage->parent && !(swap_costs_.is_swappable(storage) &&
                                                            swap_costs_.has_room(storage))))
        constants += storage->size_bytes;
      else if (storage->pins > 0 || capture_.is_frozen(storage))
        pinned += storage->size_bytes;
      else
        evictable += storage->size_bytes;
    });
  }
  dtr_pool_stats pool_stats;
  dtr_pool_get_stats(pool, &pool_stats);
  const uint64_t tracked = locked + pinned + evictable + constants;
  const uint64_t untracked =
      pool_stats.requested_bytes > tracked ? pool_stats.requested_bytes - tracked : 0;
  const auto bytes = [](uint64_t value) { return std::to_string(value) + " bytes"; };
  *out = "dtr_alloc: out of memory: requested " + bytes(size_bytes) + ", budget " +
         bytes(pool_stats.budget_bytes) + ", allocated " + bytes(pool_stats.allocated_bytes) +
         ", free " + bytes(pool_stats.budget_bytes - pool_stats.reserved_bytes) + " unmapped + " +
         bytes(pool_stats.reserved_bytes - pool_stats.allocated_bytes) +
         " mapped, largest free block " + bytes(pool_stats.largest_free_bytes) +
         "; in use: locked by running ops " + bytes(locked) + ", constants " + bytes(constants) +
         ", pinned " + bytes(pinned) + ", evictable " + bytes(evictable) +
         ", unseen by the recorder " + bytes(untracked) + swapped +
         ". This point of the job needs a budget of at least " +
         bytes(size_bytes + pool_stats.allocated_bytes - evictable) + advice;
}

}  // namespace dtr
