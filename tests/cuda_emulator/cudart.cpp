// A stand-in for CUDA's runtime (libcudart.so.13) on top of the stand-in for the driver
// (tests/fake_cuda/fake_cuda.cpp), for CUDA builds of PyTorch on a machine without a GPU.
//
// Preloaded, it takes the place of the real runtime for every function that torch's libraries
// call; versions.map gives its symbols the version that they ask for. Device memory is host
// memory that the stand-in for the driver mapped, so a copy is a memcpy. Memory, streams and
// events go through the stand-in for the driver, which sees what torch and what dtr_alloc queue
// and reports what could run beside each other.
//
// No kernel runs here: an operator that reaches one is an error that names the kernel. Kernels
// of operators are replaced above, in kernels.py; what they do while a stream captures becomes a
// node of the graph, and is done again at every launch.
//
// CUDA_EMULATOR_DEVICES   how many devices (1)
// CUDA_EMULATOR_MEMORY    bytes of memory that they share (1 GiB)
// CUDA_EMULATOR_CHUNK     bytes of the smallest piece that can be mapped (2 MiB, as on devices)
// CUDA_EMULATOR_PEERS     1: devices can access each other's memory, and do nothing else with it (0)
// CUDA_EMULATOR_HOLD      1: queued work stays unfinished until somebody waits for it (0)

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Of the stand-in for the driver.
extern "C" {
void fake_cuda_set_memory(uint64_t total);
void fake_cuda_set_granularity(uint64_t bytes);
void fake_cuda_set_devices(int devices);
void fake_cuda_hold(int on);
void fake_cuda_launch(uint64_t stream, unsigned long long address, uint64_t size);
void fake_cuda_read(uint64_t stream, unsigned long long address, uint64_t size);
void fake_cuda_capture(uint64_t stream, int on);
int fake_cuda_device_of(unsigned long long address);
int fake_cuda_is_shown(unsigned long long address, uint64_t size, int device);
void fake_cuda_note_hidden(int device);
uint64_t fake_cuda_physical_bytes();
const char* fake_cuda_violation(uint64_t index);
// Of runtime_common.cpp.
const char* cuda_kernel_name(const void* function);
}

namespace {

// A captured graph, before and after it is instantiated: what a launch does, in the order of
// capture, given the stream of the launch.
struct Graph {
  std::vector<std::function<void(cudaStream_t)>> nodes;
};

struct Capture {
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  unsigned long long id = 0;
  cudaStream_t origin = nullptr;
  std::set<cudaStream_t> streams;
  bool broken = false;
};

struct Stream {
  int device = 0, priority = 0;
};

struct Event {
  CUevent event = nullptr;
  std::chrono::steady_clock::time_point recorded_at;
  std::shared_ptr<Capture> capture;  // of its last record
};

struct Allocation {
  size_t mapped_bytes;
  CUmemGenericAllocationHandle handle;
};

struct State {
  State() {
    const auto number = [](const char* name, uint64_t otherwise) {
      const char* value = getenv(name);
      return value && *value ? strtoull(value, nullptr, 10) : otherwise;
    };
    devices = static_cast<int>(number("CUDA_EMULATOR_DEVICES", 1));
    fake_cuda_set_devices(devices);
    fake_cuda_set_memory(number("CUDA_EMULATOR_MEMORY", uint64_t{1} << 30));
    fake_cuda_set_granularity(number("CUDA_EMULATOR_CHUNK", 2 << 20));
    peers = number("CUDA_EMULATOR_PEERS", 0) != 0;
    fake_cuda_hold(number("CUDA_EMULATOR_HOLD", 0) != 0 ? 2 : 0);
  }

