// simulated_framework.cpp: the table's functions, then the C interface.
#include "simulated_framework.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/handles.h"
#include "run/engine.h"

namespace dtr {

namespace {

// The frameworks that exist, by their engines, which is what the table's make() says. A leaf lock.
std::mutex registry_mutex;
std::unordered_map<const void*, SimulatedFramework*> registry;

// The tensors and storages of checked frameworks. A leaf lock, too.
struct Listed {
  bool is_tensor;
  const Engine* engine;
  int32_t ops;  // that use the tensor
};
std::mutex listed_mutex;
std::unordered_map<const void*, Listed> listed;

void list(const void* object, bool is_tensor, const Engine& engine) {
  std::lock_guard<std::mutex> lock(listed_mutex);
  listed[object] = {is_tensor, &engine, 0};
}

void unlist(const void* object) {
  std::lock_guard<std::mutex> lock(listed_mutex);
  listed.erase(object);
}

// What the address is, if it is what is wanted. Throws InvalidArgument otherwise.
Listed listed_as(const void* object, bool is_tensor) {
  const char* wanted = is_tensor ? "a tensor of a simulated framework that was not released"
                                 : "the handle of a storage that a tensor or step refers to";
  const char* name = is_tensor ? "the tensor" : "the handle";
  if (!object) invalid(name, "NULL", wanted);
  std::lock_guard<std::mutex> lock(listed_mutex);
  const auto found = listed.find(object);
  if (found == listed.end() || found->second.is_tensor != is_tensor)
    invalid(name, address_text(reinterpret_cast<uint64_t>(object)), wanted);
  return found->second;
}

SimulatedStorage& storage_of(void* handle) { return *static_cast<SimulatedStorage*>(handle); }

const SimulatedStorage& storage_of(const void* handle) {
  return *static_cast<const SimulatedStorage*>(handle);
}

void* address_of(const SimulatedStorage& storage) {
  return storage.memory == Memory::core || storage.memory == Memory::foreign ? storage.pointer
                                                                             : nullptr;
}

// Bytes of an element, by c10::ScalarType's number; 0 for the types that are not simulated.
uint8_t item_bytes_of(int32_t scalar_type) {
  static constexpr uint8_t bytes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 0, 0, 0, 2};
  constexpr auto count = static_cast<int32_t>(sizeof bytes);
  return scalar_type >= 0 && scalar_type < count ? bytes[scalar_type] : 0;
}

uint8_t checked_item_bytes(int32_t scalar_type) {
  const uint8_t bytes = item_bytes_of(scalar_type);
  if (bytes == 0)
    throw InvalidArgument("scalar_type is " + std::to_string(scalar_type) +
                          "; allowed: a number of c10::ScalarType from 0 to 11, or 15");
  return bytes;
}

// Elements, and whether they lie without gaps or overlaps in some order of dimensions.
uint64_t elements_of(const SimulatedTensor& tensor, bool* dense) {
  uint64_t elements = 1;
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    elements *= static_cast<uint64_t>(tensor.sizes[d]);
    if (tensor.sizes[d] != 1) dimensions.emplace_back(tensor.strides[d], tensor.sizes[d]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  *dense = true;
  for (const auto& [stride, size] : dimensions) {
    *dense &= stride == expected;
    expected *= size;
  }
  return elements;
}

void describe(const void* tensor, dtr_tensor_desc* out) {
  const auto& of = *static_cast<const SimulatedTensor*>(tensor);
  *out = dtr_tensor_desc{};
  out->handle = of.storage;
  out->data = address_of(*of.storage);
  out->storage_bytes = of.storage->size_bytes;
  out->sizes = of.sizes.data();
  out->strides = of.strides.data();
  out->offset = of.offset;
  out->ndim = static_cast<int32_t>(of.sizes.size());
  out->scalar_type = of.scalar_type;
  out->device_type = of.storage->device_type;
  out->device_index = of.storage->device_index;
  out->item_bytes = item_bytes_of(of.scalar_type);
  bool dense = false;
  out->full = elements_of(of, &dense) * out->item_bytes == out->storage_bytes && dense;
  out->owned = of.storage->memory == Memory::core;
}

void release_weak(void* handle) {
  SimulatedStorage& storage = storage_of(handle);
  if (storage.weak.fetch_sub(1) != 1) return;
  storage.framework->storage_is_gone(&storage);
  delete &storage;
}

int32_t retain_strong(void* handle) {
  std::atomic<uint32_t>& count = storage_of(handle).strong;
  uint32_t seen = count.load();
  do {
    if (seen == 0) return 0;
  } while (!count.compare_exchange_weak(seen, seen + 1));
  return 1;
}

void release_strong(void* handle) {
  SimulatedStorage& storage = storage_of(handle);
  if (storage.strong.fetch_sub(1) != 1) return;
  storage.framework->let_go(storage);
  release_weak(handle);
}

void* detach(void* handle, void* evicted_context) {
  SimulatedStorage& storage = storage_of(handle);
  if (storage.memory != Memory::core) return nullptr;
  void* address = storage.pointer;
  storage.memory = Memory::evicted;
  storage.pointer = evicted_context;
  return address;
}

void attach(void* handle, void* address) {
  SimulatedStorage& storage = storage_of(handle);
  storage.memory = Memory::core;
  storage.pointer = address;
}

void* replace(void* handle, void* address) {
  SimulatedStorage& storage = storage_of(handle);
  if (storage.memory != Memory::core) return nullptr;
  void* old = storage.pointer;
  storage.pointer = address;
  return old;
}

void* take(void* handle) {
  SimulatedStorage& storage = storage_of(handle);
  if (storage.memory != Memory::core) return nullptr;
  void* address = storage.pointer;
  storage.memory = Memory::none;
  storage.pointer = nullptr;
  return address;
}

void* make(void* engine, void* address, uint64_t size_bytes, uint8_t device_type,
           int8_t device_index) {
  SimulatedFramework* framework;
  {
    std::lock_guard<std::mutex> lock(registry_mutex);
    framework = registry.at(engine);
  }
  return framework->make_storage(Memory::core, address, size_bytes, device_type, device_index);
}

// Of this thread, on every device but the CPU.
thread_local uint64_t stream_in_use = 0;

const dtr_framework table = {
    DTR_BRIDGE_ABI_VERSION,
    &describe,
    [](const void* handle) { return uint64_t{storage_of(handle).strong.load()}; },
    [](void* handle) { storage_of(handle).weak.fetch_add(1); },
    &release_weak,
    &retain_strong,
    &retain_strong,  // no GIL here
    &release_strong,
    [](const void* handle) { return address_of(storage_of(handle)); },
    &detach,
    &attach,
    [](void*) {},  // it has no observers
    [](void*) {},
    &replace,
    &take,
    &make,
    [](uint8_t, int8_t) { return stream_in_use; },
    nullptr};  // its closures are kept by id

}  // namespace

SimulatedFramework::SimulatedFramework(dtr_engine* engine, bool checked)
    : owner_(engine), engine_(of(engine)), core_(engine_.core()), checked_(checked) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  if (registry.count(&engine_) > 0)
    throw StateError("the engine is connected to a simulated framework already");
  engine_.connect(&table);
  registry[&engine_] = this;
  use(owner_);
}

