// The torch bridge: what the engine asks of PyTorch, on the c10 headers alone.
//
// Compiled on the user's machine against the installed torch (dtr_alloc/torch/bridge.py),
// because c10's ABI changes between versions. Its only state is the core's table and the CPU
// allocator that it stands in front of. It takes no lock.
//
// Upstream contracts, by header:
//   c10/core/Allocator.h       an Allocator whose DataPtr has data == context is
//                              "simple", and raw_deleter() must then free it
//   c10/core/StorageImpl.h     data() and data_ptr() throw while
//                              throw_on_immutable_data_ptr_ is set
//   torch/csrc/utils/tensor_numpy.cpp
//                              numpy() makes a storage not resizable, for good
//   c10/util/intrusive_ptr.h   a dead object stays in memory while weak references
//                              remain; release_resources() runs the DataPtr's deleter

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>

#include "bridge.h"

namespace dtr_bridge {

const dtr_core* core = nullptr;
std::atomic<bool> several_streams{false};
std::atomic<int32_t> observers{0};

void free_block(void* address) { core->freed(core->engine, address); }

void free_of_arena(void* address) { core->freed(core->engine, address); }

// The words of PyTorch's own error. Frameworks that try a smaller batch then know it by these:
// should_reduce_batch_size of accelerate, is_oom_error of Lightning.
const char* of_pytorch(c10::Device device) {
  return device.is_cuda() ? "CUDA out of memory." : "DefaultCPUAllocator: can't allocate memory.";
}

void* allocate_block(c10::Device device, size_t size_bytes, uint64_t stream, uint64_t arena) {
  meet_thread();
  int32_t status = DTR_OK;
  const char* message = nullptr;
  void* address = core->allocate(core->engine, static_cast<uint8_t>(device.type()),
                                 static_cast<int8_t>(device.index()), size_bytes, stream, arena,
                                 &status, &message);
  // A null address with status OK is the answer to a request of zero bytes.
  if (!address && status != DTR_OK) {
    if (status == DTR_OUT_OF_MEMORY) {
      const std::string text = message;  // which the next call of the core may overwrite
      TORCH_CHECK_WITH(OutOfMemoryError, false, text, largest_holders(),
                       "\n(PyTorch says: ", of_pytorch(device), ")");
    }
    TORCH_CHECK(false, message);
  }
  return address;
}

void* allocate_workspace(c10::Device device, size_t size_bytes, uint64_t stream, bool* beyond) {
  meet_thread();
  int32_t is_beyond = 0;
  void* address =
      core->allocate_workspace(core->engine, static_cast<uint8_t>(device.type()),
                               static_cast<int8_t>(device.index()), size_bytes, stream, &is_beyond);
  *beyond = is_beyond != 0;
  return address;
}

namespace {

// Three private members are needed: the flags that make an access throw, which not
// every version lets one clear, and the reference counts, because c10's own lock()
// may take the GIL and the engine must never wait for it under its lock. An
// explicit instantiation may name a private member ([temp.explicit]): a torch
// without it is an error of the compiler, never of a running job.
template <auto Access, auto Write>
struct ThrowFlags {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*Access; }
  friend bool& throws_on_write(c10::StorageImpl& storage) { return storage.*Write; }
};
bool& throws_on_access(c10::StorageImpl& storage);
bool& throws_on_write(c10::StorageImpl& storage);
template struct ThrowFlags<&c10::StorageImpl::throw_on_immutable_data_ptr_,
                           &c10::StorageImpl::throw_on_mutable_data_ptr_>;

template <auto Member>
struct Counts {
  friend std::atomic<uint64_t>& counts(c10::intrusive_ptr_target& target) { return target.*Member; }
};
std::atomic<uint64_t>& counts(c10::intrusive_ptr_target& target);
template struct Counts<&c10::intrusive_ptr_target::combined_refcount_>;

c10::Allocator* base_cpu_allocator = nullptr;  // PyTorch's, or another that was there before ours
c10::DeleterFnPtr base_cpu_deleter = nullptr;  // null: it has none of its own

const char* const evicted_message =
    "dtr_alloc: this tensor's memory was evicted and was read past the recorder (by another "
    "thread, a compiled region or an extension). Call dtr_alloc.materialize(tensor) or "
    "dtr_alloc.pin(tensor) before handing it there.";

const char* const taken_message =
    "dtr_alloc: an operator that ran again gave this tensor, whose memory went to its first "
    "result. "
    "An operator of a library must neither read nor return what it gave before: "
    "dtr_alloc.distrust() has it never run again.";

const char* const lost_message =
    "dtr_alloc: this tensor's memory was evicted, and its content is lost: it could not be "
    "computed "
    "again when the session ended, and disable() said why.";

void free_evicted(void* context) { core->evicted_died(core->engine, context); }

c10::StorageImpl* storage_of(void* handle) { return static_cast<c10::StorageImpl*>(handle); }

const c10::StorageImpl* storage_of(const void* handle) {
  return static_cast<const c10::StorageImpl*>(handle);
}

void describe(const void* tensor, dtr_tensor_desc* out) {
  const auto* impl = static_cast<const c10::TensorImpl*>(tensor);
  *out = dtr_tensor_desc{};
  const c10::DispatchKeySet keys = impl->key_set();
  const bool strided = impl->layout() == c10::kStrided && impl->has_storage() &&
                       !impl->is_python_dispatch() && !impl->has_symbolic_sizes_strides();
  if (!strided) {
    out->flags = DTR_TENSOR_OPAQUE;
    return;
  }
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  out->handle = storage;
  const c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
  const c10::DeleterFnPtr deleter = pointer.get_deleter();
  out->data = deleter == &free_evicted ? nullptr : pointer.get();
  out->owned = deleter == &free_block;
  out->exclusive = deleter && deleter == base_cpu_deleter && storage->resizable();
  out->storage_bytes = storage->nbytes();
  out->scalar_type = static_cast<int32_t>(c10::typeMetaToScalarType(impl->dtype()));
  out->item_bytes = static_cast<uint8_t>(impl->dtype().itemsize());
  out->device_type = static_cast<uint8_t>(storage->device_type());
  out->device_index = static_cast<int8_t>(storage->device().index());
  if (keys.has(c10::DispatchKey::NestedTensor)) {  // many sizes, and no one to ask for
    out->flags = DTR_TENSOR_OPAQUE;
    return;
  }
  out->sizes = impl->sizes().data();
  out->strides = impl->strides().data();
  out->offset = impl->storage_offset();
  out->ndim = static_cast<int32_t>(impl->dim());
  out->full = impl->is_non_overlapping_and_dense() &&
              static_cast<uint64_t>(impl->numel()) * out->item_bytes == out->storage_bytes;
  if (impl->is_conj()) out->flags |= DTR_TENSOR_CONJ;
  if (impl->is_neg()) out->flags |= DTR_TENSOR_NEG;
  if (deleter == &free_of_arena) out->flags |= DTR_TENSOR_OPAQUE;
  if (impl->is_wrapped_number() || keys.has(c10::DispatchKey::Quantized) ||
      keys.has_any(c10::DispatchKeySet(
          {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper})))
    out->flags |= DTR_TENSOR_OPAQUE;
}

uint64_t strong_count(const void* handle) {
  auto* storage = const_cast<c10::StorageImpl*>(storage_of(handle));
  return c10::raw::weak_intrusive_ptr::use_count(storage);
}

void retain_weak(void* handle) { c10::raw::weak_intrusive_ptr::incref(storage_of(handle)); }

void release_weak(void* handle) { c10::raw::weak_intrusive_ptr::decref(storage_of(handle)); }

int32_t retain_strong(void* handle) {
  // With a Python wrapper, going from one reference to two must also keep the
  // wrapper alive, which takes the GIL: such a storage is refused.
  std::atomic<uint64_t>& count = counts(*storage_of(handle));
  uint64_t seen = count.load(std::memory_order_relaxed);
  do {
    const uint32_t strong = c10::detail::refcount(seen);
    if (strong == 0 || (strong == 1 && c10::detail::has_pyobject(seen))) return 0;
  } while (!count.compare_exchange_weak(seen, seen + c10::detail::kReferenceCountOne,
                                        std::memory_order_acquire, std::memory_order_relaxed));
  return 1;
}

int32_t retain_strong_with_gil(void* handle) {
  // A successful lock adds the strong reference that the caller now holds.
  return c10::raw::weak_intrusive_ptr::lock(storage_of(handle)) != nullptr;
}

void release_strong(void* handle) {
  if (has_python() ||
      storage_of(handle)->_mutable_data_ptr_no_checks().get_deleter() == &free_block)
    c10::raw::intrusive_ptr::decref(storage_of(handle));
}

void* data(const void* handle) {
  const auto& pointer =
      const_cast<c10::StorageImpl*>(storage_of(handle))->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &free_evicted ? nullptr : pointer.get();
}

// The address that a storage of ours holds, taken out without its deleter.
void* release_address(c10::StorageImpl& storage) {
  c10::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  if (pointer.get_deleter() != &free_block || pointer.get() != pointer.get_context())
    return nullptr;
  return pointer.release_context();
}

// What observers take for the address of an evicted storage. No other storage has it, so they can tell
// which tensor it is; and no memory is there, so that a kernel which reads it ends the process.
void* no_memory_of(c10::StorageImpl& storage) {
  constexpr uintptr_t kNobodys = uintptr_t{1} << 63;  // the system's half of all addresses
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(&storage) | kNobodys);
}