  std::mutex mutex;
  int devices;
  bool peers;
  CUcontext context = nullptr;
  std::map<cudaStream_t, std::unique_ptr<Stream>> streams;
  std::map<cudaStream_t, std::shared_ptr<Capture>> captures;
  unsigned long long captures_begun = 0;
  std::map<void*, Allocation> allocations;
  std::map<uintptr_t, size_t> host;  // pinned
  std::vector<std::string> refused;  // kernels, and functions of not_emulated.cpp
};

State& state() {
  static State* one = new State;
  return *one;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t result(CUresult error) {
  // The two enums agree on the numbers that the stand-in for the driver uses.
  return result(static_cast<cudaError_t>(error));
}

void refuse(const std::string& what) {
  fprintf(stderr, "cuda_emulator: %s\n", what.c_str());
  std::lock_guard<std::mutex> lock(state().mutex);
  state().refused.push_back(what);
}

// The runtime makes the primary context current on a thread at its first call.
class Entered {
 public:
  Entered() {
    make_current();
    // What the runtime does by itself breaks no capture; what dtr_alloc does is looked at.
    cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~Entered() { cuThreadExchangeStreamCaptureMode(&mode_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  static void make_current();
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

void Entered::make_current() {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (!state().context) {
      cuInit(0);
      cuDevicePrimaryCtxRetain(&state().context, 0);
    }
  }
  CUcontext current = nullptr;
  cuCtxGetCurrent(&current);
  if (current != state().context) cuCtxSetCurrent(state().context);
}

// The two names of the default stream.
CUstream queue_of(cudaStream_t stream) {
  const auto number = reinterpret_cast<uintptr_t>(stream);
  return number <= 2 ? nullptr : stream;
}
uint64_t number(cudaStream_t stream) { return reinterpret_cast<uint64_t>(queue_of(stream)); }

std::shared_ptr<Capture> capture_of(cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto found = state().captures.find(queue_of(stream));
  return found == state().captures.end() ? nullptr : found->second;
}

// Asks a stream for the completion of what it has by now.
cudaError_t ask(cudaStream_t stream, CUresult (*completion)(CUevent)) {
  const Entered entered;
  CUevent event = nullptr;
  CUresult error = cuEventCreate(&event, 2);
  if (error == CUDA_SUCCESS) error = cuEventRecord(event, queue_of(stream));
  if (error == CUDA_SUCCESS) error = completion(event);
  if (event) cuEventDestroy(event);
  return result(error);
}

cudaError_t wait_for(cudaStream_t stream) {
  if (auto capture = capture_of(stream)) {
    capture->broken = true;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  return ask(stream, cuEventSynchronize);
}

// A captured event never completes: to ask for it breaks the capture.
cudaError_t ask(cudaEvent_t handle, CUresult (*completion)(CUevent)) {
  const Entered entered;
  auto* event = reinterpret_cast<Event*>(handle);
  if (event->capture) {
    event->capture->broken = true;
    return result(cudaErrorCapturedEvent);
  }
  return result(completion(event->event));
}

std::vector<cudaStream_t> all_streams() {
  std::lock_guard<std::mutex> lock(state().mutex);
  std::vector<cudaStream_t> all{nullptr};
  for (const auto& [stream, rest] : state().streams) all.push_back(stream);
  return all;
}

bool on_device(const void* address) {
  return fake_cuda_device_of(reinterpret_cast<unsigned long long>(address)) >= 0;
}

// Memory of cudaMalloc is everybody's: PyTorch has its devices enabled for each other.
bool is_hidden(int device, const void* address, size_t size) {
  if (!state().peers) return false;
  const auto begin = reinterpret_cast<unsigned long long>(address);
  std::lock_guard<std::mutex> lock(state().mutex);
  const auto next = state().allocations.upper_bound(const_cast<void*>(address));
  if (next != state().allocations.begin()) {
    const auto& [base, of] = *std::prev(next);
    if (static_cast<const char*>(address) < static_cast<char*>(base) + of.mapped_bytes)
      return false;
  }
  return fake_cuda_is_shown(begin, size, device) == 0;
}

int device_of(cudaStream_t stream) {
  std::lock_guard<std::mutex> lock(state().mutex);
  const auto found = state().streams.find(stream);
  return found == state().streams.end() ? current_device : found->second->device;
}

void use(cudaStream_t stream, const void* address, size_t size, bool writes, bool by_peer = false) {
  if (size == 0 || !on_device(address)) return;
  const auto begin = reinterpret_cast<unsigned long long>(address);
  if (!by_peer && is_hidden(device_of(stream), address, size))
    fake_cuda_note_hidden(device_of(stream));
  (writes ? fake_cuda_launch : fake_cuda_read)(number(stream), begin, size);
}

// Does work now, or makes it a node of the graph that the stream captures.
cudaError_t queue(cudaStream_t stream, std::function<void(cudaStream_t)> work) {
  const Entered entered;
  if (auto capture = capture_of(stream))
    capture->graph->nodes.push_back(std::move(work));
  else
    work(stream);
  return cudaSuccess;
}

cudaError_t copy(void* to, const void* from, size_t size, cudaStream_t stream,
                 bool by_peer = false) {
  return queue(stream, [=](cudaStream_t at) {
    use(at, from, size, false, by_peer);
    use(at, to, size, true, by_peer);
    memmove(to, from, size);
  });
}

cudaError_t refuse_kernel(const void* function) {
  refuse(std::string("a kernel was launched, and none can run here: ") +
         cuda_kernel_name(function));
  return result(cudaErrorNotSupported);
}

}  // namespace

// ---- Errors.

EXPORT cudaError_t cudaGetLastError() {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
// ---- Devices.

EXPORT cudaError_t cudaGetDeviceCount(int* devices) {
  *devices = state().devices;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= state().devices) return result(cudaErrorInvalidDevice);
  current_device = device;
  const Entered entered;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* of, int device) {
  if (device < 0 || device >= state().devices) return result(cudaErrorInvalidDevice);
  *of = {};
  snprintf(of->name, sizeof of->name, "emulated device %d", device);
  of->uuid.bytes[0] = static_cast<char>(device);
  const Entered entered;
  size_t total = 0;
  cuDeviceTotalMem(&total, device);
  of->totalGlobalMem = total;
  of->major = 8;  // as an A100
  of->minor = 0;
  of->multiProcessorCount = 4;
  of->warpSize = 32;
  of->maxThreadsPerBlock = 1024;
  of->maxThreadsPerMultiProcessor = 2048;
  of->regsPerBlock = of->regsPerMultiprocessor = 65536;
  of->sharedMemPerBlock = 49152;
  of->sharedMemPerBlockOptin = of->sharedMemPerMultiprocessor = 166912;
  for (int axis = 0; axis < 3; ++axis) {
    of->maxThreadsDim[axis] = 1024;
    of->maxGridSize[axis] = 65535;
  }
  of->l2CacheSize = 4 << 20;
  of->pciBusID = device + 1;
  of->unifiedAddressing = 1;
  of->canMapHostMemory = 1;
  of->concurrentKernels = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  *can = state().peers && device != other;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return state().peers ? cudaSuccess : result(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  const Entered entered;
  for (cudaStream_t stream : all_streams())
    if (cudaError_t error = wait_for(stream)) return error;
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const Entered entered;
  cuDeviceTotalMem(total, current_device);
  *free = *total - fake_cuda_physical_bytes();
  return cudaSuccess;
}
// ---- Memory.

EXPORT cudaError_t cudaMalloc(void** address, size_t size) {
  const Entered entered;
  *address = nullptr;
  if (size == 0) return cudaSuccess;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, current_device};
  size_t unit = 0;
  cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  Allocation made{(size + unit - 1) / unit * unit, 0};
  if (CUresult error = cuMemCreate(&made.handle, made.mapped_bytes, &prop, 0)) return result(error);
  CUdeviceptr base = 0;
  CUresult error = cuMemAddressReserve(&base, made.mapped_bytes, 0, 0, 0);
  if (error == CUDA_SUCCESS) error = cuMemMap(base, made.mapped_bytes, 0, made.handle, 0);
  CUmemAccessDesc access{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  if (error == CUDA_SUCCESS) error = cuMemSetAccess(base, made.mapped_bytes, &access, 1);
  if (error != CUDA_SUCCESS) return result(error);
  *address = reinterpret_cast<void*>(base);
  std::lock_guard<std::mutex> lock(state().mutex);
  state().allocations[*address] = made;
  return cudaSuccess;
}
// Waits for the device, as the real one does.
EXPORT cudaError_t cudaFree(void* address) {
  const Entered entered;
  if (!address) return cudaSuccess;
  Allocation gone{};
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    auto found = state().allocations.find(address);
    if (found == state().allocations.end()) return result(cudaErrorInvalidValue);
    gone = found->second;
    state().allocations.erase(found);
  }
  for (cudaStream_t stream : all_streams())
    if (!capture_of(stream)) wait_for(stream);
  const auto base = reinterpret_cast<CUdeviceptr>(address);
  CUresult error = cuMemUnmap(base, gone.mapped_bytes);
  if (error == CUDA_SUCCESS) error = cuMemRelease(gone.handle);
  if (error == CUDA_SUCCESS) error = cuMemAddressFree(base, gone.mapped_bytes);
  return result(error);
}
EXPORT cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  *address = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  if (!*address) return result(cudaErrorMemoryAllocation);
  std::lock_guard<std::mutex> lock(state().mutex);
  state().host[reinterpret_cast<uintptr_t>(*address)] = size;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFreeHost(void* address) {
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (state().host.erase(reinterpret_cast<uintptr_t>(address)) == 0)
      return result(cudaErrorInvalidValue);
  }
  free(address);
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().host[reinterpret_cast<uintptr_t>(address)] = size;
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostUnregister(void* address) {
  std::lock_guard<std::mutex> lock(state().mutex);
  const bool known = state().host.erase(reinterpret_cast<uintptr_t>(address)) != 0;
  return known ? cudaSuccess : result(cudaErrorHostMemoryNotRegistered);
}
EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* of, const void* address) {
  *of = {};
  const int device = fake_cuda_device_of(reinterpret_cast<unsigned long long>(address));
  of->device = device;
  if (device >= 0) {
    of->type = cudaMemoryTypeDevice;
    of->devicePointer = const_cast<void*>(address);
    return cudaSuccess;
  }
  std::lock_guard<std::mutex> lock(state().mutex);
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto next = state().host.upper_bound(at);
  if (next != state().host.begin() && at < (--next)->first + next->second) {
    of->type = cudaMemoryTypeHost;
    of->device = 0;
    of->devicePointer = of->hostPointer = const_cast<void*>(address);
  }
  return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                                   cudaStream_t stream) {
  return copy(to, from, size, stream);
}
EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  if (cudaError_t error = wait_for(nullptr)) return error;
  if (cudaError_t error = copy(to, from, size, nullptr)) return error;
  return wait_for(nullptr);
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size,
                                       cudaStream_t stream) {
  return copy(to, from, size, stream, true);
}
EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, cudaMemcpyKind,
                                     cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
         width, stream);
  }
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemsetAsync(void* address, int value, size_t size, cudaStream_t stream) {
  return queue(stream, [=](cudaStream_t at) {
    use(at, address, size, true);
    memset(address, value, size);
  });
}

// ---- Streams.

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  auto made = std::make_unique<Stream>(Stream{current_device, priority});
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  std::lock_guard<std::mutex> lock(state().mutex);
  state().streams[*stream] = std::move(made);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  wait_for(stream);
  std::lock_guard<std::mutex> lock(state().mutex);
  return state().streams.erase(stream) != 0 ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto found = state().streams.find(stream);
  *priority = found == state().streams.end() ? 0 : found->second->priority;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for(stream); }
EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (capture_of(stream)) return result(cudaErrorStreamCaptureUnsupported);
  return ask(stream, cuEventQuery);
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return queue(stream, [=](cudaStream_t at) {
    wait_for(at);
    function(data);
  });
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                         void* data, unsigned) {
  return queue(stream, [=](cudaStream_t at) {
    wait_for(at);
    callback(at, cudaSuccess, data);
  });
}

// ---- Events.

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Entered entered;
  auto made = std::make_unique<Event>();
  if (CUresult error = cuEventCreate(&made->event, flags)) return result(error);
  *event = reinterpret_cast<cudaEvent_t>(made.release());
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const Entered entered;
  auto* event = reinterpret_cast<Event*>(handle);
  CUresult error = cuEventDestroy(event->event);
  delete event;
  return result(error);
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  const Entered entered;
  auto* event = reinterpret_cast<Event*>(handle);
  event->recorded_at = std::chrono::steady_clock::now();
  event->capture = capture_of(stream);
  if (event->capture) return cudaSuccess;
  return result(cuEventRecord(event->event, queue_of(stream)));
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) { return ask(event, cuEventQuery); }
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return ask(event, cuEventSynchronize);
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const auto taken =
      reinterpret_cast<Event*>(to)->recorded_at - reinterpret_cast<Event*>(from)->recorded_at;
  *milliseconds = std::chrono::duration<float, std::milli>(taken).count();
  return cudaSuccess;
}
// A stream that waits for work of a capture becomes a part of it.
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  const Entered entered;
  auto* event = reinterpret_cast<Event*>(handle);
  if (event->capture) {
    std::lock_guard<std::mutex> lock(state().mutex);
    if (state().captures.emplace(queue_of(stream), event->capture).second) {
      event->capture->streams.insert(queue_of(stream));
      fake_cuda_capture(number(stream), 1);
    }
    return cudaSuccess;
  }
  if (capture_of(stream)) return cudaSuccess;  // work before the capture: no part of it
  return result(cuStreamWaitEvent(queue_of(stream), event->event, 0));
}

