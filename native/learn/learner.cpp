// learner.cpp: see learner.h.
#include "learner.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

namespace dtr {

namespace {

constexpr uint64_t kFirstLook = 512;  // operators
constexpr uint64_t kMostOperators = 1 << 17;
// Where nothing is repeated in so many, the steps are taken to differ, at first; and so many stand for
// a step.
constexpr uint64_t kStretch = 1 << 14;
constexpr uint64_t kPace = 1 << 11;
constexpr uint64_t kMostNumbers = 1 << 23;  // 64 MiB
constexpr uint32_t kMostTimes = 6;          // that it listens in a row: with fewer windows between
constexpr uint32_t kLongWindows = 500;
constexpr uint64_t kHeard = 3;  // steps, before they are played
// A gain below this share of a step's compute is none.
constexpr double kGain = 0.01;
// What a step may repeat above what it did, as a share of it and of its own compute, before the job
// is taken for another.
constexpr uint32_t kWindows = 3;  // of two steps each, before and after
constexpr double kDrift = 1.25;
constexpr double kSomeDrift = 0.05;
// A plan is worn out when two steps miss so much more of it than they did.
constexpr double kWorn = 2;
// A policy grinds if what it has repeated in two steps is so many times what is usual, which counts as
// this share of the job's own compute at least.
constexpr double kGrinds = 2;
constexpr double kGrindsLittle = 0.25;
// What slabs have grown by since the last plan, they have room for so many times in the next one. So
// a job that keeps something of each step outgrows few plans.
constexpr uint64_t kGrowsOn = 2;
constexpr double kNsPerSecond = 1e9;

constexpr uint64_t kMarkEvery = 64;  // operators
constexpr uint64_t kStepsOfWindow = 2;
// A plan also saves searches and remaps, so it may repeat a little more.
constexpr double kPlanSlack = 1.05;

// More than that is another job than the one that cost so much.
double most_of(double expected) { return kDrift * expected + kSomeDrift; }

uint64_t next_look(uint64_t operators) { return operators + operators / 4; }

}  // namespace

bool Learner::can_play() const { return parts_.environment.pools.size() == 1; }

EvictionPolicy Learner::policy() const {
  const dtr_engine_options& options = parts_.environment.options;
  EvictionPolicy policy{options.heuristic, options.room, Dealloc::eager};
  dealloc_from_name(options.dealloc, &policy.dealloc);
  return policy;
}

Learner::Mark Learner::now() const {
  const dtr_engine_stats& stats = parts_.environment.stats;
  return {static_cast<int64_t>(stats.total_cost_ns),
          static_cast<int64_t>(stats.recompute_cost_ns + stats.swap_ns)};
}

Learner::Mark Learner::now_with_room() const {
  Mark mark = now();
  if (parts_.environment.pools.empty()) return mark;
  const Environment::Pool& of = parts_.environment.pools.front();
  dtr_pool_stats stats;
  dtr_pool_get_stats(of.pool, &stats);
  // What other programs take from the thread while it searches is not counted: searches have a price.
  // What moves took is measured, and would be another in each run (DTR_LEARN_AT_ONCE).
  const dtr_engine_stats& engine = parts_.environment.stats;
  const RoomPrice price = RoomPrice::of(of.device_type, stats.chunk_bytes);
  const bool is_measured = parts_.environment.options.learn != DTR_LEARN_AT_ONCE;
  mark.room_ns = static_cast<int64_t>((is_measured ? static_cast<double>(engine.move_ns) : 0) +
                                      price.search_ns * static_cast<double>(engine.searches) +
                                      price.remap_ns * static_cast<double>(stats.remaps) +
                                      price.map_ns * static_cast<double>(stats.mapped_chunks));
  mark.misses = engine.plan_misses + stats.remaps;
  return mark;
}

double Learner::repeats_since(const Mark& mark) const {
  const Mark at = now();
  return static_cast<double>(at.again_ns - mark.again_ns) /
         static_cast<double>(std::max<int64_t>(at.own_ns - mark.own_ns, 1));
}

uint64_t Learner::evictions() const {
  const dtr_engine_stats& stats = parts_.environment.stats;
  return stats.evictions + stats.swaps;
}

uint64_t Learner::pace() const { return step_.period > 0 ? step_.period : kPace; }

const Learner::Mark& Learner::recent_mark() const {
  return marks_[(heard_ - std::min(heard_, kStepsOfWindow * pace())) / kMarkEvery];
}

int32_t Learner::learning() const {
  const bool is_asked = parts_.environment.options.learn != DTR_LEARN_STEP && can_play();
  switch (phase_) {
    case Phase::begins:
    case Phase::listening:
      return is_asked ? DTR_LEARNING_LISTENS : DTR_LEARNING_NOTHING;
    case Phase::resting:
      return is_asked ? DTR_LEARNING_RESTS : DTR_LEARNING_NOTHING;
    case Phase::rehearsing:
      return DTR_LEARNING_PLAYS;
    case Phase::following:
      return is_usual_ ? DTR_LEARNING_NO_BETTER : DTR_LEARNING_FOLLOWS;
    case Phase::done:
      break;
  }
  return is_asked && times_ >= kMostTimes ? DTR_LEARNING_LISTENS : DTR_LEARNING_NOTHING;
}

// ---- listening ----

void Learner::begin(Deferred& deferred) {
  end_rehearsal();
  log_.clear();
  heard_ = 0;
  windows_ = {};
  next_look_ = kFirstLook;
  step_ = {};
  step_ns_ = 0;
  evictions_ = evictions();
  marks_.assign(1, now_with_room());
  phase_ = Phase::listening;
  ++times_;
  parts_.op_log.set_mode(OpLogRecorder::Mode::writing, deferred, true);
}

void Learner::hear() {
  std::vector<int64_t> records;
  parts_.op_log.take(&records);
  log_.append(records);
}

void Learner::rest(Phase phase, Deferred& deferred) {
  parts_.op_log.set_mode(OpLogRecorder::Mode::off, deferred);
  std::vector<int64_t> unheard;
  parts_.op_log.take(&unheard);
  phase_ = phase;
}

void Learner::give_up(Deferred& deferred) {
  parts_.op_log.set_mode(OpLogRecorder::Mode::off, deferred);
  log_.clear();
  step_ns_ = 0;
  phase_ = Phase::done;
}

void Learner::listen(Deferred& deferred, std::unique_lock<EngineMutex>& lock) {
  if (++heard_ % kMarkEvery == 0) marks_.push_back(now_with_room());
  if (heard_ < next_look_) return;
  next_look_ = next_look(heard_);
  hear();
  step_ = log_.repetition();
  const bool is_first_stretch = times_ == 1 && step_.period == 0;
  const bool is_long = log_.operators() >= (is_first_stretch ? kStretch : kMostOperators) ||
                       log_.numbers() >= kMostNumbers;
  // A first step fills memory, and is what the others are foreseen by.
  const bool is_heard = step_.steps >= kHeard;
  if (step_.period > 0) step_ns_ = log_.cost_of_last(step_.period);
  if (!is_heard && !is_long) return;
  pace_ns_ = log_.cost_of_last(pace());
  const bool repeats_little =
      evictions() == evictions_ || repeats_since(recent_mark()) < Rehearsal::kLeastGain;
  const bool can_rehearse =
      parts_.environment.options.learn != DTR_LEARN_STEP && can_play() && !repeats_little;
  if (can_rehearse) {
    rehearse(deferred, lock);
  } else if (repeats_little) {
    if (evictions() == 0) times_ = 0;  // so far there was nothing to learn from
    rest(Phase::resting, deferred);
    log_.clear();
    begin_windows();
  } else if (step_.period == 0) {
    listen_again(deferred);
  } else {
    rest(Phase::done, deferred);
  }
}

bool Learner::may_listen() {
  if (windows_.count >= kLongWindows) times_ = 0;
  return times_ < kMostTimes;
}

void Learner::listen_again(Deferred& deferred) {
  rest(may_listen() ? Phase::begins : Phase::done, deferred);
  if (task_) task_->cancelled = true;
}

// Nothing more comes of what was heard. Where that was no step, there may be one that is longer.
void Learner::end(Deferred& deferred) {
  if (step_.period == 0)
    listen_again(deferred);
  else
    watch();
}

void Learner::go_on(Deferred& deferred) {
  const bool has_thread = task_ && !task_->is_done;  // for which a job does not wait
  if (phase_ == Phase::begins && !has_thread)
    begin(deferred);
  else if (phase_ == Phase::resting)
    rest_on(deferred);
  else if (phase_ == Phase::rehearsing)
    wait_for_rehearsal(deferred);
  else if (phase_ == Phase::following)
    check_step(deferred);
}

// Until two steps repeat what is worth a look.
void Learner::rest_on(Deferred& deferred) {
  const Mark begin_of_window = windows_.begin;
  if (!window_ended() || repeats_since(begin_of_window) < Rehearsal::kLeastGain) return;
  listen_again(deferred);
}

// ---- rehearsing ----

uint64_t Learner::budget_bytes() const {
  dtr_pool_stats stats;
  dtr_pool_get_stats(parts_.environment.pools.front().pool, &stats);
  return stats.budget_bytes;
}

// Memory that the program knows nothing of is taken from the budget; running_bytes are of the
// operator that runs.
Stage Learner::stage(uint64_t running_bytes) const {
  const Environment::Pool& of = parts_.environment.pools.front();
  dtr_pool_stats stats;
  dtr_pool_get_stats(of.pool, &stats);
  dtr_pool_room room{};
  dtr_pool_get_room(of.pool, 1, &room);
  uint64_t known = 0;
  parts_.graph.by_address.for_each([&](const void* address, const Storage* storage) {
    if (dtr_pool_contains(of.pool, address)) known += storage->size_bytes;
  });
  known += running_bytes;
  const uint64_t unknown = stats.requested_bytes - std::min(stats.requested_bytes, known);
  Stage stage;
  stage.budget_bytes = stats.budget_bytes - std::min(stats.budget_bytes, unknown);
  stage.chunk_bytes = stats.chunk_bytes;
  stage.fixed = room.fixed;
  stage.room_price = RoomPrice::of(of.device_type, stats.chunk_bytes);
  const Device& device = parts_.devices.with(of.pool);
  if (parts_.environment.options.moving)
    stage.move_bytes_per_s = kNsPerSecond * device.move_price.bytes_per_ns();
  stage.swap_bytes = parts_.environment.options.swap_bytes;
  stage.swap_out_bytes_per_s = kNsPerSecond * device.way_out.bytes_per_ns();
  stage.swap_in_bytes_per_s = kNsPerSecond * device.way_in.bytes_per_ns();
  stage.history_ops = parts_.environment.options.history_ops;
  return stage;
}

// For plans: what is in the heap in every step, and what the slabs have then.
void Learner::add_held(Stage& stage) const {
  dtr_pool* pool = parts_.environment.pools.front().pool;
  dtr_pool_stats stats;
  dtr_pool_get_stats(pool, &stats);
  stage.pool_bytes = stats.budget_bytes;
  // What is dead and can be computed again is not needed, and a step's own constants go with it.
  const uint64_t last_number = log_.last_number_before_steps(step_);
  const auto is_held = [&](const Storage* storage) {
    return storage->log_number <= last_number &&
           (storage->live ? storage->log_number > 0 : !storage->parent);
  };
  stage.slab_bytes = stats.allocated_bytes;
  for (const BlockInUse& block : blocks_in_use(parts_.graph, pool)) {
    stage.slab_bytes -= std::min(stage.slab_bytes, block.size_bytes);
    Storage* storage = block.storage;
    if (storage && !is_held(storage)) continue;
    const bool moves = parts_.environment.options.moving && storage && storage->live &&
                       parts_.mover.is_movable(storage);
    stage.held.push_back({block.offset, block.size_bytes, moves ? storage->handle : nullptr});
  }
  // What can be computed again may be gone just now. It moves to its place when it is back.
  for (const Storage* storage : parts_.graph.storages()) {
    const bool is_gone = (storage->state == State::evicted || storage->state == State::swapped) &&
                         storage->live && is_held(storage);
    if (is_gone && parts_.environment.options.moving &&
        storage->size_bytes >= StepBlocks::kLeastBytes)
      stage.held.push_back({0, storage->size_bytes, storage->handle});
  }
  parts_.graph.by_address.for_each([&](const void* address, const Storage* storage) {
    const bool is_small = storage->size_bytes < StepBlocks::kLeastBytes;
    if (is_small && dtr_pool_contains(pool, address) && !is_held(storage))
      stage.slab_bytes -= std::min(stage.slab_bytes, storage->size_bytes);
  });
  if (slab_bytes_)
    stage.slab_growth_bytes =
        kGrowsOn * (stage.slab_bytes - std::min(stage.slab_bytes, *slab_bytes_));
}

void Learner::rehearse(Deferred& deferred, std::unique_lock<EngineMutex>& lock) {
  before_ = cost_between(recent_mark(), now_with_room());
  usual_ = policy();
  task_ = std::make_shared<Task>();
  task_->program = log_.last_steps(step_);
  task_->stage = stage();
  add_held(task_->stage);
  if (step_.period > 0) slab_bytes_ = task_->stage.slab_bytes;
  rest(Phase::rehearsing, deferred);
  task_->start([usual = usual_](const Rehearsal& rehearsal) { return rehearsal.best(usual); });
  begin_windows();
  if (parts_.environment.options.learn != DTR_LEARN_AT_ONCE) return;
  const std::shared_ptr<Task> task = task_;
  if (wait(lock, [&] { task->join(); })) follow(deferred);
}

template <typename Wait>
bool Learner::wait(std::unique_lock<EngineMutex>& lock, Wait&& until) {
  const std::shared_ptr<Learner> self = shared_from_this();  // whom the engine may let go of
  const Waiter waiter;
  waiter_ = &waiter;
  lock.unlock();
  until();
  lock.lock();
  if (waiter_ != &waiter) return false;
  waiter_ = nullptr;
  return true;
}

void Learner::end_rehearsal() {
  if (task_) task_->end();
  task_.reset();
}

// A process that ends takes down what the thread works with, so it ends before. (At first use all of
// that has been there, so it goes later.) Nothing here is ever taken down itself.
namespace {

struct Rehearsals {
  std::mutex mutex;
  std::vector<Learner::Task*> all;
};

Rehearsals& rehearsals() {
  static Rehearsals* const made = [] {
    std::atexit([] {
      std::vector<Learner::Task*> left;
      {
        std::lock_guard<std::mutex> lock(rehearsals().mutex);
        left.swap(rehearsals().all);
      }
      for (Learner::Task* task : left) task->end();
    });
    return new Rehearsals();
  }();
  return *made;
}

}  // namespace

Learner::Task::Task() : process(::getpid()) {
  std::lock_guard<std::mutex> lock(rehearsals().mutex);
  rehearsals().all.push_back(this);
}

Learner::Task::~Task() {
  std::lock_guard<std::mutex> lock(rehearsals().mutex);
  std::vector<Task*>& all = rehearsals().all;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

void Learner::Task::start(Play play) {
  end_thread();
  process = ::getpid();
  is_done = false;
  std::lock_guard<std::mutex> lock(joining);
  thread = std::thread([this, play = std::move(play)] {
    // The job comes first. (On Linux this is the thread's own.)
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 10);
    found.reset();
    try {
      found = play(Rehearsal(program, stage, cancelled));
    } catch (const std::exception&) {
      // No memory for it: the job goes on as before.
    }
    is_done = true;
  });
}

void Learner::Task::join() {
  std::lock_guard<std::mutex> lock(joining);
  if (thread.joinable()) thread.join();
}

void Learner::Task::end() {
  cancelled = true;
  end_thread();
}

void Learner::Task::end_thread() {
  if (process == ::getpid())
    join();
  else if (thread.joinable())
    new std::thread(std::move(thread));  // a forked child has no such thread, to join or to detach
}

// ---- following ----

// The steps meanwhile are what those under the policy are compared with.
void Learner::wait_for_rehearsal(Deferred& deferred) {
  window_ended();
  if (windows_.count <= kWindows || !task_->is_done) return;
  before_ = cost_between(windows_.first, windows_.begin);
  follow(deferred);
}

void Learner::follow(Deferred& deferred) {
  std::optional<Rehearsal::Found> found = std::move(task_->found);
  const bool is_second = phase_ == Phase::following;
  // A plan that is worn out may still do better than one for what there is now.
  const bool is_worse = found && is_planned_ && !is_second && found->repeats > most_of(before_);
  if (!found || task_->cancelled || is_worse) {
    end_rehearsal();
    if (!is_second) end(deferred);
    return;
  }
  is_second_ = is_second;
  is_doubted_ = false;
  if (is_second_)
    before_ = expected_;
  else if (is_planned_)
    before_ = std::max(before_, found->repeats);
  parts_.follow(found->policy);
  is_usual_ = false;
  is_planned_ = !found->plan.calls.empty();
  parts_.follow_plan(std::exchange(found->plan, {}));
  promised_ = found->repeats;
  phase_ = Phase::following;
  begin_windows();
  if (is_second_ || !is_planned_ || parts_.environment.options.learn == DTR_LEARN_AT_ONCE) {
    end_rehearsal();
    return;
  }
  task_->start([known = *found](const Rehearsal& rehearsal) { return rehearsal.better(known); });
}

void Learner::follow_usual() {
  parts_.follow(usual_);
  is_usual_ = true;
  parts_.follow_plan({});
  if (task_) task_->cancelled = true;
}

// The job goes on as before, and is heard again if that gets dearer.
void Learner::watch() {
  phase_ = Phase::following;
  is_planned_ = is_second_ = false;
  expected_ = before_;
  begin_windows();
  windows_.first = windows_.begin;
  windows_.count = kWindows + 1;
}

// ---- what steps take ----

void Learner::begin_windows() {
  windows_ = {};
  windows_.begin = now_with_room();
}

// Whether another two steps have ended. The first two are half of what was before.
bool Learner::window_ended() {
  if (++windows_.operators < kStepsOfWindow * pace()) return false;
  windows_.operators = 0;
  windows_.begin = now_with_room();
  if (windows_.count++ == 0) windows_.first = windows_.begin;
  return true;
}

void Learner::check_step(Deferred& deferred) {
  if (!window_ended() || windows_.count <= kWindows) return;
  const bool is_known = windows_.count > kWindows + 1;  // what is to be expected
  const double cost = cost_between(windows_.first, windows_.begin);
  const double misses = static_cast<double>(windows_.begin.misses - windows_.first.misses) /
                        (is_known ? 1 : kWindows);
  windows_.first = windows_.begin;
  const double most = is_known      ? most_of(expected_)
                      : is_planned_ ? kPlanSlack * before_ + kGain
                                    : before_ - kGain;
  const bool is_worn = is_known && is_planned_ && misses >= expected_misses_ + kWorn;
  const bool is_bad = cost > most || is_worn;
  // It may have been something else, such as an evaluation: it is looked at twice.
  if (is_bad && !std::exchange(is_doubted_, true)) {
    if (!is_known) windows_.count = 1;
    return;
  }
  is_doubted_ = false;
  if (!is_known) {
    if (is_bad) follow_usual();
    if (is_bad && is_second_) return listen_again(deferred);
    if (is_bad || (step_.period == 0 && times_ == 1)) return end(deferred);
  } else if (is_bad && may_listen()) {
    return listen_again(deferred);
  }
  if (is_bad || !is_known) {
    expected_ = cost;
    expected_misses_ = misses;
  }
  if (task_ && task_->is_done) follow(deferred);
}

// A single step that computes far more than any before. What was good for a while may be so again.
void Learner::check_grinding() {
  // The first step by a plan brings things in place.
  const bool is_first = is_planned_ && windows_.count == 0;
  const double most = (is_first ? 2 : 1) * kGrinds * std::max({promised_, before_, kGrindsLittle});
  if (static_cast<double>(now().again_ns - windows_.begin.again_ns) <=
      most * static_cast<double>(kStepsOfWindow) * static_cast<double>(pace_ns_))
    return;
  follow_usual();
  if (windows_.count > kWindows && may_listen())
    phase_ = Phase::begins;
  else
    watch();
}

// ---- advice ----

// What an operator has begun, where that is not recorded, is not known; nor is it then that what was
// recorded earlier is like it.
Coach::Advice Learner::advise(double most_slowness, const Shortage* at,
                              std::unique_lock<EngineMutex>& lock) {
  if (!can_play() || waiter_ || (at && phase_ != Phase::listening)) return {};
  if (phase_ == Phase::listening) {
    hear();
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
  if (at) begun.sizes = parts_.op_log.running_sizes();
  const Stage played = stage(std::accumulate(begun.sizes.begin(), begun.sizes.end(), uint64_t{0}));
  const uint64_t unknown = budget - played.budget_bytes;
  if (at && !at->recomputes) begun.sizes.push_back(at->requested);
  for (const Storage* storage : parts_.graph.storages())
    if (storage->locks > 0 && storage->live) begun.reads.push_back(storage->log_number);
  const OwnedProgram program = at ? log_.whole(step_, begun) : log_.whole(step_);
  const EvictionPolicy by = policy();
  std::optional<Rehearsal::Budget> found;
  // A thread of its own, as a thread has one engine's mutex at most.
  const auto play = [&] {
    const std::atomic<bool> never{false};
    try {
      found = Rehearsal(program, played, never)
                  .least_budget(by, most_slowness - 1, least - std::min(least, unknown));
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
  if (found)
    last.advice = {found->bytes + unknown, found->peak_bytes + unknown,
                   step_.period > 0 ? 1 + found->repeats : 0};
  return known();
}

void Learner::forget(Deferred& deferred) {
  end_rehearsal();
  parts_.follow_plan({});
  if (phase_ == Phase::listening) rest(Phase::begins, deferred);
  waiter_ = nullptr;
  log_.clear();
  step_ns_ = 0;
  times_ = 0;
  slab_bytes_.reset();
  is_usual_ = true;
  advised_ = {};
  phase_ = Phase::begins;
}

std::shared_ptr<Coach> make_learner(const Coached& coached) {
  return std::make_shared<Learner>(coached);
}

}  // namespace dtr
