// thread_use.h: what an operator takes of the thread that it runs on.
//
// The time on the clock has in it what other programs took from the thread (preemption). That says
// nothing of the operator, and on a busy machine it is in each reading of one that runs longer than a
// time slice. So the thread's processor time counts, if that is less. It is the calling thread's alone:
// where others take their shares of the operator, it has one, too, which takes as long. An operator
// that sleeps nearly all the time waits for something each time, such as a file: then the clock is
// right.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

#include "clock.h"

namespace dtr {

// Up to a point, or from one to another.
struct ThreadUse {
  int64_t clock_ns = 0;
  int64_t processor_ns = 0;
  int64_t sleeps = 0;  // how often it gave the processor up itself

  // All but the clock. It takes a microsecond or two.
  void read_thread() {
    rusage usage;
    processor_ns = thread_ns();
    ::getrusage(RUSAGE_THREAD, &usage);
    sleeps = usage.ru_nvcsw;
  }

  int64_t own_ns() const {
    constexpr int64_t kSleepsMost = 8;
    const bool waits = sleeps > 0 && processor_ns < clock_ns / kSleepsMost;
    // Some systems count in ticks, and may have seen none.
    return waits || processor_ns <= 0 ? clock_ns : std::min(clock_ns, processor_ns);
  }
};

}  // namespace dtr