void SimulatedFramework::close() {
  if (const uint64_t left = objects_.load())
    throw StateError("the simulated framework has " + std::to_string(left) +
                     " tensors and storages");
}

SimulatedFramework::~SimulatedFramework() {
  std::lock_guard<std::mutex> lock(registry_mutex);
  registry.erase(&engine_);
  unuse(owner_);
}

void SimulatedFramework::storage_is_gone(const SimulatedStorage* storage) {
  if (checked_) unlist(storage);
  objects_.fetch_sub(1);
}

void* SimulatedFramework::allocate(uint8_t device_type, int8_t device_index, uint64_t size_bytes,
                                   uint64_t stream) {
  if (!engine_.pool_of(device_type, device_index))
    throw InvalidArgument("device_type " + std::to_string(device_type) + ", device_index " +
                          std::to_string(device_index) +
                          " has no pool; allowed: a device given to dtr_engine_add_pool");
  int32_t status = DTR_OK;
  const char* message = "";
  void* address = core_->allocate(core_->engine, device_type, device_index, size_bytes, stream, 0,
                                  &status, &message);
  if (status != DTR_OK) throw_status(status, message);
  return address;
}

SimulatedStorage* SimulatedFramework::make_storage(Memory memory, void* pointer,
                                                   uint64_t size_bytes, uint8_t device_type,
                                                   int8_t device_index) {
  auto* storage = new SimulatedStorage();
  storage->framework = this;
  storage->memory = memory;
  storage->pointer = pointer;
  storage->size_bytes = size_bytes;
  storage->device_type = device_type;
  storage->device_index = device_index;
  if (checked_) list(storage, false, engine_);
  objects_.fetch_add(1);
  return storage;
}

