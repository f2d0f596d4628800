// engine_call.h: a call of the engine under its mutex.
#pragma once

#include <mutex>

#include "graph/deferred.h"
#include "locks.h"

namespace dtr {

// What it defers happens after the mutex is released.
struct EngineCall {
  EngineCall(const Environment& environment, DeadStorages& dead, EngineMutex& mutex)
      : deferred(environment, dead, mutex), lock(mutex) {}
  Deferred deferred;
  std::unique_lock<EngineMutex> lock;
};

}  // namespace dtr
