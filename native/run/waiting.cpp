// waiting.cpp: rematerializations that wait for others, where memory is short.
//
// While a step's missing inputs are brought back one after the other, those that are there
// already wait; likewise the inputs of the op that all this is for. Their locks are *holds*
// (R11). What is held is not chosen for eviction as long as anything else can be evicted. Where
// the alternative is to fail, it yields: whoever holds it looks at its inputs again before it
// runs, finds it missing and brings it back, now with what made it yield at its side.
//
// Order. What is brought back first waits longest, so the input that needs most memory besides
// itself comes first: the order of registers in expressions (Sethi and Ullman, 1970), with bytes
// for registers. peak_beside() is an estimate: it takes the evicted storages as they are when the
// round first asks (each op_prepare() is one) and assumes that nothing is evicted meanwhile.
//
// Termination. A *request* is an op that needs evicted inputs, or a storage that is wanted by
// name. During a request each storage yields at most kMostYields times; then its holds are as
// firm as any lock. Between two yields, steps and locks are those of a rematerialization that
// never yields: each step that is begun locks what was brought back for it, and the storages
// that wait are a path of the graph, which has no cycles, so it ends. As records are finite, so
// is a request. (Another thread's request begins the count anew, but only finitely many requests
// begin without one that ends.) It may still run an op very often: a budget near the floor costs
// compute, as the DTR paper's thrashing does.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "engine.h"

namespace dtr {

namespace {

constexpr uint32_t kMostYields = 4;

}  // namespace

void Engine::begin_request() {
  yields_.clear();
  begin_round();
}

// The locks of the op's inputs become holds, or cease to be.
void Engine::hold_inputs(Frame& frame, bool held) {
  if (frame.inputs_held == held) return;
  frame.inputs_held = held;
  for (const Input& input : frame.inputs) {
    if (!input.storage) continue;
    if (held)
      ++input.storage->holds;
    else
      --input.storage->holds;
  }
}

namespace {

// The most bytes that storages take until all of them are back, one after the other as
// order_by_peak() has it. parts: {peak - size, size} of each.
uint64_t peak_of_parts(std::vector<std::pair<uint64_t, uint64_t>>& parts) {
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a > b; });
  uint64_t held = 0, peak = 0;
  for (const auto& [beside, size] : parts) {
    peak = std::max(peak, held + beside + size);
    held += size;
  }
  return peak;
}

}  // namespace

// The most bytes, besides its own, that are in use at once until an evicted storage is back.
// Constants do not count: they are there anyway.
uint64_t Engine::peak_beside(const Storage* wanted) {
  std::vector<std::pair<uint64_t, uint64_t>> parts;
  peaks_pending_.assign(1, wanted);
  while (!peaks_pending_.empty()) {
    const Storage* storage = peaks_pending_.back();
    if (peaks_.count(storage->id)) {
      peaks_pending_.pop_back();
      continue;
    }
    const size_t before = peaks_pending_.size();
    parts.clear();
    uint64_t running = 0;  // bytes while its op runs
    if (storage->parent && storage->state != State::swapped) {
      for (const Edge& edge : storage->parent->edges) {
        const Storage* input = edge.input;
        if (input->parent || swap_costs_.is_on()) running += input->size_bytes;
        if (input->state == State::resident) continue;
        const auto known = peaks_.find(input->id);
        if (known == peaks_.end())
          peaks_pending_.push_back(input);
        else
          parts.push_back({known->second - input->size_bytes, input->size_bytes});
      }
      for (const Output& output : storage->parent->outputs)
        if (output.storage) running += output.storage->size_bytes;
    }
    if (peaks_pending_.size() > before) continue;  // those first
    peaks_pending_.pop_back();
    peaks_[storage->id] = std::max({peak_of_parts(parts), running, storage->size_bytes});
  }
  return peaks_[wanted->id] - wanted->size_bytes;
}

// Sorts storages that are all needed, the first to be brought back first.
void Engine::order_by_peak(std::vector<Storage*>& wanted) {
  if (wanted.size() < 2 || options_.waiting == DTR_WAITING_HOLDS) return;
  std::stable_sort(wanted.begin(), wanted.end(),
                   [this](Storage* a, Storage* b) { return peak_beside(a) > peak_beside(b); });
}

// The next input to be brought back for an op; null if all are there.
Storage* Engine::next_missing(const Op* op) {
  missing_.clear();
  for (const Edge& edge : op->edges)
    if (edge.input->state != State::resident) missing_.push_back(edge.input);
  if (missing_.empty()) return nullptr;
  order_by_peak(missing_);
  return missing_.front();
}

// What yields, where nothing else can be evicted: of what is only held and has yielded least
// often, the one of the least cost / (size * sqrt(staleness)), under every heuristic. (What waits
// longest is needed last, and what stands behind it is in the making: costs of ancestors say
// little here.) Null if there is none.
Storage* Engine::choose_held(Device& device, const SearchContext& moment) {
  if (options_.waiting == DTR_WAITING_HOLDS) return nullptr;
  Storage* best = nullptr;
  std::tuple<uint32_t, double, uint64_t> least;
  for (size_t i = 0; i < device.candidates.size(); ++i) {
    Storage* storage = device.candidates.at(i);
    if (storage->locks == 0 || storage->locks > storage->holds || storage->pins > 0) continue;
    if (static_cast<double>(storage->size_bytes) < moment.smallest_bytes) continue;
    const auto known = yields_.find(storage->id);
    const uint32_t yields = known == yields_.end() ? 0 : known->second;
    if (yields >= kMostYields) continue;
    const double staleness =
        at_least_1(static_cast<double>(moment.now_ns - storage->last_access_ns));
    const double value =
        at_least_1(swap_costs_.with_swap(storage, static_cast<double>(cost_of(storage)))) /
        (static_cast<double>(storage->size_bytes) * std::sqrt(staleness));
    const auto rank = std::make_tuple(yields, value, storage->id);
    if (best && rank > least) continue;
    best = storage;
    least = rank;
  }
  return best;
}

// Evicts what is only held. False if there is nothing.
bool Engine::yield_held(Device& device, Deferred& deferred, std::unique_lock<EngineMutex>& lock) {
  const SearchContext moment = context_of(device);
  while (Storage* held = choose_held(device, moment)) {
    ++yields_[held->id];  // also if it is not to be had just now
    if (!evict(held, EvictionCause::room, deferred, lock)) continue;
    ++stats_.yields;
    return true;
  }
  return false;
}

}  // namespace dtr
