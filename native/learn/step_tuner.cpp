#include "step_tuner.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include "graph/heap_blocks.h"

namespace dtr {

namespace {

constexpr uint64_t kFirstLook = 512;  // operators
// A loop within a step may pass for a step. So before what repeats is taken for one again, so many times
// as much is recorded, up to kMostBefore.
constexpr uint64_t kMoreBefore = 4;
constexpr uint64_t kMostBefore = 1 << 14;
constexpr uint64_t kMostOperators = 1 << 17;
// Where nothing is repeated in so many, the steps are taken to differ, at first; and so many stand for
// a step.
constexpr uint64_t kStretch = 3 << 14;
constexpr uint64_t kPace = 1 << 11;
constexpr uint64_t kMostNumbers = 1 << 23;  // 64 MiB
constexpr uint32_t kMostTimes = 6;          // that it records in a row: with fewer windows between
constexpr uint32_t kLongWindows = 500;
constexpr uint64_t kRecorded = 3;     // steps, before they are played
constexpr uint64_t kLooksOfStep = 4;  // while it is known, and has not been recorded so often
// A gain below this share of a step's compute is none, so steps that cost no more have none.
constexpr double kGain = 0.01;
// What a step may repeat above what it did, as a share of it and of its own compute, before the job
// is taken for another.
constexpr uint32_t kWindows = 3;  // of two steps each, before and after
constexpr double kDrift = 1.25;
constexpr double kSomeDrift = 0.05;
// A plan is worn out when two steps miss so much more of it than they did.
constexpr double kWorn = 2;
// A policy thrashes if what it has repeated in two steps is so many times what is usual, which counts as
// this share of the job's own compute at least.
constexpr double kThrashes = 2;
constexpr double kThrashesLittle = 0.25;
// What slabs have grown by since the last plan, they have room for so many times in the next one. So
// a job that keeps something of each step outgrows few plans.
constexpr uint64_t kGrowsOn = 2;
constexpr double kNsPerSecond = 1e9;

// From which on their mean is the price of one.
constexpr uint64_t kEnoughSearches = 200;

constexpr uint64_t kMarkEvery = 64;  // operators
constexpr uint64_t kStepsOfWindow = 2;
// A plan also saves searches and remaps, so it may repeat a little more.
constexpr double kPlanSlack = 1.05;

// More than that is another job than the one that cost so much.
double most_of(double expected) { return kDrift * expected + kSomeDrift; }

uint64_t next_look(uint64_t operators) { return operators + operators / 4; }

}  // namespace

bool StepTuner::can_play() const { return parts_.environment.pools.size() == 1; }

EvictionPolicy StepTuner::policy() const {
  const dtr_engine_options& options = parts_.environment.options;
  EvictionPolicy policy{options.heuristic, options.room, Dealloc::eager};
  dealloc_from_name(options.dealloc, &policy.dealloc);
  return policy;
}

StepTuner::Mark StepTuner::now() const {
  const dtr_engine_stats& stats = parts_.environment.stats;
  return {static_cast<int64_t>(stats.total_cost_ns),
          static_cast<int64_t>(stats.recompute_cost_ns + stats.swap_ns)};
}

StepTuner::Mark StepTuner::now_with_room() const {
  Mark mark = now();
  if (parts_.environment.pools.empty()) return mark;
  const Environment::Pool& of = parts_.environment.pools.front();
  const dtr_pool_stats stats = stats_of(of.pool);
  const dtr_engine_stats& engine = parts_.environment.stats;
  const RoomPrice price = RoomPrice::of(of.device_type, stats.chunk_bytes);
  const double measured_ns =
      static_cast<double>(engine.move_ns) + parts_.environment.search_sample.all_ns();
  mark.room_ns = static_cast<int64_t>(
      (is_measured() ? measured_ns : price.search_ns * static_cast<double>(engine.searches)) +
      static_cast<double>(price.replay_ns) * static_cast<double>(engine.rematerializations) +
      price.remap_ns * static_cast<double>(stats.remaps) +
      price.map_ns * static_cast<double>(stats.mapped_chunks));
  mark.misses = engine.plan_misses + stats.remaps;
  return mark;
}

uint64_t StepTuner::evictions() const {
  const dtr_engine_stats& stats = parts_.environment.stats;
  return stats.evictions + stats.swaps;
}

uint64_t StepTuner::pace() const { return step_.period > 0 ? step_.period : kPace; }

const StepTuner::Mark& StepTuner::recent_mark(const Recording& of) const {
  return of.marks[(of.operators - std::min(of.operators, kStepsOfWindow * pace())) / kMarkEvery];
}

// Else two runs must decide alike: searches have a price, and moves none.
bool StepTuner::is_measured() const {
  return parts_.environment.options.learn != DTR_LEARN_AT_ONCE;
}

// For what is played.
RoomPrice StepTuner::room_price(uint8_t device_type, uint64_t chunk_bytes) const {
  RoomPrice price = RoomPrice::of(device_type, chunk_bytes);
  const SearchSample& sample = parts_.environment.search_sample;
  if (is_measured() && sample.searches >= kEnoughSearches) price.search_ns = sample.mean_ns();
  return price;
}

bool StepTuner::is_asked() const {
  return parts_.environment.options.learn != DTR_LEARN_STEP && can_play();
}

void StepTuner::describe(dtr_engine_stats* out) const {
  const bool is_over = std::holds_alternative<Done>(state_) && times_ < kMostTimes;
  out->learning = !is_asked() || is_over ? DTR_LEARNING_NOTHING : DTR_LEARNING_RECORDS;
  if (followed_) {
    out->learning = followed_->is_plan ? DTR_LEARNING_FOLLOWS_PLAN : DTR_LEARNING_FOLLOWS_POLICY;
    out->followed_since_step = followed_->in_step;
    out->followed_repeats = followed_->repeats;
  } else if (std::holds_alternative<Searching>(state_)) {
    out->learning = DTR_LEARNING_SEARCHES;
    out->policies = WhatIf::candidates();
    out->policies_tried = task_->progress.tried;
  } else if (is_asked() && std::holds_alternative<Resting>(state_)) {
    out->learning = DTR_LEARNING_RESTS;
  } else if (std::holds_alternative<Following>(state_)) {
    out->learning = DTR_LEARNING_NO_BETTER;
  }
}

// ---- states ----

void StepTuner::op_ended(EngineCall& call) try {
  if (waiter_) return;
  ++operators_;
  Next next = std::visit([&](auto& now) { return this->next(now, call); }, state_);
  if (next) state_ = std::move(*next);
} catch (const std::exception&) {
  // There is no memory, or no thread, for it: the job goes on as it is.
  parts_.op_log.set_mode(OpLogRecorder::Mode::off, call.deferred);
  log_.clear();
  step_ns_ = 0;
  state_ = Done{};
}

StepTuner::Next StepTuner::next(Idle&, EngineCall& call) {
  if (task_ && !task_->is_done) return std::nullopt;  // for which a job does not wait
  end_search();
  log_.clear();
  step_ = {};
  step_ns_ = 0;
  uint64_t least = kFirstLook;
  for (uint32_t before = 0; before < times_; ++before)
    least = std::min(kMoreBefore * least, kMostBefore);
  ++times_;
  parts_.op_log.set_mode(OpLogRecorder::Mode::writing, call.deferred, true);
  return Recording{evictions(), {now_with_room()}, 0, kFirstLook, least};
}

void StepTuner::take_records() {
  std::vector<int64_t> records;
  parts_.op_log.take(&records);
  log_.append(records);
}

void StepTuner::stop_recording(Deferred& deferred) {
  parts_.op_log.set_mode(OpLogRecorder::Mode::off, deferred);
  std::vector<int64_t> unread;
  parts_.op_log.take(&unread);
}

StepTuner::Next StepTuner::next(Recording& now, EngineCall& call) {
  if (++now.operators % kMarkEvery == 0) now.marks.push_back(now_with_room());
  if (now.operators < now.next_look) return std::nullopt;
  now.next_look = next_look(now.operators);
  take_records();
  step_ = log_.repetition();
  const bool is_first_stretch = times_ == 1 && step_.period == 0;
  const bool is_long = log_.operators() >= (is_first_stretch ? kStretch : kMostOperators) ||
                       log_.numbers() >= kMostNumbers;
  // A first step fills memory, and is what the others are foreseen by.
  const bool is_known = step_.steps >= kRecorded && now.operators >= now.least;
  if (step_.period > 0) {
    step_ns_ = log_.cost_of_last(step_.period);
    const uint64_t soon = now.operators + step_.period / kLooksOfStep + 1;
    now.next_look = std::min(now.next_look, std::max(soon, now.least));
  }
  if (!is_known && !is_long) return std::nullopt;
  pace_ns_ = log_.cost_of_last(pace());
  if (evictions() == now.evictions || cost_between(recent_mark(now), now_with_room()) < kGain) {
    if (evictions() == 0) times_ = 0;  // so far there was nothing to find
    stop_recording(call.deferred);
    log_.clear();
    return Resting{new_windows()};
  }
  if (is_asked()) return search(now, call);
  stop_recording(call.deferred);
  if (step_.period == 0) return again(0);
  return Done{};
}

// Until two steps cost what is worth a look.
StepTuner::Next StepTuner::next(Resting& now, EngineCall&) {
  const Mark begin = now.windows.begin;
  if (!has_ended(now.windows) || cost_between(begin, now.windows.begin) < kGain)
    return std::nullopt;
  return again(now.windows.count);
}

StepTuner::Next StepTuner::next(Searching&, EngineCall&) {
  if (!task_->is_done) return std::nullopt;
  if (std::optional<WhatIf::Found> found = take_found()) return follow(std::move(*found));
  return found_nothing();
}

StepTuner::Next StepTuner::next(Following& now, EngineCall&) {
  Windows& windows = now.windows;
  if (!has_ended(windows) || (!now.usual && windows.count <= kWindows)) return std::nullopt;
  const double cost = cost_between(windows.first, windows.begin);
  const double misses =
      static_cast<double>(windows.begin.misses - windows.first.misses) / (now.usual ? 1 : kWindows);
  windows.first = windows.begin;
  const bool has_plan = followed_ && followed_->is_plan;
  const double most = now.usual  ? most_of(now.usual->cost)
                      : has_plan ? std::min(kPlanSlack * before_ + kGain,
                                            most_of(std::max(followed_->promised, 0.0)))
                                 : before_ - kGain;
  const bool is_worn = now.usual && has_plan && misses >= now.usual->misses + kWorn;
  const bool is_bad = cost > most || is_worn;
  // It may have been something else, such as an evaluation: it is looked at twice.
  if (is_bad && !std::exchange(now.is_doubted, true)) {
    if (!now.usual) windows.count = 1;
    return std::nullopt;
  }
  now.is_doubted = false;
  if (is_bad && !now.usual && !has_plan) {
    follow_usual();
    return found_nothing();
  }
  if (is_bad && !now.usual && now.fallback) return follow(std::move(*now.fallback));
  if (is_bad && may_record(windows.count)) return again(windows.count);
  if (is_bad && has_plan && cost > usual_cost_ + kGain) {
    follow_usual();
    return watch(usual_cost_);
  }
  if (!now.usual && step_.period == 0 && times_ == 1) return again(windows.count);
  if (!now.usual && now.improvable) improve(*now.improvable);
  if (is_bad || !now.usual) now.usual = {cost, misses};
  if (!task_ || !task_->is_done) return std::nullopt;
  if (std::optional<WhatIf::Found> found = take_found()) {
    before_ = now.usual->cost;
    Following better = follow(std::move(*found));
    better.fallback = std::move(now.improvable);
    return better;
  }
  end_search();
  return std::nullopt;
}

// A single step that computes far more than any before.
void StepTuner::ran_again() {
  const Following* const following = std::get_if<Following>(&state_);
  if (!following || waiter_) return;
  // The first step by a plan brings things in place.
  const Windows& windows = following->windows;
  const bool is_first = followed_ && followed_->is_plan && windows.count == 0;
  const double promised = followed_ ? followed_->promised : 0;
  const double most =
      (is_first ? 2 : 1) * kThrashes * std::max({promised, before_, kThrashesLittle});
  if (static_cast<double>(now().again_ns - windows.begin.again_ns) <=
      most * static_cast<double>(kStepsOfWindow) * static_cast<double>(pace_ns_))
    return;
  // What has just been computed again counts as used lately, so the next step may do as much: to know
  // the next uses ends that. With e* a part of the first step that repeats, such as a layer, has it
  // thrash.
  if (!followed_ && step_.period > 0 && usual_.heuristic.cost == DTR_COST_MARGINAL)
    usual_.heuristic.foresight = true;
  begin_anew();
}

bool StepTuner::give_up() {
  if (!followed_ || waiter_) return false;
  begin_anew();
  return true;
}

// A job that is recorded already goes on to be.
void StepTuner::begin_anew() {
  follow_usual();
  const Following* const following = std::get_if<Following>(&state_);
  if (!following) return;
  const uint32_t windows = following->windows.count;
  state_ = may_record(windows) ? again(windows) : watch(before_);
}

bool StepTuner::may_record(uint32_t windows) {
  if (windows >= kLongWindows) times_ = 0;
  return times_ < kMostTimes;
}

StepTuner::State StepTuner::again(uint32_t windows) {
  if (task_) task_->progress.cancelled = true;
  if (may_record(windows)) return Idle{};
  return Done{};
}

StepTuner::State StepTuner::found_nothing() {
  end_search();
  if (step_.period == 0) return again(0);
  return watch(before_);
}

StepTuner::State StepTuner::watch(double cost) {
  Following state{new_windows(), Usual{cost, 0}};
  state.windows.first = state.windows.begin;
  return state;
}

// ---- searching ----

uint64_t StepTuner::budget_bytes() const {
  return stats_of(parts_.environment.pools.front().pool).budget_bytes;
}

// Memory that the program knows nothing of is taken from the budget; running_bytes are of the
// operator that runs.
SimulatedMemory StepTuner::simulated_memory(uint64_t running_bytes) const {
  const Environment::Pool& of = parts_.environment.pools.front();
  const dtr_pool_stats stats = stats_of(of.pool);
  const dtr_pool_room room = room_of(of.pool, 1);
  uint64_t known = running_bytes;
  parts_.graph.by_address.for_each([&](const void* address, const Storage* storage) {
    if (dtr_pool_contains(of.pool, address)) known += storage->size_bytes;
  });
  const uint64_t unknown = stats.requested_bytes - std::min(stats.requested_bytes, known);
  SimulatedMemory memory;
  memory.budget_bytes = stats.budget_bytes - std::min(stats.budget_bytes, unknown);
  dtr_runtime_options& options = memory.options;
  options.chunk_bytes = stats.chunk_bytes;
  options.space = room.fixed ? DTR_SPACE_FIXED : DTR_SPACE_HEAP;
  memory.room_price = room_price(of.device_type, stats.chunk_bytes);
  const Device& device = parts_.devices.with(of.pool);
  if (parts_.environment.options.moving)
    options.move_bytes_per_s = kNsPerSecond * device.move_price.bytes_per_ns();
  options.swap_bytes = parts_.environment.options.swap_bytes;
  options.swap_out_bytes_per_s = kNsPerSecond * device.way_out.bytes_per_ns();
  options.swap_in_bytes_per_s = kNsPerSecond * device.way_in.bytes_per_ns();
  options.history_ops = parts_.environment.options.history_ops;
  return memory;
}

// For plans: what is in the heap in every step, and what the slabs have then.
void StepTuner::add_held(SimulatedMemory& memory) const {
  dtr_pool* pool = parts_.environment.pools.front().pool;
  const dtr_pool_stats stats = stats_of(pool);
  memory.pool_bytes = stats.budget_bytes;
  // What is dead and can be computed again is not needed, and a step's own constants go with it.
  const uint64_t last_number = log_.last_number_before_steps(step_);
  const auto is_held = [&](const Storage* storage) {
    return storage->log_number <= last_number &&
           (storage->live ? storage->log_number > 0 : !storage->parent);
  };
  memory.slab_bytes = stats.allocated_bytes;
  for (const BlockInUse& block : blocks_in_use(parts_.graph, pool)) {
    memory.slab_bytes -= std::min(memory.slab_bytes, block.size_bytes);
    Storage* storage = block.storage;
    if (storage && !is_held(storage)) continue;
    const bool moves = parts_.environment.options.moving && storage && storage->live &&
                       parts_.mover.is_movable(storage);
    memory.held.push_back({block.offset, block.size_bytes, moves ? storage->handle : nullptr});
  }
  // What can be computed again may be gone just now. It moves to its place when it is back.
  for (const Storage* storage : parts_.graph.storages()) {
    const bool is_gone =
        (storage->state == dtr::State::evicted || storage->state == dtr::State::swapped) &&
        storage->live && is_held(storage);
    if (is_gone && parts_.environment.options.moving &&
        storage->size_bytes >= StepBlocks::kLeastBytes)
      memory.held.push_back({0, storage->size_bytes, storage->handle});
  }
  parts_.graph.by_address.for_each([&](const void* address, const Storage* storage) {
    const bool is_small = storage->size_bytes < StepBlocks::kLeastBytes;
    if (is_small && dtr_pool_contains(pool, address) && !is_held(storage))
      memory.slab_bytes -= std::min(memory.slab_bytes, storage->size_bytes);
  });
  if (slab_bytes_)
    memory.slab_growth_bytes =
        kGrowsOn * (memory.slab_bytes - std::min(memory.slab_bytes, *slab_bytes_));
}

StepTuner::Next StepTuner::search(const Recording& of, EngineCall& call) {
  before_ = cost_between(recent_mark(of), now_with_room());
  if (!followed_) {
    usual_ = policy();
    usual_cost_ = before_;
  }
  task_ = std::make_shared<Task>();
  task_->program = log_.last_steps(step_);
  own_ns_ = static_cast<double>(std::max<int64_t>(task_->program.cost_ns, 1));
  task_->memory = simulated_memory();
  add_held(task_->memory);
  if (step_.period > 0) slab_bytes_ = task_->memory.slab_bytes;
  stop_recording(call.deferred);
  const double now_ns = before_ * static_cast<double>(task_->program.cost_ns);
  const bool waits = parts_.environment.options.learn == DTR_LEARN_AT_ONCE;
  task_->start([usual = usual_, now_ns,
                waits](const WhatIf& plays) { return plays.best(usual, now_ns, !waits); },
               false);
  if (!waits) return Searching{};
  const std::shared_ptr<Task> task = task_;
  if (!wait(call.lock, [&] { task->join(); })) return std::nullopt;
  if (std::optional<WhatIf::Found> found = take_found()) return follow(std::move(*found));
  return found_nothing();
}

std::optional<WhatIf::Found> StepTuner::take_found() {
  std::optional<WhatIf::Found> found = std::exchange(task_->found, std::nullopt);
  return task_->progress.cancelled ? std::nullopt : std::move(found);
}

template <typename Wait>
bool StepTuner::wait(std::unique_lock<EngineMutex>& lock, Wait&& until) {
  const std::shared_ptr<StepTuner> self = shared_from_this();  // whom the engine may let go of
  const Waiter waiter;
  waiter_ = &waiter;
  lock.unlock();
  until();
  lock.lock();
  if (waiter_ != &waiter) return false;
  waiter_ = nullptr;
  return true;
}

void StepTuner::end_search() {
  if (task_) task_->end();
  task_.reset();
}

// A process that ends takes down what the thread works with, so it ends before. (At first use all of
// that has been there, so it goes later.) Nothing here is ever taken down itself.
namespace {

struct Searches {
  std::mutex mutex;
  std::vector<StepTuner::Task*> all;
};

Searches& searches() {
  static Searches* const made = [] {
    std::atexit([] {
      std::vector<StepTuner::Task*> left;
      {
        std::lock_guard<std::mutex> lock(searches().mutex);
        left.swap(searches().all);
      }
      for (StepTuner::Task* task : left) task->end();
    });
    return new Searches();
  }();
  return *made;
}

}  // namespace

StepTuner::Task::Task() : process(::getpid()) {
  std::lock_guard<std::mutex> lock(searches().mutex);
  searches().all.push_back(this);
}

StepTuner::Task::~Task() {
  std::lock_guard<std::mutex> lock(searches().mutex);
  std::erase(searches().all, this);
}

void StepTuner::Task::start(Play play, bool gives_way) {
  end_thread();
  process = ::getpid();
  is_done = false;
  std::lock_guard<std::mutex> lock(joining);
  thread = std::thread([this, play = std::move(play), gives_way] {
    // On Linux this is the thread's own.
    if (gives_way) ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 10);
    found.reset();
    try {
      found = play(WhatIf(program, memory, progress));
    } catch (const std::exception&) {
      // No memory for it: the job goes on as before.
    }
    is_done = true;
  });
}

