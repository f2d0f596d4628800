// Counts every operator new of a process that loads this before the core, for all to see.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<uint64_t> count{0};
}

extern "C" uint64_t counted_news() { return count.load(); }

void* operator new(std::size_t size) {
  ++count;
  if (void* found = std::malloc(size ? size : 1)) return found;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void operator delete(void* at) noexcept { std::free(at); }
void operator delete[](void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }
void operator delete[](void* at, std::size_t) noexcept { std::free(at); }
