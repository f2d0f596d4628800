// simulated_framework.h: a tensor framework of our own behind the table of dtr/framework.h.
//
// The engine runs on it without PyTorch: in tests, and where an op log is simulated. It
// has what the engine can see of PyTorch, and nothing else: storages with two reference
// counts, tensors that look at them, and a deleter that tells the core of every death.
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
#include <vector>

#include "dtr/framework.h"
#include "dtr_alloc.h"

namespace dtr {

class Engine;
class SimulatedFramework;

// Whose memory a storage holds, and so who is told when it dies.
enum class Memory : uint8_t {
  none,     // nobody's: empty, taken out, or zero bytes
  core,     // from dtr_core.allocate; goes back through dtr_core.freed
  evicted,  // none, and `pointer` is the context for dtr_core.evicted_died
  foreign   // of the caller of dtr_sim_tensor_from: nobody is told
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
};

struct SimulatedTensor {
  SimulatedStorage* storage = nullptr;  // one strong reference
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;
  int32_t scalar_type = 0;
};

// Storages and tensors may be used on any thread as PyTorch's may: counting is atomic,
// the rest is the caller's to order. Its memory is the engine's core's.
class SimulatedFramework {
 public:
  // checked: its objects come from the C interface, whose callers may err. They are listed then, so
  // that an address is told to be one without a look at it.
  SimulatedFramework(dtr_engine* engine, bool checked);
  // StateError while objects exist: their deleters would find neither us nor the core.
  void close();
  ~SimulatedFramework();
  SimulatedFramework(const SimulatedFramework&) = delete;
  SimulatedFramework& operator=(const SimulatedFramework&) = delete;

  SimulatedTensor* make_tensor(SimulatedStorage* storage, int32_t scalar_type, int32_t ndim,
                               const int64_t* sizes, const int64_t* strides, int64_t offset);
  // A tensor of bytes over a whole storage; null if it is dead.
  SimulatedTensor* tensor_over(SimulatedStorage* storage);
  void release_tensor(SimulatedTensor* tensor);
  SimulatedStorage* make_storage(Memory memory, void* pointer, uint64_t size_bytes,
                                 uint8_t device_type, int8_t device_index);
  // Memory from the core; throws what its status says.
  void* allocate(uint8_t device_type, int8_t device_index, uint64_t size_bytes, uint64_t stream);
  // Gives the storage's memory back to whom it belongs, and leaves it empty.
  void let_go(SimulatedStorage& storage);
  // Its object is freed.
  void storage_is_gone(const SimulatedStorage* storage);

 private:
  dtr_engine* owner_;
  Engine& engine_;
  const dtr_core* core_;
  const bool checked_;
  std::atomic<uint64_t> objects_{0};  // tensors, and storages whose object is not freed yet
};

// For callers of the C interface. Throws InvalidArgument if the framework is a simulated one and
// the address is not that of a tensor of this engine's.
void check_simulated(const Engine& engine, const dtr_framework* framework, const void* tensor);

// One more op uses these tensors, or one less (-1): they may not be released meanwhile.
void in_use(const std::vector<const void*>& tensors, int32_t change);

}  // namespace dtr
