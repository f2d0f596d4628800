// waiting_inputs.cpp: see waiting_inputs.h.
#include "waiting_inputs.h"

#include <algorithm>
#include <utility>

namespace dtr {

void WaitingInputs::set_waiting(OpCall& call, bool waiting) {
  if (call.inputs_wait == waiting) return;
  call.inputs_wait = waiting;
  for (const Input& input : call.inputs) {
    if (!input.storage) continue;
    if (waiting)
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
uint64_t WaitingInputs::peak_beside(const Storage* wanted) {
  const bool swaps = environment_.options.swap_bytes > 0;
  std::vector<std::pair<uint64_t, uint64_t>> parts;
  pending_.assign(1, wanted);
  while (!pending_.empty()) {
    const Storage* storage = pending_.back();
    if (peaks_.count(storage->id)) {
      pending_.pop_back();
      continue;
    }
    const size_t before = pending_.size();
    parts.clear();
    uint64_t running = 0;  // bytes while its op runs
    if (storage->parent && storage->state != State::swapped) {
      for (const Edge& edge : storage->parent->edges) {
        const Storage* input = edge.input;
        if (input->parent || swaps) running += input->size_bytes;
        if (input->state == State::resident) continue;
        const auto known = peaks_.find(input->id);
        if (known == peaks_.end())
          pending_.push_back(input);
        else
          parts.push_back({known->second - input->size_bytes, input->size_bytes});
      }
      for (const Output& output : storage->parent->outputs)
        if (output.storage) running += output.storage->size_bytes;
    }
    if (pending_.size() > before) continue;  // those first
    pending_.pop_back();
    peaks_[storage->id] = std::max({peak_of_parts(parts), running, storage->size_bytes});
  }
  return peaks_[wanted->id] - wanted->size_bytes;
}

void WaitingInputs::order_by_peak(std::vector<Storage*>& wanted) {
  if (wanted.size() < 2) return;
  std::stable_sort(wanted.begin(), wanted.end(),
                   [this](Storage* a, Storage* b) { return peak_beside(a) > peak_beside(b); });
}

Storage* WaitingInputs::next_missing(const Op* op) {
  missing_.clear();
  for (const Edge& edge : op->edges)
    if (edge.input->state != State::resident) missing_.push_back(edge.input);
  if (missing_.empty()) return nullptr;
  order_by_peak(missing_);
  return missing_.front();
}

}  // namespace dtr
