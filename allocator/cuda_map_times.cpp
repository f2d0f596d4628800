#include "cuda_map_times.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cuda_driver.h"
#include "errors.h"

namespace dtr {

namespace {

int64_t median(std::vector<int64_t>& of) {
  auto middle = of.begin() + of.size() / 2;
  std::nth_element(of.begin(), middle, of.end());
  return *middle;
}

// Address space for one chunk, which may have memory behind it; given back in any case.
class OneChunk {
 public:
  OneChunk(const CudaApi& cuda, uint64_t size, const CuMemAllocationProp& kind)
      : cuda_(cuda), size_(size), kind_(kind) {
    cuda_.check(cuda_.reserve(&address_, size_, 0, 0, 0), "cuMemAddressReserve");
  }
  ~OneChunk() {
    if (mapped_) cuda_.unmap(address_, size_);
    if (handle_ != 0) cuda_.release(handle_);
    cuda_.address_free(address_, size_);
  }
  OneChunk(const OneChunk&) = delete;
  OneChunk& operator=(const OneChunk&) = delete;

  void create() { cuda_.check(cuda_.create(&handle_, size_, &kind_, 0), "cuMemCreate"); }
  void map() {
    cuda_.check(cuda_.map(address_, size_, 0, handle_, 0), "cuMemMap");
    mapped_ = true;
  }
  void set_access() {
    CuMemAccessDesc access{kind_.location, 3};
    cuda_.check(cuda_.set_access(address_, size_, &access, 1), "cuMemSetAccess");
  }
  void unmap() {
    cuda_.check(cuda_.unmap(address_, size_), "cuMemUnmap");
    mapped_ = false;
  }
  void release() {
    cuda_.check(cuda_.release(handle_), "cuMemRelease");
    handle_ = 0;
  }

 private:
  const CudaApi& cuda_;
  uint64_t size_;
  CuMemAllocationProp kind_;
  CuAddress address_ = 0;
  CuHandle handle_ = 0;
  bool mapped_ = false;
};

}  // namespace

CudaMapTimes cuda_map_times(int32_t device, uint64_t chunk_bytes, uint64_t rounds) {
  cuda_require_virtual_memory(device);
  std::shared_ptr<const CudaApi> cuda = cuda_api();
  CuDevice handle = 0;
  cuda->check(cuda->device_get(&handle, device), "cuDeviceGet");
  PrimaryContext context(*cuda, handle);
  CurrentContext current(*cuda, context.get());
  const CuMemAllocationProp kind{1, 0, {1, handle}, nullptr, {}};
  size_t granularity = 0;
  cuda->check(cuda->granularity(&granularity, &kind, kGranularityRecommended),
              "cuMemGetAllocationGranularity");
  if (chunk_bytes == 0 || chunk_bytes % granularity != 0) {
    throw InvalidArgument("chunk_bytes is " + std::to_string(chunk_bytes) +
                          "; allowed: a multiple of the granularity, " + size_text(granularity));
  }
  constexpr uint64_t kMostRounds = 1 << 20;
  if (rounds == 0 || rounds > kMostRounds) {
    throw InvalidArgument("rounds is " + std::to_string(rounds) + "; allowed: 1 to " +
                          std::to_string(kMostRounds));
  }
  OneChunk chunk(*cuda, chunk_bytes, kind);
  using Step = void (OneChunk::*)();
  const Step steps[] = {&OneChunk::create, &OneChunk::map, &OneChunk::set_access, &OneChunk::unmap,
                        &OneChunk::release};
  std::vector<int64_t> times[5];
  for (uint64_t round = 0; round < rounds; ++round) {
    for (int step = 0; step < 5; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      (chunk.*steps[step])();
      const auto taken = std::chrono::steady_clock::now() - begin;
      times[step].push_back(std::chrono::nanoseconds(taken).count());
    }
  }
  return {median(times[0]), median(times[1]), median(times[2]), median(times[3]), median(times[4])};
}

}  // namespace dtr
