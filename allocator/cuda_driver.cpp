// CUDA as a device: memory through the driver's virtual memory management, streams, events and copies.
#include <algorithm>
#include <cstdio>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda_api.h"
#include "cuda_context.h"
#include "driver.h"
#include "errors.h"

namespace dtr {

namespace {

// Of blocks: what CUDA promises of its own allocations, and the most that cuBLASLt is told of, so
// that it chooses the same kernels wherever a block lies.
constexpr uint64_t kCudaAlignment = 256;

CuDevice find_device(const CudaApi& cuda, int32_t ordinal) {
  cuda.check(cuda.init(0), "cuInit");
  int count = 0;
  cuda.check(cuda.device_count(&count), "cuDeviceGetCount");
  if (count == 0) throw DriverError("the CUDA driver has no device");
  if (ordinal >= count) invalid("device", ordinal, "0 to " + std::to_string(count - 1));
  CuDevice device = 0;
  cuda.check(cuda.device_get(&device, ordinal), "cuDeviceGet");
  return device;
}

CuStream stream_of(uint64_t stream) { return reinterpret_cast<CuStream>(stream); }

// Throws DriverError unless the device has virtual memory management, and InvalidArgument if there
// is no such device.
void require_virtual_memory(int32_t ordinal) {
  std::shared_ptr<const CudaApi> cuda = cuda_api();
  int supported = 0;
  cuda->check(
      cuda->device_attribute(&supported, kAttributeVirtualMemory, find_device(*cuda, ordinal)),
      "cuDeviceGetAttribute");
  if (supported != 0) return;
  throw DriverError(
      "CUDA device " + std::to_string(ordinal) +
      " has no virtual memory management, which a pool needs to map memory: its attribute "
      "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0. Use another device, or leave "
      "this one without a budget; on a virtual GPU, have unified memory enabled for it");
}

// Physical memory that could not be released stays here and serves the next chunk.
class PhysicalMemory {
 public:
  PhysicalMemory(const CudaApi& cuda, CuContext context, const CuMemAllocationProp& kind)
      : cuda_(cuda), context_(context), kind_(kind) {}
  ~PhysicalMemory() {
    or_say("device memory not released", [this] {
      CurrentContext current(cuda_, context_);
      for (CuHandle handle : unreleased_) cuda_.check(cuda_.release(handle), "cuMemRelease");
    });
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
    if (cuda_.release(handle) == kCudaSuccess)
      --existing_;
    else
      unreleased_.push_back(handle);
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

class CudaDriver final : public Driver {
 public:
  explicit CudaDriver(int32_t ordinal)
      : table_(cuda_api()),
        cuda_(*table_),
        device_(find_device(cuda_, ordinal)),
        context_(cuda_, device_),
        kind_{1, 0, {1, device_}, nullptr, {}},
        memory_(cuda_, context_.get(), kind_),
        access_{{kind_.location, 3}} {
    CurrentContext current(cuda_, context_.get());
    size_t granularity = 0, total = 0;
    cuda_.check(cuda_.device_total(&total, device_), "cuDeviceTotalMem");
    cuda_.check(cuda_.granularity(&granularity, &kind_, kGranularityRecommended),
                "cuMemGetAllocationGranularity");
    traits_ = {"cuda", kCudaAlignment, granularity, granularity, 4 * total, total};
  }

  const DriverTraits& traits() const override { return traits_; }

  // ---- memory: one reservation, and physical memory that is mapped chunk by chunk

  uint64_t reserve(uint64_t size_bytes, uint64_t chunk_bytes) override {
    CurrentContext current(cuda_, context_.get());
    CuAddress base = 0;
    cuda_.check(cuda_.reserve(&base, size_bytes, 0, 0, 0), "cuMemAddressReserve");
    chunk_ = chunk_bytes;
    return base;
  }

  void release(uint64_t base, uint64_t size_bytes) override {
    call("cuMemAddressFree", cuda_.address_free, base, size_bytes);
  }

  void map(uint64_t address, uint64_t size_bytes) override {
    CurrentContext current(cuda_, context_.get());
    std::vector<ChunkMapping> chunks;
    chunks.reserve(size_bytes / chunk_);
    for (uint64_t at = address; at < address + size_bytes; at += chunk_)
      chunks.emplace_back(cuda_, memory_, at, chunk_);
    cuda_.check(set_access(address, size_bytes, access_), "cuMemSetAccess");
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

  // The CUDA programming guide (virtual aliasing) allows it where work at one address is done
  // before work at the other begins, as it is in stream order.
  bool can_alias() const override { return true; }

  void alias(uint64_t to, uint64_t from) override {
    CurrentContext current(cuda_, context_.get());
    auto entry = handles_.find(from);
    CuHandle handle = entry->second;
    handles_.reserve(handles_.size() + 1);
    cuda_.check(cuda_.map(to, chunk_, 0, handle, 0), "cuMemMap");
    CuResult result = set_access(to, chunk_, access_);
    if (result != kCudaSuccess) {
      cuda_.unmap(to, chunk_);
      cuda_.check(result, "cuMemSetAccess");
    }
    handles_.erase(entry);
    handles_[to] = handle;
  }

  void unalias(uint64_t address, uint64_t size_bytes) override {
    call("cuMemUnmap", cuda_.unmap, address, size_bytes);
  }

  // If it fails half way, the device may use some of what is mapped now, and nothing that comes.
  void add_peer(int32_t ordinal) override {
    CurrentContext current(cuda_, context_.get());
    CuDevice peer = 0;
    cuda_.check(cuda_.device_get(&peer, ordinal), "cuDeviceGet");
    for (const CuMemAccessDesc& known : access_)
      if (known.location.id == peer) return;
    std::vector<CuMemAccessDesc> wider = access_;
    wider.push_back({{kind_.location.type, peer}, 3});
    std::vector<CuAddress> mapped;
    for (const auto& [address, handle] : handles_) mapped.push_back(address);
    std::ranges::sort(mapped);
    for (size_t i = 0; i < mapped.size();) {
      const CuAddress begin = mapped[i];
      CuAddress end = begin;
      for (; i < mapped.size() && mapped[i] == end; ++i) end += chunk_;
      cuda_.check(set_access(begin, end - begin, wider), "cuMemSetAccess");
    }
    access_ = std::move(wider);
  }

  // ---- streams, events and copies

  bool has_streams() const override { return true; }
  bool has_contents() const override { return true; }

  Event create_event(bool timed) override {
    CuEvent event = nullptr;
    unsigned flags = timed ? kEventDefault : kEventDisableTiming;
    call("cuEventCreate", cuda_.event_create, &event, flags);
    return event;
  }

  void destroy_event(Event event) override { call("cuEventDestroy", cuda_.event_destroy, event); }

  void record_event(Event event, uint64_t stream) override {
    call("cuEventRecord", cuda_.event_record, event, stream_of(stream));
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
    const CuResult result = count_wait([&] { return cuda_.event_synchronize(event); });
    cuda_.check(result, "cuEventSynchronize");
  }

  void stream_wait_event(uint64_t stream, Event event) override {
    call("cuStreamWaitEvent", cuda_.stream_wait_event, stream_of(stream), event, 0);
  }

  int64_t elapsed_ns(Event begin, Event end) override {
    float milliseconds = 0;
    call("cuEventElapsedTime", cuda_.event_elapsed, &milliseconds, begin, end);
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

  uint64_t create_stream() override {
    CuStream stream = nullptr;
    call("cuStreamCreate", cuda_.stream_create, &stream, kStreamNonBlocking);
    return reinterpret_cast<uint64_t>(stream);
  }

  void destroy_stream(uint64_t stream) override {
    call("cuStreamDestroy", cuda_.stream_destroy, stream_of(stream));
  }

  void synchronize_stream(uint64_t stream) override {
    CurrentContext current(cuda_, context_.get());
    const CuResult result = count_wait([&] { return cuda_.stream_synchronize(stream_of(stream)); });
    cuda_.check(result, "cuStreamSynchronize");
  }

  bool capturing(uint64_t stream) override {
    int status = 0;
    call("cuStreamIsCapturing", cuda_.stream_is_capturing, stream_of(stream), &status);
    return status != 0;
  }

  bool synchronize_device() override {
    CurrentContext current(cuda_, context_.get());
    const CuResult result = count_wait([&] { return cuda_.context_synchronize(); });
    if (result >= kCudaFirstCaptureError && result <= kCudaLastCaptureError) return false;
    cuda_.check(result, "cuCtxSynchronize");
    return true;
  }

  uint64_t allocate_on_stream(uint64_t size_bytes, uint64_t stream) override {
    CuAddress address = 0;
    call("cuMemAllocAsync", cuda_.allocate_async, &address, size_bytes, stream_of(stream));
    return address;
  }

  void free_on_stream(uint64_t address, uint64_t stream) override {
    call("cuMemFreeAsync", cuda_.free_async, address, stream_of(stream));
  }

  uint64_t allocate_host(uint64_t size_bytes) override {
    void* host = nullptr;
    call("cuMemHostAlloc", cuda_.host_allocate, &host, size_bytes, kHostPortable);
    return reinterpret_cast<uint64_t>(host);
  }

  void free_host(uint64_t host, uint64_t) override {
    call("cuMemFreeHost", cuda_.host_free, reinterpret_cast<void*>(host));
  }

  void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream) override {
    call("cuMemcpyDtoHAsync", cuda_.copy_out_async, reinterpret_cast<void*>(host), address,
         size_bytes, stream_of(stream));
  }

  void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream) override {
    call("cuMemcpyHtoDAsync", cuda_.copy_in_async, address, reinterpret_cast<const void*>(host),
         size_bytes, stream_of(stream));
  }

  void fill(uint64_t address, uint8_t value, uint64_t size_bytes, uint64_t stream) override {
    call("cuMemsetD8Async", cuda_.memset_async, address, value, size_bytes, stream_of(stream));
  }

  void copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t stream) override {
    call("cuMemcpyDtoDAsync", cuda_.copy_async, to, from, size_bytes, stream_of(stream));
  }

 private:
  // Calls a function of CUDA in the device's context. DriverError with its name if it fails.
  template <typename Function, typename... Arguments>
  void call(const char* name, Function function, Arguments... arguments) const {
    CurrentContext current(cuda_, context_.get());
    cuda_.check(function(arguments...), name);
  }

  CuResult set_access(CuAddress address, uint64_t size_bytes,
                      const std::vector<CuMemAccessDesc>& access) const {
    return cuda_.set_access(address, size_bytes, access.data(), access.size());
  }

  std::shared_ptr<const CudaApi> table_;
  const CudaApi& cuda_;
  CuDevice device_;
  PrimaryContext context_;
  DriverTraits traits_;
  CuMemAllocationProp kind_;
  PhysicalMemory memory_;                // destroyed before the context
  std::vector<CuMemAccessDesc> access_;  // this device, and its peers
  uint64_t chunk_ = 0;
  std::unordered_map<CuAddress, CuHandle> handles_;  // of the mapped chunks
};

}  // namespace

std::unique_ptr<Driver> make_cuda_driver(int32_t device) {
  require_virtual_memory(device);
  return std::make_unique<CudaDriver>(device);
}

}  // namespace dtr
