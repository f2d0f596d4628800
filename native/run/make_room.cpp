// make_room.cpp: choosing what to evict, and evicting it. One storage of the least score, or a
// window: its members go in one call, so that the request has its place at the next try. A member
// that cannot be had just now blocks: what went before it is gone, and if that was nothing, the
// search goes on without it. Windows, and which of the two it is: window.h, window.cpp.
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "engine.h"

namespace dtr {

// From the first victim until the memory of all is free, which happens without the mutex. Another
// thread that finds nothing to evict meanwhile waits, instead of failing. Nothing that may wait for
// that thread happens in between: no request for room, no code of others.
class Engine::Evicting {
 public:
  Evicting(Engine& engine, Deferred& deferred) : engine_(engine), deferred_(deferred) {}
  Evicting(const Evicting&) = delete;
  Evicting& operator=(const Evicting&) = delete;
  // Without the mutex.
  ~Evicting() {
    if (!begun_) return;
    deferred_.free_blocks();
    std::lock_guard<EngineMutex> lock(engine_.mutex_);
    end();
  }

  // Under the mutex.
  void begin() {
    if (!std::exchange(begun_, true)) ++engine_.evicting_;
  }
  // Under the mutex; nothing was evicted.
  void end() {
    if (!std::exchange(begun_, false)) return;
    --engine_.evicting_;
    engine_.evicted_.notify_all();
  }

