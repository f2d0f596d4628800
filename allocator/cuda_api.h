// The CUDA driver API as this library sees it: declared here, without CUDA's headers, and looked
// up by name in libcuda.so.1 at first use. This list is the whole of what we call.
//
// Types and values are those documented in the CUDA driver API reference (cuda.h); symbols carry
// the version that cuda.h maps their names to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace dtr {

using CuResult = int;
using CuDevice = int;
using CuContext = void*;
using CuStream = void*;
using CuEvent = void*;
using CuAddress = unsigned long long;
using CuHandle = unsigned long long;  // of physical memory

constexpr CuResult kCudaSuccess = 0;
constexpr CuResult kCudaOutOfMemory = 2;
constexpr CuResult kCudaNotReady = 600;
constexpr int kAttributeVirtualMemory = 102;  // ..._VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
constexpr unsigned kEventDefault = 0;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kHostPortable = 1;  // pinned for all contexts
constexpr int kCaptureModeRelaxed = 2;
constexpr CuResult kCudaFirstCaptureError = 900;  // ..._STREAM_CAPTURE_UNSUPPORTED and its like
constexpr CuResult kCudaLastCaptureError = 908;
constexpr int kGranularityRecommended = 1;

struct CuMemLocation {
  int type;  // 1: a device
  int id;
};

struct CuMemAllocationProp {
  int type;                    // 1: pinned
  int requested_handle_types;  // 0: none
  CuMemLocation location;
  void* win32_handle_meta_data;
  struct {
    unsigned char compression_type;
    unsigned char gpu_direct_rdma_capable;
    unsigned short usage;
    unsigned char reserved[4];
  } alloc_flags;
};

struct CuMemAccessDesc {
  CuMemLocation location;
  int flags;  // 3: read and write
};

// X(name in the table, symbol in the library, parameters). Every function returns a CuResult.
#define DTR_CUDA_FUNCTIONS(X)                                                                     \
  X(init, cuInit, (unsigned flags))                                                               \
  X(error_name, cuGetErrorName, (CuResult, const char** name))                                    \
  X(device_count, cuDeviceGetCount, (int* count))                                                 \
  X(device_get, cuDeviceGet, (CuDevice*, int ordinal))                                            \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, CuDevice))                \
  X(device_total, cuDeviceTotalMem_v2, (size_t* bytes, CuDevice))                                 \
  X(primary_retain, cuDevicePrimaryCtxRetain, (CuContext*, CuDevice))                             \
  X(primary_release, cuDevicePrimaryCtxRelease_v2, (CuDevice))                                    \
  X(context_get, cuCtxGetCurrent, (CuContext*))                                                   \
  X(context_set, cuCtxSetCurrent, (CuContext))                                                    \
  X(granularity, cuMemGetAllocationGranularity, (size_t*, const CuMemAllocationProp*, int which)) \
  X(reserve, cuMemAddressReserve,                                                                 \
    (CuAddress*, size_t size, size_t alignment, CuAddress hint, unsigned long long flags))        \
  X(address_free, cuMemAddressFree, (CuAddress, size_t size))                                     \
  X(create, cuMemCreate,                                                                          \
    (CuHandle*, size_t size, const CuMemAllocationProp*, unsigned long long flags))               \
  X(release, cuMemRelease, (CuHandle))                                                            \
  X(map, cuMemMap, (CuAddress, size_t size, size_t offset, CuHandle, unsigned long long flags))   \
  X(unmap, cuMemUnmap, (CuAddress, size_t size))                                                  \
  X(set_access, cuMemSetAccess, (CuAddress, size_t size, const CuMemAccessDesc*, size_t count))   \
  X(allocate_async, cuMemAllocAsync, (CuAddress*, size_t size, CuStream))                         \
  X(free_async, cuMemFreeAsync, (CuAddress, CuStream))                                            \
  X(event_create, cuEventCreate, (CuEvent*, unsigned flags))                                      \
  X(event_destroy, cuEventDestroy_v2, (CuEvent))                                                  \
  X(event_record, cuEventRecord, (CuEvent, CuStream))                                             \
  X(event_query, cuEventQuery, (CuEvent))                                                         \
  X(event_synchronize, cuEventSynchronize, (CuEvent))                                             \
  X(stream_wait_event, cuStreamWaitEvent, (CuStream, CuEvent, unsigned flags))                    \
  X(event_elapsed, cuEventElapsedTime, (float* milliseconds, CuEvent begin, CuEvent end))         \
  X(stream_create, cuStreamCreate, (CuStream*, unsigned flags))                                   \
  X(stream_destroy, cuStreamDestroy_v2, (CuStream))                                               \
  X(stream_synchronize, cuStreamSynchronize, (CuStream))                                          \
  X(stream_is_capturing, cuStreamIsCapturing, (CuStream, int* status))                            \
  X(context_synchronize, cuCtxSynchronize, ())                                                    \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                        \
  X(host_allocate, cuMemHostAlloc, (void** host, size_t size, unsigned flags))                    \
  X(host_free, cuMemFreeHost, (void* host))                                                       \
  X(copy_out_async, cuMemcpyDtoHAsync_v2, (void* to, CuAddress from, size_t size, CuStream))      \
  X(copy_in_async, cuMemcpyHtoDAsync_v2, (CuAddress to, const void* from, size_t size, CuStream)) \
  X(memset_async, cuMemsetD8Async, (CuAddress, unsigned char value, size_t size, CuStream))       \
  X(copy_async, cuMemcpyDtoDAsync_v2, (CuAddress to, CuAddress from, size_t size, CuStream))

struct CudaApi {
#define DTR_CUDA_MEMBER(name, symbol, parameters) CuResult(*name) parameters = nullptr;
  DTR_CUDA_FUNCTIONS(DTR_CUDA_MEMBER)
#undef DTR_CUDA_MEMBER

  // Throws DriverError naming the call and the error unless the result is success.
  void check(CuResult result, const char* call) const;
};

// The table, loaded at the first call. Whoever uses it holds it, so that the library is not
// exchanged meanwhile. Throws DriverError if the library or one of its functions is missing.
std::shared_ptr<const CudaApi> cuda_api();

// As cuda_api(), from this library, without keeping it.
std::shared_ptr<const CudaApi> load_cuda_api(const std::string& library_path);

// The number of devices, after loading a library (nullptr: the one that is set). Throws
// DriverError if it cannot be loaded, lacks a function, or has no device.
int32_t cuda_probe(const char* library_path);

// Where the driver's functions are looked up from now on; nullptr: libcuda.so.1. Throws
// StateError while a CUDA driver object exists.
void cuda_set_library(const char* library_path);

}  // namespace dtr
