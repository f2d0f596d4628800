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
  explicit SimulatedFramework(const dtr_core* core);
  ~SimulatedFramework();

  static const dtr_framework& table();
  const dtr_core* core() const { return core_; }
  // Tensors, and storages whose object is not freed yet. Their deleters need the framework.
  uint64_t objects() const { return objects_.load(); }

  // A tensor over new memory, which it asks the core for. Null if there is none; then *status and
  // *message say why.
  SimulatedTensor* make_tensor(uint8_t device_type, int8_t device_index, uint64_t stream,
                               int32_t scalar_type, int64_t elements, int32_t* status,
                               const char** message);
  // A tensor over a storage of which the caller has a strong reference, which it takes.
  SimulatedTensor* take_tensor(SimulatedStorage* storage, int32_t scalar_type, int64_t offset,
                               int64_t elements);
  void release_tensor(SimulatedTensor* tensor);
  SimulatedStorage* make_storage(Memory memory, void* pointer, uint64_t size_bytes,
                                 uint8_t device_type, int8_t device_index);
  // Gives the storage's memory back to whom it belongs, and leaves it empty.
  void let_go(SimulatedStorage& storage);
  // Its object is freed.
  void storage_is_gone() { objects_.fetch_sub(1); }

 private:
  const dtr_core* core_;
  std::atomic<uint64_t> objects_{0};
};

// A tensor over a storage of which somebody else has a strong reference.
SimulatedTensor* tensor_over(SimulatedStorage* storage, int32_t scalar_type, int64_t offset,
                             int64_t elements);

}  // namespace dtr
