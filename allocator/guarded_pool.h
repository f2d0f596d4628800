// Host memory where each block has pages of its own, which nobody can touch once it is freed: a
// debugging aid. Who kept a pointer to a block that was evicted, moved or freed gets SIGSEGV, and a
// line on stderr that says so, where any other pool would show him other memory.
//
// Rules, checked by check_invariants() with those of counted_pool.h:
//   G1  The blocks in use lie in the range, in whole pages, and between two there is at least one.
//
// A budget counts the bytes asked for, not the rest of their pages. Addresses are taken in a ring:
// one is used again only when all others behind it were. Costs two calls of the system for each
// block, and up to two of the mappings that a process may have (vm.max_map_count).
#pragma once

#include <map>

#include "counted_pool.h"

namespace dtr {

class GuardedPool final : public CountedPool {
 public:
  // Throws DriverError if the system refuses the addresses.
  explicit GuardedPool(uint64_t budget_bytes);
  ~GuardedPool() override;

  uint64_t block_start(uint64_t address) override;
  std::string check_invariants() override;

 private:
  uint64_t take_address(uint64_t size_bytes) override;
  void give_address(uint64_t address) override;
  uint64_t next_gap(uint64_t bytes) const;

  std::map<uint64_t, uint64_t> ends_;  // of the blocks in use, in whole pages, by where they begin
  uint64_t cursor_;                    // where the last one ends
};

}  // namespace dtr
