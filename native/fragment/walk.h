// walk.h: follows a trace through the addresses it has, and says how its heap was.
//
// This is what really happened in the recorded job; run_model.h says what another allocator
// would have made of the same requests. What counts as a hole and as lost is said at the tops of
// dtr_alloc/fragment/walk.py and dtr_alloc/fragment/measures.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "address_map.h"
#include "dtr_alloc.h"
#include "errors.h"
#include "free_ranges.h"

namespace dtr::fragment {

// Behind the opaque dtr_fragment_walk. Columns of equal length each.
class Walk {
 public:
  // Throws InvalidArgument that names the row: an end of what has not begun, a block that lies in
  // another one.
  explicit Walk(const dtr_fragment_walk_options& options) : options_(options) {
    find_blocks();
    Follower follower(*this);
    follower.run(options.count, [&](uint64_t row) {
      if (row + 1 < options.start_rows) return;
      row_.push_back(static_cast<int64_t>(row));
      live_.push_back(follower.live);
      reserved_.push_back(follower.reserved);
      free_.push_back(follower.holes.total_bytes());
      largest_.push_back(follower.holes.largest_bytes());
      squares_.push_back(follower.holes.sum_squares());
    });
    for (const auto& [row, bytes] : follower.lost) {
      lost_row_.push_back(static_cast<int64_t>(row));
      lost_.push_back(bytes);
    }
    budget_bytes_ = follower.budget;
  }

  // The sizes of the holes after that row, ascending; until the next call.
  const std::vector<uint64_t>& holes_at(uint64_t row) {
    Follower follower(*this);
    follower.run(row < options_.count ? row + 1 : options_.count, [](uint64_t) {});
    return holes_ = follower.holes.sizes();
  }

  dtr_fragment_heap heap() const {
    return {row_.size(),   row_.data(),     live_.data(),     reserved_.data(),
            free_.data(),  largest_.data(), squares_.data(),  start_.size(),
            start_.data(), end_.data(),     address_.data(),  block_bytes_.data(),
            began_.data(), ended_.data(),   lost_row_.size(), lost_row_.data(),
            lost_.data(),  budget_bytes_};
  }

 private:
  [[noreturn]] static void fail(uint64_t row, uint64_t address, const char* what) {
    throw InvalidArgument("event " + std::to_string(row) + " at " + address_text(address) + ": " +
                          what);
  }

  // Goes through the rows whose blocks are known already.
  class Follower {
   public:
    explicit Follower(const Walk& walk) : walk_(walk), of_(walk.options_) {}

    FreeRanges holes;
    uint64_t live = 0, reserved = 0, budget = UINT64_MAX;
    std::vector<std::pair<uint64_t, uint64_t>> lost;  // row, bytes

    // Calls changed(row) after each row below `until` that changes the heap.
    template <typename F>
    void run(uint64_t until, F&& changed) {
      for (uint64_t row = 0; row < until; ++row) {
        const uint64_t address = of_.address[row], size = of_.size_bytes[row];
        switch (of_.kind[row]) {
          case DTR_EVENT_ALLOCATE:
            allocate(row, address, size);
            break;
          case DTR_EVENT_FREE:
            free(row, address);
            break;
          case DTR_EVENT_SEGMENT_ALLOCATE:
            reserve(address, address + size);
            break;
          case DTR_EVENT_SEGMENT_FREE:
            reserved -= holes.remove(address, address + size);
            break;
          default:
            note(row, size);
            continue;
        }
        changed(row);
      }
    }

   private:
    // Room was asked for.
    struct Call {
      uint64_t row, size_bytes, evictions;
      std::vector<Range> free;  // then, and of no use elsewhere
    };
    struct Resident {
      uint64_t block_bytes, size_bytes;
    };

    void allocate(uint64_t row, uint64_t address, uint64_t size) {
      const uint64_t block = walk_.block_bytes_[next_block_++];
      holes.open_walls(address, address + block);
      reserved += block - holes.remove(address, address + block);
      resident_[address] = {block, size};
      live += size;
      const bool moves = row + 1 < of_.count && of_.kind[row + 1] == DTR_EVENT_MOVE_FROM;
      if (calls_.empty() || calls_[0].size_bytes != size || moves) return;
      // The request has its place.
      for (const Call& call : calls_)
        if (call.evictions) lost.emplace_back(call.row, common_bytes(call.free, holes.ranges()));
      calls_.clear();
    }

    void free(uint64_t row, uint64_t address) {
      const auto found = resident_.find(address);
      const Resident block = found->second;
      resident_.erase(found);
      if (!holes.add(address, address + block.block_bytes))
        fail(row, address, "part of the block is free already");
      live -= block.size_bytes;
    }

