// Counts every operator new of a process that loads this before the core. On request one fails, as
// where the system has no more memory.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr std::size_t kLarge = 1 << 20;

std::atomic<uint64_t> count{0};
std::atomic<uint64_t> failing{0};  // the number of the one that fails
std::atomic<bool> refuses_large{false};

}  // namespace

extern "C" uint64_t counted_news() { return count.load(); }

// The ahead-th from now on fails at first. 0: none.
extern "C" void fail_new(uint64_t ahead) { failing = ahead ? count + ahead : 0; }

// Whether those of 1 MiB and more fail.
extern "C" void refuse_large_news(bool refuses) { refuses_large = refuses; }

void* operator new(std::size_t size) {
  bool fails = ++count == failing;
  for (;;) {
    if (!fails && !(refuses_large && size >= kLarge))
      if (void* found = std::malloc(size ? size : 1)) return found;
    fails = false;
    const std::new_handler handler = std::get_new_handler();
    if (!handler) throw std::bad_alloc();
    handler();
  }
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
