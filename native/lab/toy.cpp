// toy.cpp: a tensor framework for tests.
#include <algorithm>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "lab/dtr_lab.h"
#include "simulate/simulated_framework.h"

namespace {

using dtr::Memory;
using dtr::SimulatedFramework;
using dtr::SimulatedStorage;
using dtr::SimulatedTensor;

thread_local uint64_t stream_in_use = 0;

std::mutex dropped_mutex;  // a leaf lock
std::vector<void*> dropped;

SimulatedFramework& of(dtr_toy* toy) { return *reinterpret_cast<SimulatedFramework*>(toy); }
SimulatedTensor& of(dtr_toy_tensor* tensor) { return *reinterpret_cast<SimulatedTensor*>(tensor); }
const SimulatedTensor& of(const dtr_toy_tensor* tensor) {
  return *reinterpret_cast<const SimulatedTensor*>(tensor);
}
dtr_toy_tensor* given(SimulatedTensor* tensor) { return reinterpret_cast<dtr_toy_tensor*>(tensor); }

}  // namespace

DTR_EXPORT const dtr_framework* dtr_toy_table(void) {
  static const dtr_framework table = [] {
    dtr_framework made = SimulatedFramework::table();
    made.current_stream = [](uint8_t, int8_t) { return stream_in_use; };
    made.drop_closure = [](void* closure) {
      const std::lock_guard<std::mutex> lock(dropped_mutex);
      dropped.push_back(closure);
    };
    return made;
  }();
  return &table;
}

DTR_EXPORT dtr_toy* dtr_toy_create(const dtr_core* core) {
  return reinterpret_cast<dtr_toy*>(new SimulatedFramework(core));
}

DTR_EXPORT uint64_t dtr_toy_destroy(dtr_toy* toy) {
  const uint64_t left = of(toy).objects();
  if (left == 0) delete &of(toy);
  return left;
}

DTR_EXPORT void dtr_toy_use_stream(uint64_t stream) { stream_in_use = stream; }

DTR_EXPORT int32_t dtr_toy_make(dtr_toy* toy, int32_t device_type, int32_t device_index,
                                uint64_t stream, int32_t scalar_type, int64_t elements,
                                dtr_toy_tensor** out, const char** message) {
  int32_t status = DTR_OK;
  *out = given(of(toy).make_tensor(static_cast<uint8_t>(device_type),
                                   static_cast<int8_t>(device_index), stream, scalar_type, elements,
                                   &status, message));
  return status;
}

DTR_EXPORT dtr_toy_tensor* dtr_toy_over(void* handle, int32_t scalar_type, int64_t offset,
                                        int64_t elements) {
  return given(SimulatedFramework::tensor_over(static_cast<SimulatedStorage*>(handle), scalar_type,
                                               offset, elements));
}

DTR_EXPORT dtr_toy_tensor* dtr_toy_from(dtr_toy* toy, int32_t device_type, int32_t device_index,
                                        void* address, int32_t scalar_type, int64_t elements) {
  const SimulatedTensor shape{nullptr, scalar_type, 0, elements};
  SimulatedStorage* storage = of(toy).make_storage(
      Memory::foreign, address, static_cast<uint64_t>(elements) * shape.item_bytes(),
      static_cast<uint8_t>(device_type), static_cast<int8_t>(device_index));
  return given(of(toy).take_tensor(storage, scalar_type, 0, elements));
}

DTR_EXPORT int32_t dtr_toy_replace_memory(dtr_toy_tensor* tensor, uint64_t stream,
                                          const char** message) {
  SimulatedStorage& storage = *of(tensor).storage;
  const dtr_core* core = storage.framework->core();
  int32_t status = DTR_OK;
  void* address = core->allocate(core->engine, storage.device_type, storage.device_index,
                                 storage.size_bytes, stream, 0, &status, message);
  if (status != DTR_OK) return status;
  storage.framework->let_go(storage);
  storage.memory = address ? Memory::core : Memory::none;
  storage.pointer = address;
  return DTR_OK;
}

DTR_EXPORT void dtr_toy_release(dtr_toy_tensor* tensor) {
  of(tensor).storage->framework->release_tensor(&of(tensor));
}

DTR_EXPORT void* dtr_toy_handle(const dtr_toy_tensor* tensor) { return of(tensor).storage; }

DTR_EXPORT void* dtr_toy_data(const dtr_toy_tensor* tensor) {
  auto* start = static_cast<char*>(of(tensor).storage->address());
  return start ? start + of(tensor).offset * of(tensor).item_bytes() : nullptr;
}

DTR_EXPORT uint64_t dtr_toy_storage_bytes(const void* handle) {
  return static_cast<const SimulatedStorage*>(handle)->size_bytes;
}

DTR_EXPORT uint64_t dtr_toy_dropped(void** closures, uint64_t capacity) {
  const std::lock_guard<std::mutex> lock(dropped_mutex);
  const uint64_t count = std::min<uint64_t>(capacity, dropped.size());
  std::copy(dropped.end() - static_cast<int64_t>(count), dropped.end(), closures);
  dropped.resize(dropped.size() - count);
  return count;
}
