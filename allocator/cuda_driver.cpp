#include "cuda_driver.h"

#include <string>

#include "errors.h"

namespace dtr {

namespace {

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
  return device;
}

CuStream stream_of(uint64_t stream) { return reinterpret_cast<CuStream>(stream); }

}  // namespace

void cuda_require_virtual_memory(int32_t ordinal) {
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

CudaDriver::CudaDriver(int32_t ordinal)
    : table_(cuda_api()),
      cuda_(*table_),
      device_(find_device(cuda_, ordinal)),
      context_(cuda_, device_) {}

uint64_t CudaDriver::total_bytes() const {
  CurrentContext current(cuda_, context_.get());
  size_t total = 0;
  cuda_.check(cuda_.device_total(&total, device_), "cuDeviceTotalMem");
  return total;
}

Driver::Event CudaDriver::create_event(bool timed) {
  CurrentContext current(cuda_, context_.get());
  CuEvent event = nullptr;
  unsigned flags = timed ? kEventDefault : kEventDisableTiming;
  cuda_.check(cuda_.event_create(&event, flags), "cuEventCreate");
  return event;
}

void CudaDriver::destroy_event(Event event) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.event_destroy(event), "cuEventDestroy");
}

void CudaDriver::record_event(Event event, uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.event_record(event, stream_of(stream)), "cuEventRecord");
}

bool CudaDriver::event_complete(Event event) {
  CurrentContext current(cuda_, context_.get());
  CuResult result = cuda_.event_query(event);
  if (result == kCudaNotReady) return false;
  cuda_.check(result, "cuEventQuery");
  return true;
}

void CudaDriver::synchronize_event(Event event) {
  CurrentContext current(cuda_, context_.get());
  const CuResult result = count_wait([&] { return cuda_.event_synchronize(event); });
  cuda_.check(result, "cuEventSynchronize");
}

void CudaDriver::stream_wait_event(uint64_t stream, Event event) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.stream_wait_event(stream_of(stream), event, 0), "cuStreamWaitEvent");
}

int64_t CudaDriver::elapsed_ns(Event begin, Event end) {
  CurrentContext current(cuda_, context_.get());
  float milliseconds = 0;
  cuda_.check(cuda_.event_elapsed(&milliseconds, begin, end), "cuEventElapsedTime");
  return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
}

uint64_t CudaDriver::create_stream() {
  CurrentContext current(cuda_, context_.get());
  CuStream stream = nullptr;
  cuda_.check(cuda_.stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
  return reinterpret_cast<uint64_t>(stream);
}

void CudaDriver::destroy_stream(uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.stream_destroy(stream_of(stream)), "cuStreamDestroy");
}

void CudaDriver::synchronize_stream(uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  const CuResult result = count_wait([&] { return cuda_.stream_synchronize(stream_of(stream)); });
  cuda_.check(result, "cuStreamSynchronize");
}

bool CudaDriver::capturing(uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  int status = 0;
  cuda_.check(cuda_.stream_is_capturing(stream_of(stream), &status), "cuStreamIsCapturing");
  return status != 0;
}

bool CudaDriver::synchronize_device() {
  CurrentContext current(cuda_, context_.get());
  const CuResult result = count_wait([&] { return cuda_.context_synchronize(); });
  if (result >= kCudaFirstCaptureError && result <= kCudaLastCaptureError) return false;
  cuda_.check(result, "cuCtxSynchronize");
  return true;
}

uint64_t CudaDriver::allocate_on_stream(uint64_t size_bytes, uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  CuAddress address = 0;
  cuda_.check(cuda_.allocate_async(&address, size_bytes, stream_of(stream)), "cuMemAllocAsync");
  return address;
}

void CudaDriver::free_on_stream(uint64_t address, uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.free_async(address, stream_of(stream)), "cuMemFreeAsync");
}

uint64_t CudaDriver::allocate_host(uint64_t size_bytes) {
  CurrentContext current(cuda_, context_.get());
  void* host = nullptr;
  cuda_.check(cuda_.host_allocate(&host, size_bytes, kHostPortable), "cuMemHostAlloc");
  return reinterpret_cast<uint64_t>(host);
}

void CudaDriver::free_host(uint64_t host, uint64_t) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.host_free(reinterpret_cast<void*>(host)), "cuMemFreeHost");
}

void CudaDriver::copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(
      cuda_.copy_out_async(reinterpret_cast<void*>(host), address, size_bytes, stream_of(stream)),
      "cuMemcpyDtoHAsync");
}

void CudaDriver::copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.copy_in_async(address, reinterpret_cast<const void*>(host), size_bytes,
                                  stream_of(stream)),
              "cuMemcpyHtoDAsync");
}

void CudaDriver::fill(uint64_t address, uint8_t value, uint64_t size_bytes, uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.memset_async(address, value, size_bytes, stream_of(stream)), "cuMemsetD8Async");
}

void CudaDriver::copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t stream) {
  CurrentContext current(cuda_, context_.get());
  cuda_.check(cuda_.copy_async(to, from, size_bytes, stream_of(stream)), "cuMemcpyDtoDAsync");
}

}  // namespace dtr
