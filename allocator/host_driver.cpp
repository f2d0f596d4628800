// Host memory as a device: a full driver, so that everything above runs without a GPU.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <new>
#include <utility>

#include "address_space.h"
#include "driver.h"
#include "errors.h"
#include "grain.h"
#include "granted_memory.h"

namespace dtr {

namespace {

[[noreturn]] void fail(const char* call, uint64_t size_bytes) {
  int code = errno;
  throw DriverError(
      std::string(call) + " of " + size_text(size_bytes) + " failed: " + ::strerror(code),
      code == ENOMEM || code == EAGAIN);
}

[[noreturn]] void fail_for_addresses(uint64_t size_bytes) {
  std::string text = "mmap of " + size_text(size_bytes) + " failed: " + ::strerror(errno);
  const uint64_t limit = address_space_limit();
  if (limit != kNoAddressLimit)
    text += "; the address space of the process is limited to " + size_text(limit) +
            " (RLIMIT_AS, ulimit -v)";
  throw DriverError(text, true);
}

class HostDriver final : public Driver {
 public:
  HostDriver() {
    uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t physical = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page;
    const uint64_t addresses = std::min(physical, address_space_limit());
    // A page is the smallest unit that goes back to the system. Larger chunks would be held
    // whole by one small block each, and mapping costs nothing here that units could save.
    const uint64_t least = 16 * page;
    traits_ = {"host",
               64,
               page,
               page,
               std::max(4 * addresses / page * page, least),
               std::min(physical, granted_memory(""))};
  }

  const DriverTraits& traits() const override { return traits_; }

  uint64_t reserve(uint64_t size_bytes, uint64_t) override {
    try {
      AddressRange range(size_bytes, kStep, AddressRange::Kind::kInParts);
      const uint64_t base = range.base();
      ranges_.emplace(base, std::move(range));
      return base;
    } catch (const std::bad_alloc&) {
      fail_for_addresses(size_bytes);
    }
  }

  void release(uint64_t base, uint64_t) override { ranges_.erase(base); }

  // The kernel maps a page when it is first touched; only addresses may be lacking.
  void map(uint64_t address, uint64_t size_bytes) override {
    AddressRange& range = range_of(address);
    const uint64_t begin = address - range.base();
    if (!range.hold(begin, begin + size_bytes, kSpare)) fail_for_addresses(size_bytes);
  }

  void unmap(uint64_t address, uint64_t size_bytes) override {
    AddressRange& range = range_of(address);
    const uint64_t begin = address - range.base();
    if (!range.drop(begin, begin + size_bytes)) fail("madvise", size_bytes);
  }

  bool has_contents() const override { return true; }

  void fill(uint64_t address, uint8_t value, uint64_t size_bytes, uint64_t) override {
    ::memset(pointer(address), value, size_bytes);
  }

  void copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t) override {
    ::memmove(pointer(to), pointer(from), size_bytes);
  }

  // A file without a name in TMPDIR: what is copied there takes no memory of the process, and
  // the system may write it to the disk.
  uint64_t allocate_host(uint64_t size_bytes) override {
    const char* folder = ::getenv("TMPDIR");
    std::string name = std::string(folder && *folder ? folder : "/tmp") + "/dtr_alloc.XXXXXX";
    const int file = ::mkostemp(name.data(), O_CLOEXEC);
    if (file < 0) fail(("mkostemp in " + name).c_str(), size_bytes);
    ::unlink(name.c_str());
    // With its blocks, or a full disk would be noticed by a signal at the first copy.
    errno = ::posix_fallocate(file, 0, static_cast<off_t>(size_bytes));
    void* host = MAP_FAILED;
    if (errno == 0) host = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int code = errno;
    ::close(file);
    errno = code;
    if (host == MAP_FAILED) fail(("posix_fallocate in " + name).c_str(), size_bytes);
    return reinterpret_cast<uint64_t>(host);
  }

  void free_host(uint64_t host, uint64_t size_bytes) override {
    if (::munmap(pointer(host), size_bytes) != 0) fail("munmap", size_bytes);
  }

  void copy_out(uint64_t host, uint64_t address, uint64_t size_bytes, uint64_t) override {
    ::memcpy(pointer(host), pointer(address), size_bytes);
    let_go_of_pages(host, size_bytes);
  }

  void copy_in(uint64_t address, uint64_t host, uint64_t size_bytes, uint64_t) override {
    ::memcpy(pointer(address), pointer(host), size_bytes);
    let_go_of_pages(host, size_bytes);
  }

 private:
  // Where addresses are scarce: the unit in which they are taken, and how many must be left to the
  // rest of the process, which cannot evict anything: a thread's stack and heap, a scratch buffer.
  static constexpr uint64_t kStep = uint64_t{4} << 20;
  static constexpr uint64_t kSpare = uint64_t{128} << 20;

  AddressRange& range_of(uint64_t address) {
    return std::prev(ranges_.upper_bound(address))->second;
  }

  static void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

  // Whole pages of a file's mapping leave the process; their contents stay in the file.
  void let_go_of_pages(uint64_t host, uint64_t size_bytes) {
    const uint64_t page = traits_.granularity;
    const uint64_t first = round_up(host, page);
    const uint64_t end = (host + size_bytes) / page * page;
    if (first < end && ::madvise(pointer(first), end - first, MADV_DONTNEED) != 0)
      fail("madvise", end - first);
  }

  DriverTraits traits_;
  std::map<uint64_t, AddressRange> ranges_;  // by base
};

}  // namespace

std::unique_ptr<Driver> make_host_driver() { return std::make_unique<HostDriver>(); }

}  // namespace dtr
