// Addresses of this process, for memory that comes later: far more of them than ever have any.
//
// As a rule addresses cost nothing. A range is one mapping then, from the start, and the kernel
// gives a page when it is first touched. But the address space may be limited (RLIMIT_AS, which is
// ulimit -v), or the system may refuse so large a mapping (vm.overcommit_memory = 2). Then a range
// is only a place, in the middle of the largest gap between the process's mappings, where the
// system puts none by itself, and its parts are mapped, step by step, as they are held. What
// another has mapped there is refused, never replaced.
#pragma once

#include <cstdint>
#include <vector>

namespace dtr {

// RLIMIT_AS, in bytes.
constexpr uint64_t kNoAddressLimit = UINT64_MAX;
uint64_t address_space_limit();

class AddressRange {
 public:
  enum class Kind { kWhole, kInParts };  // kInParts: only where it has to be

  // Of whole pages and at least one. No bytes of it may be touched before they are held, unless it
  // is whole. Throws std::bad_alloc.
  AddressRange(uint64_t size_bytes, uint64_t step_bytes, Kind kind);
  ~AddressRange();
  AddressRange(AddressRange&& other) noexcept;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  uint64_t base() const { return base_; }
  uint64_t size() const { return size_; }

  // [begin, end), offsets that are multiples of the page, none of it held before. False, and
  // nothing has changed, if the system refuses: errno says why. It is to be able afterwards to give
  // the process `spare_bytes` more.
  bool hold(uint64_t begin, uint64_t end, uint64_t spare_bytes = 0);
  // What is held: its pages go back to the system, and so do the addresses of steps of which
  // nothing is held. False, and nothing has changed, if the system refuses.
  bool drop(uint64_t begin, uint64_t end);

 private:
  // Part of a range that is not whole.
  struct Step {
    uint32_t held_pages = 0;
    bool is_mapped = false;
  };

  template <typename Visit>
  void for_each_step(uint64_t begin, uint64_t end, Visit visit);
  void unmap(uint64_t step);
  uint64_t step_end(uint64_t step) const;

  uint64_t base_ = 0;  // 0: moved from
  uint64_t size_;
  uint64_t step_;
  bool whole_ = true;
  std::vector<Step> steps_;
};

}  // namespace dtr
