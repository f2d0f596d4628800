// Counts every operator new of a process that loads this before the core. On request one fails, as
// where the system has no more memory: it is served if as much comes back.
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kLarge = 1 << 20;

std::atomic<uint64_t> count{0};
std::atomic<uint64_t> left{0};               // until the one that fails
std::atomic<uint64_t> least{0};              // bytes of those that are counted for it
thread_local uint64_t* came_back = nullptr;  // bytes, while a handler is called

struct ComingBack {
  explicit ComingBack(uint64_t* bytes) { came_back = bytes; }
  ComingBack(const ComingBack&) = delete;
  ComingBack& operator=(const ComingBack&) = delete;
  ~ComingBack() { came_back = nullptr; }
};
std::atomic<bool> refuses_large{false};

}  // namespace

extern "C" uint64_t counted_news() { return count.load(); }

// The ahead-th from now on of so many bytes and more fails at first.
extern "C" void fail_new(uint64_t ahead, uint64_t least_bytes) {
  least = least_bytes;
  left = ahead;
}

// Whether it has.
extern "C" bool has_failed() { return left == 0; }

// Whether those of 1 MiB and more fail.
extern "C" void refuse_large_news(bool refuses) { refuses_large = refuses; }

void* operator new(std::size_t size) {
  ++count;
  bool fails = left > 0 && size >= least && --left == 0;
  uint64_t bytes = 0;
  for (;;) {
    if ((!fails || bytes >= size) && !(refuses_large && size >= kLarge))
      if (void* found = std::malloc(size ? size : 1)) return found;
    const std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    const ComingBack counting(&bytes);
    handler();
  }
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* at) noexcept {
  if (came_back) *came_back += malloc_usable_size(at);
  std::free(at);
}
void operator delete[](void* at) noexcept { operator delete(at); }
void operator delete(void* at, std::size_t) noexcept { operator delete(at); }
void operator delete[](void* at, std::size_t) noexcept { operator delete(at); }
