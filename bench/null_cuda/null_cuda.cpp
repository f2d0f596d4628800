// A CUDA whose kernels compute nothing: driver, runtime and cuBLAS for CUDA builds of PyTorch, on a
// machine without a GPU. PyTorch's own host code runs, from the dispatcher to the launch; memory has
// addresses and no content, and all results are undefined.
//
// The device's time is modelled: a kernel takes so long as the bytes or the products that its grid
// suggests, times NULL_CUDA_DEVICE_SCALE. Events read the sum of what was queued before them, so
// that the costs of operators, and what is evicted, do not depend on the speed of this machine. For
// the same reason a thread that asks for its own use of the processor is told that an operator on the
// host takes kHostOperatorNs.
//
// With NULL_CUDA_PRICES there is a clock, too: the processor time of the threads that launch, times
// NULL_CUDA_HOST_SCALE, and what calls cost by the list of prices ("cuMemUnmap:2=13713,...": ns of a
// call, or of each chunk that has so many MiB or more). A kernel then starts when the one before has
// ended and the host has asked for it; the host waits while 1,024 are queued. Nobody sleeps: a wait
// moves the clock.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" const char* cuda_kernel_name(const void* function);

namespace {

constexpr uint64_t kMiB = 1 << 20, kTotalBytes = 150109880320;  // an H200's
constexpr int kQueue = 1024;
constexpr long kHostOperatorNs = 100;  // less than the clock says of any

double number(const char* name, double otherwise) {
  const char* value = getenv(name);
  return value && *value ? atof(value) : otherwise;
}

// What was asked for with each function; never destroyed.
struct Calls {
  explicit Calls(const char* function) : name(function) {
    std::lock_guard<std::mutex> lock(mutex());
    next = first();
    first() = this;
    prices();
  }
  static std::mutex& mutex() {
    static auto* one = new std::mutex;
    return *one;
  }
  static Calls*& first() {
    static Calls* one = nullptr;
    return one;
  }
  void prices();

  const char* name;
  std::atomic<uint64_t> count{0};
  std::map<uint64_t, int64_t> ns;  // by the least MiB of a chunk
  Calls* next;
};

// "function:MiB=ns,..."
void Calls::prices() {
  const char* all = getenv("NULL_CUDA_PRICES");
  for (const char* at = all; at && *at;) {
    const std::string entry(at, strcspn(at, ","));
    const size_t colon = entry.find(':'), equal = entry.find('=');
    if (equal != std::string::npos && colon < equal && entry.substr(0, colon) == name)
      ns[strtoull(&entry[colon + 1], nullptr, 10)] = atoll(&entry[equal + 1]);
    at += entry.size() + (at[entry.size()] == ',');
  }
}

bool has_clock() {
  static const bool on = getenv("NULL_CUDA_PRICES") != nullptr;
  return on;
}
std::atomic<int64_t> charged_ns{0};  // prices and waits
std::atomic<uint64_t> chunk_bytes{2 * kMiB};

void charge(const Calls& calls, uint64_t times) {
  if (calls.ns.empty()) return;
  auto price = calls.ns.upper_bound(chunk_bytes / kMiB);
  if (price != calls.ns.begin()) --price;
  charged_ns += price->second * static_cast<int64_t>(times);
}
#define CALLED_TIMES(times)                            \
  static Calls& calls = *new Calls(__func__);          \
  calls.count.fetch_add(1, std::memory_order_relaxed); \
  if (has_clock()) charge(calls, times)
#define CALLED() CALLED_TIMES(1)

// Processor time of the threads that launch; of the tuner's not.
class Launchers {
 public:
  static void join() {
    static thread_local const bool joined = add();
    (void)joined;
  }
  static int64_t cpu_ns() {
    int64_t sum = 0;
    for (int i = 0; i < count_; ++i) {
      timespec time{};
      if (clock_gettime(clocks_[i], &time) == 0)
        sum += int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
    }
    return sum;
  }

