#include "address_space.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

#include "at_fork.h"
#include "grain.h"

#ifndef MAP_FIXED_NOREPLACE  // Linux 4.17
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace dtr {

namespace {

const uint64_t kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));

void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// 0 if the system refuses; a place of 0 is any.
uint64_t map_at(uint64_t place, uint64_t bytes) {
  // Readable and writable from the start, though no page exists: switching the protection of parts
  // would cut the mapping into more pieces than the kernel allows a process (vm.max_map_count).
  const int flags =
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (place != 0 ? MAP_FIXED_NOREPLACE : 0);
  void* got = ::mmap(pointer(place), bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (got == MAP_FAILED) return 0;
  if (place == 0 || got == pointer(place)) return reinterpret_cast<uint64_t>(got);
  ::munmap(got, bytes);  // an old kernel took the place for a hint
  errno = EEXIST;
  return 0;
}

// The places of ranges that are not whole. They are nowhere else to be seen.
class Gap {
 public:
  // 0 if there is none.
  uint64_t take(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!found_) find();
    for (auto [begin, size] : free_) {
      if (size < bytes) continue;
      free_.erase(begin);
      if (size > bytes) free_.emplace(begin + bytes, size - bytes);
      return begin;
    }
    return 0;
  }

  void give_back(uint64_t begin, uint64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto next = free_.lower_bound(begin);
    if (next != free_.end() && next->first == begin + bytes) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == begin) {
        before->second += bytes;
        return;
      }
    }
    free_.emplace(begin, bytes);
  }

  static constexpr uint64_t kUnit = uint64_t{1} << 22;

 private:
  // The middle half of the largest gap: the system fills it from its ends, if at all.
  void find() {
    found_ = true;
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    if (maps == nullptr) return;
    uint64_t begin, end, behind = 0, gap_begin = 0, gap_bytes = 0;
    int c;
    // The upper half of all addresses is the kernel's, though a page there is listed.
    while (std::fscanf(maps, "%" SCNx64 "-%" SCNx64, &begin, &end) == 2 && begin >> 63 == 0) {
      if (behind != 0 && begin > behind && begin - behind > gap_bytes) {
        gap_begin = behind;
        gap_bytes = begin - behind;
      }
      behind = end;
      while ((c = std::fgetc(maps)) != '\n' && c != EOF) {
      }
    }
    std::fclose(maps);
    const uint64_t first = (gap_begin + gap_bytes / 4) / kUnit * kUnit;
    const uint64_t half = gap_bytes / 2 / kUnit * kUnit;
    if (half != 0) free_.emplace(first, half);
  }

  std::mutex mutex_;  // a leaf
  HeldAcrossFork held_across_fork_ = HeldAcrossFork::leaf(mutex_);
  bool found_ = false;
  std::map<uint64_t, uint64_t> free_;  // sizes by beginning
};

// Never destroyed: pools may outlive everything else.
Gap& gap() {
  static Gap* only = new Gap();
  return *only;
}

uint64_t in_units(uint64_t bytes) { return round_up(bytes, Gap::kUnit); }

}  // namespace

uint64_t address_space_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return kNoAddressLimit;
  return limit.rlim_cur;
}

AddressRange::AddressRange(uint64_t size_bytes, uint64_t step_bytes, Kind kind)
    : size_(round_up(std::max<uint64_t>(size_bytes, 1), kPage)), step_(step_bytes) {
  if (kind == Kind::kWhole || size_ <= step_ || address_space_limit() == kNoAddressLimit) {
    base_ = map_at(0, size_);
    if (base_ != 0) return;
    if (kind == Kind::kWhole) throw std::bad_alloc();
  }
  steps_.resize((size_ + step_ - 1) / step_);
  whole_ = false;
  base_ = gap().take(in_units(size_));
  if (base_ == 0) throw std::bad_alloc();
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : base_(std::exchange(other.base_, 0)),
      size_(other.size_),
      step_(other.step_),
      whole_(other.whole_),
      steps_(std::move(other.steps_)) {}

AddressRange::~AddressRange() {
  if (base_ == 0) return;
  if (whole_) {
    ::munmap(pointer(base_), size_);
    return;
  }
  bool empty = true;
  for (uint64_t step = 0; step < steps_.size(); ++step) {
    if (steps_[step].is_mapped) unmap(step);
    empty = empty && !steps_[step].is_mapped;
  }
  if (empty) gap().give_back(base_, in_units(size_));
}

uint64_t AddressRange::step_end(uint64_t step) const { return std::min((step + 1) * step_, size_); }

void AddressRange::unmap(uint64_t step) {
  const uint64_t begin = step * step_;
  // Fails where it would cut a mapping into one too many: the step stays.
  if (::munmap(pointer(base_ + begin), step_end(step) - begin) == 0) steps_[step].is_mapped = false;
}

// Calls visit(step, pages of the range in it).
template <typename Visit>
void AddressRange::for_each_step(uint64_t begin, uint64_t end, Visit visit) {
  while (begin < end) {
    const uint64_t step = begin / step_, stop = std::min(end, (step + 1) * step_);
    visit(step, static_cast<uint32_t>((stop - begin) / kPage));
    begin = stop;
  }
}

bool AddressRange::hold(uint64_t begin, uint64_t end, uint64_t spare_bytes) {
  if (whole_ || begin >= end) return true;
  const uint64_t last = (end - 1) / step_;
  std::vector<uint64_t> added;
  bool refused = false;
  for (uint64_t step = begin / step_; step <= last && !refused;) {
    uint64_t behind = step;
    while (behind <= last && !steps_[behind].is_mapped) ++behind;
    if (behind == step) {
      ++step;
      continue;
    }
    const uint64_t bytes = step_end(behind - 1) - step * step_;
    refused = map_at(base_ + step * step_, bytes) == 0;
    for (; !refused && step < behind; ++step) {
      steps_[step].is_mapped = true;
      added.push_back(step);
    }
  }
  if (!refused && !added.empty() && spare_bytes != 0) {
    const uint64_t spare = map_at(0, spare_bytes);
    refused = spare == 0;
    if (spare != 0) ::munmap(pointer(spare), spare_bytes);
  }
  if (refused) {
    const int code = errno;
    for (const uint64_t step : added) unmap(step);
    errno = code;
    return false;
  }
  for_each_step(begin, end,
                [&](uint64_t step, uint32_t pages) { steps_[step].held_pages += pages; });
  return true;
}

bool AddressRange::drop(uint64_t begin, uint64_t end) {
  if (begin >= end) return true;
  if (::madvise(pointer(base_ + begin), end - begin, MADV_DONTNEED) != 0) return false;
  if (whole_) return true;
  for_each_step(begin, end, [&](uint64_t step, uint32_t pages) {
    steps_[step].held_pages -= pages;
    if (steps_[step].held_pages == 0) unmap(step);
  });
  return true;
}

}  // namespace dtr