    void reserve(uint64_t begin, uint64_t end) {
      if (of_.walled) {
        holes.raise_wall(begin);
        holes.raise_wall(end);
      }
      reserved += end - begin - holes.remove(begin, end);
      holes.add(begin, end);
    }

    // A row that changes no address.
    void note(uint64_t row, uint64_t size) {
      switch (of_.kind[row]) {
        case DTR_EVENT_ROOM:
          // For the request that has no place yet; another one begins anew.
          if (!calls_.empty() && calls_[0].size_bytes != size) calls_.clear();
          // Not for ever, if there are many holes and as many requests.
          looked_at_ += holes.count() + 1;
          if (looked_at_ > kMostLooks || calls_.size() == kMostCalls)
            fail(row, 0, "too many requests for room, among too many holes");
          calls_.push_back({row, size, 0, not_in_whole_chunks()});
          break;
        case DTR_EVENT_EVICT:
          if (!calls_.empty()) ++calls_.back().evictions;
          break;
        case DTR_EVENT_OUT_OF_MEMORY:
          calls_.clear();
          break;
        case DTR_EVENT_BUDGET:
          budget = size;
          break;
        default:
          break;
      }
    }

    // What is free and cannot be mapped elsewhere.
    std::vector<Range> not_in_whole_chunks() const {
      std::vector<Range> found;
      for (const Range& range : holes.ranges()) add_fixed(range, of_.chunk_bytes, &found);
      return found;
    }

    static constexpr uint64_t kMostLooks = uint64_t{1} << 32;
    static constexpr size_t kMostCalls = 4096;  // of one request, each with the holes of its moment

    const Walk& walk_;
    const dtr_fragment_walk_options& of_;
    uint64_t looked_at_ = 0;
    AddressMap<Resident> resident_;  // by address
    std::vector<Call> calls_;
    size_t next_block_ = 0;
  };

  // Beforehand, because the row that ends a block says how large it was.
  void find_blocks() {
    AddressMap<size_t> resident;  // address -> block
    AddressMap<uint8_t> ending;   // address -> how the FREE that is due ends it
    const auto at = [&](uint64_t row) {
      const auto found = resident.find(options_.address[row]);
      if (found == resident.end()) fail(row, options_.address[row], "no block is in use there");
      return found;
    };
    for (uint64_t row = 0; row < options_.count; ++row) {
      const uint64_t address = options_.address[row], size = options_.size_bytes[row];
      switch (options_.kind[row]) {
        case DTR_EVENT_ALLOCATE:
          if (!resident.emplace(address, start_.size()).second)
            fail(row, address, "a block is in use there");
          start_.push_back(static_cast<int64_t>(row));
          end_.push_back(static_cast<int64_t>(options_.count));
          address_.push_back(address);
          block_bytes_.push_back(size);
          began_.push_back(DTR_BEGAN_ALLOCATED);
          ended_.push_back(DTR_ENDED_NOT);
          break;
        case DTR_EVENT_FREE: {
          const auto found = at(row);
          const size_t block = found->second;
          resident.erase(found);
          end_[block] = static_cast<int64_t>(row);
          ended_[block] = DTR_ENDED_FREED;
          if (const auto said = ending.find(address); said != ending.end()) {
            ended_[block] = said->second;
            ending.erase(said);
          }
          block_bytes_[block] = std::max(block_bytes_[block], size);
          break;
        }
        case DTR_EVENT_EVICT:
          ending[address] = DTR_ENDED_EVICTED;
          break;
        case DTR_EVENT_MOVE_FROM:
          ending[address] = DTR_ENDED_MOVED;
          break;
        case DTR_EVENT_REMATERIALIZE:
          began_[at(row)->second] = DTR_BEGAN_REMATERIALIZED;
          break;
        case DTR_EVENT_MOVE_TO:
          began_[at(row)->second] = DTR_BEGAN_MOVED;
          break;
        default:
          if (options_.kind[row] >= DTR_EVENT_KINDS) fail(row, address, "its kind is unknown");
          break;
      }
    }
  }

  const dtr_fragment_walk_options options_;

  // The blocks, in the order of their beginnings.
  std::vector<int64_t> start_, end_;
  std::vector<uint64_t> address_, block_bytes_;
  std::vector<uint8_t> began_, ended_;

  // The heap after the start, and after each later row that changed it.
  std::vector<int64_t> row_;
  std::vector<uint64_t> live_, reserved_, free_, largest_;
  std::vector<double> squares_;

  // What was lost where something was evicted to make room, by the row that asked for it.
  std::vector<int64_t> lost_row_;
  std::vector<uint64_t> lost_;

  uint64_t budget_bytes_ = UINT64_MAX;
  std::vector<uint64_t> holes_;
};

}  // namespace dtr::fragment
