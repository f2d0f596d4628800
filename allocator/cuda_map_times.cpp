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

// Address space for chunks, which may have memory behind it; given back in any case.
class TimedChunks {
 public:
  TimedChunks(const CudaApi& cuda, uint64_t chunk_bytes, uint64_t count,
              const CuMemAllocationProp& kind)
      : cuda_(cuda), chunk_(chunk_bytes), count_(count), kind_(kind) {
    handles_.reserve(count);
    cuda_.check(cuda_.reserve(&address_, chunk_ * count_, 0, 0, 0), "cuMemAddressReserve");
  }
  ~TimedChunks() {
    if (mapped_ > 0) cuda_.unmap(address_, chunk_ * mapped_);
    for (CuHandle handle : handles_) cuda_.release(handle);
    cuda_.address_free(address_, chunk_ * count_);
  }
  TimedChunks(const TimedChunks&) = delete;
  TimedChunks& operator=(const TimedChunks&) = delete;

  void create() {
    while (handles_.size() < count_) {
      CuHandle handle = 0;
      cuda_.check(cuda_.create(&handle, chunk_, &kind_, 0), "cuMemCreate");
      handles_.push_back(handle);
    }
  }
  void map() {
    for (; mapped_ < count_; ++mapped_)
      cuda_.check(cuda_.map(address_ + mapped_ * chunk_, chunk_, 0, handles_[mapped_], 0),
                  "cuMemMap");
  }
  void set_access() {
    CuMemAccessDesc access{kind_.location, 3};
    cuda_.check(cuda_.set_access(address_, chunk_ * count_, &access, 1), "cuMemSetAccess");
  }
  void unmap() {
    cuda_.check(cuda_.unmap(address_, chunk_ * count_), "cuMemUnmap");
    mapped_ = 0;
  }
  void release() {
    for (; !handles_.empty(); handles_.pop_back())
      cuda_.check(cuda_.release(handles_.back()), "cuMemRelease");
  }

 private:
  const CudaApi& cuda_;
  uint64_t chunk_, count_;
  CuMemAllocationProp kind_;
  CuAddress address_ = 0;
  std::vector<CuHandle> handles_;
  uint64_t mapped_ = 0;  // chunks
};

}  // namespace

CudaMapTimes cuda_map_times(int32_t device, uint64_t chunk_bytes, uint64_t chunks,
                            uint64_t rounds) {
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
  constexpr uint64_t kMostRounds = 1 << 20, kMostChunks = 1 << 16;
  if (chunks == 0 || chunks > kMostChunks) {
    throw InvalidArgument("chunks is " + std::to_string(chunks) + "; allowed: 1 to " +
                          std::to_string(kMostChunks));
  }
  if (rounds == 0 || rounds > kMostRounds) {
    throw InvalidArgument("rounds is " + std::to_string(rounds) + "; allowed: 1 to " +
                          std::to_string(kMostRounds));
  }
  TimedChunks all(*cuda, chunk_bytes, chunks, kind);
  using Step = void (TimedChunks::*)();
  const Step steps[] = {&TimedChunks::create, &TimedChunks::map, &TimedChunks::set_access,
                        &TimedChunks::unmap, &TimedChunks::release};
  std::vector<int64_t> times[5];
  for (uint64_t round = 0; round < rounds; ++round) {
    for (int step = 0; step < 5; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      (all.*steps[step])();
      const auto taken = std::chrono::steady_clock::now() - begin;
      times[step].push_back(std::chrono::nanoseconds(taken).count());
    }
  }
  return {median(times[0]), median(times[1]), median(times[2]), median(times[3]), median(times[4])};
}

}  // namespace dtr