void StepTuner::Task::join() {
  std::lock_guard<std::mutex> lock(joining);
  if (thread.joinable()) thread.join();
}

void StepTuner::Task::end() {
  progress.cancelled = true;
  end_thread();
}

void StepTuner::Task::end_thread() {
  if (process == ::getpid())
    join();
  else if (thread.joinable())
    new std::thread(std::move(thread));  // a forked child has no such thread, to join or to detach
}

// ---- following ----

StepTuner::Following StepTuner::follow(WhatIf::Found found) {
  const bool is_first = std::holds_alternative<Searching>(state_);
  parts_.follow(found.policy);
  followed_ =
      Followed{found.has_plan(), found.cost_ns / own_ns_, found.repeats, 1 + operators_ / pace()};
  parts_.follow_plan(found.plan);
  Following following{new_windows()};
  if (is_first && step_.period > 0)
    following.improvable = std::move(found);
  else
    end_search();
  return following;
}

// A plan has moved what stays in the heap to its own places. A better one begins from these.
void StepTuner::improve(const WhatIf::Found& known) {
  task_->memory = simulated_memory();
  add_held(task_->memory);
  task_->start(
      [known](const WhatIf& plays) {
        std::optional<WhatIf::Found> wider = plays.wider(known);
        std::optional<WhatIf::Found> better = plays.better(wider ? *wider : known);
        return better ? better : wider;
      },
      true);
}