 private:
  Engine& engine_;
  Deferred& deferred_;
  bool begun_ = false;
};

SearchContext Engine::context_of(Device& device) {
  grow_up(device);
  SearchContext moment{};
  moment.now_ns = clock_ns_;
  moment.most_free = Candidates::kNoFreeBytes;
  if (needs_.free_bytes) moment.most_free = dtr_pool_unused_bytes(device.pool);
  return moment;
}

// Not locked by a running op, not pinned, not frozen, and not without a place to go to.
bool Engine::is_free_to_go(const Storage* storage) const {
  return storage->locks == 0 && storage->pins == 0 && !capture_.is_frozen(storage) &&
         (storage->parent || swap_costs_.has_room(storage));
}

// The same; parks the candidate if not.
bool Engine::is_eligible(Device& device, Storage* storage) {
  if (is_free_to_go(storage)) return true;
  if (!storage->parent) parked_for_host_ = true;
  if (needs_.scores) device.candidates.park(storage);
  return false;
}

double Engine::exact_cost_ns(Storage* storage) {
  if (options_.heuristic.cost == DTR_COST_NONE) return 1;
  return swap_costs_.with_swap(storage, storage->parent ? recompute_cost_ns(storage) : 0);
}

// Of a storage with a parent, by the heuristic's kind of cost.
double Engine::recompute_cost_ns(Storage* storage) {
  int64_t cost = cost_of(storage);
  switch (options_.heuristic.cost) {
    case DTR_COST_ANCESTORS:
      cost += ancestors_ns(storage);
      break;
    case DTR_COST_NEIGHBORHOOD:
      cost += ancestors_ns(storage) + descendants_ns(storage);
      break;
    case DTR_COST_COMPONENT:
      cost += component_ns(storage);
      break;
    case DTR_COST_MARGINAL:
      return with_tolls(cost, is_idle(storage) ? 0 : ancestors_ns(storage));
    default:
      break;
  }
  return static_cast<double>(cost);
}

// The part of the cost that is known without looking at others.
double Engine::floor_cost_ns(const Storage* storage) const {
  if (options_.heuristic.cost == DTR_COST_NONE) return 1;
  int64_t cost = cost_of(storage);
  if (needs_.tolls)
    return at_least_1(swap_costs_.at_most_swap(
        storage,
        with_tolls(cost,
                   storage->ancestors_known && !is_idle(storage) ? storage->ancestors_ns : 0)));
  if (needs_.ancestors && storage->ancestors_known) cost += storage->ancestors_ns;
  if (needs_.descendants && storage->descendants_known) cost += storage->descendants_ns;
  return at_least_1(swap_costs_.at_most_swap(storage, static_cast<double>(cost)));
}

double Engine::weight_of(const Storage* storage) const {
  double weight = penalty(options_.heuristic, storage->recomputes);
  weight *= ghost_factor(storage);
  if (options_.heuristic.size != DTR_SIZE_NONE)
    weight /= at_least_1(static_cast<double>(storage->size_bytes));
  return weight;
}

void Engine::set_bounds(Device& device, Storage* storage, double numerator_ns) {
  if (!needs_.scores) return;
  const double own =
      options_.heuristic.cost == DTR_COST_NONE ? 1 : static_cast<double>(cost_of(storage));
  device.candidates.set(
      storage,
      {at_least_1(swap_costs_.at_most_swap(storage, own)),
       at_least_1(swap_costs_.at_most_swap(storage, numerator_ns)), weight_of(storage),
       options_.heuristic.size == DTR_SIZE_NONE
           ? 1
           : at_least_1(static_cast<double>(storage->size_bytes)),
       storage->last_access_ns},
      components_.decreased_ns());
}

// The candidate's weight has changed, or it may be evicted again.
void Engine::reweigh(Storage* storage) {
  storage->parked = false;
  if (storage->candidate < 0 || !needs_.scores) return;
  device_of(storage).candidates.weigh(storage, weight_of(storage));
  if (needs_.tolls && is_idle(storage)) bounds_lowered(storage);
}

// Nothing is known of the candidate but what stands in its record.
void Engine::reset_bounds(Device& device, Storage* storage) {
  storage->parked = false;
  set_bounds(device, storage, floor_cost_ns(storage));
}

void Engine::prices_changed() {
  for (const auto& device : devices_) {
    device->candidates.set_exponent(options_.heuristic.staleness_exponent);
    for (size_t i = 0; i < device->candidates.size(); ++i)
      reset_bounds(*device, device->candidates.at(i));
  }
}

// Free bytes on both sides of the storage's block that count with its size. Address space without
// memory does not count beyond what the budget could still put there.
uint64_t Engine::free_bytes(const Storage* storage, const SearchContext& moment) {
  if (moment.most_free == 0 || moment.most_free == Candidates::kNoFreeBytes) return 0;
  ++stats_.storage_accesses;
  return std::min(dtr_pool_free_beside(device_of(storage).pool, storage->address),
                  moment.most_free);
}

double Engine::score_of(const Storage* storage, const SearchContext& moment, double cost_ns,
                        uint64_t free_bytes) const {
  Signals signals;
  signals.cost_ns = cost_ns;
  signals.size_bytes = static_cast<double>(storage->size_bytes + free_bytes);
  signals.staleness_ns = static_cast<double>(moment.now_ns - storage->last_access_ns);
  signals.recomputes = storage->recomputes;
  return score(options_.heuristic, signals) * ghost_factor(storage);
}

// The exact cost of a candidate, from which its bounds learn.
double Engine::learn_cost(Device& device, Storage* storage) {
  ++stats_.evaluations;
  ++stats_.storage_accesses;
  const double cost_ns = exact_cost_ns(storage);
  set_bounds(device, storage, cost_ns);
  return cost_ns;
}

Storage* Engine::choose(Device& device, const SearchContext& moment) {
  if (options_.heuristic.select == DTR_SELECT_RANDOM) return choose_randomly(device);
  const auto evaluated = [&](Storage* storage, double least, double* score) {
    if (!is_eligible(device, storage)) return false;
    const double cost_ns = learn_cost(device, storage);
    // The pool is asked only if its answer may matter.
    uint64_t beside = 0;
    if (needs_.free_bytes)
      beside = std::min(device.candidates.most_free_beside(storage), moment.most_free);
    *score = score_of(storage, moment, cost_ns, beside);
    if (beside > 0 && *score <= least) *score = exact_score(storage, moment, cost_ns);
    return true;
  };
  return device.candidates.search(moment.now_ns, components_.decreased_ns(), moment.most_free,
                                  evaluated);
}

// Uniform over what can be evicted: draws until one can; if most cannot, among a list.
Storage* Engine::choose_randomly(Device& device) {
  constexpr int kDraws = 32;
  const Candidates& candidates = device.candidates;
  if (candidates.size() == 0) return nullptr;
  const auto can = [&](size_t index) {
    ++stats_.evaluations;
    ++stats_.storage_accesses;
    return is_eligible(device, candidates.at(index));
  };
  for (int draw = 0; draw < kDraws; ++draw) {
    const size_t index = random_.below(candidates.size());
    if (can(index)) return candidates.at(index);
  }
  // One pass: the k-th that can be evicted takes the place with probability 1/k.
  Storage* found = nullptr;
  uint64_t seen = 0;
  for (size_t index = 0; index < candidates.size(); ++index)
    if (can(index) && random_.below(++seen) == 0) found = candidates.at(index);
  return found;
}

// Asks the callback about all candidates with the mutex let go, and takes
// the best of those that are still there. Null if there is none to ask about.
Storage* Engine::choose_by_callback(Device& device, const SearchContext& first,
                                    std::unique_lock<EngineMutex>& lock) {
  thread_local bool is_asking = false;
  if (is_asking)
    throw StateError("a heuristic needed room for memory of its own while it was choosing");
  std::vector<dtr_candidate> asked;
  std::vector<double> scores;
  std::unordered_map<uint64_t, double> score_of;
  for (SearchContext moment = first;; moment = context_of(device)) {
    asked.clear();
    const Candidates& candidates = device.candidates;
    const auto ask = [&](Storage* storage) {
      if (!is_eligible(device, storage)) return;
      ++stats_.evaluations;
      ++stats_.storage_accesses;
      asked.push_back({storage->id, storage->size_bytes, free_bytes(storage, moment),
                       moment.now_ns - storage->last_access_ns,
                       static_cast<int64_t>(swap_costs_.with_swap(storage, cost_of(storage))),
                       ancestors_ns(storage), descendants_ns(storage), component_ns(storage),
                       storage->recomputes, storage->live});
    };
    for (size_t i = 0; i < candidates.size(); ++i) ask(candidates.at(i));
    if (asked.empty()) return nullptr;
    scores.assign(asked.size(), std::numeric_limits<double>::quiet_NaN());
    char message[512] = "";
    const dtr_score_fn score = options_.score;
    void* context = options_.score_context;
    lock.unlock();
    is_asking = true;
    const int32_t failed =
        score(context, asked.data(), asked.size(), scores.data(), message, sizeof message);
    is_asking = false;
    lock.lock();
    if (failed) throw StateError(message[0] ? message : "the heuristic's callback failed");
    score_of.clear();
    for (size_t i = 0; i < asked.size(); ++i) {
      if (std::isnan(scores[i]))
        throw StateError("the heuristic's callback gave NaN for storage " +
                         std::to_string(asked[i].id) + "; allowed: any other number");
      score_of[asked[i].id] = scores[i];
    }
    Storage* best = nullptr;
    double least = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      Storage* storage = candidates.at(i);
      const auto found = score_of.find(storage->id);
      if (found == score_of.end() || !is_free_to_go(storage)) continue;
      const double value = found->second * (found->second < 0 ? 1 : ghost_factor(storage));
      if (best && (value > least || (value == least && storage->id > best->id))) continue;
      best = storage;
      least = value;
    }
    if (best) return best;  // else all went away while Python ran: there are others, or none
  }
}