// ---- Graphs.

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!queue_of(stream)) return result(cudaErrorStreamCaptureUnsupported);
  auto capture = std::make_shared<Capture>();
  std::lock_guard<std::mutex> lock(state().mutex);
  if (!state().captures.emplace(stream, capture).second) return result(cudaErrorIllegalState);
  capture->id = ++state().captures_begun;
  capture->origin = stream;
  capture->streams.insert(stream);
  fake_cuda_capture(number(stream), 1);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  auto capture = capture_of(stream);
  if (!capture || capture->origin != stream) return result(cudaErrorIllegalState);
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (cudaStream_t member : capture->streams) {
      state().captures.erase(member);
      fake_cuda_capture(number(member), 0);
    }
  }
  if (capture->broken) return result(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(new std::shared_ptr<Graph>(capture->graph));
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  auto capture = capture_of(stream);
  *status = !capture          ? cudaStreamCaptureStatusNone
            : capture->broken ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            const cudaGraphNode_t** dependencies,
                                            const cudaGraphEdgeData** edges, size_t* edge_count) {
  cudaStreamIsCapturing(stream, status);
  auto capture = capture_of(stream);
  if (id) *id = capture ? capture->id : 0;
  if (graph) *graph = nullptr;
  if (dependencies) *dependencies = nullptr;
  if (edges) *edges = nullptr;
  if (edge_count) *edge_count = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                 unsigned long long) {
  auto* of = reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  *executable = reinterpret_cast<cudaGraphExec_t>(new std::shared_ptr<Graph>(*of));
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Entered entered;
  const std::shared_ptr<Graph> graph = *reinterpret_cast<std::shared_ptr<Graph>*>(executable);
  for (const auto& node : graph->nodes) node(stream);
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* nodes) {
  *nodes = (*reinterpret_cast<std::shared_ptr<Graph>*>(graph))->nodes.size();
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(graph);
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<std::shared_ptr<Graph>*>(executable);
  return cudaSuccess;
}

