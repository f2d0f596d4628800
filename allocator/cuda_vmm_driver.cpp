// CUDA device memory through the driver's virtual memory management: one reservation, physical
// memory created and mapped chunk by chunk.
#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda_driver.h"
#include "errors.h"

namespace dtr {

namespace {

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

class CudaVmmDriver final : public CudaDriver {
 public:
  explicit CudaVmmDriver(int32_t ordinal)
      : CudaDriver(ordinal),
        kind_{1, 0, {1, device_}, nullptr, {}},
        memory_(cuda_, context_.get(), kind_),
        access_{{kind_.location, 3}} {
    const uint64_t total = total_bytes();
    CurrentContext current(cuda_, context_.get());
    size_t granularity = 0;
    cuda_.check(cuda_.granularity(&granularity, &kind_, kGranularityRecommended),
                "cuMemGetAllocationGranularity");
    traits_ = {"cuda", kCudaAlignment, granularity, granularity, 4 * total, total};
  }

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
    CurrentContext current(cuda_, context_.get());
    cuda_.check(cuda_.unmap(address, size_bytes), "cuMemUnmap");
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
    std::sort(mapped.begin(), mapped.end());
    for (size_t i = 0; i < mapped.size();) {
      const CuAddress begin = mapped[i];
      CuAddress end = begin;
      for (; i < mapped.size() && mapped[i] == end; ++i) end += chunk_;
      cuda_.check(set_access(begin, end - begin, wider), "cuMemSetAccess");
    }
    access_ = std::move(wider);
  }

 private:
  CuResult set_access(CuAddress address, uint64_t size_bytes,
                      const std::vector<CuMemAccessDesc>& access) const {
    return cuda_.set_access(address, size_bytes, access.data(), access.size());
  }

  CuMemAllocationProp kind_;
  PhysicalMemory memory_;                // destroyed before the context
  std::vector<CuMemAccessDesc> access_;  // this device, and its peers
  uint64_t chunk_ = 0;
  std::unordered_map<CuAddress, CuHandle> handles_;  // of the mapped chunks
};

}  // namespace

std::unique_ptr<Driver> make_cuda_vmm_driver(int32_t device) {
  cuda_require_virtual_memory(device);
  return std::make_unique<CudaVmmDriver>(device);
}

}  // namespace dtr