SimulatedTensor* SimulatedFramework::make_tensor(SimulatedStorage* storage, int32_t scalar_type,
                                                 int32_t ndim, const int64_t* sizes,
                                                 const int64_t* strides, int64_t offset) {
  auto tensor = std::make_unique<SimulatedTensor>();
  tensor->sizes.assign(sizes, sizes + ndim);
  tensor->strides.assign(ndim, 1);
  if (strides)
    tensor->strides.assign(strides, strides + ndim);
  else
    for (int32_t d = ndim - 1; d-- > 0;)
      tensor->strides[d] = tensor->strides[d + 1] * tensor->sizes[d + 1];
  tensor->offset = offset;
  tensor->scalar_type = scalar_type;
  tensor->storage = storage;
  if (checked_) list(tensor.get(), true, engine_);
  objects_.fetch_add(1);
  return tensor.release();
}

SimulatedTensor* SimulatedFramework::tensor_over(SimulatedStorage* storage) {
  if (!retain_strong(storage)) return nullptr;
  const auto bytes = static_cast<int64_t>(storage->size_bytes);
  return make_tensor(storage, 0, 1, &bytes, nullptr, 0);
}

void SimulatedFramework::release_tensor(SimulatedTensor* tensor) {
  SimulatedStorage* storage = tensor->storage;
  if (checked_) unlist(tensor);
  delete tensor;
  release_strong(storage);
  objects_.fetch_sub(1);
}

void SimulatedFramework::let_go(SimulatedStorage& storage) {
  const Memory memory = storage.memory;
  void* pointer = storage.pointer;
  // First empty, then told: the core may look at the storage while it hears of it.
  storage.memory = Memory::none;
  storage.pointer = nullptr;
  if (memory == Memory::core) core_->freed(core_->engine, pointer);
  if (memory == Memory::evicted) core_->evicted_died(core_->engine, pointer);
}

void check_simulated(const Engine& engine, const dtr_framework* framework, const void* tensor) {
  if (framework != &table) return;
  if (listed_as(tensor, true).engine != &engine)
    throw InvalidArgument("the tensor is one of another engine; allowed: of this one");
}

void in_use(const std::vector<const void*>& tensors, int32_t change) {
  std::lock_guard<std::mutex> lock(listed_mutex);
  for (const void* tensor : tensors) {
    const auto found = listed.find(tensor);
    if (found != listed.end()) found->second.ops += change;
  }
}

}  // namespace dtr

// ---- the C interface ----

