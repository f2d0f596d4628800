#include "simulated_framework.h"

#include <mutex>
#include <unordered_map>

namespace dtr {

namespace {

// The frameworks that exist, by their engines, which is what the table's make() says. A leaf lock.
std::mutex registry_mutex;
std::unordered_map<const void*, SimulatedFramework*> registry;

constexpr int64_t kContiguous = 1;  // the stride of every tensor

SimulatedStorage& storage_of(void* handle) { return *static_cast<SimulatedStorage*>(handle); }

const SimulatedStorage& storage_of(const void* handle) {
  return *static_cast<const SimulatedStorage*>(handle);
}

void describe(const void* tensor, dtr_tensor_desc* out) {
  const auto& of = *static_cast<const SimulatedTensor*>(tensor);
  *out = dtr_tensor_desc{};
  out->handle = of.storage;
  out->data = of.storage->address();
  out->storage_bytes = of.storage->size_bytes;
  out->sizes = &of.elements;
  out->strides = &kContiguous;
  out->offset = of.offset;
  out->ndim = 1;
  out->scalar_type = of.scalar_type;
  out->device_type = of.storage->device_type;
  out->device_index = of.storage->device_index;
  out->item_bytes = of.item_bytes();
  out->full = static_cast<uint64_t>(of.elements) * of.item_bytes() == out->storage_bytes;
  out->owned = of.storage->memory == Memory::core;
}

void release_weak(void* handle) {
  SimulatedStorage& storage = storage_of(handle);
  if (storage.weak.fetch_sub(1) != 1) return;
  storage.framework->storage_is_gone();
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

// The memory of a storage whose deleter is ours, which has other memory, or another state, from now
// on; null, and nothing changed, if it is not ours to take.
void* exchange(void* handle, Memory memory, void* pointer) {
  SimulatedStorage& storage = storage_of(handle);
  if (storage.memory != Memory::core) return nullptr;
  void* old = storage.pointer;
  storage.memory = memory;
  storage.pointer = pointer;
  return old;
}

void attach(void* handle, void* address) {
  SimulatedStorage& storage = storage_of(handle);
  storage.memory = Memory::core;
  storage.pointer = address;
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

}  // namespace

const dtr_framework& SimulatedFramework::table() {
  static constexpr dtr_framework table = {
      DTR_BRIDGE_ABI_VERSION,
      &describe,
      [](const void* handle) { return uint64_t{storage_of(handle).strong.load()}; },
      [](void* handle) { storage_of(handle).weak.fetch_add(1); },
      &release_weak,
      &retain_strong,
      &retain_strong,  // no GIL here
      &release_strong,
      [](const void* handle) { return storage_of(handle).address(); },
      [](void* handle, void* context) { return exchange(handle, Memory::evicted, context); },
      &attach,
      [](void*) {},  // it has no observers
      [](void*) {},
      [](void* handle, void* address) { return exchange(handle, Memory::core, address); },
      [](void* handle) { return exchange(handle, Memory::none, nullptr); },
      &make,
      [](uint8_t, int8_t) { return uint64_t{0}; },
      [](void*) {}};  // closures are not its own
  return table;
}

SimulatedFramework::SimulatedFramework(const dtr_core* core) : core_(core) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  registry[core->engine] = this;
}

SimulatedFramework::~SimulatedFramework() {
  std::lock_guard<std::mutex> lock(registry_mutex);
  registry.erase(core_->engine);
}

SimulatedStorage* SimulatedFramework::make_storage(Memory memory, void* pointer,
                                                   uint64_t size_bytes, uint8_t device_type,
                                                   int8_t device_index) {
  auto* storage = new SimulatedStorage();
  storage->framework = this;
  storage->memory = pointer ? memory : Memory::none;
  storage->pointer = pointer;
  storage->size_bytes = size_bytes;
  storage->device_type = device_type;
  storage->device_index = device_index;
  objects_.fetch_add(1);
  return storage;
}

SimulatedTensor* SimulatedFramework::make_tensor(uint8_t device_type, int8_t device_index,
                                                 uint64_t stream, int32_t scalar_type,
                                                 int64_t elements, int32_t* status,
                                                 const char** message) {
  const SimulatedTensor shape{nullptr, scalar_type, 0, elements};
  const uint64_t bytes = static_cast<uint64_t>(elements) * shape.item_bytes();
  void* address =
      core_->allocate(core_->engine, device_type, device_index, bytes, stream, 0, status, message);
  if (*status != DTR_OK) return nullptr;
  return take_tensor(make_storage(Memory::core, address, bytes, device_type, device_index),
                     scalar_type, 0, elements);
}

SimulatedTensor* SimulatedFramework::take_tensor(SimulatedStorage* storage, int32_t scalar_type,
                                                 int64_t offset, int64_t elements) {
  objects_.fetch_add(1);
  return new SimulatedTensor{storage, scalar_type, offset, elements};
}

void SimulatedFramework::release_tensor(SimulatedTensor* tensor) {
  SimulatedStorage* storage = tensor->storage;
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

SimulatedTensor* tensor_over(SimulatedStorage* storage, int32_t scalar_type, int64_t offset,
                             int64_t elements) {
  if (!retain_strong(storage)) return nullptr;
  return storage->framework->take_tensor(storage, scalar_type, offset, elements);
}

}  // namespace dtr
