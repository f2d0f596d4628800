// engine.cpp: settings, pools, what the framework tells, and counters.
#include "engine.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/error.h"
#include "base/handles.h"
#include "base/room_time.h"
#include "graph/heap_blocks.h"
#include "policy/room_price.h"

namespace dtr {

namespace {

// Exactly, as it was played: in MiB where that is short.
std::string budget_text(uint64_t bytes) {
  if (bytes % Tuner::kAdvisedStep != 0) return std::to_string(bytes) + " bytes";
  char text[64];
  std::snprintf(text, sizeof text, "%.10g MiB", static_cast<double>(bytes) / 0x1p20);
  return text;
}

}  // namespace

Engine::Engine(const dtr_engine_options& options, MakeTuner make_tuner) : make_tuner_(make_tuner) {
  take(options);
  environment_.engine = this;
  rest_.configure();
  cost_model_.configure();
  search_.configure(true);
  dead_.configure();
  Transaction call(*this);
  swap_space_.configure(call.deferred);
  environment_.observers.add(&op_log_);
  environment_.observers.add(&waiting_);
  core_ = core_table(this);
  start_tuner(call.deferred);
}

Engine::~Engine() {
  {
    Transaction call(*this);
    swap_space_.give_back_kept(true, call.deferred);
  }
  for (const auto& device : devices_) {
    dtr_pool_set_room(device->pool, nullptr, nullptr);
    unuse(device->pool);
  }
}

void Engine::configure(const dtr_engine_options& options) {
  Transaction call(*this);
  const bool reseed = options.heuristic.select != options_.heuristic.select ||
                      options.heuristic.seed != options_.heuristic.seed;
  const bool notes_contents = options.contents != options_.contents;
  take(options);
  rest_.configure();
  if (notes_contents) contents_.note_all();
  dead_.configure();
  search_.configure(reseed);
  swap_space_.configure(call.deferred);
  mover_.configure();
  rescore();
  start_tuner(call.deferred);
}

// The caller's text is his, and may go once the call is over.
void Engine::take(const dtr_engine_options& options) {
  options_ = options;
  Dealloc dealloc = Dealloc::eager;
  dealloc_from_name(options.dealloc, &dealloc);
  options_.dealloc = kDeallocNames[static_cast<size_t>(dealloc)];
}

// By the options: none, or one who knows nothing yet.
void Engine::start_tuner(Deferred& deferred) {
  guard_.configure(options_.thrash);
  if (tuner_) tuner_->forget(deferred);
  tuner_.reset();
  if (options_.learn == DTR_LEARN_NOTHING || !make_tuner_) return;
  tuner_ = make_tuner_({environment_, graph_, devices_, op_log_,
                        [this](const EvictionPolicy& policy) { follow(policy); },
                        [this](StepPlan plan) { plan_.follow(std::move(plan), false); }, mover_});
}

void Engine::stop_tuner() {
  Transaction call(*this);
  if (tuner_) tuner_->forget(call.deferred);
  tuner_.reset();
}

// Which budget would do, and what that costs: a sentence and a space. With half of what the guard allows
// for, as what is played is not quite what runs. Where a request finds no room it is nothing if no play
// confirms one.
std::string Engine::advice(Transaction& call, const Shortage* at) try {
  if (!tuner_ || !guard_.is_on()) return "";
  const Tuner::Advice advice = tuner_->advise((1 + guard_.most()) / 2, at, call.lock);
  if (advice.budget_bytes == 0)
    return at ? "" : "No play of what ran so far confirms a budget that would do. ";
  char slowness[64];
  std::snprintf(slowness, sizeof slowness, "%.2f times the compute", advice.slowness);
  return "For what ran so far a budget of " + budget_text(advice.budget_bytes) +
         " would do, with " + slowness + "; what comes later may need more. ";
} catch (const std::bad_alloc&) {
  if (!call.lock) call.lock.lock();
  return "";
}

std::string Engine::slowness() const {
  char text[192];
  std::snprintf(
      text, sizeof text,
      "dtr_alloc: the budget is too small: the job computes %.1f times what its operators "
      "take, and ends if it goes on like that (DTR_ALLOC_THRASH=%g).",
      guard_.slowness(), guard_.most());
  return text;
}

// Where the marginal cost is far too low, the way of the DTR paper takes over: e*, the time since the
// last use, and single victims, as the members of a window would come back more than once, too.
// Before the job would end, what the tuner has it follow goes. Next, whatever the tuner has chosen,
// dtr-full takes over as it is published, with all that has died let go. After each change the guard
// counts from there.
// A job that has become so slow that it had better end is told so, once (thrash_guard.h).
void Engine::look_at_repeats(Transaction& call) {
  const dtr_engine_stats& stats = environment_.stats;
  const Computed computed{static_cast<int64_t>(stats.total_cost_ns),
                          static_cast<int64_t>(stats.recompute_cost_ns),
                          static_cast<int64_t>(stats.twice_cost_ns)};
  const Computed lately = computed - std::exchange(computed_, computed);
  repeat_rate_.note(lately);
  if (repeat_rate_.is_high() && cost_model_.needs().shares) take_over();
  const bool warns = guard_.note(lately, tuner_ ? tuner_->step_ns() : 0);
  if (guard_.is_over() && tuner_ && tuner_->give_up()) return;
  const bool may_choose = repeat_rate_.has_taken_over() || options_.learn >= DTR_LEARN_POLICY;
  if (guard_.is_over() && may_choose && dead_.policy() != Dealloc::eager) {
    options_.dealloc = kDeallocNames[static_cast<size_t>(Dealloc::eager)];
    dead_.configure();
    take_over();
  }
  if (!warns) return;
  std::fprintf(stderr, "%s %s\n", slowness().c_str(), advice(call, nullptr).c_str());
}

void Engine::take_over() {
  options_.heuristic.cost = DTR_COST_NEIGHBORHOOD;
  options_.heuristic.staleness_exponent = 1;
  options_.heuristic.foresight = 0;
  options_.room = DTR_ROOM_SINGLE;
  rescore();
  repeat_rate_.take_over();
}

// Under the mutex.
void Engine::follow(const EvictionPolicy& policy) {
  options_.heuristic = policy.heuristic;
  options_.room = policy.room;
  options_.dealloc = kDeallocNames[static_cast<size_t>(policy.dealloc)];
  dead_.configure();
  rescore();
  ++environment_.stats.learned;
}

// What may need records, or has something that only they know, keeps the recorder awake.
void Engine::rest_if_steady(Transaction& call) {
  if (!rest_.may_begin() || op_log_.is_on() || plan_.is_on() || capture_.is_under_way() ||
      swap_space_.costs().is_on() || memory_use_.watches_fullest())
    return;
  if (lifecycle_.forget_history(call.deferred)) rest_.begin();
}

// The heuristic has changed, and what is computed again counts from here.
void Engine::rescore() {
  repeat_rate_.forget();
  guard_.forgive();
  cost_model_.configure();
  cost_model_.bounds().reset_all();
}

void Engine::follow_plan(StepPlan plan) {
  Transaction call(*this);
  rest_.wake();
  plan_.follow(std::move(plan), true);
  plan_executor_.move_held(call);
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
  environment_.replay_ns = RoomPrice::of(device_type, 0).replay_ns;
  Device& device = devices_.add(device_type, device_index, pool);
  device.candidates.set_slabs_begin(reinterpret_cast<uint64_t>(dtr_pool_slabs_begin(pool)));
  swap_space_.add_device(device);
  mover_.add_device(device);
  const dtr_pool_room room = room_of(pool, 1);
  device.one_range = room.chunk_bytes != 0;
  device.base = room.base;
  if (dtr_pool_uses_hints(pool, UINT64_MAX)) hints_.add_pool(pool);
  room_callers_.push_back({this, &device});
  cost_model_.bounds().reset_all();
  dtr_pool_set_room(
      pool,
      [](void* context, uint64_t size_bytes, uint64_t) -> int32_t {
        const auto& [engine, device] = *static_cast<RoomCaller*>(context);
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
  const RoomTime::Allocation allocation;
  void* address = nullptr;
  dtr_pool* pool = pool_of(device_type, device_index);
  if (plan_.is_on() && !arena) address = plan_executor_.allocate(pool, size_bytes, stream);
  if (address)
    *status = DTR_OK;
  else if (arena)
    *status = dtr_pool_arena_allocate(pool, arena, size_bytes, stream, &address);
  else if (hints_.is_used() && dtr_pool_uses_hints(pool, size_bytes))
    *status = dtr_pool_allocate_hinted(pool, size_bytes, stream,
                                       hints_.hint_for(pool, device_type, size_bytes), &address);
  else
    *status = dtr_pool_allocate(pool, size_bytes, stream, &address);
  if (*status == DTR_OK) {
    rest_.allocated(pool, size_bytes);
    if (!arena) op_log_.allocated(address, size_bytes);
    return address;
  }
  text = dtr_last_error();
  if (*status == DTR_OUT_OF_MEMORY) {
    Transaction call(*this);
    const Shortage at = memory_use_.shortage(size_bytes, pool);
    const bool is_over = guard_.is_over();
    const std::string advised = advice(call, is_over ? nullptr : &at);
    text = (is_over ? slowness() + "\n" : "") + memory_use_.why_none(text, at, advised);
    guard_.forgive();
  }
  *message = text.c_str();
  return nullptr;
}

// What would find no room if all was evicted that can be is served beyond the budget at once.
void* Engine::allocate_workspace(uint8_t device_type, int8_t device_index, uint64_t size_bytes,
                                 uint64_t stream, int32_t* beyond) {
  const RoomTime::Allocation allocation;
  *beyond = 0;
  void* address = nullptr;
  dtr_pool* pool = pool_of(device_type, device_index);
  if (plan_.is_on()) address = plan_executor_.allocate(pool, size_bytes, stream);
  if (!address) dtr_pool_try_allocate(pool, size_bytes, stream, &address);
  if (!address && could_have_room(pool, size_bytes))
    dtr_pool_allocate_hinted(pool, size_bytes, stream, DTR_HINT_WORKSPACE, &address);
  if (address) {
    rest_.allocated(pool, size_bytes);
    op_log_.allocated(address, size_bytes);
    return address;
  }
  *beyond = dtr_pool_allocate_beyond(pool, size_bytes, stream, &address) == DTR_OK ? 1 : 0;
  return address;
}

bool Engine::could_have_room(dtr_pool* pool, uint64_t size_bytes) {
  std::lock_guard<EngineMutex> lock(mutex_);
  return memory_use_.could_have_room(size_bytes, pool);
}

// ---- what the framework tells ----

void Engine::freed(void* address) {
  if (!address) return;
  op_log_.freed(address);
  dtr_pool* pool = devices_.pool_of(address);
  Transaction call(*this);
  const bool gives_back = lifecycle_.memory_died(address, call.deferred);
  call.lock.unlock();
  if (gives_back) dtr_pool_free(pool, address);
}

int32_t Engine::make_room(Device& device, uint64_t size_bytes) {
  RoomTime::begin();
  rest_.wake();
  {
    std::lock_guard<EngineMutex> lock(mutex_);
    if (guard_.is_over()) return DTR_ROOM_IS_NONE;
  }
  EngineCall call(environment_, dead_, mutex_, std::defer_lock);
  return room_.make_room(device, size_bytes, call);
}

void Engine::record_stream(void* address, uint64_t stream) {
  dtr_pool_record_stream(devices_.pool_of(address), address, stream);
}

void Engine::describe(const void* tensor, dtr_tensor_desc* out) const {
  check_connected();
  framework_->describe(tensor, out);
}

void Engine::check_connected() const {
  if (!framework_) throw StateError("the engine is not connected to a framework");
}

void Engine::evicted_died(Storage* storage) {
  Transaction call(*this);
  lifecycle_.evicted_died(storage, call.deferred);
}

void Engine::guard_evicted() {
  std::lock_guard<EngineMutex> lock(mutex_);
  for (const Storage* storage : lifecycle_.live_evicted()) framework_->guard(storage->handle);
}

uint64_t Engine::get_evicted(dtr_evicted* evicted, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const std::vector<Storage*> all = lifecycle_.live_evicted();
  for (size_t i = 0; i < std::min<uint64_t>(all.size(), capacity); ++i)
    evicted[i] = {all[i]->id, all[i]->handle, all[i]->parent ? all[i]->parent->op_key : 0,
                  all[i]->size_bytes};
  return all.size();
}

void Engine::reset(std::vector<uint64_t> lost) {
  Transaction call(*this);
  rest_.wake();
  lifecycle_.require_idle(lost);
  lifecycle_.lose_evicted(call.deferred);
  if (tuner_) tuner_->forget(call.deferred);
  op_log_.reset(call.deferred);  // that records vanish is nothing that the job does
  lifecycle_.forget_all(call.deferred);
  pins_.clear(call.deferred);
  swap_space_.give_back_kept(true, call.deferred);
}

void Engine::begin_capture() {
  std::lock_guard<EngineMutex> lock(mutex_);
  rest_.wake();
  capture_.begin();
}

void Engine::end_capture() {
  std::lock_guard<EngineMutex> lock(mutex_);
  if (capture_.end()) cost_model_.bounds().reset_all();
}

// ---- counters ----

// A storage leaves the candidates under the lock, and its block the pool after that.
void Engine::get_stats(dtr_engine_stats* out, dtr_pool_stats* pools, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  for (uint64_t i = 0; i < std::min<uint64_t>(capacity, environment_.pools.size()); ++i)
    dtr_pool_get_stats(environment_.pools[i].pool, &pools[i]);
  *out = environment_.stats;
  // The counter has the scans of the heap alone (compaction.cpp).
  out->search_ns += static_cast<uint64_t>(environment_.search_sample.all_ns());
  out->clock_ns = static_cast<uint64_t>(environment_.clock_ns);
  out->live_storages = graph_.storages().size();
  out->storage_accesses += cost_model_.visited_components();
  out->peak_kept_bytes = memory_use_.peak_bytes();
  out->evictable_bytes = graph_.candidate_bytes;
  out->unrecorded_ops = rest_.operators();
  if (tuner_) tuner_->describe(out);
}

void Engine::set_costs(const dtr_cost* costs, uint64_t count) {
  std::lock_guard<EngineMutex> lock(mutex_);
  costs_.set(costs, count);
}

uint64_t Engine::get_costs(dtr_cost* costs, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  return costs_.get(costs, capacity);
}

void Engine::watch(Observer* observer) {
  std::lock_guard<EngineMutex> lock(mutex_);
  rest_.wake();
  environment_.observers.add(observer);
}

void Engine::unwatch(Observer* observer) {
  std::lock_guard<EngineMutex> lock(mutex_);
  environment_.observers.remove(observer);
}

uint64_t Engine::id_of(const void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const Storage* storage = graph_.by_handle.find(handle);
  return storage ? storage->id : 0;
}

std::vector<BlockInUse> Engine::blocks_in_use(dtr_pool* pool) const {
  std::lock_guard<EngineMutex> lock(mutex_);
  return dtr::blocks_in_use(graph_, pool);
}

bool Engine::is_constant(const void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const Storage* storage = graph_.by_handle.find(handle);
  return !storage || (storage->state == State::resident && !storage->parent);
}

uint64_t Engine::holders(int32_t when, dtr_holder* holders, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const std::vector<dtr_holder> found = memory_use_.holders(when);
  std::copy_n(found.begin(), std::min<uint64_t>(capacity, found.size()), holders);
  return found.size();
}

void Engine::keep_account(bool on) {
  std::lock_guard<EngineMutex> lock(mutex_);
  rest_.wake();
  memory_use_.watch_fullest(on);
  environment_.observers.remove(&repeat_counts_);
  if (!on) return;
  repeat_counts_.clear();
  environment_.observers.add(&repeat_counts_);
}

uint64_t Engine::repeats(dtr_repeats* repeats, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  const std::vector<dtr_repeats> found = repeat_counts_.sorted();
  std::copy_n(found.begin(), std::min<uint64_t>(capacity, found.size()), repeats);
  return found.size();
}

void Engine::reset_peak() {
  std::lock_guard<EngineMutex> lock(mutex_);
  memory_use_.reset_peak();
}

HeldBytes Engine::held_bytes() {
  std::lock_guard<EngineMutex> lock(mutex_);
  return memory_use_.held();
}

// ---- invariants ----

void Engine::check_invariants() {
  Transaction call(*this);
  graph_.check(environment_.stats.live_ops);
  const std::vector<Storage*>& storages = graph_.storages();
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
