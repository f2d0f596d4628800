#include "rematerializer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/room_time.h"
#include "event_log.h"

namespace dtr {

void Rematerializer::want(Rematerialization& remat, Storage* storage, bool forget) {
  ++storage->locks;
  Rematerialization::Step step;
  step.target = storage;
  step.forget = forget;
  step.first_input = remat.stack_inputs.size();
  step.first_edge = remat.edge_locks.size();
  remat.stack.push_back(step);
}

int64_t Rematerializer::next(Rematerialization& remat, const SwapIn& swap_in, Deferred& deferred) {
  while (!remat.stack.empty()) {
    Rematerialization::Step& step = remat.stack.back();
    Storage* target = step.target;
    if (target->state == State::resident) {
      end_step(remat, deferred);
      continue;
    }
    if (target->state == State::swapped) {
      if (!swap_in(target)) end_step(remat, deferred);
      continue;
    }
    if (!step.inputs.op) {
      if (!target->parent)
        throw StateError("storage " + std::to_string(target->id) + ", " +
                         size_text(target->size_bytes) + ", is needed, but " +
                         (target->live ? "is lost: when a session ended, it could not be brought "
                                         "back, and disable() said why"
                                       : "memory that it was computed from was changed or replaced "
                                         "behind the recorder's back (through numpy, DLPack, a raw "
                                         "pointer or set_data); pin such results before"));
      if (target->state == State::recomputing)
        throw StateError("storage " + std::to_string(target->id) + " depends on itself");
      target->state = State::recomputing;
      step.inputs = parts_.waiting.begin(target->parent, remat.missing);
      remat.edge_locks.resize(step.first_edge + target->parent->edges.size(), 0);
    }
    if (const Edge* missing = next_missing(remat, deferred)) {
      bring_back(remat, missing);
      continue;
    }
    if (!std::exchange(step.locks_inputs, true))
      for (const Edge& edge : target->parent->edges) lock_input(remat, &edge, false);
    if (remat.is_within)
      for (const Edge& edge : target->parent->edges)
        if (edge.input->overwriters > 0)
          throw StateError(
              "storage " + std::to_string(edge.input->id) + ", " +
              size_text(edge.input->size_bytes) +
              ", is needed for a rematerialization while an operator overwrites it; an "
              "operator may not read what depends on what it overwrites");
    if (!hold_inputs(remat, target->parent, deferred)) return kRefused;
    describe(remat, target->parent);
    return static_cast<int64_t>(target->parent->id);
  }
  return 0;
}

// Of the innermost step. Null if all inputs are there, and as they should be: it may run.
Edge* Rematerializer::next_missing(Rematerialization& remat, Deferred& deferred) {
  WaitingInputs::Step& inputs = remat.stack.back().inputs;
  if (Edge* missing = parts_.waiting.next_missing(inputs, remat.missing)) return missing;
  parts_.contents.compare_inputs(inputs.op, deferred);
  parts_.waiting.look(inputs, remat.missing);
  return parts_.waiting.next_missing(inputs, remat.missing);
}

// The innermost step locks an input.
void Rematerializer::lock_input(Rematerialization& remat, const Edge* edge, bool waits) {
  const Rematerialization::Step& step = remat.stack.back();
  ++edge->input->locks;
  if (waits) ++edge->input->holds;
  ++remat.edge_locks[step.first_edge + step.inputs.op->index_of(edge)];
  remat.stack_inputs.push_back({edge->input, waits});
}

// The innermost step waits for an input, and locks it: once, if that was preempted, too.
void Rematerializer::bring_back(Rematerialization& remat, const Edge* missing) {
  const Rematerialization::Step& step = remat.stack.back();
  if (remat.edge_locks[step.first_edge + step.inputs.op->index_of(missing)] == 0)
    lock_input(remat, missing, true);
  want(remat, missing->input, false);
}

// Holds the inputs that have a handle. False if one is dying on another thread, which waits for our
// mutex, or cannot be held without the GIL.
bool Rematerializer::hold_inputs(Rematerialization& remat, const Op* op, Deferred& deferred) const {
  const dtr_framework* framework = parts_.environment.framework;
  // Those of the last try stay held until this one is over.
  for (void* handle : remat.held) deferred.release_strong(handle);
  remat.held.clear();
  for (const Edge& edge : op->edges) {
    void* handle = edge.input->handle;
    if (!handle) continue;
    if (framework->retain_strong(handle)) {
      remat.held.push_back(handle);
    } else {
      framework->retain_weak(handle);
      remat.refused.push_back(handle);
    }
  }
  return remat.refused.empty();
}

void Rematerializer::hold_refused(Rematerialization& remat) const {
  const dtr_framework* framework = parts_.environment.framework;
  for (void* handle : remat.refused) {
    if (framework->retain_strong_with_gil(handle))
      remat.held.push_back(handle);
    else
      std::this_thread::yield();
    framework->release_weak(handle);
  }
  remat.refused.clear();
}

// Writes the step to remat.step, in the layout of remat_next().
void Rematerializer::describe(Rematerialization& remat, Op* op) {
  remat.step.clear();
  remat.consumed.clear();
  const auto put = [&](int64_t number) { remat.step.push_back(number); };
  mutated_.assign(op->edges.size(), false);
  for (const TensorSpec& spec : op->tensors)
    if (spec.use == Use::mutate && spec.edge >= 0) mutated_[static_cast<size_t>(spec.edge)] = true;
  const uint8_t* const ours = remat.edge_locks.data() + remat.stack.back().first_edge;
  put(static_cast<int64_t>(op->edges.size()));
  for (size_t e = 0; e < op->edges.size(); ++e) {
    Storage* input = op->edges[e].input;
    parts_.dead.note_source(input, &remat.used_sources);
    if (!input->handle) make_handle(input, input->address);
    // The op may overwrite an old version only if nobody else counts on it.
    // (This step holds it once, and once more if it was brought back for it.)
    const bool copy =
        mutated_[e] && (input->live || input->locks > ours[e] || input->pins > 0 || !input->parent);
    if (mutated_[e] && !copy) {
      remat.consumed.push_back(input);
      ++input->overwriters;
    }
    parts_.streams.before_use(input, mutated_[e] && !copy);
    put(static_cast<int64_t>(reinterpret_cast<uintptr_t>(input->handle)));
    put(copy);
  }
  put(static_cast<int64_t>(op->tensors.size()));
  for (const TensorSpec& spec : op->tensors) {
    put(static_cast<int64_t>(spec.use));
    put(spec.part_of ? -static_cast<int64_t>(spec.part_of) : spec.edge);
    put(spec.scalar_type);
    put(spec.flags);
    put(spec.offset);
    put(spec.ndim);
    for (int32_t d = 0; d < 2 * spec.ndim; ++d) put(op->geometry[spec.geometry + d]);
  }
  for (const Output& output : op->outputs)
    if (output.storage) {
      ++output.storage->locks;
      ++output.storage->holds;
      remat.step_outputs.push_back(output.storage);
    }
  remat.outer = CurrentOp::of_thread();
  running_op_of_thread() = op->op_key;
  place_of_thread() = remat.stack.back().target->place;
  parts_.hints.step_begins(op->cost_ns);
  if (parts_.plan.is_on()) parts_.plan.step_begins(op);
  remat.step_open = true;
  remat.step_device = remat.stack.back().target->device_index;
  remat.step_begin_ns = now_ns();
  remat.room_ns_at_step = RoomTime::spent_ns();
}

// Of a dead storage, over its memory.
void Rematerializer::make_handle(Storage* storage, void* address) {
  const Environment& environment = parts_.environment;
  storage->handle = environment.framework->make(environment.engine, address, storage->size_bytes,
                                                storage->device_type, storage->device_index);
  parts_.graph.by_handle.insert(storage->handle, storage);
}

// Gives the recomputed memory to its storage. held: a strong reference to the live
// storage's handle was taken.
void Rematerializer::place(Storage* storage, void* address, bool held, Deferred& deferred) {
  if (storage->live && !held) {
    // It is dying on another thread, which waits for our mutex.
    deferred.free_block(*storage, address);
    return;
  }
  if (storage->live)
    parts_.environment.framework->attach(storage->handle, address);
  else
    make_handle(storage, address);
  Verifier::forget_expected(storage, deferred);
  parts_.graph.by_address.insert(address, storage);
  ++storage->recomputes;
  parts_.streams.remade(storage);
  parts_.lifecycle.become_resident(storage, address);
  parts_.contents.note(storage);
  dtr_pool_note(parts_.environment.pool_of(storage->device_type, storage->device_index),
                DTR_EVENT_REMATERIALIZE, address, storage->size_bytes);
}

// The op gave this for an evicted storage.
void Rematerializer::take_result(const Op* op, Storage* storage, const dtr_tensor_desc& desc,
                                 bool held, Deferred& deferred) {
  if (desc.device_type != storage->device_type || desc.device_index != storage->device_index)
    throw StateError("op " + std::to_string(op->id) + " gave a result on device " +
                     std::to_string(desc.device_index) + " where it gave one on device " +
                     std::to_string(storage->device_index) + " the first time");
  if (desc.storage_bytes != storage->size_bytes)
    throw StateError("op " + std::to_string(op->id) + " gave " + size_text(desc.storage_bytes) +
                     " where it gave " + size_text(storage->size_bytes) + " the first time");
  parts_.verifier.compare(storage, op, desc.data);
  // The op may have consumed an old version: its memory changes hands.
  Storage* consumed = parts_.graph.by_handle.find(desc.handle);
  void* address = parts_.environment.framework->take(desc.handle);
  if (!address)
    throw StateError("op " + std::to_string(op->id) +
                     (desc.handle == storage->handle
                          ? " gave what it gave the first time, and did not compute it again"
                          : " gave a result whose memory is not from this allocator"));
  if (consumed) {
    parts_.graph.by_address.erase(address);
    parts_.lifecycle.lose_handle(consumed, deferred);
    parts_.lifecycle.become_evicted(consumed, EvictionCause::gone);
  }
  place(storage, address, held, deferred);
}

std::vector<Rematerializer::Held> Rematerializer::hold(const Rematerialization& remat) const {
  std::vector<Held> held;
  for (Storage* storage : remat.step_outputs)
    if (storage->live && !has_content(storage)) {
      parts_.environment.framework->retain_weak(storage->handle);
      held.push_back({storage, storage->handle, false});
    }
  return held;
}

void Rematerializer::retain(std::vector<Held>& held, Deferred& deferred) const {
  for (Held& entry : held) {
    entry.strong = parts_.environment.framework->retain_strong_with_gil(entry.handle) != 0;
    if (entry.strong) deferred.release_strong(entry.handle);
    deferred.release_weak(entry.handle);
  }
}

void Rematerializer::commit(Rematerialization& remat, const std::vector<Held>& held,
                            uint32_t tensors, uint32_t results, Deferred& deferred) {
  Op* op = remat.stack.back().inputs.op;
  parts_.environment.clock_ns += op->cost_ns;
  parts_.environment.stats.recompute_cost_ns += static_cast<uint64_t>(op->cost_ns);
  if (std::ranges::any_of(op->outputs, [](const Output& output) {
        return output.storage && !has_content(output.storage) && output.storage->recomputes > 0;
      }))
    parts_.environment.stats.twice_cost_ns += static_cast<uint64_t>(op->cost_ns);
  auto of_held = held.begin();
  for (const Output& output : op->outputs) {
    Storage* storage = output.storage;
    if (!storage || has_content(storage)) continue;
    const uint32_t at =
        output.mutation ? output.position : tensors + static_cast<uint32_t>(output.position);
    if (!output.mutation && static_cast<uint32_t>(output.position) >= results)
      throw StateError("op " + std::to_string(op->id) + " gave fewer results than the first time");
    if (output.mutation && at >= tensors)
      throw StateError("op " + std::to_string(op->id) + " had more arguments the first time");
    const auto* tensor = reinterpret_cast<const void*>(remat.step[at]);
    if (!tensor)
      throw StateError("op " + std::to_string(op->id) + " gave no result " +
                       std::to_string(output.position) + ", unlike the first time");
    dtr_tensor_desc desc;
    parts_.environment.framework->describe(tensor, &desc);
    // Both are in the order of the outputs.
    while (of_held != held.end() && of_held->storage->output < storage->output) ++of_held;
    const bool is_held = of_held != held.end() && of_held->storage == storage && of_held->strong;
    take_result(op, storage, desc, is_held, deferred);
    if (parts_.plan.is_on()) parts_.plan.gave(output);
  }
  ++parts_.environment.stats.rematerializations;
  parts_.environment.observers.notify(&Observer::ran_again, op);
  if (parts_.streams.has_streams(remat.stack.back().target->device_type)) {
    parts_.environment.stats.recompute_ns +=
        static_cast<uint64_t>(op->cost_ns);  // the clock saw it queued only
  } else {
    parts_.environment.stats.recompute_ns += static_cast<uint64_t>(
        now_ns() - remat.step_begin_ns - (RoomTime::spent_ns() - remat.room_ns_at_step));
  }
  close_step(remat, deferred);
  end_step(remat, deferred);
}

void Rematerializer::close_step(Rematerialization& remat, Deferred& deferred) {
  drop_consumed(remat, deferred);
  remat.step_open = false;
  remat.outer.put_back();
}

// Old versions that the step ran on are overwritten, in part if it failed. Those whose
// memory went to the next version are evicted already; the rest are where the next
// version was resident all the time, or is gone.
void Rematerializer::drop_consumed(Rematerialization& remat, Deferred& deferred) {
  for (Storage* old : remat.consumed) {
    --old->overwriters;
    if (old->state != State::resident) continue;
    parts_.graph.by_address.erase(old->address);
    parts_.lifecycle.lose_handle(old, deferred);
    parts_.lifecycle.become_evicted(old, EvictionCause::gone);
  }
  remat.consumed.clear();
}

// Takes the innermost step off the stack and unlocks what it locked. The target
// last: it keeps the op.
void Rematerializer::end_step(Rematerialization& remat, Deferred& deferred) {
  const Rematerialization::Step step = remat.stack.back();
  remat.stack.pop_back();
  for (Storage* storage : remat.step_outputs) {
    --storage->holds;
    parts_.lifecycle.unlock(storage, deferred);
  }
  remat.step_outputs.clear();
  for (void* handle : remat.held) deferred.release_strong(handle);
  remat.held.clear();
  if (step.inputs.op) parts_.waiting.end(step.inputs, remat.missing);
  remat.edge_locks.resize(step.first_edge);
  while (remat.stack_inputs.size() > step.first_input) {
    const Rematerialization::StepInput input = remat.stack_inputs.back();
    remat.stack_inputs.pop_back();
    if (input.waits) --input.storage->holds;
    parts_.lifecycle.unlock(input.storage, deferred);
  }
  if (step.target->state == State::recomputing) step.target->state = State::evicted;
  if (step.target->state == State::resident && (step.forget || step.target->forgets)) {
    parts_.lifecycle.forget_parent(step.target, deferred);
    step.target->was_evicted |= step.forget;
  }
  parts_.lifecycle.unlock(step.target, deferred);
  if (remat.stack.empty() && std::exchange(remat.used_sources, false))
    parts_.dead.settle_sources(deferred);
}

void Rematerializer::abort(Rematerialization& remat, Deferred& deferred) {
  if (remat.step_open) close_step(remat, deferred);
  while (!remat.stack.empty()) end_step(remat, deferred);
}

}  // namespace dtr
