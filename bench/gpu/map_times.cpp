// What the calls cost that chunks of memory take to come and go (mapping.py).
#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda_context.h"
#include "cuda_driver.h"
#include "errors.h"

namespace {

using namespace dtr;

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

// Maps and unmaps so many chunks side by side. times: medians over the rounds, of all chunks
// together, by the host's clock: of cuMemCreate, cuMemMap, cuMemSetAccess, cuMemUnmap, cuMemRelease.
void measure(int32_t device, uint64_t chunk_bytes, uint64_t chunks, uint64_t rounds,
             int64_t* times) {
  cuda_require_virtual_memory(device);
  std::shared_ptr<const CudaApi> cuda = cuda_api();
  CuDevice handle = 0;
  cuda->check(cuda->device_get(&handle, device), "cuDeviceGet");
  PrimaryContext context(*cuda, handle);
  CurrentContext current(*cuda, context.get());
  TimedChunks all(*cuda, chunk_bytes, chunks, {1, 0, {1, handle}, nullptr, {}});
  using Step = void (TimedChunks::*)();
  const Step steps[] = {&TimedChunks::create, &TimedChunks::map, &TimedChunks::set_access,
                        &TimedChunks::unmap, &TimedChunks::release};
  std::vector<int64_t> taken[5];
  for (uint64_t round = 0; round < rounds; ++round) {
    for (int step = 0; step < 5; ++step) {
      const auto begin = std::chrono::steady_clock::now();
      (all.*steps[step])();
      const auto time = std::chrono::steady_clock::now() - begin;
      taken[step].push_back(std::chrono::nanoseconds(time).count());
    }
  }
  for (int step = 0; step < 5; ++step) times[step] = median(taken[step]);
}

}  // namespace

// Null, or what went wrong. library: libcuda's path, or null.
extern "C" const char* map_times(const char* library, int32_t device, uint64_t chunk_bytes,
                                 uint64_t chunks, uint64_t rounds, int64_t* times) try {
  cuda_set_library(library);
  measure(device, chunk_bytes, chunks, rounds, times);
  return nullptr;
} catch (const std::exception& error) {
  static std::string text;
  text = error.what();
  return text.c_str();
}
