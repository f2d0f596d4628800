// Host memory as a device: a full driver, so that everything above runs without a GPU.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "errors.h"

namespace dtr {

namespace {

[[noreturn]] void fail(const char* call, uint64_t size_bytes) {
  int code = errno;
  throw DriverError(
      std::string(call) + " of " + size_text(size_bytes) + " failed: " + ::strerror(code),
      code == ENOMEM || code == EAGAIN);
}

class HostDriver final : public Driver {
 public:
  HostDriver() {
    uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    uint64_t physical = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page;
    // A page is the smallest unit that goes back to the system. Larger chunks would be held
    // whole by one small block each, and mapping costs nothing here that units could save.
    traits_ = {"host", 64, page, page, 4 * physical, physical};
  }

  const DriverTraits& traits() const override { return traits_; }

  uint64_t reserve(uint64_t size_bytes, uint64_t) override {
    // Readable and writable from the start, though no page exists: switching the protection
    // of single chunks would cut the mapping into more pieces than the kernel allows a process
    // (vm.max_map_count).
    void* base = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) fail("mmap", size_bytes);
    return reinterpret_cast<uint64_t>(base);
  }

  void release(uint64_t base, uint64_t size_bytes) override {
    if (::munmap(pointer(base), size_bytes) != 0) fail("munmap", size_bytes);
  }

  // The kernel maps a page when it is first touched.
  void map(uint64_t, uint64_t) override {}

  void unmap(uint64_t address, uint64_t size_bytes) override {
    if (::madvise(pointer(address), size_bytes, MADV_DONTNEED) != 0) fail("madvise", size_bytes);
  }

  bool has_contents() const override { return true; }

  void fill(uint64_t address, uint8_t value, uint64_t size_bytes, uint64_t) override {
    ::memset(pointer(address), value, size_bytes);
  }

  void copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t) override {
    ::memmove(pointer(to), pointer(from), size_bytes);
  }

  uint64_t allocate_host(uint64_t size_bytes) override {
    void* host =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) fail("mmap", size_bytes);
    return reinterpret_cast<uint64_t>(host);
  }

  void free_host(uint64_t host, uint64_t size_bytes) override {
    if (::munmap(pointer(host), size_bytes) != 0) fail("munmap", size_bytes);
  }

  void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t) override {
    ::memcpy(pointer(host), pointer(address), size_bytes);
  }

  void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t) override {
    ::memcpy(pointer(address), pointer(host), size_bytes);
  }

 private:
  static void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

  DriverTraits traits_;
};

}  // namespace

std::unique_ptr<Driver> make_host_driver() { return std::make_unique<HostDriver>(); }

}  // namespace dtr
