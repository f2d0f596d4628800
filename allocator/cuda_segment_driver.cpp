// CUDA device memory without virtual memory management: each reservation is memory of its own from
// the start (cuMemAlloc), so mapping is nothing to do. For SegmentedPool.
#include <memory>

#include "cuda_driver.h"
#include "errors.h"

namespace dtr {

namespace {

constexpr uint64_t kUnit = 64 << 10;  // what a slab is: nothing else is mapped by units

class CudaSegmentDriver final : public CudaDriver {
 public:
  explicit CudaSegmentDriver(int32_t ordinal) : CudaDriver(ordinal) {
    const uint64_t total = total_bytes();
    traits_ = {"cuda-segments", kCudaAlignment, kUnit, kUnit, total, total};
  }

  bool maps_chunks() const override { return false; }

  uint64_t reserve(uint64_t size_bytes, uint64_t) override {
    CurrentContext current(cuda_, context_.get());
    CuAddress base = 0;
    cuda_.check(cuda_.allocate(&base, size_bytes), "cuMemAlloc");
    if (base % kCudaAlignment == 0) return base;
    cuda_.free(base);
    throw DriverError("cuMemAlloc gave " + address_text(base) + ", which is no multiple of " +
                      size_text(kCudaAlignment));
  }

  // The driver waits for work that uses it.
  void release(uint64_t base, uint64_t) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.free(base), "cuMemFree");
  }

  void map(uint64_t, uint64_t) override {}
  void unmap(uint64_t, uint64_t) override {}
};

}  // namespace

std::unique_ptr<Driver> make_cuda_segment_driver(int32_t device) {
  return std::make_unique<CudaSegmentDriver>(device);
}

}  // namespace dtr
