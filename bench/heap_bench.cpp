// The timed loop of bench/heap.py: pairs of free and malloc among live blocks, on one trace.
//
//   heap_bench <pool|glibc> <live blocks> <pairs> <smallest> <largest> <seed>
//
// Prints nanoseconds per pair: the median, the lowest and the highest of seven runs over the
// same trace. Memory is not touched, so that only the allocator is timed; glibc still writes its
// own headers.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "pool.h"

namespace {

struct Step {
  uint32_t slot;  // which live block to replace
  uint64_t size;  // by one of this size
};

// This thread's own time: other processes on a shared machine do not count.
double thread_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct PoolUnderTest {
  dtr::Pool pool{dtr::PoolOptions{"simulated", 0, dtr::kNoLimit, 0, 2 << 20, 0}};
  uint64_t allocate(uint64_t size) { return pool.allocate(size, 0); }
  void free(uint64_t address) { pool.free(address); }
  ~PoolUnderTest() { pool.close(); }
};

struct GlibcUnderTest {
  // No mmap per block: the comparison is with malloc's own heap, not with system calls.
  GlibcUnderTest() {
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
  }
  uint64_t allocate(uint64_t size) {
    void* address = std::malloc(size);
    if (address == nullptr) std::abort();
    return reinterpret_cast<uint64_t>(address);
  }
  void free(uint64_t address) { std::free(reinterpret_cast<void*>(address)); }
};

template <typename Allocator>
void measure(const std::vector<uint64_t>& first, const std::vector<Step>& steps) {
  Allocator allocator;
  std::vector<uint64_t> live;
  for (uint64_t size : first) live.push_back(allocator.allocate(size));
  std::vector<double> times;
  for (int run = 0; run < 8; ++run) {
    double start = thread_nanoseconds();
    for (const Step& step : steps) {
      allocator.free(live[step.slot]);
      live[step.slot] = allocator.allocate(step.size);
    }
    double nanoseconds = thread_nanoseconds() - start;
    if (run > 0) times.push_back(nanoseconds / static_cast<double>(steps.size()));
  }
  for (uint64_t address : live) allocator.free(address);
  std::sort(times.begin(), times.end());
  std::printf("%.2f %.2f %.2f\n", times[times.size() / 2], times.front(), times.back());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 7) return 2;
  uint64_t live = std::strtoull(arguments[2], nullptr, 10);
  uint64_t pairs = std::strtoull(arguments[3], nullptr, 10);
  double low = std::log2(std::strtod(arguments[4], nullptr));
  double high = std::log2(std::strtod(arguments[5], nullptr));
  std::mt19937_64 generator(std::strtoull(arguments[6], nullptr, 10));
  // Sizes are log-uniform: as many per factor of two.
  auto size = [&] {
    double unit = static_cast<double>(generator() >> 11) * 0x1p-53;
    return static_cast<uint64_t>(std::exp2(low + unit * (high - low)));
  };
  std::vector<uint64_t> first(live);
  for (uint64_t& entry : first) entry = size();
  std::vector<Step> steps(pairs);
  for (Step& step : steps) step = {static_cast<uint32_t>(generator() % live), size()};
  if (std::strcmp(arguments[1], "pool") == 0) {
    measure<PoolUnderTest>(first, steps);
  } else {
    measure<GlibcUnderTest>(first, steps);
  }
}