double Engine::loss_ns(Storage* storage) {
  if (is_idle(storage)) return 0;
  return swap_costs_.with_swap(storage, storage->parent ? recompute_cost_ns(storage) : 0);
}

// Whether evicting means swapping. Nobody is going to need an idle one: it is let go.
bool Engine::is_better_swapped(Storage* storage) {
  if (!swap_costs_.is_swappable(storage)) return false;
  if (!storage->parent) return true;
  return !is_idle(storage) && swap_costs_.has_room(storage) &&
         swap_costs_.swap_ns(storage) <
             (needs_.scores ? recompute_cost_ns(storage) : static_cast<double>(cost_of(storage)));
}

// Takes the memory of a candidate. False, and nothing changed, if its handle cannot
// be held just now (it is dying, or only a Python wrapper refers to it).
bool Engine::evict(Storage* storage, EvictionCause cause, Deferred& deferred,
                   std::unique_lock<EngineMutex>& lock) {
  if (!is_better_swapped(storage)) return storage->parent && drop(storage, cause, deferred);
  const SwapSpace::Outcome outcome = swap_space_.swap_out(storage, cause, deferred, lock);
  if (outcome != SwapSpace::Outcome::no_host_memory) return outcome == SwapSpace::Outcome::done;
  const bool dropped = drop(storage, cause, deferred);
  lifecycle_.unlock(storage, deferred);
  return dropped;
}

