// CUDA device memory through the driver's virtual memory management: one reservation, physical
// memory created and mapped chunk by chunk.
#include "cuda_driver.h"

#include <cstdio>
#include <unordered_map>
#include <vector>

#include "cuda_api.h"
#include "driver.h"
#include "errors.h"

namespace dtr {

namespace {

constexpr uint64_t kAlignment = 512;

// The device's primary context, which PyTorch and CuPy use too.
class PrimaryContext {
 public:
  PrimaryContext(const CudaApi& cuda, CuDevice device) : cuda_(cuda), device_(device) {
    cuda_.check(cuda_.primary_retain(&context_, device), "cuDevicePrimaryCtxRetain");
  }
  ~PrimaryContext() { cuda_.primary_release(device_); }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  CuContext get() const { return context_; }

 private:
  const CudaApi& cuda_;
  CuDevice device_;
  CuContext context_ = nullptr;
};

// Makes a context current on this thread for a scope, and lets the thread call what a stream
// capture of the process would forbid: nothing that we call becomes part of a capture, unless it
// is queued on a stream that is being captured.
class CurrentContext {
 public:
  CurrentContext(const CudaApi& cuda, CuContext context) : cuda_(cuda) {
    cuda_.check(cuda_.exchange_capture_mode(&capture_mode_), "cuThreadExchangeStreamCaptureMode");
    try {
      cuda_.check(cuda_.context_get(&before_), "cuCtxGetCurrent");
      if (before_ == context) return;
      cuda_.check(cuda_.context_set(context), "cuCtxSetCurrent");
      changed_ = true;
    } catch (...) {
      cuda_.exchange_capture_mode(&capture_mode_);
      throw;
    }
  }
  ~CurrentContext() {
    if (changed_) cuda_.context_set(before_);
    cuda_.exchange_capture_mode(&capture_mode_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaApi& cuda_;
  CuContext before_ = nullptr;
  bool changed_ = false;
  int capture_mode_ = kCaptureModeRelaxed;  // inside the scope: the one to go back to
};

// Physical memory that could not be released stays here and serves the next chunk.
class PhysicalMemory {
 public:
  PhysicalMemory(const CudaApi& cuda, CuContext context, const CuMemAllocationProp& kind)
      : cuda_(cuda), context_(context), kind_(kind) {}
  ~PhysicalMemory() {
    try {
      CurrentContext current(cuda_, context_);
      for (CuHandle handle : unreleased_) cuda_.check(cuda_.release(handle), "cuMemRelease");
    } catch (const DriverError& error) {
      std::fprintf(stderr, "dtr_alloc: device memory not released: %s\n", error.what());
    }
  }

  CuHandle create(uint64_t size_bytes) {
    // Room for every handle in existence, so that give_back() cannot throw.
    unreleased_.reserve(existing_ + 1);
    CuHandle handle = 0;
    if (!unreleased_.empty()) {
      handle = unreleased_.back();
      unreleased_.pop_back();
      return handle;
    }
    cuda_.check(cuda_.create(&handle, size_bytes, &kind_, 0), "cuMemCreate");
    ++existing_;
    return handle;
  }

  void give_back(CuHandle handle) noexcept {
    if (cuda_.release(handle) == kCudaSuccess) {
      --existing_;
    } else {
      unreleased_.push_back(handle);
    }
  }

 private:
  const CudaApi& cuda_;
  CuContext context_;
  CuMemAllocationProp kind_;
  std::vector<CuHandle> unreleased_;
  uint64_t existing_ = 0;
};

// One chunk of physical memory behind an address; undone at the end of the scope unless kept.
class ChunkMapping {
 public:
  ChunkMapping(const CudaApi& cuda, PhysicalMemory& memory, CuAddress address, uint64_t size)
      : cuda_(cuda), memory_(memory), address_(address), size_(size) {
    handle_ = memory_.create(size);
    CuResult result = cuda_.map(address, size, 0, handle_, 0);
    if (result == kCudaSuccess) return;
    memory_.give_back(handle_);
    cuda_.check(result, "cuMemMap");
  }
  ~ChunkMapping() {
    if (kept_) return;
    if (cuda_.unmap(address_, size_) != kCudaSuccess) {
      std::fprintf(stderr, "dtr_alloc: a chunk could not be unmapped after a failure\n");
      return;
    }
    memory_.give_back(handle_);
  }
  ChunkMapping(ChunkMapping&& other) noexcept
      : cuda_(other.cuda_),
        memory_(other.memory_),
        address_(other.address_),
        size_(other.size_),
        handle_(other.handle_),
        kept_(other.kept_) {
    other.kept_ = true;
  }
  ChunkMapping& operator=(ChunkMapping&&) = delete;

  CuAddress address() const { return address_; }
  CuHandle keep() {
    kept_ = true;
    return handle_;
  }

 private:
  const CudaApi& cuda_;
  PhysicalMemory& memory_;
  CuAddress address_;
  uint64_t size_;
  CuHandle handle_ = 0;
  bool kept_ = false;
};

CuDevice find_device(const CudaApi& cuda, int32_t ordinal) {
  cuda.check(cuda.init(0), "cuInit");
  int count = 0;
  cuda.check(cuda.device_count(&count), "cuDeviceGetCount");
  if (count == 0) throw DriverError("the CUDA driver has no device");
  if (ordinal >= count) {
    throw InvalidArgument("device is " + std::to_string(ordinal) + "; allowed: 0 to " +
                          std::to_string(count - 1));
  }
  CuDevice device = 0;
  cuda.check(cuda.device_get(&device, ordinal), "cuDeviceGet");
  int supported = 0;
  cuda.check(cuda.device_attribute(&supported, kAttributeVirtualMemory, device),
             "cuDeviceGetAttribute");
  if (supported == 0) {
    throw DriverError("device " + std::to_string(ordinal) +
                      " has no VMM support (virtual memory management), which the CUDA driver "
                      "of dtr_alloc needs");
  }
  return device;
}

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(int32_t ordinal)
      : table_(cuda_api()),
        cuda_(*table_),
        device_(find_device(cuda_, ordinal)),
        context_(cuda_, device_),
        kind_{1, 0, {1, device_}, nullptr, {}},
        memory_(cuda_, context_.get(), kind_) {
    CurrentContext current(cuda_, context_.get());
    size_t granularity = 0, total = 0;
    cuda_.check(cuda_.granularity(&granularity, &kind_, kGranularityRecommended),
                "cuMemGetAllocationGranularity");
    cuda_.check(cuda_.device_total(&total, device_), "cuDeviceTotalMem");
    traits_ = {"cuda", kAlignment, granularity, granularity, uint64_t{4} * total, total};
  }

  const DriverTraits& traits() const override { return traits_; }

  uint64_t reserve(uint64_t size_bytes, uint64_t chunk_bytes) override {
    CurrentContext current(cuda_, context_.get());
    CuAddress base = 0;
    cuda_.check(cuda_.reserve(&base, size_bytes, 0, 0, 0), "cuMemAddressReserve");
    chunk_ = chunk_bytes;
    return base;
  }

  void release(uint64_t base, uint64_t size_bytes) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.address_free(base, size_bytes), "cuMemAddressFree");
  }