void StepTuner::follow_usual() {
  parts_.follow(usual_);
  followed_.reset();
  parts_.follow_plan({});
  if (task_) task_->progress.cancelled = true;
}

// ---- what steps take ----

StepTuner::Windows StepTuner::new_windows() const {
  Windows windows;
  windows.begin = now_with_room();
  return windows;
}

// Whether another two steps have ended. The first two are half of what was before.
bool StepTuner::has_ended(Windows& windows) const {
  if (++windows.operators < kStepsOfWindow * pace()) return false;
  windows.operators = 0;
  windows.begin = now_with_room();
  if (windows.count++ == 0) windows.first = windows.begin;
  return true;
}

// ---- advice ----

// What an operator has begun, where that is not recorded, is not known; nor is it then that what was
// recorded earlier is like it.
Tuner::Advice StepTuner::advise(double most_slowness, const Shortage* at,
                                std::unique_lock<EngineMutex>& lock) {
  const bool is_recording = std::holds_alternative<Recording>(state_);
  if (!can_play() || waiter_ || (at && !is_recording)) return {};
  if (is_recording) {
    take_records();
    step_ = log_.repetition();
  }
  if (log_.operators() == 0) return {};
  const uint64_t budget = budget_bytes(), least = at ? at->least : 0;
  Advised& last = advised_[at ? 1 : 0];
  const auto known = [&] {
    return last.advice.budget_bytes > std::max(budget, least) ? last.advice : Advice{};
  };
  if (last.operators > 0 && log_.operators() < next_look(last.operators)) return known();
  last = {log_.operators(), {}};
  StepLog::Begun begun;
  if (is_recording) begun.sizes = parts_.op_log.running_sizes();
  const SimulatedMemory played =
      simulated_memory(std::accumulate(begun.sizes.begin(), begun.sizes.end(), uint64_t{0}));
  const uint64_t unknown = budget - played.budget_bytes;
  if (at && !at->recomputes) begun.sizes.push_back(at->requested);
  for (const Storage* storage : parts_.graph.storages())
    if (storage->locks > 0 && storage->live) begun.reads.push_back(storage->log_number);
  const JobProgram program = is_recording ? log_.whole(step_, begun) : log_.whole(step_);
  std::optional<WhatIf::Budget> found;
  // A thread of its own, as a thread has one engine's mutex at most.
  const auto play = [&] {
    SearchProgress progress;
    try {
      found = WhatIf(program, played, progress)
                  .least_budget(begun_by_, most_slowness - 1, least - std::min(least, unknown),
                                unknown);
    } catch (const std::exception&) {
      // No memory for it: there is no advice.
    }
  };
  const bool is_current = wait(lock, [&] {
    try {
      std::thread(play).join();
    } catch (const std::system_error&) {
      // Nor a thread.
    }
  });
  if (!is_current) return {};
  if (found) last.advice = {found->bytes + unknown, 1 + found->repeats};
  return known();
}

void StepTuner::forget(Deferred& deferred) {
  end_search();
  parts_.follow_plan({});
  if (std::holds_alternative<Recording>(state_)) stop_recording(deferred);
  state_ = Idle{};
  waiter_ = nullptr;
  log_.clear();
  operators_ = 0;
  step_ns_ = 0;
  times_ = 0;
  slab_bytes_.reset();
  followed_.reset();
  advised_ = {};
}

std::shared_ptr<Tuner> make_step_tuner(const TunerParts& parts) {
  return std::make_shared<StepTuner>(parts);
}

}  // namespace dtr
