// What PyTorch (torch >= 2.12, c10/cuda/driver_api.h) asks of NVML: a device without a fabric, on
// which no process runs.
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {
constexpr int kSuccess = 0, kNotSupported = 3;
int device;
}  // namespace

EXPORT int nvmlInit_v2() { return kSuccess; }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** handle) {
  *handle = &device;
  return kSuccess;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}
// What is not filled in stays zero: no fabric.
EXPORT int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kSuccess; }
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
