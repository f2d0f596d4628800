// Memory that is only counted: no rounding, no fragmentation, no place. A request fits if the
// bytes asked for fit into the budget. To simulate op logs where nothing but sizes shall matter,
// as the simulators of the papers have it.
//
// Rules, checked by check_invariants():
//   N1  The blocks in use are as large as the counters say.
//   N2  They never exceed the budget.
//
// An address is a name and has no extent: nothing may be read there, and a view into a block has
// no block_start(). Each is handed out once, so that one that was freed is never mistaken for
// another. (guarded_pool.h puts memory behind them.) Who is asked for room, when, and when it is out
// of memory: as Pool.
#pragma once

#include <unordered_map>

#include "any_pool.h"
#include "open_arenas.h"

namespace dtr {

class CountedPool : public AnyPool {
 public:
  explicit CountedPool(uint64_t budget_bytes);

  void close() override;
  uint64_t allocate(uint64_t size_bytes, uint64_t stream) override;
  void free(uint64_t address) override;
  // No address is handed out twice, so any memory is an arena's own.
  uint64_t arena_open() override;
  uint64_t arena_allocate(uint64_t arena, uint64_t size_bytes, uint64_t stream) override;
  void arena_allocate_at(uint64_t arena, uint64_t address, uint64_t, uint64_t stream) override;
  void arena_close(uint64_t arena) override;
  void record_stream(uint64_t address, uint64_t stream) override;
  uint64_t trim() override { return 0; }
  uint64_t block_bytes(uint64_t address) override;
  uint64_t block_start(uint64_t address) override;
  uint64_t free_beside(uint64_t address) override;
  PoolStats stats() override;
  void reset_peak() override;
  std::vector<BlockInfo> snapshot() override;
  std::string check_invariants() override;

 protected:
  CountedPool(std::unique_ptr<Driver> driver, uint64_t budget_bytes);

 private:
  struct Counted {
    uint64_t size_bytes;
    uint64_t stream;
  };
  // Under the lock. What throws has changed nothing.
  virtual uint64_t take_address(uint64_t size_bytes);
  virtual void give_address(uint64_t) {}
  std::unordered_map<uint64_t, Counted>::iterator in_use_at(uint64_t address, const char* call);

  void check_budget(uint64_t budget_bytes) const override;
  uint64_t shrink(uint64_t budget_bytes, bool last) override;
  void log_present() override;
  const char* held_in() const override { return ""; }

  std::unordered_map<uint64_t, Counted> blocks_;
  OpenArenas arenas_;
  uint64_t next_ = 0;
};

}  // namespace dtr
