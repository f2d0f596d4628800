// graph_capture.cpp: see graph/graph_capture.h.
#include <limits>

#include "engine.h"

namespace dtr {

void Engine::freeze(bool on) {
  std::lock_guard<EngineMutex> lock(mutex_);
  if (on)
    capture_.begin();
  else if (capture_.end())
    lifecycle_.costs_changed();
}

// Under the mutex.
void Engine::keep(Frame& frame, bool on) {
  if (frame.keeps == on) return;
  frame.keeps = on;
  if (on)
    capture_.begin_bringing_back();
  else if (capture_.end_bringing_back())
    lifecycle_.costs_changed();
}

// Of an op that begins; F2. What cannot be settled at once is left to op_prepare().
void Engine::capture_inputs(const Frame& frame, Deferred& deferred) {
  for (const Input& input : frame.inputs) {
    Storage* storage = input.storage;
    if (!storage || storage->captured || storage->state != State::resident) continue;
    storage->captured = true;
    storage->constant_for_good = true;
    lifecycle_.forget_parent(storage, deferred);
    lifecycle_.update_candidate(storage);
    settling_.settle(storage, nullptr, Settling::kAnyBytes, deferred);
  }
}

}  // namespace dtr
