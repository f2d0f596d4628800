#include "spare_memory.h"

#include <atomic>
#include <new>
#include <string>
#include <utility>

#include "errors.h"

namespace dtr {

namespace {

std::atomic<void*> spare{nullptr};
std::atomic<uint64_t> spare_bytes{0};  // of it, while it is there
std::new_handler handler_before = nullptr;

// What operator new calls before it tries again.
void give_back() {
  if (void* memory = spare.exchange(nullptr))
    ::operator delete(memory);
  else if (handler_before)
    handler_before();
  else
    throw std::bad_alloc();
}

}  // namespace

void keep_spare_memory(uint64_t size_bytes) {
  if (spare.load(std::memory_order_relaxed) &&
      spare_bytes.load(std::memory_order_relaxed) >= size_bytes)
    return;
  [[maybe_unused]] static const std::new_handler once = handler_before =
      std::set_new_handler(give_back);
  void* before = spare.exchange(nullptr);  // else it would be given back for the larger one
  void* memory = ::operator new(size_bytes, std::nothrow);
  if (memory) {
    ::operator delete(std::exchange(before, memory));
    spare_bytes = size_bytes;
  }
  ::operator delete(spare.exchange(before));  // another thread's
  if (!memory)
    throw OutOfMemory("the system refuses the " + std::to_string(size_bytes) +
                      " bytes that are kept back for the engine's records");
}

}  // namespace dtr
