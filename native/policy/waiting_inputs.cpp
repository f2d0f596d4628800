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
    Op* const op = storage->state == State::swapped ? nullptr : storage->parent;
    const size_t before = pending_.size();
    parts.clear();
    uint64_t peak = storage->size_bytes;
    if (op && op->peak_look == looks_) {
      peak = op->peak_bytes;
    } else if (op) {
      uint64_t running = 0;  // bytes while it runs
      for (const Edge& edge : op->edges) {
        const Storage* input = edge.input;
        const bool is_constant = !input->parent || environment_.step.is_left(input);
        if (!is_constant || swaps) running += input->size_bytes;
        if (input->state == State::resident) continue;
        const auto known = peaks_.find(input->id);
        if (known == peaks_.end())
          pending_.push_back(input);
        else
          parts.push_back({known->second - input->size_bytes, input->size_bytes});
      }
      if (pending_.size() > before) continue;  // those first
      for (const Output& output : op->outputs)
        if (output.storage) running += output.storage->size_bytes;
      peak = std::max(peak_of_parts(parts), running);
      // For all its outputs: an op may have thousands.
      op->peak_look = looks_;
      op->peak_bytes = peak;
    }
    pending_.pop_back();
    peaks_[storage->id] = peak;
  }
  return peaks_[wanted->id] - wanted->size_bytes;
}

void WaitingInputs::order_by_peak(std::vector<Storage*>& wanted) {
  if (wanted.size() < 2) return;
  ++looks_;
  std::stable_sort(wanted.begin(), wanted.end(),
                   [this](Storage* a, Storage* b) { return peak_beside(a) > peak_beside(b); });
}

WaitingInputs::Step WaitingInputs::begin(Op* op, const MissingInputs& missing) {
  ++op->waiting_steps;
  ++steps_;
  return {op, missing.size(), losses_.size()};
}

void WaitingInputs::end(const Step& step, MissingInputs& missing) {
  missing.resize(step.first);
  --step.op->waiting_steps;
  if (--steps_ == 0) losses_.clear();
}

void WaitingInputs::lost(const Storage* storage, EvictionCause) {
  if (steps_ == 0) return;
  for (Edge* edge = storage->children; edge; edge = edge->next)
    if (edge->op->waiting_steps > 0) losses_.push_back({edge->op, edge});
}

void WaitingInputs::look(Step& step, MissingInputs& missing) {
  step.heard = losses_.size();
  missing.resize(step.first);
  for (Edge& edge : step.op->edges)
    if (edge.input->state != State::resident) missing.push_back({0, &edge});
  arrange(step, step.first, missing);
}

// Those from `known` on are new in the step's list. One alone needs no order.
void WaitingInputs::arrange(const Step& step, size_t known, MissingInputs& missing) {
  if (missing.size() - step.first < 2) return;
  ++looks_;
  const auto at = [&](size_t i) { return missing.begin() + static_cast<std::ptrdiff_t>(i); };
  for (size_t i = known; i < missing.size(); ++i) {
    missing[i].peak_beside = peak_beside(missing[i].edge->input);
    std::push_heap(at(step.first), at(i + 1));
  }
}

// Of those that came back for others meanwhile, takes off what stands before all that are missing.
void WaitingInputs::drop_returned(const Step& step, MissingInputs& missing) {
  while (missing.size() > step.first && missing[step.first].edge->input->state == State::resident) {
    std::pop_heap(missing.begin() + static_cast<std::ptrdiff_t>(step.first), missing.end());
    missing.pop_back();
  }
}

Edge* WaitingInputs::next_missing(Step& step, MissingInputs& missing) {
  if (losses_.size() - step.heard > step.op->edges.size()) look(step, missing);
  drop_returned(step, missing);
  const size_t known = missing.size();
  for (; step.heard < losses_.size(); ++step.heard) {
    const auto& [op, edge] = losses_[step.heard];
    if (op == step.op && edge->input->state != State::resident) missing.push_back({0, edge});
  }
  if (missing.size() > known) arrange(step, known, missing);
  drop_returned(step, missing);
  if (missing.size() == step.first) return nullptr;
  std::pop_heap(missing.begin() + static_cast<std::ptrdiff_t>(step.first), missing.end());
  Edge* const edge = missing.back().edge;
  missing.pop_back();
  return edge;
}

}  // namespace dtr