void guard(void* handle) {
  c10::StorageImpl& storage = *storage_of(handle);
  if (storage._mutable_data_ptr_no_checks().get_deleter() != &free_evicted) return;
  if (several_streams.load(std::memory_order_relaxed) ||
      observers.load(std::memory_order_relaxed) > 0) {
    throws_on_access(storage) = false;
    storage.set_throw_on_mutable_data_ptr();
  } else {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(evicted_message));
  }
}

void* detach(void* handle, void* evicted_context) {
  c10::StorageImpl& storage = *storage_of(handle);
  void* address = release_address(storage);
  if (!address) return nullptr;
  storage.set_data_ptr_noswap(
      c10::DataPtr(no_memory_of(storage), evicted_context, &free_evicted, storage.device()));
  guard(handle);
  return address;
}

void attach(void* handle, void* address) {
  c10::StorageImpl& storage = *storage_of(handle);
  c10::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  const c10::Device device = pointer.device();
  if (pointer.get_deleter() == &free_evicted) pointer.release_context();
  throws_on_access(storage) = throws_on_write(storage) = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
  storage.set_data_ptr_noswap(c10::DataPtr(address, address, &free_block, device));
}

void lose(void* handle) {
  storage_of(handle)->release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::string(lost_message));
}

void* replace(void* handle, void* address) {
  c10::StorageImpl& storage = *storage_of(handle);
  const c10::Device device = storage._mutable_data_ptr_no_checks().device();
  void* old = release_address(storage);
  if (old) storage.set_data_ptr_noswap(c10::DataPtr(address, address, &free_block, device));
  return old;
}

