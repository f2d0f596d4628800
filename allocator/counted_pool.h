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

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>

#include "any_pool.h"
#include "errors.h"
#include "open_arenas.h"

namespace dtr {

class CountedPool : public AnyPool {
 public:
  explicit CountedPool(uint64_t budget_bytes) : CountedPool(make_simulated_driver(), budget_bytes) {
    first_ = kFirstRange + ranges_.fetch_add(1) % kRanges * kRangeBytes;
    span_ = kRangeBytes;
    next_ = first_;
  }

  void close() override {
    Lock lock(mutex_);
    require_no_blocks();
    work_.close();
  }
  uint64_t allocate(uint64_t size_bytes, uint64_t stream, int32_t = DTR_HINT_NONE) override {
    if (size_bytes == 0) return 0;
    int idle_answers = 0;
    for (bool last = false;;) {
      {
        Lock lock(mutex_);
        // allocated_bytes may be above the budget for a moment, while set_budget lowers it.
        if (size_bytes <= budget_ && counts_.allocated_bytes <= budget_ - size_bytes) {
          const uint64_t address = take_address(size_bytes);
          blocks_.emplace(address, Counted{size_bytes, stream});
          counts_.allocated_bytes += size_bytes;
          counts_.peak_allocated_bytes =
              std::max(counts_.peak_allocated_bytes, counts_.allocated_bytes);
          counts_.ever_allocated_bytes += size_bytes;
          ++counts_.live_blocks;
          counts_.peak_live_blocks = std::max(counts_.peak_live_blocks, counts_.live_blocks);
          ++counts_.allocations;
          events_.add(DTR_EVENT_ALLOCATE, address, size_bytes, stream);
          return address;
        }
        if (last || size_bytes > budget_) {
          ++counts_.out_of_memory_errors;
          events_.add(DTR_EVENT_OUT_OF_MEMORY, 0, size_bytes, stream);
          std::string text = "out of memory: requested " + size_text(size_bytes) + "; budget " +
                             size_text(budget_) + ", allocated " +
                             size_text(counts_.allocated_bytes);
          if (size_bytes > budget_) text += "; the request is larger than the budget";
          throw OutOfMemory(text);
        }
      }
      last = ask_room(size_bytes, stream, &idle_answers) == DTR_ROOM_IS_NONE;
    }
  }
  void free(uint64_t address) override {
    if (address == 0) return;
    Lock lock(mutex_);
    auto at = in_use_at(address, "free");
    give_address(address);
    counts_.allocated_bytes -= at->second.size_bytes;
    events_.add(DTR_EVENT_FREE, address, at->second.size_bytes);
    blocks_.erase(at);
    --counts_.live_blocks;
    ++counts_.frees;
  }
  // No address is handed out twice, so any memory is an arena's own.
  uint64_t arena_open() override {
    Lock lock(mutex_);
    return arenas_.open();
  }
  uint64_t arena_allocate(uint64_t arena, uint64_t size_bytes, uint64_t stream) override {
    {
      Lock lock(mutex_);
      arenas_.require_open(arena);
    }
    return allocate(size_bytes, stream);
  }
  void arena_allocate_at(uint64_t arena, uint64_t address, uint64_t, uint64_t stream) override {
    Lock lock(mutex_);
    arenas_.require_open(arena);
    throw_not_freed_in_arena(address, stream);
  }
  void arena_close(uint64_t arena) override {
    Lock lock(mutex_);
    arenas_.close(arena);
  }
  void record_stream(uint64_t address, uint64_t) override {
    Lock lock(mutex_);
    in_use_at(address, "record_stream");
  }
  uint64_t block_bytes(uint64_t address) override {
    Lock lock(mutex_);
    auto at = blocks_.find(address);
    return at == blocks_.end() ? 0 : at->second.size_bytes;
  }
  uint64_t block_start(uint64_t address) override {
    return block_bytes(address) == 0 ? 0 : address;
  }
  PoolStats stats() override {
    Lock lock(mutex_);
    PoolStats stats = counts_;
    stats.budget_bytes = budget_;
    stats.reserved_bytes = stats.requested_bytes = stats.allocated_bytes;
    stats.peak_reserved_bytes = stats.peak_requested_bytes = stats.peak_allocated_bytes;
    stats.ever_requested_bytes = stats.ever_allocated_bytes;
    stats.largest_free_bytes = budget_ - stats.allocated_bytes;
    return stats;
  }
  void reset_peak() override {
    Lock lock(mutex_);
    counts_.peak_allocated_bytes = counts_.allocated_bytes;
    counts_.peak_live_blocks = counts_.live_blocks;
  }
  std::vector<BlockInfo> snapshot() override {
    Lock lock(mutex_);
    std::vector<BlockInfo> blocks;
    for (const auto& [address, block] : blocks_) {
      blocks.push_back(
          {address, block.size_bytes, block.size_bytes, block.stream, DTR_BLOCK_IN_USE, 0, 0});
    }
    std::ranges::sort(blocks, {}, &BlockInfo::address);
    return blocks;
  }
  std::string check_invariants() override {
    Lock lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [address, block] : blocks_) bytes += block.size_bytes;
    if (bytes != counts_.allocated_bytes || blocks_.size() != counts_.live_blocks)
      return "N1: " + std::to_string(blocks_.size()) + " blocks in use have " +
             std::to_string(bytes) + " bytes, counted are " + std::to_string(counts_.live_blocks) +
             " with " + std::to_string(counts_.allocated_bytes);
    if (bytes > budget_)
      return "N2: " + std::to_string(bytes) + " bytes in use exceed the budget of " +
             std::to_string(budget_);
    return "";
  }

