// What every pool is to those above it: blocks of a device's memory under a budget, and one
// callback that is asked for room. Pool (pool.h) places blocks in a heap, CountedPool
// (counted_pool.h) only counts bytes, GuardedPool (guarded_pool.h) finds who keeps pointers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "at_fork.h"
#include "device_work.h"
#include "driver.h"
#include "dtr/pool.h"
#include "event_log.h"
#include "locks.h"
#include "not_copied.h"

namespace dtr {

constexpr uint64_t kNoLimit = UINT64_MAX;

// What a pool says of itself is described in dtr/pool.h.
using PoolOptions = dtr_pool_options;
using PoolStats = dtr_pool_stats;
using BlockInfo = dtr_block;
using RoomInfo = dtr_pool_room;
using RunBlock = dtr_run_block;

class AnyPool : NotCopied {
 public:
  // Returns DTR_ROOM_...; called with no lock held.
  using RoomFn = int32_t (*)(void* context, uint64_t size_bytes, uint64_t stream);

  AnyPool(std::shared_ptr<Driver> driver, uint64_t budget_bytes);
  virtual ~AnyPool() = default;

  // StateError while blocks are in use. If the driver refuses (DriverError), close() may be
  // called again. After it only the destructor may be.
  virtual void close() = 0;

  void set_room(RoomFn room, void* context);
  // hint: DTR_HINT_..., which only two-ended placement uses.
  virtual uint64_t allocate(uint64_t size_bytes, uint64_t stream, int32_t hint = DTR_HINT_NONE) = 0;
  // Whether it uses the hint of a request of so many bytes.
  virtual bool uses_hints(uint64_t) const { return false; }
  // An address, or 0 if room would have to be made, or the pool cannot tell.
  virtual uint64_t try_allocate(uint64_t, uint64_t) { return 0; }
  // (size_bytes, stream, begin, end, packed): the same outside of [begin, end), where memory is or may
  // be mapped, and without a wait on the device: a place to move a block to. packed: only in chunks
  // that blocks touch already. 0 also for what is small.
  virtual uint64_t try_outside(uint64_t, uint64_t, uint64_t, uint64_t, bool) { return 0; }
  // (size_bytes, stream, address, in_the_way): a block that begins at that address, or 0, and the
  // addresses of the blocks in use that lie in the way; none of them if it cannot be there at all.
  virtual uint64_t try_at(uint64_t, uint64_t, uint64_t, std::vector<uint64_t>*) { return 0; }
  virtual void free(uint64_t address) = 0;
  // Arenas: see arenas.h. Throw InvalidArgument for an arena that is not open.
  virtual uint64_t arena_open() = 0;
  virtual uint64_t arena_allocate(uint64_t arena, uint64_t size_bytes, uint64_t stream) = 0;
  virtual void arena_allocate_at(uint64_t arena, uint64_t address, uint64_t size_bytes,
                                 uint64_t stream) = 0;
  virtual void arena_close(uint64_t arena) = 0;
  virtual void record_stream(uint64_t address, uint64_t stream) = 0;
  // dtr_pool_order_uses().
  virtual void order_uses(uint64_t, uint64_t) {}
  // Lowering asks for room and gives memory back until what is held fits; throws OutOfMemory, and
  // the old budget stays, if it does not.
  void set_budget(uint64_t budget_bytes);
  virtual uint64_t trim() { return 0; }
  // dtr_pool_allocate_beyond() and dtr_pool_free_beyond().
  uint64_t allocate_beyond(uint64_t size_bytes, uint64_t stream);
  void free_beyond(uint64_t address);
  void add_peer(int32_t device);

