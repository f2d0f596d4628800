// One device's memory under a budget: heap, slabs, chunks and streams behind one lock.
//
// Rules, checked by check_invariants() with those of heap.h, chunks.h and slab.h:
//   P1  Mapped bytes never exceed the budget.
//   P2  Every counter of PoolStats equals what a walk over all blocks gives.
//   P3  A block of an arena's owner is in the large heap; if it is free and the arena is open it
//       is not settled; those in use are as many as the owner counts.
//   P4  The heap of a fixed pool ends where its budget does, in whole chunks, or where its
//       reservation ends.
//
// A pool allots as many addresses as its budget has bytes, the lowest first; all others are absent
// (heap.h), until a remap swaps some for others. So a place is a free block that is large enough,
// as in a pool that maps nothing, and what is mapped stays mapped: once each allotted address was
// in use, only remaps ask the driver for anything.
//
// How a request finds its place, in this order; each step only if the one before did not serve:
//   1. the first by the placement policy (placement.h; the best fit by default) among blocks that
//      the stream may use at once; what has no memory yet is mapped;
//   2. a block that another stream freed, or neighbors that several did, behind waits on the device;
//      (Withheld blocks serve only their owner; an arena takes only its own and idle ones.)
//   3. remapping: the memory of chunks that no block touches, or their share of the budget, goes to
//      absent addresses beside free ones, where the fewest are lacking. So fragmentation costs
//      driver calls, not failure; with one stream nobody waits (aliased_chunks.h). Where somebody can be
//      asked for room, large requests come here only once he says so, as each chunk of a remap is a
//      call, and a fault for each page;
//      pending blocks, freed behind waits on the device (Streams::hurry), and 1 to 3 once more;
//   4. waiting for the device, if arenas were closed, and 1 to 3 once more; then the room
//      callback, as long as it gives something;
//   5. waiting for all streams, then 1 to 3 once more over every hole there is; so, too, where the
//      callback gives without end what is no place until streams have caught up;
//   6. out of memory.
// With keep_bytes, idle chunks above it go back to the driver as soon as they are a batch, a
// quarter of keep_bytes. That takes no waiting on the host, as every free records an event then.
//
// A fixed pool has no absent addresses below its budget, and no slabs: the classical arena, in
// which step 3 finds nothing to move. Its heap ends where the budget does, and grows and shrinks
// with it; what stands too high when it is lowered must go first.
//
// A driver that refuses memory although the budget allows it (others use the card) is treated
// as a budget that is used up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aliased_chunks.h"
#include "any_pool.h"
#include "arenas.h"
#include "chunks.h"
#include "driver.h"
#include "heap.h"
#include "placement.h"
#include "slab.h"
#include "streams.h"

namespace dtr {

class Pool final : public AnyPool {
 public:
  explicit Pool(const PoolOptions& options);

  // Gives everything back to the driver.
  void close() override;
  uint64_t allocate(uint64_t size_bytes, uint64_t stream, int32_t hint = DTR_HINT_NONE) override {
    return place(size_bytes, stream, kNoArena, hint);
  }
  bool uses_hints(uint64_t size_bytes) const override {
    return placement_->at_high_end(DTR_HINT_CHEAP) && !slabs_.is_small(size_bytes);
  }
  void free(uint64_t address) override;
  uint64_t arena_open() override;
  uint64_t arena_allocate(uint64_t arena, uint64_t size_bytes, uint64_t stream) override;
  void arena_allocate_at(uint64_t arena, uint64_t address, uint64_t size_bytes,
                         uint64_t stream) override;
  void arena_close(uint64_t arena) override;
  void record_stream(uint64_t address, uint64_t stream) override;
  void order_uses(uint64_t address, uint64_t stream) override;
  uint64_t trim() override;
  uint64_t block_bytes(uint64_t address) override;
  uint64_t block_start(uint64_t address) override;
  uint64_t free_beside(uint64_t address) override;
  uint64_t take_openings(dtr_opening* openings, uint64_t capacity) override;
  uint64_t slabs_begin() const override { return reservation_.base() + small_.begin(); }
  RoomInfo room_info(uint64_t size_bytes) override;
  uint64_t lacking_chunks(uint64_t size_bytes) override;
  uint64_t run(uint64_t address, RunBlock* blocks, uint64_t capacity) override;
  PoolStats stats() override;
  void reset_peak() override;
  std::vector<BlockInfo> snapshot() override;
  // The same with free blocks cut to the memory that is mapped under them: what could be used
  // without the driver.
  std::vector<BlockInfo> mapped_snapshot();
  uint64_t mapped_bytes() const { return chunks_.mapped_bytes(); }
  std::string check_invariants() override;

  uint64_t try_allocate(uint64_t size_bytes, uint64_t stream) override;
  uint64_t try_outside(uint64_t size_bytes, uint64_t stream, uint64_t begin, uint64_t end,
                       bool packed) override;
  uint64_t try_at(uint64_t size_bytes, uint64_t stream, uint64_t address,
                  std::vector<uint64_t>* in_the_way) override;
  void follow_uses(const char* call, uint64_t address, uint64_t stream) override;
  uint64_t first_address() const { return reservation_.base(); }
  const PoolStats& counts() const { return counts_; }  // what is not filled on demand

 private:
  friend struct Corruptor;  // tests/allocator/corrupt_heap.cpp

  // What stands at an address: a block of the large heap, or an object of a slab, or nothing.
  struct Place {
    Block* block = nullptr;
    Slab* slab = nullptr;
    uint32_t index = 0;
    uint64_t start = 0;  // an offset
    uint64_t size = 0;
    uint64_t requested = 0;
    Owner owner = kIdle;
    bool in_use() const { return block != nullptr || slab != nullptr; }
  };

