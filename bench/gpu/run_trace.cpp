// The timed loop of bench/gpu/heap_calls.py: the allocations and frees of a recorded trace, made
// through one allocator after another from the same code. Compiled where it runs; with WITH_TORCH
// against the installed PyTorch, whose CUDA allocator has no C interface.
#include <chrono>
#include <cstdint>
#include <cstdlib>

#ifdef WITH_TORCH
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

struct Step {
  uint64_t slot;        // which block
  uint64_t size_bytes;  // to allocate; 0: to free it
};

// Who is called. The functions' types are by kind:
//   0  int32_t (*)(void* pool, uint64_t size, uint64_t stream, void** out), int32_t (*)(void*,
//   void*) 1  int (*)(void** out, size_t size), int (*)(void*)                        cudaMalloc 2
//   int (*)(void** out, size_t size, void* stream), int (*)(void*, void*)   cudaMallocAsync 3 void*
//   (*)(size_t), void (*)(void*)                                      malloc 4  PyTorch's CUDA
//   allocator; both are null
struct Allocator {
  int32_t kind;
  void* allocate;
  void* release;
  void* context;  // the pool of kind 0
  void* stream;
};

namespace {

template <typename Function>
Function as(void* address) {
  return reinterpret_cast<Function>(address);
}

void* allocate(const Allocator& by, uint64_t size) {
  void* out = nullptr;
  int failed = 0;
  switch (by.kind) {
    case 0:
      failed = as<int32_t (*)(void*, uint64_t, uint64_t, void**)>(by.allocate)(
          by.context, size, reinterpret_cast<uint64_t>(by.stream), &out);
      break;
    case 1:
      failed = as<int (*)(void**, size_t)>(by.allocate)(&out, size);
      break;
    case 2:
      failed = as<int (*)(void**, size_t, void*)>(by.allocate)(&out, size, by.stream);
      break;
    case 3:
      out = as<void* (*)(size_t)>(by.allocate)(size);
      break;
#ifdef WITH_TORCH
    case 4:
      try {
        out = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(
            size, reinterpret_cast<cudaStream_t>(by.stream));
      } catch (const c10::Error&) {
        failed = 1;
      }
      break;
#endif
    default:
      failed = 1;
  }
  return failed ? nullptr : out;
}

void release(const Allocator& by, void* address) {
  switch (by.kind) {
    case 0:
      as<int32_t (*)(void*, void*)>(by.release)(by.context, address);
      break;
    case 1:
      as<int (*)(void*)>(by.release)(address);
      break;
    case 2:
      as<int (*)(void*, void*)>(by.release)(address, by.stream);
      break;
    case 3:
      as<void (*)(void*)>(by.release)(address);
      break;
#ifdef WITH_TORCH
    case 4:
      c10::cuda::CUDACachingAllocator::raw_delete(address);
      break;
#endif
  }
}

}  // namespace

// Makes the steps; nanoseconds, or -1 if an allocation failed. slots: one null pointer for each
// block of the trace; afterwards all are freed again, which is not timed.
EXPORT int64_t run_trace(const Allocator* by, const Step* steps, uint64_t count, void** slots,
                            uint64_t slot_count) {
  bool failed = false;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < count && !failed; ++i) {
    void*& slot = slots[steps[i].slot];
    if (steps[i].size_bytes == 0) {
      release(*by, slot);
      slot = nullptr;
    } else {
      slot = allocate(*by, steps[i].size_bytes);
      failed = slot == nullptr;
    }
  }
  const auto took = std::chrono::steady_clock::now() - start;
  for (uint64_t i = 0; i < slot_count; ++i) {
    if (slots[i]) release(*by, slots[i]);
    slots[i] = nullptr;
  }
  return failed ? -1 : std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
}
