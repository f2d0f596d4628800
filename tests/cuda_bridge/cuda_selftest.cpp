// A caller of the installed CUDA allocator, as PyTorch is one: through the base classes
// only, so that a virtual function in the wrong place shows. Compiled and run by
// `make cuda-bridge-check` (check.py) and by nobody else; it needs no
// device, and therefore reaches nothing that asks CUDA for the current one.

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <functional>
#include <memory>
#include <string>

namespace {

namespace pluggable = torch::cuda::CUDAPluggableAllocator;
namespace caching = c10::cuda::CUDACachingAllocator;

constexpr size_t kMiB = size_t{1} << 20;

void expect(bool holds, const char* what) { TORCH_CHECK(holds, "does not hold: ", what); }
#define EXPECT(condition) expect(condition, #condition)

template <typename Error>
bool throws(const std::function<void()>& call, const std::string& part) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(error.what()).find(part) != std::string::npos;
  }
  return false;
}

void run() {
  caching::CUDAAllocator* allocator = caching::get();
  EXPECT(allocator->name() == "dtr_alloc");
  EXPECT(allocator->initialized());
  EXPECT(c10::GetAllocator(c10::DeviceType::CUDA) == allocator);
  EXPECT(allocator->isEnabled());
  EXPECT(!allocator->isHistoryEnabled());
  const auto record_history = [&](bool on) {
    allocator->recordHistory(on, nullptr, 1, caching::RecordContext::NEVER, true, {});
  };
  record_history(false);
  EXPECT(throws<c10::Error>([&] { record_history(true); }, "memory history"));
  EXPECT(throws<c10::Error>([&] { allocator->shareIpcHandle(nullptr); }, "other processes"));
  EXPECT(throws<c10::Error>([&] { allocator->getIpcDevPtr(""); }, "other processes"));
  EXPECT(throws<c10::Error>(
      [&] { pluggable::changeCurrentAllocator(pluggable::getCurrentAllocator()); },
      "already initialized"));

  // The base's malloc asks for no current device and calls our allocation.
  auto* own = static_cast<pluggable::CUDAPluggableAllocator*>(allocator);
  const auto stats = [&] { return allocator->getDeviceStats(0); };
  void* block = own->malloc(kMiB + 1, 0, nullptr);
  EXPECT(block != nullptr);
  EXPECT(own->malloc(0, 0, nullptr) == nullptr);
  EXPECT(stats().allocated_bytes[0].current > static_cast<int64_t>(kMiB));
  EXPECT(stats().requested_bytes[0].current == static_cast<int64_t>(kMiB) + 1);
  EXPECT(stats().allocation[0].current == 1);

  size_t size = 0;
  EXPECT(allocator->getBaseAllocation(static_cast<char*>(block) + 5, &size) == block);
  EXPECT(size > kMiB);
  EXPECT(throws<c10::Error>([&] { allocator->getBaseAllocation(&size, nullptr); }, "block in use"));

  const auto snapshot = allocator->snapshot({0, 0}, true);
  EXPECT(snapshot.segments.size() == 1);
  EXPECT(snapshot.device_traces.size() == 1);
  EXPECT(snapshot.segments[0].address == reinterpret_cast<size_t>(block));
  EXPECT(snapshot.segments[0].blocks[0].requested_size == kMiB + 1);
  EXPECT(snapshot.segments[0].blocks[0].allocated);

  const double fraction = allocator->getMemoryFraction(0);
  EXPECT(fraction > 0 && fraction < 1);
  allocator->setMemoryFraction(fraction / 2, 0);
  EXPECT(allocator->getMemoryFraction(0) < fraction * 0.75);
  allocator->setMemoryFraction(1, 0);  // gives back what it took, and no more
  EXPECT(allocator->getMemoryFraction(0) == fraction);
  EXPECT(throws<c10::Error>([&] { allocator->setMemoryFraction(2, 0); }, "memory fraction"));

  size_t largest = 0;
  allocator->cacheInfo(0, &largest);
  EXPECT(largest > 0);
  void* most = own->malloc(largest, 0, nullptr);
  EXPECT(most != nullptr);

  // Out of memory: the right type, a message with numbers, and observers are told.
  int told = 0;
  allocator->attachOutOfMemoryObserver(
      [&](int64_t device, size_t wanted, size_t total, size_t free) {
        if (device == 0 && wanted == 512 * kMiB && total > free) ++told;
      });
  EXPECT(throws<c10::OutOfMemoryError>([&] { own->malloc(512 * kMiB, 0, nullptr); },
                                       "(536870912 bytes)"));
  EXPECT(told == 1);
  EXPECT(throws<c10::Error>([&] { own->malloc(1, 7, nullptr); }, "cuda:7 has no memory pool"));

  EXPECT(throws<c10::Error>([&] { allocator->raw_delete(&size); }, "not the start of a block"));
  allocator->raw_delete(most);
  EXPECT(throws<c10::Error>([&] { allocator->raw_delete(most); }, "not the start of a block"));

  // A tensor's pointer: the deleter is the allocator's own, and data == context.
  const c10::Device device(c10::DeviceType::CUDA, 0);
  {
    c10::DataPtr pointer(block, block, allocator->raw_deleter(), device);
    EXPECT(allocator->is_simple_data_ptr(pointer));
  }
  // A pointer of nobody's is skipped. What becomes of one of ours cannot be seen here: to
  // tell a stream's handle, PyTorch wants a device.
  allocator->recordStream(c10::DataPtr(nullptr, device),
                          c10::cuda::CUDAStream::unpack3(0, 0, c10::DeviceType::CUDA));
  EXPECT(stats().allocation[0].current == 0);
  EXPECT(stats().allocation[0].peak == 2);

  // A private pool lives as long as it has users. (What it gives out cannot be seen here:
  // allocate() asks for the current device.)
  const c10::cuda::MempoolId_t id{0, 1};
  EXPECT(allocator->getPoolUseCount(0, id) == 0);
  allocator->createOrIncrefPool(0, id);
  allocator->beginAllocateToPool(0, id, [](cudaStream_t) { return true; });
  EXPECT(allocator->getPoolUseCount(0, id) == 2);
  EXPECT(allocator->checkPoolLiveAllocations(0, id, {}));
  EXPECT(!allocator->checkPoolLiveAllocations(0, id, {&size}));
  EXPECT(allocator->setCheckpointPoolState(0, allocator->getCheckpointState(0, id))
             .ptrs_freed.empty());
  EXPECT(throws<c10::Error>(
      [&] { allocator->setCheckpointPoolState(0, std::make_shared<caching::AllocatorState>()); },
      "another allocator's"));
  EXPECT(
      throws<c10::Error>([&] { allocator->getCheckpointState(0, {5, 5}); }, "memory pool (5, 5)"));
  allocator->endAllocateToPool(0, id);
  allocator->releasePool(0, id);
  EXPECT(allocator->getPoolUseCount(0, id) == 1);
  allocator->releasePool(0, id);
  EXPECT(throws<c10::Error>([&] { allocator->releasePool(0, id); }, "no private memory pool"));
  EXPECT(throws<c10::Error>([&] { allocator->setUseOnOOM(0, id, true); }, "use_on_oom"));
  EXPECT(throws<c10::Error>([&] { allocator->enablePeerAccess(0, 1); }, "no memory pool"));
  EXPECT(throws<c10::Error>([&] { allocator->enablePeerAccess(1, 0); }, "cuDeviceGet failed"));
  allocator->emptyCache({0, 0});
  EXPECT(stats().reserved_bytes[0].current == 0);
  allocator->init(1);
  EXPECT(allocator->initialized());
}

}  // namespace

// NULL, or the first thing that is wrong.
extern "C" __attribute__((visibility("default"))) const char* selftest() {
  static std::string wrong;
  try {
    run();
    return nullptr;
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
}