  // Where a request would lie, by offsets, if chunks that are absent there, `lacking` of them, were
  // not; kNoLimit: nowhere. Of those that are not, no block touches `loose`.
  struct Stretch {
    uint64_t begin, end, lacking, loose;
  };

  // allocate(), or for an arena; kNoArena: none.
  static constexpr uint64_t kNoArena = 0;
  uint64_t place(uint64_t size_bytes, uint64_t stream, uint64_t arena, int32_t hint);
  uint64_t place_plain(uint64_t size_bytes, uint64_t stream);
  uint64_t hand_out(Block* block, uint64_t size_bytes, uint64_t stream, Owner owner);

  Place place_at(uint64_t offset) const;
  Place in_use_at(uint64_t address, const char* call) const;
  void follow_uses(const char* call, const Place& place, uint64_t stream);

  // pool_place.cpp: steps 1 to 3 and 5. Each returns nullptr (kNone) if the request does not fit.
  uint64_t try_allocate(uint64_t size, uint64_t stream, uint64_t arena, bool last);
  uint64_t try_small(uint64_t size, uint64_t stream, Owner owner);
  void count_allocation(uint64_t offset, uint64_t rounded, uint64_t size, uint64_t stream);
  Block* find_place(Heap& heap, uint64_t size, uint64_t stream, Owner owner);
  uint64_t attempt(uint64_t size, uint64_t stream, uint64_t arena, bool last);
  void settle_old_work();
  Block* first_hole(Heap& heap, uint64_t size, Owner owner) const;
  Block* take_ready(Heap& heap, uint64_t size, Owner owner);
  Block* try_holes(Heap& heap, uint64_t size, Owner owner);
  Block* join_neighbors(Heap& heap, uint64_t size, Owner owner);
  Stretch find_stretch(const Heap& heap, uint64_t size, bool* aliased) const;
  bool map_under(uint64_t begin, uint64_t end);
  bool remap(Heap& heap, const Stretch& stretch);
  void alias(Heap& heap, uint64_t count, Chunks::Run kept, Driver::Event event);
  uint64_t loose_chunks() const;
  // Whether as many bytes are in no block in use, wherever they are. Without them no remap helps.
  bool has_bytes(uint64_t size) const;
  uint64_t fill(Heap& heap, uint64_t begin, uint64_t end, uint64_t count);
  void allot();
  std::vector<Chunks::Run> loose_runs(uint64_t count, Chunks::Run kept, bool mapped) const;
  uint64_t withdraw(uint64_t count, Chunks::Run kept, bool mapped);
  uint64_t give_back(uint64_t count);
  Heap& heap_at(uint64_t offset) { return offset < small_.begin() ? large_ : small_; }
  const Heap& heap_at(uint64_t offset) const { return offset < small_.begin() ? large_ : small_; }
  const Placement& placement_in(const Heap& heap) const {
    return &heap == &large_ ? *placement_ : best_fit_;  // slabs are all of one size
  }
  uint64_t rounded_size(uint64_t size) const;
  void poll();
  void release_settled();
  void finish_waiting();
  void settle_all();
  bool free_plain(uint64_t address);
  void count_free(uint64_t address, uint64_t size, uint64_t requested);
  void release(const Place& place);
  void release_slab(Slab* slab);
  bool release_empty_slabs();

  void poison(const Place& place);
  void give_back_excess() noexcept;

  // pool_move.cpp
  Block* take_outside(Block* hole, uint64_t size, uint64_t begin, uint64_t end);
  Block* take_packed(Block* hole, uint64_t size, uint64_t begin, uint64_t end);

  // pool_arenas.cpp
  bool settle_arenas();
  uint64_t withheld_bytes() const override;
  uint64_t arena_of(const Block* block) const;  // as dtr_block.arena
  Owner home_of_freed(const Place& place);

  // pool_check.cpp
  std::vector<BlockInfo> walk() const;
  std::string check_touched() const;
  std::string check_counts() const;
  std::string check_arenas() const;
  std::string check_fixed() const;

  bool is_possible(uint64_t size) const;
  std::string out_of_memory_message(uint64_t size, uint64_t stream);
  void note_unused();
  uint64_t largest_free();
  uint64_t limit_chunks() const;
  void check_budget(uint64_t budget_bytes) const override;
  uint64_t shrink(uint64_t budget_bytes, bool last) override;
  void grow() noexcept override;
  void log_present() override;
  const char* held_in() const override { return fixed_ ? "addresses" : "chunks"; }
  uint64_t fixed_end(uint64_t budget_bytes) const;
  uint64_t shrink_fixed(uint64_t budget_bytes);

  uint64_t chunk_;
  uint64_t allotted_ = 0;  // chunks that are not absent
  Reservation reservation_;
  // Destroyed in reverse: streams first, so that events outlive nothing that needs them.
  Chunks chunks_;
  AliasedChunks aliased_;
  Heap large_;
  Heap small_;
  Slabs slabs_;
  Streams streams_;
  Arenas arenas_;

  uint64_t keep_chunks_;
  bool poison_;
  bool fixed_;
  std::unique_ptr<Placement> placement_;
  Placement best_fit_;
  int32_t hint_ = DTR_HINT_NONE;  // of the request that is being placed
  bool remaps_ = true;            // whether step 3 is open to it
  std::string refusal_;           // what the driver said when it last refused memory
  // Of counts_, budget, reserved, largest and chunk counts are filled on demand.
};

}  // namespace dtr
