// replay.h: what a replay of an op log leaves behind, whichever semantics it had.
#pragma once

#include <string>

#include "dtr_alloc.h"

namespace dtr {

// A run that has ended. The C functions hand it out as a dtr_replay (replay_api.cpp).
struct Replay {
  dtr_replay_result result{};
  std::string decisions;  // as dtr_replay_decisions() gives them
};

}  // namespace dtr
