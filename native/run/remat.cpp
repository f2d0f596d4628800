// remat.cpp: bringing evicted content back, with an explicit stack.
//
// The recorder runs closures; the engine says which, in which order, and moves the
// memory. The innermost step runs first; chains thousands of ops deep cost no recursion.
//
// A waiting step locks the inputs that were brought back for it, so that it gets
// nearer to running with each; it does not lock those that are resident anyway. A
// deep stack would lock most of the budget with them, and what is evicted meanwhile
// is only brought back in its turn. (The prototype of the paper locks all of them.)
// Those locks are preempted where there is no other way (waiting_inputs.h), until the step runs.
#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine.h"

namespace dtr {

void Engine::push_wanted(Frame& frame, Storage* storage, bool forget) {
  ++storage->locks;
  frame.stack.push_back({storage, nullptr, forget, frame.stack_inputs.size()});
}

bool Engine::remat_want(Frame& frame, void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* storage = graph_.by_handle.find(handle);
  if (!storage || storage->state == State::resident) return false;
  waiting_.begin_request();
  push_wanted(frame, storage, false);
  return true;
}

bool Engine::remat_want_any(Frame& frame) {
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* found = nullptr;
  graph_.by_handle.for_each([&](const void*, Storage* storage) {
    if (storage->live && storage->state != State::resident) found = storage;
  });
  keep(frame, found != nullptr);
  if (found) {
    waiting_.begin_request();
    push_wanted(frame, found, false);
  }
  return found != nullptr;
}

int64_t Engine::remat_next(Frame& frame) {
  Deferred deferred(environment_, *this);
  std::unique_lock<EngineMutex> lock(mutex_);
  while (!frame.stack.empty()) {
    const RematStep step = frame.stack.back();
    Storage* target = step.target;
    if (target->state == State::resident) {
      end_step(frame, deferred);
      continue;
    }
    if (target->state == State::swapped) {
      if (swap_in(target, deferred, lock))
        swap_space_.note_return(target, &frame.returned);
      else
        end_step(frame, deferred);
      continue;
    }
    if (!step.op) {
      if (!target->parent)
        throw StateError("storage " + std::to_string(target->id) + " (" +
                         std::to_string(target->size_bytes) +
                         " bytes) is needed, but memory that it was computed from was changed or "
                         "replaced behind the recorder's back (through numpy, DLPack, a raw "
                         "pointer or set_data); pin such results before");
      if (target->state == State::recomputing)
        throw StateError("storage " + std::to_string(target->id) + " depends on itself");
      target->state = State::recomputing;
      frame.stack.back().op = target->parent;
      frame.stack.back().first_input = frame.stack_inputs.size();
    }
    contents_.compare_inputs(target->parent, deferred);
    if (Storage* missing = waiting_.next_missing(target->parent)) {
      bring_back(frame, missing);
      continue;
    }
    for (const Edge& edge : target->parent->edges) {
      ++edge.input->locks;
      frame.stack_inputs.push_back({edge.input, false});
    }
    describe_step(frame, target->parent);
    return static_cast<int64_t>(target->parent->id);
  }
  return 0;
}

// SwapSpace::swap_in(), and says where the memory went if there is none.
bool Engine::swap_in(Storage* storage, Deferred& deferred, std::unique_lock<EngineMutex>& lock) {
  try {
    return swap_space_.swap_in(storage, deferred, lock);
  } catch (const OutOfMemory& error) {
    const uint64_t size_bytes = storage->size_bytes;
    lock.unlock();
    std::string text = error.what();
    out_of_memory_text(&text, size_bytes, device_of(storage).pool);
    throw OutOfMemory(text);
  }
}

// The innermost step waits for an input, and holds it: once, if it had yielded, too.
void Engine::bring_back(Frame& frame, Storage* missing) {
  bool holds = false;
  for (size_t i = frame.stack.back().first_input; i < frame.stack_inputs.size(); ++i)
    holds |= frame.stack_inputs[i].storage == missing;
  if (!holds) {
    ++missing->locks;
    ++missing->holds;
    frame.stack_inputs.push_back({missing, true});
  }
  push_wanted(frame, missing, false);
}

// Writes the step to the frame's step buffer, in the layout of dtr_alloc.h.
void Engine::describe_step(Frame& frame, Op* op) {
  frame.step.clear();
  frame.consumed.clear();
  const auto put = [&](int64_t number) { frame.step.push_back(number); };
  put(static_cast<int64_t>(op->edges.size()));
  for (size_t e = 0; e < op->edges.size(); ++e) {
    Storage* input = op->edges[e].input;
    streams_.before_use(input);
    dead_.note_source(input, &frame.used_sources);
    if (!input->handle) {
      input->handle = framework_->make(input->address, input->size_bytes, input->device_type,
                                       input->device_index);
      graph_.by_handle.insert(input->handle, input);
    }
    // A replay may overwrite an old version only if nobody else counts on it.
    bool mutated = false;
    for (const TensorSpec& spec : op->tensors)
      mutated |= spec.use == Use::mutate && spec.edge == static_cast<int32_t>(e);
    // (This step holds it once, and once more if it was brought back for it.)
    const uint32_t ours = static_cast<uint32_t>(std::count_if(
        frame.stack_inputs.begin() + static_cast<std::ptrdiff_t>(frame.stack.back().first_input),
        frame.stack_inputs.end(), [&](const StepInput& of) { return of.storage == input; }));
    const bool copy =
        mutated && (input->live || input->locks > ours || input->pins > 0 || !input->parent);
    if (mutated && !copy) frame.consumed.push_back(input);
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
      frame.step_outputs.push_back(output.storage);
    }
  hints_.step_begins(op->cost_ns);
  frame.step_open = true;
  frame.step_device = frame.stack.back().target->device_index;
  frame.step_begin_ns = now_ns();
  frame.room_ns_at_step = room_ns_of_thread();
}

// Gives the recomputed memory to its storage. held: a strong reference to the live
// storage's handle was taken.
void Engine::place(Storage* storage, void* address, bool held, Deferred& deferred) {
  if (storage->live && !held) {
    // It is dying on another thread, which waits for our mutex.
    deferred.free_block(*storage, address);
    return;
  }
  if (storage->live) {
    framework_->attach(storage->handle, address);
  } else {
    storage->handle =
        framework_->make(address, storage->size_bytes, storage->device_type, storage->device_index);
    graph_.by_handle.insert(storage->handle, storage);
  }
  Verifier::forget_expected(storage, deferred);
  graph_.by_address.insert(address, storage);
  ++storage->recomputes;
  streams_.remade(storage);
  become_resident(storage, address);
  contents_.note(storage);
  dtr_pool_note(device_of(storage).pool, DTR_EVENT_REMATERIALIZE, address, storage->size_bytes);
}

void Engine::remat_commit(Frame& frame, uint32_t tensors, uint32_t results) {
  if (!frame.step_open) throw StateError("dtr_remat_commit: no step is in progress");
  hints_.step_ends();
  const int64_t reading_ns =
      now_ns() - frame.step_begin_ns - (room_ns_of_thread() - frame.room_ns_at_step);
  Deferred deferred(environment_, *this);
  // Holding a live handle may take the GIL, so it happens outside the mutex: first a
  // weak reference under it, then the strong one.
  struct Held {
    Storage* storage;
    void* handle;
    bool strong;
  };
  std::vector<Held> held;
  {
    std::lock_guard<EngineMutex> lock(mutex_);
    for (Storage* storage : frame.step_outputs)
      if (storage->live && !has_content(storage)) {
        framework_->retain_weak(storage->handle);
        held.push_back({storage, storage->handle, false});
      }
  }
  for (Held& entry : held) {
    entry.strong = framework_->retain_strong_with_gil(entry.handle) != 0;
    if (entry.strong) deferred.release_strong(entry.handle);
    deferred.release_weak(entry.handle);
  }
  std::lock_guard<EngineMutex> lock(mutex_);
  Op* op = frame.stack.back().op;
  clock_ns_ += op->cost_ns;
  stats_.recompute_cost_ns += static_cast<uint64_t>(op->cost_ns);
  for (const Output& output : op->outputs) {
    Storage* storage = output.storage;
    if (!storage || has_content(storage)) continue;
    const uint32_t at =
        output.mutation ? output.position : tensors + static_cast<uint32_t>(output.position);
    if (!output.mutation && static_cast<uint32_t>(output.position) >= results)
      throw StateError("op " + std::to_string(op->id) + " gave fewer results than the first time");
    if (output.mutation && at >= tensors)
      throw StateError("op " + std::to_string(op->id) + " had more arguments the first time");
    const auto* tensor = reinterpret_cast<const void*>(frame.step[at]);
    if (!tensor)
      throw StateError("op " + std::to_string(op->id) + " gave no result " +
                       std::to_string(output.position) + ", unlike the first time");
    dtr_tensor_desc desc;
    framework_->describe(tensor, &desc);
    if (desc.device_type != storage->device_type || desc.device_index != storage->device_index)
      throw StateError("op " + std::to_string(op->id) + " gave a result on device " +
                       std::to_string(desc.device_index) + " where it gave one on device " +
                       std::to_string(storage->device_index) + " the first time");
    if (desc.storage_bytes != storage->size_bytes)
      throw StateError("op " + std::to_string(op->id) + " gave " +
                       std::to_string(desc.storage_bytes) + " bytes where it gave " +
                       std::to_string(storage->size_bytes) + " the first time");
    verifier_.compare(storage, op, desc.data);
    // The replay may have consumed an old version: its memory changes hands.
    Storage* consumed = graph_.by_handle.find(desc.handle);
    void* address = framework_->take(desc.handle);
    if (!address)
      throw StateError("op " + std::to_string(op->id) +
                       " gave a result whose memory is not from this allocator");
    if (consumed) {
      graph_.by_address.erase(address);
      lose_handle(consumed, deferred);
      become_evicted(consumed);
    }
    bool strong = false;
    for (const Held& entry : held) strong |= entry.storage == storage && entry.strong;
    place(storage, address, strong, deferred);
  }
  ++stats_.rematerializations;
  environment_.observers.notify(&Observer::ran_again, op);
  if (streams_.has_streams(frame.stack.back().target->device_type)) {
    stats_.recompute_ns += static_cast<uint64_t>(op->cost_ns);  // the clock saw it queued only
  } else {
    if (op->signature) costs_.add_again(op->signature, reading_ns);
    stats_.recompute_ns += static_cast<uint64_t>(now_ns() - frame.step_begin_ns -
                                                 (room_ns_of_thread() - frame.room_ns_at_step));
  }
  drop_consumed(frame, deferred);
  frame.step_open = false;
  end_step(frame, deferred);
  release_ghosts(deferred);
}

// Old versions that the step ran on are overwritten, in part if it failed. Those whose
// memory went to the next version are evicted already; the rest are where the next
// version was resident all the time, or is gone.
void Engine::drop_consumed(Frame& frame, Deferred& deferred) {
  for (Storage* old : frame.consumed) {
    if (old->state != State::resident) continue;
    graph_.by_address.erase(old->address);
    lose_handle(old, deferred);
    become_evicted(old);
  }
  frame.consumed.clear();
}

// Takes the innermost step off the stack and unlocks what it locked. The target
// last: it keeps the op.
void Engine::end_step(Frame& frame, Deferred& deferred) {
  const RematStep step = frame.stack.back();
  frame.stack.pop_back();
  for (Storage* storage : frame.step_outputs) {
    --storage->holds;
    unlock(storage, deferred);
  }
  frame.step_outputs.clear();
  while (frame.stack_inputs.size() > step.first_input) {
    const StepInput input = frame.stack_inputs.back();
    frame.stack_inputs.pop_back();
    if (input.held) --input.storage->holds;
    unlock(input.storage, deferred);
  }
  if (step.target->state == State::recomputing) step.target->state = State::evicted;
  if (step.target->state == State::resident && step.forget) forget_parent(step.target, deferred);
  unlock(step.target, deferred);
  if (frame.stack.empty() && std::exchange(frame.used_sources, false))
    dead_.settle_sources(deferred);
}

void Engine::remat_abort(Frame& frame) {
  hints_.step_ends();
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  if (frame.step_open) drop_consumed(frame, deferred);
  frame.step_open = false;
  while (!frame.stack.empty()) end_step(frame, deferred);
  keep(frame, false);
}

}  // namespace dtr