// The same; the content is given up.
bool Engine::drop(Storage* storage, EvictionCause cause, Deferred& deferred) {
  if (contents_.has_changed(storage)) {
    // Its op would not give it again. What was computed from the old content notices that itself.
    ++stats_.unseen_writes;
    lifecycle_.forget_parent(storage, deferred);
    return false;
  }
  void* address = storage->address;
  if (storage->live) {
    if (!framework_->retain_strong(storage->handle)) return false;
    // Dropped after the mutex: ours may be the last reference by then.
    deferred.release_strong(storage->handle);
    verifier_.keep_expected(storage);
    if (!framework_->detach(storage->handle, storage)) {
      Verifier::forget_expected(storage, deferred);
      return false;
    }
    deferred.free_block(*storage, address);
  } else if (storage->handle) {
    lifecycle_.lose_handle(storage,
                           deferred);  // a ghost: the strong reference's deleter returns the block
  } else {
    deferred.free_block(*storage, address);  // a ghost that no rematerialization has used yet
  }
  graph_.by_address.erase(address);
  // What the job itself dropped is free as if there were no evictions.
  if (storage->live || cause != EvictionCause::gone)
    dtr_pool_note(device_of(storage).pool, DTR_EVENT_EVICT, address, storage->size_bytes);
  lifecycle_.become_evicted(storage, cause);
  environment_.observers.notify(&Observer::evicted, storage);
  ++stats_.evictions;
  stats_.evicted_bytes += storage->size_bytes;
  return true;
}

// Evicts what was chosen, one after the other; null if all went, else the first that cannot be had
// just now. *evicted: how many went.
Storage* Engine::evict_victims(Deferred& deferred, std::unique_lock<EngineMutex>& lock,
                               size_t* evicted) {
  *evicted = 0;
  Storage* const first = victims_.front();
  // A copy to host memory lets go of the mutex: the others' records stay, whatever becomes of them,
  // and another thread that evicts meanwhile finds no buffer here and takes one of its own.
  std::vector<Storage*> others = std::move(other_victims_);
  others.assign(victims_.begin() + 1, victims_.end());
  for (Storage* storage : others) ++storage->locks;
  // A copy may throw: then the rest must be unlocked, too.
  struct Waiting {
    Engine& engine;
    Deferred& deferred;
    const std::vector<Storage*>& storages;
    size_t next = 0;
    ~Waiting() {
      while (next < storages.size()) engine.lifecycle_.unlock(storages[next++], deferred);
    }
  };
  Storage* failed = nullptr;
  {
    Waiting waiting{*this, deferred, others};
    if (evict(first, EvictionCause::room, deferred, lock))
      ++*evicted;
    else
      failed = first;
    while (!failed && waiting.next < others.size()) {
      Storage* storage = others[waiting.next];
      if (storage->locks > 1 || storage->candidate < 0) {
        failed = storage;
        break;
      }
      ++waiting.next;
      if (!storage->live && !storage->children) {
        lifecycle_.unlock(storage,
                          deferred);  // it was dropped meanwhile: the record goes, and its memory
        continue;
      }
      --storage->locks;
      unpark(storage);  // a search of another thread may have met it locked
      if (is_free_to_go(storage) && evict(storage, EvictionCause::room, deferred, lock))
        ++*evicted;
      else
        failed = storage;
    }
  }
  other_victims_ = std::move(others);
  return failed;
}