namespace {

using dtr::answer;
using dtr::give;
using dtr::guard;
using dtr::invalid;
using dtr::of;
using dtr::require;
using dtr::require_between;

constexpr int32_t kMostDims = 64;
constexpr uint64_t kMostBytes = uint64_t{1} << 62;

dtr::SimulatedTensor& tensor_of(const dtr_sim_tensor* tensor) {
  dtr::listed_as(tensor, true);
  return *const_cast<dtr::SimulatedTensor*>(reinterpret_cast<const dtr::SimulatedTensor*>(tensor));
}

dtr::SimulatedStorage& storage_of(const void* handle) {
  dtr::listed_as(handle, false);
  return *static_cast<dtr::SimulatedStorage*>(const_cast<void*>(handle));
}

void check_device(int32_t device_type, int32_t device_index) {
  require_between("device_type", device_type, 0, UINT8_MAX);
  require_between("device_index", device_index, -1, INT8_MAX);
}

uint64_t checked_elements(int32_t ndim, const int64_t* sizes) {
  require_between("ndim", ndim, 0, kMostDims);
  if (ndim > 0) require(sizes, "sizes");
  uint64_t elements = 1;
  for (int32_t d = 0; d < ndim; ++d) {
    if (sizes[d] < 0)
      throw dtr::InvalidArgument("sizes[" + std::to_string(d) + "] is " + std::to_string(sizes[d]) +
                                 "; allowed: 0 and more");
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(sizes[d]), &elements) ||
        elements > kMostBytes)
      invalid("sizes", "more than 2^62 elements", "fewer");
  }
  return elements;
}

uint64_t checked_bytes(int32_t ndim, const int64_t* sizes, int32_t scalar_type) {
  const uint64_t elements = checked_elements(ndim, sizes);
  const uint64_t item = dtr::checked_item_bytes(scalar_type);
  if (elements > kMostBytes / item) invalid("sizes", "more than 2^62 bytes", "fewer");
  return elements * item;
}

// The tensor's last element lies in its storage.
void check_geometry(const dtr::SimulatedStorage& storage, int32_t scalar_type, int32_t ndim,
                    const int64_t* sizes, const int64_t* strides, int64_t offset) {
  const uint64_t elements = checked_elements(ndim, sizes);
  const uint64_t item = dtr::checked_item_bytes(scalar_type);
  if (ndim > 0) require(strides, "strides");
  int64_t last = offset;
  bool allowed = offset >= 0;
  for (int32_t d = 0; d < ndim; ++d) {
    int64_t reach = 0;
    allowed &= strides[d] >= 0 && !__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) &&
               !__builtin_add_overflow(last, reach, &last);
  }
  if (!allowed || (elements > 0 && static_cast<uint64_t>(last) >= storage.size_bytes / item))
    throw dtr::InvalidArgument("offset, sizes and strides reach element " + std::to_string(last) +
                               " of " + std::to_string(item) + " bytes; allowed: inside the " +
                               std::to_string(storage.size_bytes) + " bytes of the storage");
}

dtr_sim_tensor* over(dtr::SimulatedStorage& storage, int32_t scalar_type, int32_t ndim,
                     const int64_t* sizes, const int64_t* strides, int64_t offset) {
  check_geometry(storage, scalar_type, ndim, sizes, strides, offset);
  if (!dtr::retain_strong(&storage)) throw dtr::StateError("the handle's storage is dead");
  return reinterpret_cast<dtr_sim_tensor*>(
      storage.framework->make_tensor(&storage, scalar_type, ndim, sizes, strides, offset));
}

}  // namespace

DTR_EXPORT int32_t dtr_sim_create(dtr_engine* engine, dtr_sim** out) {
  return give(out, "out", [&] {
    return dtr::make_handle<dtr_sim>(std::make_unique<dtr::SimulatedFramework>(engine, true));
  });
}

DTR_EXPORT void dtr_sim_use_stream(uint64_t stream) { dtr::stream_in_use = stream; }

DTR_EXPORT int32_t dtr_sim_destroy(dtr_sim* sim) {
  return guard(
      [&] { dtr::destroy(sim, [](dtr::SimulatedFramework& closing) { closing.close(); }); });
}

