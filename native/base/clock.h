// clock.h: real time, for what is measured. (The engine's own clock counts costs: engine.h.)
#pragma once

#include <time.h>

#include <cstdint>

namespace dtr {

inline int64_t read_clock_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

inline int64_t now_ns() { return read_clock_ns(CLOCK_MONOTONIC); }

// The processor time of the calling thread. Reading it takes about a microsecond.
inline int64_t thread_ns() { return read_clock_ns(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace dtr
