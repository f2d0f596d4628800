// freeze.cpp: while a graph is captured (torch.cuda.CUDAGraph).
//
// A captured graph uses the addresses that it was given, and changes what lies there, at
// times of which nobody tells us:
//
//  F1  While a capture is under way no live storage is evicted. The caller has everything
//      brought back first, so that no captured op needs a rematerialization, whose work
//      would become a part of the graph, and waits until that is done, so that no stream
//      has to wait for another's (O2). What is dead may go: no op can be given it.
//  F2  What an op touches meanwhile is *captured*: a constant for good. What depended on it
//      until then is settled, and what is computed from it later is not computed again,
//      because a replay of the graph may have changed it in between. The same holds for
//      memory on a device that is shared with others (DLPack): nothing tells of their writes,
//      as the checksum does on the CPU.
//
// Nor is anything live evicted while everything is brought back (dtr_remat_want_any): what came
// back first would go for what comes next, without an end, wherever not all of it fits. That it
// does not is an error.
#include <limits>

#include "base/error.h"
#include "engine.h"

namespace dtr {

void Engine::freeze(bool on) {
  std::lock_guard<EngineMutex> lock(mutex_);
  if (on) {
    ++frozen_;
    return;
  }
  if (frozen_ == 0) throw StateError("nothing is frozen");
  if (--frozen_ == 0) reset_all_bounds();  // searches have passed over what was frozen
}

// Under the mutex.
void Engine::keep(Frame& frame, bool on) {
  if (frame.keeps == on) return;
  frame.keeps = on;
  keeping_ += on ? 1 : -1;
  if (keeping_ == 0) reset_all_bounds();
}

// Of an op that begins; F2. What cannot be settled at once is left to op_prepare().
void Engine::capture_inputs(const Frame& frame, Deferred& deferred) {
  for (const Input& input : frame.inputs) {
    Storage* storage = input.storage;
    if (!storage || storage->captured || storage->state != State::resident) continue;
    storage->captured = true;
    storage->constant_for_good = true;
    forget_parent(storage, deferred);
    update_candidate(storage);
    settle(storage, nullptr, std::numeric_limits<uint64_t>::max(), deferred);
  }
}

}  // namespace dtr