 private:
  static bool add() {
    static std::mutex mutex;
    std::lock_guard<std::mutex> lock(mutex);
    if (count_ == kMost || pthread_getcpuclockid(pthread_self(), &clocks_[count_]) != 0)
      return false;
    ++count_;
    return true;
  }
  static constexpr int kMost = 16;
  static inline clockid_t clocks_[kMost];
  static inline std::atomic<int> count_{0};
};
int64_t now_ns() {
  static const double scale = number("NULL_CUDA_HOST_SCALE", 1);
  return static_cast<int64_t>(scale * static_cast<double>(Launchers::cpu_ns())) + charged_ns;
}

struct Device {
  std::mutex mutex;
  int64_t busy_ns = 0;
  int64_t end_ns = 0;         // by the clock, if there is one
  int64_t ends[kQueue] = {};  // of the kernels that were queued last
  uint64_t queued = 0;
  int64_t starved_ns = 0;  // nothing was queued
  int64_t full_ns = 0;     // the host waited for room in the queue
} device;

int primary_context;
thread_local void* current_context = nullptr;

void work(double ns) {
  static const double scale = number("NULL_CUDA_DEVICE_SCALE", 1);
  const auto taken = static_cast<int64_t>(scale * ns);
  Launchers::join();
  if (current_context == nullptr) current_context = &primary_context;
  std::lock_guard<std::mutex> lock(device.mutex);
  device.busy_ns += taken;
  if (has_clock()) {
    int64_t& oldest = device.ends[device.queued++ % kQueue];
    int64_t now = now_ns();
    if (oldest > now) {
      device.full_ns += oldest - now;
      charged_ns += oldest - now;
      now = oldest;
    }
    if (now > device.end_ns) device.starved_ns += now - device.end_ns;
    device.end_ns = oldest = std::max(device.end_ns, now) + taken;
  } else {
    device.end_ns = device.busy_ns;
  }
}
int64_t point() {
  std::lock_guard<std::mutex> lock(device.mutex);
  return has_clock() ? std::max(device.end_ns, now_ns()) : device.end_ns;
}
bool is_reached(int64_t at) { return !has_clock() || now_ns() >= at; }
void wait_until(int64_t at) {
  if (!has_clock()) return;
  const int64_t left = at - now_ns();
  if (left > 0) charged_ns += left;
}

// Bandwidth and products of an H200 as published; the scale is for what kernels make of them.
double copied_ns(double bytes) { return 1500 + bytes / 4800; }
double multiplied_ns(double products) { return 2500 + 2 * products / 990e3; }

double kernel_ns(const void* function, dim3 grid, dim3 block) {
  const char* name = cuda_kernel_name(function);
  const double threads = double(grid.x) * grid.y * grid.z * block.x * block.y * block.z;
  double bytes = 32;  // of a thread: four elements, two reads and a write
  if (strstr(name, "flash") || strstr(name, "fmha")) bytes = 4000;
  if (strstr(name, "multi_tensor")) bytes = 1800;
  if (strstr(name, "oftmax") || strstr(name, "oftMax")) bytes = 400;
  if (strstr(name, "ayer_norm") || strstr(name, "ayerNorm") || strstr(name, "dropout")) bytes = 80;
  return copied_ns(threads * bytes);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block) {
  CALLED();
  static thread_local std::unordered_map<const void*, std::map<uint64_t, double>> known;
  const uint64_t size = uint64_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
  double& ns = known[function][size];
  if (ns == 0) ns = kernel_ns(function, grid, block);
  work(ns);
  return cudaSuccess;
}

std::atomic<uint64_t> physical_bytes{0};
std::mutex memory_mutex;
std::map<uintptr_t, size_t> allocations, pinned;
std::unordered_map<unsigned long long, size_t> handles;

void* address_space(size_t size, size_t alignment) {
  alignment = std::max<size_t>(alignment, 2 * kMiB);
  void* at = mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
  if (at == MAP_FAILED) return nullptr;
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(at) + alignment - 1) / alignment *
                                 alignment);
}

