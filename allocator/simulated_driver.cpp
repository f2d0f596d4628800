// Addresses without memory: for the heap under a trace or a simulated job. Every verb succeeds.
#include <atomic>

#include "driver.h"

namespace dtr {

namespace {

// Outside anything a process maps on x86-64 and arm64, so that a stray access faults. Each
// reservation has a range of its own: an address says which pool it is of.
constexpr uint64_t kBase = uint64_t{1} << 56;
constexpr uint64_t kRangeBytes = uint64_t{1} << 44;
constexpr uint64_t kRanges = 2048;  // one is used again after so many

// Of host memory: the addresses follow one another, and none is used again.
constexpr uint64_t kHostBase = uint64_t{1} << 58;
constexpr uint64_t kHostUnit = 4096;

std::atomic<uint64_t> ranges{0};
std::atomic<uint64_t> host_units{0};

class SimulatedDriver final : public Driver {
 public:
  const DriverTraits& traits() const override { return traits_; }
  uint64_t reserve(uint64_t, uint64_t) override {
    return kBase + ranges.fetch_add(1) % kRanges * kRangeBytes;
  }
  void release(uint64_t, uint64_t) override {}
  void map(uint64_t, uint64_t) override {}
  void unmap(uint64_t, uint64_t) override {}
  // There are no contents to copy.
  uint64_t allocate_host(uint64_t size_bytes) override {
    return kHostBase + host_units.fetch_add(size_bytes / kHostUnit + 1) * kHostUnit;
  }
  void free_host(uint64_t, uint64_t) override {}
  void copy_out(uint64_t, uint64_t, uint64_t, uint64_t) override {}
  void copy_in(uint64_t, uint64_t, uint64_t, uint64_t) override {}

 private:
  DriverTraits traits_{"simulated", 64, 4096, 64 << 10, uint64_t{1} << 40, 0};
};

}  // namespace

std::unique_ptr<Driver> make_simulated_driver() { return std::make_unique<SimulatedDriver>(); }

}  // namespace dtr
