// simulated_framework.h: a tensor framework of our own behind the table of dtr/framework.h.
//
// The engine runs on it without PyTorch: where an op log is simulated, and in tests
// (lab/toy.cpp). It has what the engine can see of PyTorch, and nothing else: storages with two
// reference counts, tensors that look at a range of one, and a deleter that tells the core of every
// death. It knows the core by its table alone.
//
// Reference counts follow c10::intrusive_ptr_target:
//
//     weak == weak references + (strong > 0)
//
// The strong count never rises from 0. At strong == 0 the memory goes back (to
// dtr_core.freed, or dtr_core.evicted_died), at weak == 0 the object itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "dtr/framework.h"
#include "not_copied.h"

namespace dtr {

class SimulatedFramework;

// Whose memory a storage holds, and so who is told when it dies.
enum class Memory : uint8_t {
  none,     // nobody's: empty, taken out, or zero bytes
  core,     // from dtr_core.allocate; goes back through dtr_core.freed
  evicted,  // none, and `pointer` is the context for dtr_core.evicted_died
  foreign   // of others: nobody is told
};

struct SimulatedStorage {
  SimulatedFramework* framework = nullptr;
  std::atomic<uint32_t> strong{1};
  std::atomic<uint32_t> weak{1};
  Memory memory = Memory::none;
  void* pointer = nullptr;
  uint64_t size_bytes = 0;
  uint8_t device_type = 0;
  int8_t device_index = -1;

  bool has_memory() const { return memory == Memory::core || memory == Memory::foreign; }
  void* address() const { return has_memory() ? pointer : nullptr; }
};

// A range of a storage, in one dimension.
struct SimulatedTensor {
  static constexpr int32_t kByte = 0, kInt64 = 4;  // of c10::ScalarType; others have bytes, too

  SimulatedStorage* storage = nullptr;  // one strong reference
  int32_t scalar_type = kByte;
  int64_t offset = 0;  // in elements
  int64_t elements = 0;

  uint8_t item_bytes() const { return scalar_type == kInt64 ? 8 : 1; }
};

// Storages and tensors may be used on any thread as PyTorch's may: counting is atomic,
// the rest is the caller's to order. Its memory is the core's.
class SimulatedFramework : NotCopied {
 public:
  // core: of an engine that is connected to a table like table(). It has one framework.
  explicit SimulatedFramework(const dtr_core* core) : core_(core) {
    std::lock_guard<std::mutex> lock(registry_mutex_);
    registry_[core->engine] = this;
  }
  ~SimulatedFramework() {
    std::lock_guard<std::mutex> lock(registry_mutex_);
    registry_.erase(core_->engine);
  }

  static const dtr_framework& table() {
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
  const dtr_core* core() const { return core_; }
  // Tensors, and storages whose object is not freed yet. Their deleters need the framework.
  uint64_t objects() const { return objects_.load(); }

  // A tensor over new memory, which it asks the core for. Null if there is none; then *status and
  // *message say why.
  SimulatedTensor* make_tensor(uint8_t device_type, int8_t device_index, uint64_t stream,
                               int32_t scalar_type, int64_t elements, int32_t* status,
                               const char** message) {
    const SimulatedTensor shape{nullptr, scalar_type, 0, elements};
    const uint64_t bytes = static_cast<uint64_t>(elements) * shape.item_bytes();
    void* address = core_->allocate(core_->engine, device_type, device_index, bytes, stream, 0,
                                    status, message);
    if (*status != DTR_OK) return nullptr;
    return take_tensor(make_storage(Memory::core, address, bytes, device_type, device_index),
                       scalar_type, 0, elements);
  }
  // A tensor over a storage of which the caller has a strong reference, which it takes.
  SimulatedTensor* take_tensor(SimulatedStorage* storage, int32_t scalar_type, int64_t offset,
                               int64_t elements) {
    objects_.fetch_add(1);
    return new SimulatedTensor{storage, scalar_type, offset, elements};
  }
  void release_tensor(SimulatedTensor* tensor) {
    SimulatedStorage* storage = tensor->storage;
    delete tensor;
    release_strong(storage);
    objects_.fetch_sub(1);
  }
  SimulatedStorage* make_storage(Memory memory, void* pointer, uint64_t size_bytes,
                                 uint8_t device_type, int8_t device_index) {
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
  // Gives the storage's memory back to whom it belongs, and leaves it empty.
  void let_go(SimulatedStorage& storage) {
    const Memory memory = storage.memory;
    void* pointer = storage.pointer;
    // First empty, then told: the core may look at the storage while it hears of it.
    storage.memory = Memory::none;
    storage.pointer = nullptr;
    if (memory == Memory::core) core_->freed(core_->engine, pointer);
    if (memory == Memory::evicted) core_->evicted_died(core_->engine, pointer);
  }

  // A tensor over a storage of which somebody else has a strong reference; null if it is dead.
  static SimulatedTensor* tensor_over(SimulatedStorage* storage, int32_t scalar_type,
                                      int64_t offset, int64_t elements) {
    if (!retain_strong(storage)) return nullptr;
    return storage->framework->take_tensor(storage, scalar_type, offset, elements);
  }

 private:
  // The frameworks that exist, by their engines, which is what the table's make() says. A leaf lock.
  inline static std::mutex registry_mutex_;
  inline static std::unordered_map<const void*, SimulatedFramework*> registry_;

  static constexpr int64_t kContiguous = 1;  // the stride of every tensor

  static SimulatedStorage& storage_of(void* handle) {
    return *static_cast<SimulatedStorage*>(handle);
  }
  static const SimulatedStorage& storage_of(const void* handle) {
    return *static_cast<const SimulatedStorage*>(handle);
  }
  static void describe(const void* tensor, dtr_tensor_desc* out) {
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
  static void release_weak(void* handle) {
    SimulatedStorage& storage = storage_of(handle);
    if (storage.weak.fetch_sub(1) != 1) return;
    storage.framework->objects_.fetch_sub(1);
    delete &storage;
  }
  static int32_t retain_strong(void* handle) {
    std::atomic<uint32_t>& count = storage_of(handle).strong;
    uint32_t seen = count.load();
    do {
      if (seen == 0) return 0;
    } while (!count.compare_exchange_weak(seen, seen + 1));
    return 1;
  }
  static void release_strong(void* handle) {
    SimulatedStorage& storage = storage_of(handle);
    if (storage.strong.fetch_sub(1) != 1) return;
    storage.framework->let_go(storage);
    release_weak(handle);
  }

  // The memory of a storage whose deleter is ours, which has other memory, or another state, from now
  // on; null, and nothing changed, if it is not ours to take.
  static void* exchange(void* handle, Memory memory, void* pointer) {
    SimulatedStorage& storage = storage_of(handle);
    if (storage.memory != Memory::core) return nullptr;
    storage.memory = memory;
    return std::exchange(storage.pointer, pointer);
  }
  static void attach(void* handle, void* address) {
    SimulatedStorage& storage = storage_of(handle);
    storage.memory = Memory::core;
    storage.pointer = address;
  }
  static void* make(void* engine, void* address, uint64_t size_bytes, uint8_t device_type,
                    int8_t device_index) {
    SimulatedFramework* framework;
    {
      std::lock_guard<std::mutex> lock(registry_mutex_);
      framework = registry_.at(engine);
    }
    return framework->make_storage(Memory::core, address, size_bytes, device_type, device_index);
  }

  const dtr_core* core_;
  std::atomic<uint64_t> objects_{0};
};

}  // namespace dtr