struct Event {
  int64_t at = 0;
};
int64_t& time_of(void* event) { return static_cast<Event*>(event)->at; }
cudaStream_t new_stream() {
  static std::atomic<uintptr_t> last{1 << 16};
  return reinterpret_cast<cudaStream_t>(last += 64);
}
thread_local int capture_mode = 0;

}  // namespace

void null_cuda_work(double bytes, double products) {
  work(std::max(copied_ns(bytes), multiplied_ns(products)));
}

// ---- The C library.

// The costs of operators on the host are read by these (native/base/thread_use.h).
EXPORT int clock_gettime(clockid_t clock, timespec* time) {
  static const auto real =
      reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  if (clock != CLOCK_THREAD_CPUTIME_ID) return real(clock, time);
  static thread_local long readings = 0;
  const long ns = ++readings * kHostOperatorNs;
  *time = {ns / 1000000000, ns % 1000000000};
  return 0;
}
EXPORT int getrusage(int who, rusage* use) {
  static const auto real = reinterpret_cast<int (*)(int, rusage*)>(dlsym(RTLD_NEXT, "getrusage"));
  const int status = real(who, use);
  if (who == RUSAGE_THREAD) use->ru_nvcsw = 0;  // it never waited
  return status;
}

EXPORT int cuda_emulator_refuse(const char* function) {
  fprintf(stderr, "null_cuda: %s was called, and does not exist here\n", function);
  return cudaErrorNotSupported;
}

// ---- The runtime.