// Evicts what only waits. False if there is nothing.
bool Engine::preempt(Device& device, Deferred& deferred, std::unique_lock<EngineMutex>& lock) {
  const SearchContext context = context_of(device);
  const auto alone_ns = [this](const Storage* storage) {
    return swap_costs_.with_swap(storage, static_cast<double>(cost_of(storage)));
  };
  while (Storage* waiting = waiting_.choose(device, context, alone_ns)) {
    waiting_.note_preemption(waiting);
    if (!evict(waiting, EvictionCause::room, deferred, lock)) continue;
    ++stats_.preemptions;
    return true;
  }
  return false;
}

// The pool's room callback: evicts what was chosen for the request, or lets go of a dead constant
// that turned out to be dispensable, or moves what lies in the way, or, as the last resort, evicts
// what only waits.
int32_t Engine::make_room(Device& device, uint64_t size_bytes) {
  const ScopedTimer spent(room_ns_of_thread());
  // The bytes are there, but not in one piece.
  const bool fragmented = dtr_pool_unused_bytes(device.pool) >= size_bytes;
  Deferred deferred(environment_, dead_, mutex_);
  Evicting evicting(*this, deferred);
  std::unique_lock<EngineMutex> lock(mutex_);
  // Locked, so that the next search passes over them.
  struct Refused {
    Engine& engine;
    Deferred& deferred;
    std::vector<Storage*> storages;
    ~Refused() {
      for (Storage* storage : storages) engine.lifecycle_.unlock(storage, deferred);
    }
  };
  bool freed = false;
  {
    Refused refused{*this, deferred, {}};
    while (!freed) {
      const int64_t begin = now_ns();
      const SearchContext moment = context_of(device);
      const Way way = choose_victims(device, moment, size_bytes, lock);
      stats_.search_ns += static_cast<uint64_t>(now_ns() - begin);
      if (way == Way::remap)
        return compactor_.open_hole_instead(device, size_bytes, remap_ns(device, size_bytes),
                                            deferred)
                   ? DTR_ROOM_IS_FREED
                   : DTR_ROOM_BY_REMAP;
      const bool is_window = way == Way::window;
      if (victims_.empty()) break;
      if (compactor_.move_victims(
              device, size_bytes, fragmented, is_window,
              [this](Storage* storage) { return loss_ns(storage); }, &victims_, deferred)) {
        freed = true;
        if (victims_.empty()) break;
      }
      size_t evicted = 0;
      evicting.begin();
      Storage* failed = evict_victims(deferred, lock, &evicted);
      freed |= evicted > 0;
      if (is_window) stats_.window_evictions += evicted;
      if (fragmented) stats_.contiguity_evictions += evicted;
      if (!freed) {
        evicting.end();
        ++failed->locks;
        refused.storages.push_back(failed);
      }
    }
  }
  if (!freed && evicting_ > 0) {
    evicted_.wait(lock);
    return DTR_ROOM_IS_FREED;
  }
  for (size_t i = dead_.constants().size(); !freed && i-- > 0;) {
    Storage* constant = dead_.constants()[i];
    if (constant->locks > 0 || !dtr_pool_contains(device.pool, constant->address)) continue;
    ++constant->locks;
    freed = settling_.settle(constant, nullptr, Settling::kAnyBytes, deferred);
    lifecycle_.unlock(constant, deferred);
  }
  if (!freed && options_.moving) {
    constexpr double kAtAnyPrice = std::numeric_limits<double>::infinity();
    freed = compactor_.open_hole(device, size_bytes, kAtAnyPrice, deferred) ||
            compactor_.empty_chunk(device, size_bytes, deferred);
  }
  if (!freed) {
    evicting.begin();
    freed = preempt(device, deferred, lock);
    if (!freed) evicting.end();
  }
  return freed ? DTR_ROOM_IS_FREED : DTR_ROOM_IS_NONE;
}

}  // namespace dtr