void* take(void* handle) {
  c10::StorageImpl& storage = *storage_of(handle);
  void* address = release_address(storage);
  if (!address) return nullptr;
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(taken_message));
  return address;
}

std::atomic<bool> gives_cpu_memory{false};

// Memory that was taken without a deleter (oneDNN's) comes back to the allocator that is registered
// then, whoever gave it.
void free_raw(void* address) {
  dtr_pool* pool = core->pool_of(core->engine, static_cast<uint8_t>(c10::DeviceType::CPU), -1);
  if (pool && core->pool_contains(pool, address))
    free_block(address);
  else
    base_cpu_allocator->raw_deallocate(address);
}

// Adapts the core's allocate to c10::Allocator, for CPU tensors.
class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    if (!gives_cpu_memory) return base_cpu_allocator->allocate(size_bytes);
    const c10::Device device(c10::DeviceType::CPU);
    void* address = allocate_block(device, size_bytes, 0);
    return {address, address, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  void copy_data(void* destination, const void* source, size_t size_bytes) const override {
    default_copy_data(destination, source, size_bytes);
  }
};

HostAllocator host_allocator;

void* make(void*, void* address, uint64_t size_bytes, uint8_t device_type, int8_t device_index) {
  const c10::Device device(static_cast<c10::DeviceType>(device_type), device_index);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), size_bytes,
      c10::DataPtr(address, address, &free_block, device), nullptr, false);
  return storage.release();
}

dtr_framework framework = {DTR_BRIDGE_ABI_VERSION,
                           &describe,
                           &strong_count,
                           &retain_weak,
                           &release_weak,
                           &retain_strong,
                           &retain_strong_with_gil,
                           &release_strong,
                           &data,
                           &detach,
                           &attach,
                           &guard,
                           &lose,
                           &replace,
                           &take,
                           &make,
                           nullptr,  // see set_current_stream
                           &drop_closure};

}  // namespace

void set_current_stream(CurrentStream function) { framework.current_stream = function; }

// Hands the core's table in and the framework's out. Call once, before all else.
DTR_EXPORT const dtr_framework* dtr_bridge_connect(const dtr_core* table) {
  if (table->abi_version != DTR_BRIDGE_ABI_VERSION) return nullptr;
  core = table;
  return &framework;
}

// Makes the core the source of all CPU tensor memory, or stops it. Memory that was given out goes
// back through the core's freed() in either state, so ours stays registered, for free_raw().
DTR_EXPORT void dtr_bridge_install_cpu(int32_t on) {
  constexpr uint8_t priority = 255;  // above every allocator that a library may register
  if (on && c10::GetCPUAllocator() != &host_allocator) {
    base_cpu_allocator = c10::GetCPUAllocator();
    base_cpu_deleter = base_cpu_allocator->raw_deleter();
    c10::SetCPUAllocator(&host_allocator, priority);
  }
  gives_cpu_memory = on != 0;
}

}  // namespace dtr_bridge
