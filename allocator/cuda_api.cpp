#include "cuda_api.h"

#include <dlfcn.h>

#include <mutex>

#include "errors.h"
#include "locks.h"

namespace dtr {

namespace {

constexpr const char* kDefaultLibrary = "libcuda.so.1";

struct LoadedLibrary {
  DriverTableMutex mutex;
  std::string path = kDefaultLibrary;
  std::shared_ptr<const CudaApi> api;
};

// Never destroyed: pools may outlive static objects at exit.
LoadedLibrary& library() {
  static LoadedLibrary* loaded = new LoadedLibrary;
  return *loaded;
}

}  // namespace

void CudaApi::check(CuResult result, const char* call) const {
  if (result == kCudaSuccess) return;
  const char* name = nullptr;
  if (error_name == nullptr || error_name(result, &name) != kCudaSuccess || name == nullptr)
    name = "unknown error";
  throw DriverError(std::string(call) + " failed: " + name + " (" + std::to_string(result) + ")",
                    result == kCudaOutOfMemory);
}

// The library is never closed: CUDA cannot be unloaded safely while the process runs.
std::shared_ptr<const CudaApi> load_cuda_api(const std::string& library_path) {
  void* handle = ::dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = ::dlerror();
    throw DriverError("the CUDA driver library cannot be loaded: " +
                      std::string(reason != nullptr ? reason : library_path.c_str()));
  }
  auto api = std::make_shared<CudaApi>();
  auto find = [&](const char* symbol) {
    void* address = ::dlsym(handle, symbol);
    if (address == nullptr)
      throw DriverError("the CUDA driver library " + library_path + " has no function " + symbol +
                        "; the driver is too old");
    return address;
  };
#define DTR_CUDA_FIND(name, symbol, parameters) \
  api->name = reinterpret_cast<decltype(api->name)>(find(#symbol));
  DTR_CUDA_FUNCTIONS(DTR_CUDA_FIND)
#undef DTR_CUDA_FIND
  return api;
}

std::shared_ptr<const CudaApi> cuda_api() {
  LoadedLibrary& loaded = library();
  std::lock_guard<DriverTableMutex> lock(loaded.mutex);
  if (loaded.api == nullptr) loaded.api = load_cuda_api(loaded.path);
  return loaded.api;
}

void cuda_set_library(const char* library_path) {
  LoadedLibrary& loaded = library();
  std::lock_guard<DriverTableMutex> lock(loaded.mutex);
  if (loaded.api != nullptr && loaded.api.use_count() > 1)
    throw StateError("the CUDA library cannot be changed while a CUDA pool exists");
  loaded.path = library_path != nullptr ? library_path : kDefaultLibrary;
  loaded.api = nullptr;
}

int32_t cuda_probe(const char* library_path) {
  std::shared_ptr<const CudaApi> api =
      library_path != nullptr ? load_cuda_api(library_path) : cuda_api();
  api->check(api->init(0), "cuInit");
  int count = 0;
  api->check(api->device_count(&count), "cuDeviceGetCount");
  if (count == 0) throw DriverError("the CUDA driver has no device");
  return count;
}

}  // namespace dtr