 protected:
  CountedPool(std::unique_ptr<Driver> driver, uint64_t budget_bytes)
      : AnyPool(std::move(driver), budget_bytes) {
    check_budget(budget_bytes);
    counts_.total_bytes = driver_->traits().total_bytes;
    counts_.chunk_bytes = 1;
  }

 private:
  // Far from what a process maps and from the simulated driver's range, so that a stray access
  // faults. Each pool has a range of its own: an address says which pool it is of.
  static constexpr uint64_t kFirstRange = uint64_t{1} << 60;
  static constexpr uint64_t kRangeBytes = uint64_t{1} << 48;
  static constexpr uint64_t kRanges = 1024;  // one is used again after so many pools
  static constexpr uint64_t kAddressUnit = 64;
  inline static std::atomic<uint64_t> ranges_{0};

  struct Counted {
    uint64_t size_bytes;
    uint64_t stream;
  };
  // Under the lock. What throws has changed nothing.
  virtual uint64_t take_address(uint64_t size_bytes) {
    if (next_ + kAddressUnit > first_ + span_)
      throw StateError("the counted pool has no more addresses");
    const uint64_t address = next_;
    next_ += kAddressUnit;
    return address;
  }
  virtual void give_address(uint64_t) {}
  std::unordered_map<uint64_t, Counted>::iterator in_use_at(uint64_t address, const char* call) {
    auto at = blocks_.find(address);
    if (at != blocks_.end()) return at;
    std::string text = std::string(call) + ": address " + address_text(address);
    text += contains(address) ? " is in no block in use (freed twice?)" : " is not in this pool";
    throw InvalidArgument(text + "; allowed: the start of a block in use");
  }

  void check_budget(uint64_t budget_bytes) const override {
    if (budget_bytes == 0) invalid("budget_bytes", "0", "1 and more");
  }
  uint64_t shrink(uint64_t, bool) override { return counts_.allocated_bytes; }
  // There is no memory, and no order but that of a table.
  void log_present() override {
    for (const auto& [address, block] : blocks_)
      events_.add(DTR_EVENT_ALLOCATE, address, block.size_bytes, block.stream);
  }
  const char* held_in() const override { return ""; }

  std::unordered_map<uint64_t, Counted> blocks_;
  OpenArenas arenas_;
  uint64_t next_ = 0;
};

}  // namespace dtr
