// The timed loop of bench/heap.py: pairs of free and malloc among live blocks, on one trace.
//
//   heap_bench <heap|pool|glibc> <live blocks> <pairs> <smallest> <largest> <sizes> <seed>
//
// sizes 0: each pair frees a random block, and sizes are log-uniform. Else as in training: so many
// different sizes, and what is freed is mostly of the youngest blocks.
//
// Prints nanoseconds per pair: the median, the lowest and the highest of the parts, 2000 pairs
// each, of seven runs over the same trace. Memory is not touched, so that only the allocator is
// timed; glibc still writes its own headers.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
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

// As a CUDA device has them.
constexpr uint64_t kChunk = 2 << 20;

// The heap alone: no lock, budget, slabs or statistics. All sizes are of its own blocks.
struct HeapUnderTest {
  static constexpr uint64_t kRange = uint64_t{1} << 36;
  std::unique_ptr<dtr::Driver> driver = dtr::make_simulated_driver();
  dtr::Reservation reservation{*driver, kRange, kChunk};
  dtr::EventSource events;
  dtr::Chunks chunks{*driver, reservation, kChunk, events};
  dtr::Heap heap{chunks, 0, kRange, dtr::kGrain};

  HeapUnderTest() { heap.fill(0, kRange); }
  void map(uint64_t begin, uint64_t end) { chunks.map(chunks.around(begin, end)); }
  uint64_t allocate(uint64_t size) {
    size = (size + dtr::kGrain - 1) / dtr::kGrain * dtr::kGrain;
    dtr::Block* hole = heap.best_fit(dtr::kIdle, size);
    const uint64_t begin = hole->offset;
    if (!chunks.all_mapped(begin, begin + size)) map(begin, begin + size);
    return heap.take(hole, size)->offset;
  }
  void free(uint64_t offset) { heap.release(heap.find(offset), dtr::kIdle, 0); }
};

struct PoolUnderTest {
  dtr::Pool pool{dtr::PoolOptions{"simulated", 0, dtr::kNoLimit, 0, kChunk, 0}};
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
  constexpr size_t kPart = 2000;
  Allocator allocator;
  std::vector<uint64_t> live;
  for (uint64_t size : first) live.push_back(allocator.allocate(size));
  std::vector<double> times;
  for (int run = 0; run < 8; ++run) {
    for (size_t at = 0; at + kPart <= steps.size(); at += kPart) {
      double start = thread_nanoseconds();
      for (size_t i = at; i < at + kPart; ++i) {
        allocator.free(live[steps[i].slot]);
        live[steps[i].slot] = allocator.allocate(steps[i].size);
      }
      double nanoseconds = thread_nanoseconds() - start;
      if (run > 0) times.push_back(nanoseconds / static_cast<double>(kPart));
    }
  }
  for (uint64_t address : live) allocator.free(address);
  std::sort(times.begin(), times.end());
  std::printf("%.2f %.2f %.2f\n", times[times.size() / 2], times.front(), times.back());
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 8) return 2;
  uint64_t live = std::strtoull(arguments[2], nullptr, 10);
  uint64_t pairs = std::strtoull(arguments[3], nullptr, 10);
  double low = std::log2(std::strtod(arguments[4], nullptr));
  double high = std::log2(std::strtod(arguments[5], nullptr));
  uint64_t few = std::strtoull(arguments[6], nullptr, 10);
  std::mt19937_64 generator(std::strtoull(arguments[7], nullptr, 10));
  // Sizes are log-uniform: as many per factor of two.
  auto any_size = [&] {
    double unit = static_cast<double>(generator() >> 11) * 0x1p-53;
    return static_cast<uint64_t>(std::exp2(low + unit * (high - low)));
  };
  std::vector<uint64_t> sizes(few);
  for (uint64_t& entry : sizes) entry = any_size();
  auto size = [&] { return few == 0 ? any_size() : sizes[generator() % few]; };
  std::vector<uint64_t> first(live);
  for (uint64_t& entry : first) entry = size();
  // The slots from the oldest block to the youngest.
  std::vector<uint32_t> by_age(live);
  for (uint64_t i = 0; i < live; ++i) by_age[i] = static_cast<uint32_t>(i);
  std::geometric_distribution<uint64_t> youth(1.0 / 64);
  std::vector<Step> steps(pairs);
  for (Step& step : steps) {
    // One in 16 is any block, as what lives across steps is.
    const bool any = few == 0 || generator() % 16 == 0;
    const uint64_t from_last = any ? generator() % live : std::min(youth(generator), live - 1);
    const auto at = by_age.end() - 1 - static_cast<ptrdiff_t>(from_last);
    step = {*at, size()};
    if (few != 0) std::rotate(at, at + 1, by_age.end());
  }
  if (std::strcmp(arguments[1], "heap") == 0)
    measure<HeapUnderTest>(first, steps);
  else if (std::strcmp(arguments[1], "pool") == 0)
    measure<PoolUnderTest>(first, steps);
  else
    measure<GlibcUnderTest>(first, steps);
}