  // Asked for every candidate of every search: takes no lock.
  bool contains(uint64_t address) const { return address - first_ < span_; }
  virtual uint64_t block_bytes(uint64_t address) = 0;  // 0 if no block in use starts there
  virtual uint64_t block_start(uint64_t address) = 0;  // 0 if no block in use contains it
  // Free address space directly before and behind the large block in use that starts there.
  virtual uint64_t free_beside(uint64_t address) { return 0; }
  // dtr_pool_take_openings().
  virtual uint64_t take_openings(dtr_opening*, uint64_t) { return 0; }
  // From this address on blocks have none: there are slabs, or a pool that only counts. Takes no
  // lock.
  virtual uint64_t slabs_begin() const { return 0; }
  // Of the budget: neither in use nor kept for graphs and memory pools.
  uint64_t unused_bytes();
  virtual RoomInfo room_info(uint64_t) { return {}; }
  virtual uint64_t lacking_chunks(uint64_t) { return kNoLimit; }
  // Large blocks in the order of addresses: from the block in use that begins at the address, with
  // the free ones directly before it, or from the lowest (0). Writes up to capacity of them and
  // returns how many.
  virtual uint64_t run(uint64_t, RunBlock*, uint64_t) { return 0; }
  virtual PoolStats stats() = 0;
  virtual void reset_peak() = 0;
  virtual std::vector<BlockInfo> snapshot() = 0;
  // Empty, or the broken rule.
  virtual std::string check_invariants() = 0;

  // Work on the device; see device_work.h. body(work) runs under the lock.
  template <typename Body>
  auto on_device(Body&& body) {
    Lock lock(mutex_);
    return body(work_);
  }
  // From one block to another in stream order, behind all work that was recorded to use the first.
  // Returns a timer of the copy if one is wanted, 0 where there is none.
  uint64_t copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t stream, bool timed);
  void synchronize(uint64_t stream);

  // Events go to this log from now on, beginning with the budget, the memory and the blocks that
  // are there; nullptr: to none.
  void set_log(EventLog* log, uint16_t device);
  // What those above the pool know of a block in use, or of nothing in particular. No event if
  // there is no log.
  void note(uint8_t kind, uint64_t address, uint64_t size_bytes);
  void note_move(uint64_t from, uint64_t to, uint64_t size_bytes);

 protected:
  using Lock = std::lock_guard<PoolMutex>;

  // Free, and serve only arenas or nobody yet. Under the lock.
  virtual uint64_t withheld_bytes() const { return 0; }
  // What the callback answers; DTR_ROOM_IS_NONE if there is none. *idle_answers: how often in a row
  // it gave another answer and no block was freed; 0 before the first time.
  int32_t ask_room(uint64_t size, uint64_t stream, int* idle_answers);
  bool has_room() const { return room_ != nullptr; }

  // Throws InvalidArgument for a budget that no pool of this kind can have.
  virtual void check_budget(uint64_t budget_bytes) const = 0;
  // Gives back what is above the budget and can go, after waiting for the device if it is the last
  // try; returns the bytes of the budget that are taken. Under the lock.
  virtual uint64_t shrink(uint64_t budget_bytes, bool last) = 0;
  // The budget is another, or the same after shrink() for one that cannot be. Under the lock.
  virtual void grow() noexcept {}
  // What a budget is counted in, for messages; "" if that is the blocks themselves.
  virtual const char* held_in() const = 0;
  // Under the lock: the memory and the blocks in use that are there, to the log.
  virtual void log_present() = 0;
  // Throws StateError while there are any, on closing.
  void require_no_blocks() const;

  // (call, address, stream): makes work on the stream from now on wait for what was recorded to use
  // the block. Throws StateError if a capture forbids it. Under the lock.
  virtual void follow_uses(const char*, uint64_t, uint64_t) {}

  mutable PoolMutex mutex_;
  HeldAcrossFork held_across_fork_{mutex_};
  std::shared_ptr<Driver> driver_;
  DeviceWork work_;  // destroyed before the driver
  EventSource events_;
  uint64_t first_ = 0;  // all addresses ever handed out are in [first_, first_ + span_)
  uint64_t span_ = 0;
  PoolStats counts_{};
  uint64_t budget_;
  uint64_t lowering_ = kNoLimit;  // the budget that a set_budget in progress wants

 private:
  struct Beyond {
    uint64_t size_bytes, stream;
    std::chrono::steady_clock::time_point since;
  };
  std::unordered_map<uint64_t, Beyond> beyond_;  // by address: memory beyond the budget
  RoomFn room_ = nullptr;
  void* room_context_ = nullptr;
};

}  // namespace dtr