DTR_EXPORT int32_t dtr_sim_make_tensor(dtr_sim* sim, int32_t device_type, int32_t device_index,
                                       uint64_t stream, int32_t scalar_type, int32_t ndim,
                                       const int64_t* sizes, const int64_t* strides,
                                       dtr_sim_tensor** out) {
  return give(out, "out", [&] {
    dtr::SimulatedFramework& in = of(sim);
    check_device(device_type, device_index);
    const uint64_t bytes = checked_bytes(ndim, sizes, scalar_type);
    const auto type = static_cast<uint8_t>(device_type);
    const auto index = static_cast<int8_t>(device_index);
    if (strides) {
      dtr::SimulatedStorage shape;
      shape.size_bytes = bytes;
      check_geometry(shape, scalar_type, ndim, sizes, strides, 0);
    }
    void* address = in.allocate(type, index, bytes, stream);
    dtr::SimulatedStorage* storage = in.make_storage(
        address ? dtr::Memory::core : dtr::Memory::none, address, bytes, type, index);
    return reinterpret_cast<dtr_sim_tensor*>(
        in.make_tensor(storage, scalar_type, ndim, sizes, strides, 0));
  });
}

DTR_EXPORT int32_t dtr_sim_make_view(const dtr_sim_tensor* base, int32_t ndim, const int64_t* sizes,
                                     const int64_t* strides, int64_t offset, dtr_sim_tensor** out) {
  return give(out, "out", [&] {
    const dtr::SimulatedTensor& from = tensor_of(base);
    return over(*from.storage, from.scalar_type, ndim, sizes, strides, offset);
  });
}

DTR_EXPORT int32_t dtr_sim_tensor_over(void* handle, int32_t scalar_type, int32_t ndim,
                                       const int64_t* sizes, const int64_t* strides, int64_t offset,
                                       dtr_sim_tensor** out) {
  return give(out, "out",
              [&] { return over(storage_of(handle), scalar_type, ndim, sizes, strides, offset); });
}

DTR_EXPORT int32_t dtr_sim_tensor_from(dtr_sim* sim, int32_t device_type, int32_t device_index,
                                       void* address, int32_t scalar_type, int64_t elements,
                                       dtr_sim_tensor** out) {
  return give(out, "out", [&] {
    dtr::SimulatedFramework& in = of(sim);
    require(address, "address");
    check_device(device_type, device_index);
    const uint64_t bytes = checked_bytes(1, &elements, scalar_type);
    dtr::SimulatedStorage* storage =
        in.make_storage(dtr::Memory::foreign, address, bytes, static_cast<uint8_t>(device_type),
                        static_cast<int8_t>(device_index));
    return reinterpret_cast<dtr_sim_tensor*>(
        in.make_tensor(storage, scalar_type, 1, &elements, nullptr, 0));
  });
}

DTR_EXPORT int32_t dtr_sim_replace_memory(dtr_sim_tensor* tensor, uint64_t stream) {
  return guard([&] {
    dtr::SimulatedStorage& storage = *tensor_of(tensor).storage;
    dtr::SimulatedFramework& in = *storage.framework;
    void* address =
        in.allocate(storage.device_type, storage.device_index, storage.size_bytes, stream);
    in.let_go(storage);
    storage.memory = address ? dtr::Memory::core : dtr::Memory::none;
    storage.pointer = address;
  });
}

DTR_EXPORT int32_t dtr_sim_release_tensor(dtr_sim_tensor* tensor) {
  return guard([&] {
    dtr::SimulatedTensor& released = tensor_of(tensor);
    if (dtr::listed_as(tensor, true).ops > 0)
      throw dtr::StateError("the tensor is an argument of an op that has not ended");
    released.storage->framework->release_tensor(&released);
  });
}

DTR_EXPORT void* dtr_sim_handle(const dtr_sim_tensor* tensor) {
  return answer(static_cast<void*>(nullptr), [&]() -> void* { return tensor_of(tensor).storage; });
}

DTR_EXPORT void* dtr_sim_data(const dtr_sim_tensor* tensor) {
  return answer(static_cast<void*>(nullptr), [&]() -> void* {
    const dtr::SimulatedTensor& at = tensor_of(tensor);
    auto* start = static_cast<char*>(dtr::address_of(*at.storage));
    return start ? start + at.offset * dtr::item_bytes_of(at.scalar_type) : nullptr;
  });
}

DTR_EXPORT uint64_t dtr_sim_storage_bytes(const void* handle) {
  return answer(uint64_t{0}, [&] { return storage_of(handle).size_bytes; });
}