  void map(uint64_t address, uint64_t size_bytes) override {
    CurrentContext current(cuda_, context_.get());
    std::vector<ChunkMapping> chunks;
    chunks.reserve(size_bytes / chunk_);
    for (uint64_t at = address; at < address + size_bytes; at += chunk_) {
      chunks.emplace_back(cuda_, memory_, at, chunk_);
    }
    CuMemAccessDesc access{kind_.location, 3};
    cuda_.check(cuda_.set_access(address, size_bytes, &access, 1), "cuMemSetAccess");
    handles_.reserve(handles_.size() + chunks.size());
    for (ChunkMapping& chunk : chunks) {
      CuHandle& handle = handles_[chunk.address()];
      handle = chunk.keep();
    }
  }

  // One call unmaps neighboring chunks together.
  void unmap(uint64_t address, uint64_t size_bytes) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.unmap(address, size_bytes), "cuMemUnmap");
    for (uint64_t at = address; at < address + size_bytes; at += chunk_) {
      auto entry = handles_.find(at);
      memory_.give_back(entry->second);
      handles_.erase(entry);
    }
  }

  bool has_streams() const override { return true; }

  Event create_event(bool timed) override {
    CurrentContext current(cuda_, context_.get());
    CuEvent event = nullptr;
    unsigned flags = timed ? kEventDefault : kEventDisableTiming;
    cuda_.check(cuda_.event_create(&event, flags), "cuEventCreate");
    return event;
  }

  void destroy_event(Event event) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.event_destroy(event), "cuEventDestroy");
  }

  void record_event(Event event, uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.event_record(event, stream_of(stream)), "cuEventRecord");
  }

  bool event_complete(Event event) override {
    CurrentContext current(cuda_, context_.get());
    CuResult result = cuda_.event_query(event);
    if (result == kCudaNotReady) return false;
    cuda_.check(result, "cuEventQuery");
    return true;
  }

  void synchronize_event(Event event) override {
    CurrentContext current(cuda_, context_.get());
    ++host_waits_;
    cuda_.check(cuda_.event_synchronize(event), "cuEventSynchronize");
  }

  void stream_wait_event(uint64_t stream, Event event) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.stream_wait_event(stream_of(stream), event, 0), "cuStreamWaitEvent");
  }

  int64_t elapsed_ns(Event begin, Event end) override {
    CurrentContext current(cuda_, context_.get());
    float milliseconds = 0;
    cuda_.check(cuda_.event_elapsed(&milliseconds, begin, end), "cuEventElapsedTime");
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

  uint64_t create_stream() override {
    CurrentContext current(cuda_, context_.get());
    CuStream stream = nullptr;
    cuda_.check(cuda_.stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
    return reinterpret_cast<uint64_t>(stream);
  }

  void destroy_stream(uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.stream_destroy(stream_of(stream)), "cuStreamDestroy");
  }

  void synchronize_stream(uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    ++host_waits_;
    cuda_.check(cuda_.stream_synchronize(stream_of(stream)), "cuStreamSynchronize");
  }

  bool capturing(uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    int status = 0;
    cuda_.check(cuda_.stream_is_capturing(stream_of(stream), &status), "cuStreamIsCapturing");
    return status != 0;
  }

  bool synchronize_device() override {
    CurrentContext current(cuda_, context_.get());
    ++host_waits_;
    CuResult result = cuda_.context_synchronize();
    if (result >= kCudaFirstCaptureError && result <= kCudaLastCaptureError) return false;
    cuda_.check(result, "cuCtxSynchronize");
    return true;
  }

  uint64_t allocate_host(uint64_t size_bytes) override {
    CurrentContext current(cuda_, context_.get());
    void* host = nullptr;
    cuda_.check(cuda_.host_allocate(&host, size_bytes, kHostPortable), "cuMemHostAlloc");
    return reinterpret_cast<uint64_t>(host);
  }

  void free_host(uint64_t host, uint64_t) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.host_free(reinterpret_cast<void*>(host)), "cuMemFreeHost");
  }

  void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(
        cuda_.copy_out_async(reinterpret_cast<void*>(host), address, size_bytes, stream_of(stream)),
        "cuMemcpyDtoHAsync");
  }

  void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.copy_in_async(address, reinterpret_cast<const void*>(host), size_bytes,
                                    stream_of(stream)),
                "cuMemcpyHtoDAsync");
  }

  bool has_contents() const override { return true; }

  void fill(uint64_t address, uint8_t value, uint64_t size_bytes, uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.memset_async(address, value, size_bytes, stream_of(stream)),
                "cuMemsetD8Async");
  }

  void copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.copy_async(to, from, size_bytes, stream_of(stream)), "cuMemcpyDtoDAsync");
  }

 private:
  static CuStream stream_of(uint64_t stream) { return reinterpret_cast<CuStream>(stream); }

  std::shared_ptr<const CudaApi> table_;
  const CudaApi& cuda_;
  CuDevice device_;
  PrimaryContext context_;
  CuMemAllocationProp kind_;
  PhysicalMemory memory_;  // destroyed before the context
  DriverTraits traits_;
  uint64_t chunk_ = 0;
  std::unordered_map<CuAddress, CuHandle> handles_;  // of the mapped chunks
};

}  // namespace

std::unique_ptr<Driver> make_cuda_driver(int32_t device) {
  return std::make_unique<CudaDriver>(device);
}

}  // namespace dtr