EXPORT cudaError_t cudaGetLastError() { return cudaSuccess; }
EXPORT cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
EXPORT cudaError_t cudaGetDeviceCount(int* devices) {
  *devices = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDevice(int* at) {
  *at = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int) {
  current_context = &primary_context;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int) {
  *of = {};
  snprintf(of->name, sizeof of->name, "no device (kernels compute nothing)");
  of->totalGlobalMem = kTotalBytes;
  of->major = 9;
  of->multiProcessorCount = 132;
  of->warpSize = 32;
  of->maxThreadsPerBlock = 1024;
  of->maxThreadsPerMultiProcessor = 2048;
  of->maxBlocksPerMultiProcessor = 32;
  of->regsPerBlock = of->regsPerMultiprocessor = 65536;
  of->sharedMemPerBlock = 49152;
  of->reservedSharedMemPerBlock = 1024;
  of->sharedMemPerBlockOptin = of->sharedMemPerMultiprocessor = 232448;
  for (int axis = 0; axis < 3; ++axis) {
    of->maxThreadsDim[axis] = 1024;
    of->maxGridSize[axis] = axis == 0 ? 2147483647 : 65535;
  }
  of->memoryBusWidth = 6144;
  of->l2CacheSize = 50 << 20;
  of->unifiedAddressing = of->canMapHostMemory = of->concurrentKernels = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  static const std::map<int, int> values{
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrMultiProcessorCount, 132},
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472},
      {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
      {cudaDevAttrMaxRegistersPerBlock, 65536},
      {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
      {cudaDevAttrMaxBlockDimX, 1024},
      {cudaDevAttrMaxBlockDimY, 1024},
      {cudaDevAttrMaxGridDimX, 2147483647},
      {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535},
  };
  const auto found = values.find(attribute);
  *value = found == values.end() ? 0 : found->second;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  CALLED();
  wait_until(point());
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  CALLED();
  *total = kTotalBytes;
  *free = kTotalBytes - physical_bytes;
  return cudaSuccess;
}
EXPORT cudaError_t cudaMalloc(void** address, size_t size) {
  CALLED();
  *address = nullptr;
  if (size == 0) return cudaSuccess;
  if (physical_bytes + size > kTotalBytes || !(*address = address_space(size, 0)))
    return cudaErrorMemoryAllocation;
  physical_bytes += size;
  std::lock_guard<std::mutex> lock(memory_mutex);
  allocations[reinterpret_cast<uintptr_t>(*address)] = size;
  return cudaSuccess;
}
// Address space is not given back: there is enough of it.
EXPORT cudaError_t cudaFree(void* address) {
  CALLED();
  std::lock_guard<std::mutex> lock(memory_mutex);
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(address));
  if (found == allocations.end()) return cudaSuccess;
  physical_bytes -= found->second;
  allocations.erase(found);
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  CALLED();
  *address = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  std::lock_guard<std::mutex> lock(memory_mutex);
  pinned[reinterpret_cast<uintptr_t>(*address)] = size;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFreeHost(void* address) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  pinned.erase(reinterpret_cast<uintptr_t>(address));
  free(address);
  return cudaSuccess;
}
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* of, const void* address) {
  CALLED();
  *of = {};
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::lock_guard<std::mutex> lock(memory_mutex);
  const auto next = pinned.upper_bound(at);
  if (next == pinned.begin() || at >= std::prev(next)->first + std::prev(next)->second)
    return cudaSuccess;
  of->type = cudaMemoryTypeHost;
  of->devicePointer = of->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void*, size_t size, cudaMemcpyKind kind,
                                   cudaStream_t) {
  CALLED();
  if (kind == cudaMemcpyDeviceToHost) memset(to, 0, size);
  const bool stays = kind == cudaMemcpyDeviceToDevice;
  work(copied_ns(static_cast<double>(size) * (stays ? 2 : 90)));
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, size, kind, nullptr);
  return cudaDeviceSynchronize();
}
EXPORT cudaError_t cudaMemsetAsync(void*, int, size_t size, cudaStream_t) {
  CALLED();
  work(copied_ns(static_cast<double>(size)));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new_stream();
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t) {
  CALLED();
  wait_until(point());
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t) {
  CALLED();
  return is_reached(point()) ? cudaSuccess : cudaErrorNotReady;
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  CALLED();
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  CALLED();
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete reinterpret_cast<Event*>(event);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  CALLED();
  time_of(event) = point();
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  CALLED();
  return is_reached(time_of(event)) ? cudaSuccess : cudaErrorNotReady;
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CALLED();
  wait_until(time_of(event));
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  CALLED();
  *milliseconds = static_cast<float>(time_of(to) - time_of(from)) / 1e6f;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  CALLED();
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                            size_t* count) {
  if (id) *id = 0;
  if (graph) *graph = nullptr;
  if (count) *count = 0;
  return cudaStreamIsCapturing(stream, status);
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t,
                                      cudaStream_t) {
  return launch(kernel, grid, block);
}
EXPORT cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void**, size_t,
                                    cudaStream_t) {
  return launch(kernel, grid, block);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* with, const void* kernel, void**) {
  return launch(kernel, with->gridDim, with->blockDim);
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  *of = {};
  of->maxThreadsPerBlock = 1024;
  of->binaryVersion = of->ptxVersion = 90;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                          int, size_t, unsigned) {
  *blocks = 8;
  return cudaSuccess;
}

// ---- The driver, as dtr_alloc calls it (allocator/cuda_api.h).

