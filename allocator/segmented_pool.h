// A pool of segments, for devices without virtual memory management: each segment is memory that
// the driver gives and takes back in one piece, and a Pool of its own.
//
// A segment serves either small requests (all of it is for slabs) or the others. A request takes
// the first segment, by address, that has room; else a new segment is made: of the least size,
// or of its own size if it is larger. Nothing moves between segments, so that what is free in
// several is not free together: fragmentation costs failure here, and evictions before that.
//
// Rules, checked by check_invariants() with those of each segment:
//   G1  The segments' bytes are the mapped bytes, and never exceed the budget.
//   G2  Every counter is the sum of the segments'.
//
// How a request finds its place, in this order:
//   1. a segment that has room without waiting for anything;
//   2. a new segment, if the budget and the driver allow it; empty segments go back for it;
//   3. the room callback, as long as it gives something;
//   4. waiting for all streams, then 1 and 2 once more;
//   5. out of memory.
//
// Locks: this pool's, then one segment's. The driver is called under this pool's lock.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "any_pool.h"
#include "open_arenas.h"
#include "pool.h"

namespace dtr {

class SegmentedPool final : public AnyPool {
 public:
  // Segments are multiples of this.
  static constexpr uint64_t kSegmentUnit = 2 << 20;

  // options.chunk_bytes: the least size of a segment; 0: 20 MiB. options.reserve_bytes is 0.
  SegmentedPool(std::shared_ptr<Driver> driver, const PoolOptions& options);

  void close() override;
  uint64_t allocate(uint64_t size_bytes, uint64_t stream) override;
  // In segments that are there.
  uint64_t try_outside(uint64_t size_bytes, uint64_t stream, uint64_t begin, uint64_t end,
                       bool packed) override;
  void free(uint64_t address) override;
  uint64_t arena_open() override;
  uint64_t arena_allocate(uint64_t arena, uint64_t size_bytes, uint64_t stream) override;
  void arena_close(uint64_t arena) override;
  void record_stream(uint64_t address, uint64_t stream) override;
  uint64_t trim() override;
  uint64_t block_bytes(uint64_t address) override;
  uint64_t block_start(uint64_t address) override;
  uint64_t free_beside(uint64_t address) override;
  PoolStats stats() override;
  void reset_peak() override;
  std::vector<BlockInfo> snapshot() override;
  std::string check_invariants() override;

 private:
  struct Segment {
    std::unique_ptr<Pool> pool;
    uint64_t size_bytes;
    bool is_small;                                  // for small requests
    std::unordered_map<uint64_t, uint64_t> arenas;  // open here: our arena, the segment's
  };
  using Segments = std::map<uint64_t, Segment>;  // by their first address

  bool owns(uint64_t address) const override;
  bool spans(uint64_t address, uint64_t size_bytes) const override;
  bool follow_uses(uint64_t address, uint64_t stream) override;

  // What is asked for; arena 0: none.
  struct Request {
    uint64_t size;
    uint64_t stream;
    uint64_t arena;
    bool is_small;
  };
  uint64_t place(const Request& request);
  uint64_t try_place(const Request& request, bool last);
  uint64_t try_segments(const Request& request, bool last);
  uint64_t try_in(Segment& segment, const Request& request, bool last);
  Segment* add_segment(const Request& request);
  Segment* make_segment(uint64_t size_bytes, bool is_small);
  bool give_back_empty(uint64_t wanted_bytes);
  void give_back(Segments::iterator segment);
  void give_back_excess() noexcept;

  // Whose memory contains the address; nullptr: nobody's.
  const Segment* segment_at(uint64_t address) const;
  const Segment& in_use_at(uint64_t address, const char* call);
  void count_change(const PoolStats& before, const PoolStats& after);  // of a segment
  std::string out_of_memory_message(const Request& request);
  uint64_t largest_free();
  uint64_t room_for_segments() const;  // bytes of the budget that are no segment yet
  void check_budget(uint64_t budget_bytes) const override;
  uint64_t shrink(uint64_t budget_bytes, bool last) override;
  void log_present() override;
  const char* held_in() const override { return "segments"; }

  PoolOptions options_;  // of a segment, but for its size
  uint64_t least_;       // size of a segment
  uint64_t keep_bytes_;
  Segments segments_;
  OpenArenas arenas_;
  uint64_t mapped_ = 0;  // bytes of all segments
  uint64_t peak_mapped_ = 0;
  std::string refusal_;  // what the driver said when it last refused memory
};

}  // namespace dtr
