// clock.h: real time, for what is measured. (The engine's own clock counts costs: engine.h.)
#pragma once

#include <time.h>

#include <cstdint>

namespace dtr {

inline int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

}  // namespace dtr