EXPORT CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
EXPORT CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* devices) {
  *devices = 1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* at, int) {
  *at = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ? 1 : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  *bytes = kTotalBytes;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&primary_context);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = static_cast<CUcontext>(current_context);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  CALLED();
  current_context = context;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
  *bytes = 2 * kMiB;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                                    CUdeviceptr, unsigned long long) {
  CALLED();
  *address = reinterpret_cast<CUdeviceptr>(address_space(size, alignment));
  return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                            const CUmemAllocationProp*, unsigned long long) {
  chunk_bytes = size;
  CALLED();
  if (physical_bytes + size > kTotalBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  physical_bytes += size;
  static unsigned long long last = 0;
  std::lock_guard<std::mutex> lock(memory_mutex);
  handles[*handle = ++last] = size;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  CALLED();
  std::lock_guard<std::mutex> lock(memory_mutex);
  physical_bytes -= handles[handle];
  handles.erase(handle);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                         unsigned long long) {
  CALLED();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr, size_t size) {
  CALLED_TIMES(size / chunk_bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr, size_t size, const CUmemAccessDesc*, size_t) {
  CALLED_TIMES(size / chunk_bytes);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t size, CUstream) {
  CALLED();
  void* memory = nullptr;
  if (cudaMalloc(&memory, size) != cudaSuccess) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream) {
  CALLED();
  cudaFree(reinterpret_cast<void*>(address));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
  CALLED();
  *event = reinterpret_cast<CUevent>(new Event);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventDestroy(CUevent event) {
  delete reinterpret_cast<Event*>(event);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventRecord(CUevent event, CUstream) {
  CALLED();
  time_of(event) = point();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuEventQuery(CUevent event) {
  CALLED();
  return is_reached(time_of(event)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
EXPORT CUresult cuEventSynchronize(CUevent event) {
  CALLED();
  wait_until(time_of(event));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) {
  CALLED();
  return CUDA_SUCCESS;
}
#undef cuEventElapsedTime
EXPORT CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  CALLED();
  *milliseconds = static_cast<float>(time_of(to) - time_of(from)) / 1e6f;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned) {
  *stream = new_stream();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamDestroy(CUstream) { return CUDA_SUCCESS; }
EXPORT CUresult cuStreamSynchronize(CUstream) {
  CALLED();
  wait_until(point());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  CALLED();
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
#undef cuCtxSynchronize
EXPORT CUresult cuCtxSynchronize() {
  CALLED();
  wait_until(point());
  return CUDA_SUCCESS;
}
EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  const auto given = static_cast<int>(*mode);
  *mode = static_cast<CUstreamCaptureMode>(std::exchange(capture_mode, given));
  return CUDA_SUCCESS;
}
#undef cuMemHostAlloc
EXPORT CUresult cuMemHostAlloc(void** address, size_t size, unsigned) {
  *address = malloc(size);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemFreeHost(void* address) {
  free(address);
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoHAsync(void*, CUdeviceptr, size_t size, CUstream) {
  CALLED();
  work(copied_ns(static_cast<double>(size) * 90));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr, const void*, size_t size, CUstream) {
  CALLED();
  work(copied_ns(static_cast<double>(size) * 90));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr, CUdeviceptr, size_t size, CUstream) {
  CALLED();
  work(copied_ns(static_cast<double>(size) * 2));
  return CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD8Async(CUdeviceptr, unsigned char, size_t size, CUstream) {
  CALLED();
  work(copied_ns(static_cast<double>(size)));
  return CUDA_SUCCESS;
}

// ---- cuBLAS: handles have no state, and enums are numbers (without its headers).

namespace {
int multiply(double rows, double columns, double inner, double batch, bool single) {
  CALLED();
  work(multiplied_ns((single ? 2 : 1) * rows * columns * inner * batch));
  return 0;
}
constexpr int kSingle = 0;  // CUDA_R_32F
// A matrix's layout, or an operation.
struct Description {
  uint64_t rows, columns;
  bool transposes;
};
thread_local int math_mode = 0, pointer_mode = 0;
}  // namespace

EXPORT int cublasCreate_v2(void** handle) {
  *handle = &primary_context;
  return 0;
}
EXPORT int cublasDestroy_v2(void*) { return 0; }
EXPORT int cublasSetStream_v2(void*, void*) { return 0; }
EXPORT int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
EXPORT int cublasSetMathMode(void*, int mode) {
  math_mode = mode;
  return 0;
}
EXPORT int cublasGetMathMode(void*, int* mode) {
  *mode = math_mode;
  return 0;
}
EXPORT int cublasSetPointerMode_v2(void*, int mode) {
  pointer_mode = mode;
  return 0;
}
EXPORT int cublasGetPointerMode_v2(void*, int* mode) {
  *mode = pointer_mode;
  return 0;
}
EXPORT int cublasGemmEx(void*, int, int, int m, int n, int k, const void*, const void*, int type,
                        int, const void*, int, int, const void*, void*, int, int, int, int) {
  return multiply(m, n, k, 1, type == kSingle);
}
EXPORT int cublasSgemm_v2(void*, int, int, int m, int n, int k, const float*, const float*, int,
                          const float*, int, const float*, float*, int) {
  return multiply(m, n, k, 1, true);
}
EXPORT int cublasGemmStridedBatchedEx(void*, int, int, int m, int n, int k, const void*,
                                      const void*, int type, int, long long, const void*, int, int,
                                      long long, const void*, void*, int, int, long long, int batch,
                                      int, int) {
  return multiply(m, n, k, batch, type == kSingle);
}
EXPORT int cublasSgemmStridedBatched(void*, int, int, int m, int n, int k, const float*,
                                     const float*, int, long long, const float*, int, long long,
                                     const float*, float*, int, long long, int batch) {
  return multiply(m, n, k, batch, true);
}
EXPORT int cublasLtMatmulDescCreate(Description** made, int, int) {
  *made = new Description{0, 0, false};
  return 0;
}
EXPORT int cublasLtMatrixLayoutCreate(Description** made, int, uint64_t rows, uint64_t columns,
                                      int64_t) {
  *made = new Description{rows, columns, false};
  return 0;
}
EXPORT int cublasLtMatmulPreferenceCreate(Description** made) {
  *made = new Description{0, 0, false};
  return 0;
}
EXPORT int cublasLtMatmulDescSetAttribute(Description* of, int attribute, const void* value,
                                          size_t) {
  constexpr int kTransposesA = 3;  // CUBLASLT_MATMUL_DESC_TRANSA
  if (attribute == kTransposesA) of->transposes = *static_cast<const int*>(value) != 0;
  return 0;
}
EXPORT int cublasLtMatrixLayoutSetAttribute(Description*, int, const void*, size_t) { return 0; }
EXPORT int cublasLtMatmulPreferenceSetAttribute(Description*, int, const void*, size_t) {
  return 0;
}
EXPORT int cublasLtMatmulDescDestroy(Description* gone) {
  delete gone;
  return 0;
}
EXPORT int cublasLtMatrixLayoutDestroy(Description* gone) {
  delete gone;
  return 0;
}
EXPORT int cublasLtMatmulPreferenceDestroy(Description* gone) {
  delete gone;
  return 0;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(void*, Description*, Description*, Description*,
                                          Description*, Description*, Description*, int, void*,
                                          int* found) {
  *found = 1;
  return 0;
}
EXPORT int cublasLtMatmul(void*, Description* operation, const void*, const void*, Description* a,
                          const void*, Description*, const void*, const void*, Description*, void*,
                          Description* out, const void*, void*, size_t, void*) {
  const uint64_t inner = operation->transposes ? a->rows : a->columns;
  return multiply(double(out->rows), double(out->columns), double(inner), 1, false);
}
EXPORT size_t cublasLtGetVersion() { return 130000; }

// ---- For the bench.

// Calls by name, and times of the device and the clock in ns, as JSON. The text is the thread's.
EXPORT const char* null_cuda_counts() {
  static thread_local std::string text;
  text = "{";
  const auto say = [&](const char* name, int64_t value) {
    text += (text.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": " + std::to_string(value);
  };
  {
    std::lock_guard<std::mutex> lock(Calls::mutex());
    for (Calls* calls = Calls::first(); calls; calls = calls->next)
      say(calls->name, static_cast<int64_t>(calls->count));
  }
  std::lock_guard<std::mutex> lock(device.mutex);
  say("device_ns", device.busy_ns);
  say("starved_ns", device.starved_ns);
  say("full_ns", device.full_ns);
  say("end_ns", device.end_ns);
  say("host_ns", Launchers::cpu_ns());
  text += "}";
  return text.c_str();
}
