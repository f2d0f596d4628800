// CUDA: streams, events and copies, and what is known of CUDA beyond the table of verbs of driver.h.
// Memory is in cuda_vmm_driver.cpp.
#pragma once

#include <cstdint>
#include <memory>

#include "cuda_api.h"
#include "cuda_context.h"
#include "driver.h"

namespace dtr {

// Of blocks: what CUDA promises of its own allocations, and the most that cuBLASLt is told of, so
// that it chooses the same kernels wherever a block lies.
constexpr uint64_t kCudaAlignment = 256;

class CudaDriver : public Driver {
 public:
  const DriverTraits& traits() const override { return traits_; }

  bool has_streams() const override { return true; }
  Event create_event(bool timed) override;
  void destroy_event(Event event) override;
  void record_event(Event event, uint64_t stream) override;
  bool event_complete(Event event) override;
  void synchronize_event(Event event) override;
  void stream_wait_event(uint64_t stream, Event event) override;
  int64_t elapsed_ns(Event begin, Event end) override;
  uint64_t create_stream() override;
  void destroy_stream(uint64_t stream) override;
  void synchronize_stream(uint64_t stream) override;
  bool capturing(uint64_t stream) override;
  bool synchronize_device() override;
  uint64_t allocate_on_stream(uint64_t size_bytes, uint64_t stream) override;
  void free_on_stream(uint64_t address, uint64_t stream) override;
  uint64_t allocate_host(uint64_t size_bytes) override;
  void free_host(uint64_t host, uint64_t) override;
  void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream) override;
  void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream) override;
  void fill(uint64_t address, uint8_t value, uint64_t size_bytes, uint64_t stream) override;
  void copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t stream) override;
  bool has_contents() const override { return true; }

 protected:
  explicit CudaDriver(int32_t ordinal);
  uint64_t total_bytes() const;  // of the device

  std::shared_ptr<const CudaApi> table_;
  const CudaApi& cuda_;
  CuDevice device_;
  PrimaryContext context_;
  DriverTraits traits_;
};

// Throws DriverError unless the device has virtual memory management, and InvalidArgument if there
// is no such device.
void cuda_require_virtual_memory(int32_t device);

// The number of devices, after loading a library (nullptr: the one that is set). Throws
// DriverError if it cannot be loaded, lacks a function, or has no device.
int32_t cuda_probe(const char* library_path);

// Where the driver's functions are looked up from now on; nullptr: libcuda.so.1. Throws
// StateError while a CUDA driver object exists.
void cuda_set_library(const char* library_path);

}  // namespace dtr
