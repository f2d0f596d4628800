#include "victim_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/heap_blocks.h"

namespace dtr {

namespace {

// Another one after every change of the heap, which also ends elsewhere under another budget.
std::pair<uint64_t, uint64_t> changes_of(dtr_pool* pool) {
  const dtr_pool_stats stats = stats_of(pool);
  return {stats.allocations + stats.frees + stats.mapped_chunks + stats.unmapped_chunks,
          stats.budget_bytes};
}

}  // namespace

void VictimSearch::promote(Device& device) {
  for (Storage* storage : device.unscored) {
    storage->candidate = kNoCandidate;
    device.candidates.add(storage);
    storage->ancestors_known = storage->descendants_known = false;
    costs_.bounds().reset(device, storage);
  }
  device.unscored.clear();
}

SearchContext VictimSearch::context_of(Device& device) {
  costs_.catch_up();
  promote(device);
  SearchContext context{};
  context.now_ns = environment_.clock_ns;
  context.most_free = Candidates::kNoFreeBytes;
  if (!costs_.needs().free_bytes) return context;
  constexpr uint64_t kMostOpenings = 32;
  dtr_opening openings[kMostOpenings];
  uint64_t count = kMostOpenings + 1;
  dtr_pool_take_openings(device.pool, openings, kMostOpenings, &count);
  if (count > kMostOpenings)
    device.candidates.widen_all();
  else
    for (uint64_t i = 0; i < count; ++i)
      device.candidates.widen(openings[i].begin, openings[i].end);
  context.most_free = dtr_pool_unused_bytes(device.pool);
  return context;
}

bool VictimSearch::is_eligible(Device& device, Storage* storage) {
  if (is_free_to_go(storage)) return true;
  if (!storage->parent) parked_for_host_ = true;
  if (costs_.needs().scores) device.candidates.park(storage);
  return false;
}

void VictimSearch::host_memory_freed() {
  if (!std::exchange(parked_for_host_, false)) return;
  for (const auto& device : devices_)
    for (size_t i = 0; i < device->candidates.size(); ++i)
      if (!device->candidates.at(i)->parent) costs_.bounds().unpark(device->candidates.at(i));
}

// Of what is too expensive so much is found out that it is not looked at again soon.
double VictimSearch::learn_cost_ns(Device& device, Storage* storage, double most_ns) {
  constexpr double kFarther = 2;
  ++environment_.stats.evaluations;
  ++environment_.stats.storage_accesses;
  const double cost_ns = costs_.cost_ns(storage, kFarther * most_ns);
  costs_.bounds().set(device, storage, cost_ns);
  return cost_ns;
}

// Free bytes on both sides of the storage's block that count with its size. Address space without
// memory does not count beyond what the budget could still put there.
uint64_t VictimSearch::free_bytes(const Storage* storage, const SearchContext& context) {
  if (context.most_free == 0 || context.most_free == Candidates::kNoFreeBytes) return 0;
  ++environment_.stats.storage_accesses;
  Device& device = devices_.of(storage);
  const uint64_t bytes = dtr_pool_free_beside(device.pool, storage->address);
  device.candidates.narrow(storage, bytes);
  return std::min(bytes, context.most_free);
}

// With the first few scores nearly as little is lost as with the least of all: the bounds are in
// nearly the same order. Published rules ask for the least.
Storage* VictimSearch::choose(Device& device, const SearchContext& context) {
  constexpr size_t kMostScores = 32;
  return choose(device, context,
                environment_.options.room == DTR_ROOM_AUTO ? kMostScores : Candidates::kAny);
}

Storage* VictimSearch::choose(Device& device, const SearchContext& context, size_t most_scores) {
  if (heuristic().select == DTR_SELECT_RANDOM) return choose_randomly(device);
  const auto evaluate = [&](Storage* storage, double least, double* score) {
    if (!is_eligible(device, storage)) return false;
    // The pool is asked only if its answer may matter.
    uint64_t beside = 0;
    if (costs_.needs().free_bytes)
      beside = std::min(device.candidates.most_free_beside(storage), context.most_free);
    // A score is proportional to the cost.
    const double cost_ns =
        learn_cost_ns(device, storage, least / costs_.score_of(storage, context, 1, beside));
    *score = costs_.score_of(storage, context, cost_ns, beside);
    if (beside > 0 && *score <= least)
      *score = costs_.score_of(storage, context, cost_ns, free_bytes(storage, context));
    return true;
  };
  return device.candidates.search(context.now_ns, costs_.decreased_ns(), context.most_free,
                                  most_scores, evaluate);
}

Storage* VictimSearch::choose_whole(Device& device, uint64_t size_bytes) {
  constexpr uint64_t kSpare = 8;
  const uint64_t least = in_grains(size_bytes);
  return device.candidates.find_unneeded(
      least, least + least / kSpare,
      [this](const Storage* storage) { return is_free_to_go(storage); });
}

// Uniform over what can be evicted: draws until one can; if most cannot, among a list.
Storage* VictimSearch::choose_randomly(Device& device) {
  constexpr int kDraws = 32;
  const Candidates& candidates = device.candidates;
  if (candidates.size() == 0) return nullptr;
  const auto can = [&](size_t index) {
    ++environment_.stats.evaluations;
    ++environment_.stats.storage_accesses;
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

Storage* VictimSearch::choose_by_callback(Device& device, const SearchContext& first,
                                          std::unique_lock<EngineMutex>& lock) {
  thread_local bool is_asking = false;
  if (is_asking)
    throw StateError("a heuristic needed room for memory of its own while it was choosing");
  const Candidates& candidates = device.candidates;
  std::vector<dtr_candidate> asked;
  std::vector<double> scores;
  std::unordered_map<uint64_t, double> score_by_id;
  for (SearchContext context = first;; context = context_of(device)) {
    asked.clear();
    for (size_t i = 0; i < candidates.size(); ++i) {
      Storage* storage = candidates.at(i);
      if (!is_eligible(device, storage)) continue;
      ++environment_.stats.evaluations;
      ++environment_.stats.storage_accesses;
      asked.push_back(
          {storage->id, storage->size_bytes, free_bytes(storage, context),
           context.now_ns - storage->last_access_ns, static_cast<int64_t>(costs_.alone_ns(storage)),
           costs_.neighborhoods().ancestors_ns(storage),
           costs_.neighborhoods().descendants_ns(storage),
           costs_.neighborhoods().component_ns(storage), storage->recomputes, storage->live});
    }
    if (asked.empty()) return nullptr;
    scores.assign(asked.size(), std::numeric_limits<double>::quiet_NaN());
    char message[512] = "";
    const dtr_score_fn score = environment_.options.score;
    void* score_context = environment_.options.score_context;
    lock.unlock();
    is_asking = true;
    const int32_t failed =
        score(score_context, asked.data(), asked.size(), scores.data(), message, sizeof message);
    is_asking = false;
    lock.lock();
    if (failed) throw StateError(message[0] ? message : "the heuristic's callback failed");
    score_by_id.clear();
    for (size_t i = 0; i < asked.size(); ++i) {
      if (std::isnan(scores[i]))
        throw StateError("the heuristic's callback gave NaN for storage " +
                         std::to_string(asked[i].id) + "; allowed: any other number");
      score_by_id[asked[i].id] = scores[i];
    }
    Storage* best = nullptr;
    double least = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      Storage* storage = candidates.at(i);
      const auto found = score_by_id.find(storage->id);
      if (found == score_by_id.end() || !is_free_to_go(storage)) continue;
      const double value = found->second * (found->second < 0 ? 1 : unneeded_factor(storage));
      if (best && (value > least || (value == least && storage->id > best->id))) continue;
      best = storage;
      least = value;
    }
    if (best) return best;  // else all went away while Python ran: there are others, or none
  }
}

// The counters stay.
void VictimSearch::check(bool searches) {
  if (!costs_.needs().scores) return;
  const dtr_engine_stats before = environment_.stats;
  for (const auto& device : devices_) {
    const auto changes = changes_of(device->pool);
    const SearchContext context = context_of(*device);
    const Storage* best = nullptr;
    double least = 0;
    const Candidates& candidates = device->candidates;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const Storage* storage = candidates.at(i);
      const double score = costs_.score_of(storage, context, costs_.fresh_cost_ns(storage),
                                           free_bytes(storage, context));
      const double bound =
          candidates.bound(storage, context.now_ns, costs_.decreased_ns(), context.most_free);
      const bool can_go = is_free_to_go(storage);
      if (costs_.needs().scores && storage->in_unneeded != goes_first(storage))
        throw StateError("storage " + std::to_string(storage->id) + " breaks C5");
      if (storage->parked ? can_go : bound > score * (1 + Candidates::kSlack))
        throw StateError("storage " + std::to_string(storage->id) + " breaks C" +
                         (storage->parked ? "2: it is parked" : "1") + ": its bound is " +
                         std::to_string(bound) + ", its score " + std::to_string(score));
      if (!can_go) continue;
      if (best && (score > least || (score == least && storage->id > best->id))) continue;
      best = storage;
      least = score;
    }
    if (const std::string broken = device->candidates.check(context.now_ns, costs_.decreased_ns());
        !broken.empty())
      throw StateError(broken);
    if (!searches) continue;
    const Storage* found = choose(*device, context, Candidates::kAny);
    // Another thread may have taken or freed a block meanwhile: then free bytes have changed.
    if (found != best && changes_of(device->pool) == changes)
      throw StateError("the search found storage " + std::to_string(found ? found->id : 0) +
                       " where storage " + std::to_string(best ? best->id : 0) +
                       " has the least score");
  }
  environment_.stats = before;
}

}  // namespace dtr
