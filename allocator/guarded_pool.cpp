#include "guarded_pool.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <mutex>

#include "errors.h"
#include "grain.h"

namespace dtr {

namespace {

const uint64_t kGuardPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
// Page tables of addresses that were used stay: at most 1/512 of it.
constexpr uint64_t kRing = uint64_t{1} << 38;

void* at_address(uint64_t address) { return reinterpret_cast<void*>(address); }

// Addresses that nobody can touch, in place of what is at `place` or anywhere; MAP_FAILED if the
// system refuses.
void* map_untouchable(void* place, uint64_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (place ? MAP_FIXED : 0);
  return ::mmap(place, bytes, PROT_NONE, flags, -1, 0);
}

[[noreturn]] void refused(const char* call, uint64_t size_bytes) {
  throw DriverError(std::string(call) + " of " + size_text(size_bytes) +
                    " failed: " + ::strerror(errno) +
                    "; guarded memory takes two mappings a block (vm.max_map_count) and " +
                    size_text(kRing) + " of addresses (ulimit -v)");
}

// Where the rings of all guarded pools are, for the handler. One of the last few may be missing.
constexpr size_t kRings = 16;
std::atomic<uint64_t> rings[kRings];

struct sigaction handler_before;

// Says what happened, and leaves the rest to whoever was there before: the access is repeated.
void report(int, siginfo_t* info, void*) {
  const uint64_t address = reinterpret_cast<uint64_t>(info->si_addr);
  for (const std::atomic<uint64_t>& ring : rings) {
    if (ring == 0 || address - ring >= kRing) continue;
    static const char text[] =
        "dtr_alloc: memory was used by a pointer that was kept past the tensor's eviction, move or "
        "end (guarded pool); python -X faulthandler shows where\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, sizeof text - 1);
  }
  ::sigaction(SIGSEGV, &handler_before, nullptr);
}

void watch(uint64_t ring) {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = report;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &handler_before);
  });
  for (std::atomic<uint64_t>& place : rings) {
    uint64_t none = 0;
    if (place.compare_exchange_strong(none, ring)) return;
  }
}

void forget(uint64_t ring) {
  for (std::atomic<uint64_t>& place : rings) place.compare_exchange_strong(ring, 0);
}

}  // namespace

GuardedPool::GuardedPool(uint64_t budget_bytes) : CountedPool(make_host_driver(), budget_bytes) {
  void* ring = map_untouchable(nullptr, kRing);
  if (ring == MAP_FAILED) refused("mmap", kRing);
  first_ = cursor_ = reinterpret_cast<uint64_t>(ring);
  span_ = kRing;
  watch(first_);
}

GuardedPool::~GuardedPool() {
  forget(first_);
  ::munmap(at_address(first_), kRing);
}

uint64_t GuardedPool::take_address(uint64_t size_bytes) {
  const uint64_t bytes = round_up(size_bytes, kGuardPage);
  // The page behind it keeps its mapping apart from the next one: so a free never needs one more.
  const uint64_t address = next_gap(bytes + kGuardPage);
  const auto at = ends_.emplace(address, address + bytes).first;
  if (::mprotect(at_address(address), bytes, PROT_READ | PROT_WRITE) != 0) {
    ends_.erase(at);
    refused("mprotect", bytes);
  }
  cursor_ = address + bytes + kGuardPage;
  return address;
}

// The first behind the cursor, or from the ring's beginning.
uint64_t GuardedPool::next_gap(uint64_t bytes) const {
  for (uint64_t from : {cursor_, first_}) {
    for (auto next = ends_.lower_bound(from);; ++next) {
      const uint64_t stop = next == ends_.end() ? first_ + span_ : next->first;
      if (stop - from >= bytes) return from;
      if (next == ends_.end()) break;
      from = next->second + kGuardPage;
    }
  }
  throw DriverError("guarded memory has no gap of " + size_text(bytes) + " left in its " +
                    size_text(kRing) + " of addresses");
}

// A new mapping in its place: nothing of the memory stays, and nobody can touch it.
void GuardedPool::give_address(uint64_t address) {
  const auto at = ends_.find(address);
  const uint64_t bytes = at->second - address;
  if (map_untouchable(at_address(address), bytes) == MAP_FAILED) refused("mmap", bytes);
  ends_.erase(at);
}

uint64_t GuardedPool::block_start(uint64_t address) {
  Lock lock(mutex_);
  const auto next = ends_.upper_bound(address);
  if (next == ends_.begin()) return 0;
  const auto at = std::prev(next);
  return address < at->second ? at->first : 0;
}

std::string GuardedPool::check_invariants() {
  std::string broken = CountedPool::check_invariants();
  if (!broken.empty()) return broken;
  Lock lock(mutex_);
  uint64_t behind = first_;  // of the pages in use, and one
  for (const auto& [begin, end] : ends_) {
    if (begin < behind || end <= begin || (begin - first_) % kGuardPage != 0)
      return "G1: a block at " + address_text(begin) + " lies over the one before it";
    behind = end + kGuardPage;
  }
  if (behind > first_ + span_ || ends_.size() != counts_.live_blocks)
    return "G1: " + std::to_string(ends_.size()) + " blocks have pages, in use are " +
           std::to_string(counts_.live_blocks);
  return "";
}

}  // namespace dtr