// ---- Kernels: refused when they are launched.

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t,
                                      cudaStream_t) {
  return refuse_kernel(kernel);
}
EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t,
                                    cudaStream_t) {
  return refuse_kernel(function);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  return refuse_kernel(function);
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  *of = {};
  of->maxThreadsPerBlock = 1024;
  of->binaryVersion = of->ptxVersion = 80;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                          int, size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}

// ---- For not_emulated.cpp, kernels.py and tests.

EXPORT int cuda_emulator_refuse(const char* function) {
  refuse(std::string(function) + " was called, and is not emulated");
  return result(cudaErrorNotSupported);
}

// A kernel's stand-in reads and writes ranges of device memory on a stream.
EXPORT void cuda_emulator_use(void* stream, const void* address, uint64_t size, int writes) {
  const Entered entered;
  use(static_cast<cudaStream_t>(stream), address, size, writes != 0);
}
// Whether a stream captures; then the caller does nothing now, and node(token, stream) is called
// at every launch of the graph.
EXPORT int cuda_emulator_capture(void* stream, void (*node)(uint64_t, void*), uint64_t token) {
  auto capture = capture_of(static_cast<cudaStream_t>(stream));
  if (!capture) return 0;
  capture->graph->nodes.push_back([=](cudaStream_t at) { node(token, at); });
  return 1;
}
// The i-th kernel or function that was refused, or NULL.
EXPORT const char* cuda_emulator_refused(uint64_t index) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return index < state().refused.size() ? state().refused[index].c_str() : nullptr;
}

// dtr_alloc asks the driver before anything asks the runtime.
__attribute__((constructor)) static void begin() { state(); }
