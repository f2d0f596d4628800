#include "compaction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "base/ranges.h"
#include "base/scoped_timer.h"
#include "graph/heap_blocks.h"

namespace dtr {

namespace {

// Of the runs that would make a hole, or of the chunks, how many of the cheapest are looked at
// closely.
constexpr size_t kMostLooks = 16;

// Of a scan of the heap, for each block: a price, not a reading, so that two runs decide alike.
constexpr double kScanNs = 100;

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }
const void* pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }

// A stretch of neighboring blocks that are free or can be moved.
struct Run {
  double cost_ns;
  size_t first, last;   // of the blocks
  uint64_t begin, end;  // what shall be one hole: the request's size
};

// A chunk that blocks touch.
struct Touched {
  uint64_t number;
  double cost_ns;      // of moving them away; infinity if one cannot be
  size_t first, last;  // of the blocks
};

// Whether blocks of these sizes find places in the holes, the largest first.
bool fit(std::vector<uint64_t> sizes, const std::vector<uint64_t>& holes) {
  std::sort(sizes.rbegin(), sizes.rend());
  const auto largest = std::ranges::max_element(holes);
  if (!sizes.empty() && (largest == holes.end() || *largest < sizes.front())) return false;
  std::multiset<uint64_t> left(holes.begin(), holes.end());
  for (const uint64_t size : sizes) {
    const auto hole = left.lower_bound(size);
    if (hole == left.end()) return false;
    const uint64_t rest = *hole - size;
    left.erase(hole);
    if (rest > 0) left.insert(rest);
  }
  return true;
}

// How much of each free range lies on either side of another range.
std::vector<uint64_t> holes_outside(const std::vector<Range>& free, uint64_t begin, uint64_t end) {
  std::vector<uint64_t> holes;
  for (const Range& range : free) {
    if (range.begin < begin) holes.push_back(std::min(range.end, begin) - range.begin);
    if (range.end > end) holes.push_back(range.end - std::max(range.begin, end));
  }
  return holes;
}

std::vector<Storage*> largest_first(std::vector<Storage*> storages) {
  std::ranges::sort(storages, std::ranges::greater(), &Storage::size_bytes);
  return storages;
}

}  // namespace

// All large blocks of a pool, by address.
const std::vector<dtr_run_block>& Compactor::blocks_of(dtr_pool* pool) {
  blocks_.resize(blocks_.capacity());
  blocks_.resize(read_blocks(pool, &blocks_));
  return blocks_;
}

Compactor::Scans& Compactor::scans_of(const Device& device) {
  if (scans_.size() <= device.number) scans_.resize(device.number + 1);
  return scans_[device.number];
}

uint64_t Compactor::compact(dtr_pool* pool, Deferred& deferred) {
  const std::vector<dtr_run_block>& blocks = blocks_of(pool);
  const uint64_t before = environment_.stats.moved_bytes;
  for (size_t i = blocks.size(); i-- > 0;) {
    if (blocks[i].state != DTR_BLOCK_IN_USE) continue;
    Storage* storage = graph_.by_address.find(pointer(blocks[i].address));
    if (storage) mover_.move(storage, storage->address, pointer(UINT64_MAX), deferred);
  }
  return environment_.stats.moved_bytes - before;
}

bool Compactor::is_on() const {
  return environment_.options.moving && environment_.options.room != DTR_ROOM_SINGLE &&
         !capture_.is_under_way();
}

void Compactor::begin_search(const Device& device) {
  largest_hole_ = 0;
  if (!is_on()) return;
  const dtr_pool_stats stats = stats_of(device.pool);
  largest_hole_ = stats.largest_free_bytes;
}

double Compactor::at_most_move(const Storage* storage, double cost_ns) const {
  if (storage->size_bytes > largest_hole_ || !mover_.is_movable(storage)) return cost_ns;
  return std::min(cost_ns, mover_.move_ns(storage));
}

bool Compactor::open_hole_instead(Device& device, uint64_t size_bytes, double stake_ns,
                                  Deferred& deferred) {
  constexpr double kScans = 4;
  constexpr uint32_t kMostDoublings = 6;
  Scans& scans = scans_of(device);
  const double doublings = std::min(scans.in_vain, kMostDoublings);
  if (!is_on() || stake_ns <= kScans * std::exp2(doublings) * scans.last_ns) return false;
  const bool made = open_hole(device, size_bytes, stake_ns, deferred);
  scans.in_vain = made ? 0 : scans.in_vain + 1;
  return made;
}

bool Compactor::move_victims(Device& device, uint64_t size_bytes, bool fragmented, bool is_window,
                             const std::function<double(Storage*)>& loss_ns,
                             std::vector<Storage*>* victims, Deferred& deferred) {
  if (!is_on() || !device.one_range) return false;
  double evicting_ns = 0;
  for (Storage* storage : *victims) {
    const double loss = loss_ns(storage);
    evicting_ns += is_window ? std::min(loss, mover_.move_ns(storage)) : loss;
  }
  if (fragmented && open_hole_instead(device, size_bytes, evicting_ns, deferred)) {
    victims->clear();
    return true;
  }
  if (!is_window) return false;
  uint64_t begin = UINT64_MAX, end = 0;
  for (const Storage* storage : *victims) {
    const uint64_t address = number(storage->address);
    begin = std::min(begin, address);
    end = std::max(end, address + storage->size_bytes);
  }
  // With the free bytes at both ends, which the window may need.
  std::vector<dtr_run_block> run(2 * victims->size() + 2);
  uint64_t count = 0;
  for (;; run.resize(2 * run.size())) {
    dtr_pool_run(device.pool, pointer(begin), run.data(), run.size(), &count);
    size_t i = 0;
    while (i < count && run[i].address < end) ++i;
    while (i < count && is_free(run[i])) {
      end = run[i].address + run[i].size_bytes;
      ++i;
    }
    if (i < count || count < run.size()) break;
  }
  if (count > 0) begin = std::min(begin, run[0].address);
  const auto first_kept =
      std::stable_partition(victims->begin(), victims->end(), [&](Storage* storage) {
        return mover_.move_ns(storage) < loss_ns(storage) &&
               mover_.move(storage, pointer(begin), pointer(end), deferred);
      });
  const bool moved = first_kept != victims->begin();
  victims->erase(victims->begin(), first_kept);
  return moved;
}

bool Compactor::open_hole(Device& device, uint64_t size_bytes, double most_ns, Deferred& deferred) {
  std::optional<ScopedTimer<uint64_t, thread_ns>> scan(environment_.stats.search_ns);
  const std::vector<dtr_run_block>& blocks = blocks_of(device.pool);
  scans_of(device).last_ns = kScanNs * static_cast<double>(blocks.size());
  std::vector<Storage*> in_way(blocks.size(), nullptr);
  std::vector<double> cost(blocks.size(), 0);
  std::vector<bool> ends(blocks.size(), false);  // a run
  std::vector<Range> frees;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const dtr_run_block& block = blocks[i];
    if (is_free(block)) {
      frees.push_back({block.address, block.address + block.size_bytes});
      continue;
    }
    if (block.state == DTR_BLOCK_IN_USE) in_way[i] = graph_.by_address.find(pointer(block.address));
    ends[i] = !in_way[i] || !mover_.is_movable(in_way[i]);
    if (!ends[i]) cost[i] = mover_.move_ns(in_way[i]);
  }
  // Two pointers: for each last block the latest first one that makes the run large enough.
  std::vector<Run> runs;
  uint64_t bytes = 0;
  double total = 0;
  for (size_t first = 0, last = 0; last < blocks.size(); ++last) {
    if (ends[last]) {
      first = last + 1;
      bytes = 0;
      total = 0;
      continue;
    }
    bytes += blocks[last].size_bytes;
    total += cost[last];
    while (bytes - blocks[first].size_bytes >= size_bytes) {
      bytes -= blocks[first].size_bytes;
      total -= cost[first++];
    }
    if (bytes < size_bytes) continue;
    const uint64_t begin = blocks[first].address;
    const uint64_t end = blocks[last].address + blocks[last].size_bytes;
    // What is left over stays a part of the hole at one end, and may take what moves.
    runs.push_back({total, first, last, begin, begin + size_bytes});
    if (end - begin > size_bytes) runs.push_back({total, first, last, end - size_bytes, end});
  }
  const size_t most = std::min(runs.size(), kMostLooks);
  std::partial_sort(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(most), runs.end(),
                    [](const Run& a, const Run& b) { return a.cost_ns < b.cost_ns; });
  for (size_t r = 0; r < most; ++r) {
    const Run& run = runs[r];
    if (run.cost_ns >= most_ns) return false;
    std::vector<Storage*> moving;
    std::vector<uint64_t> sizes;
    for (size_t i = run.first; i <= run.last; ++i) {
      if (!in_way[i] || blocks[i].address >= run.end ||
          blocks[i].address + blocks[i].size_bytes <= run.begin)
        continue;
      moving.push_back(in_way[i]);
      sizes.push_back(blocks[i].size_bytes);
    }
    if (moving.empty()) return false;
    if (!fit(std::move(sizes), holes_outside(frees, run.begin, run.end))) continue;
    scan.reset();
    return mover_.move_all(largest_first(std::move(moving)), pointer(run.begin), pointer(run.end),
                           false, deferred);
  }
  return false;
}

bool Compactor::empty_chunk(Device& device, uint64_t size_bytes, Deferred& deferred) {
  const dtr_pool_room room = room_of(device.pool, size_bytes);
  const uint64_t chunk = room.chunk_bytes;
  if (chunk == 0 || !room.in_one_piece) return false;
  const uint64_t lacking_chunks = dtr_pool_lacking_chunks(device.pool, size_bytes);
  if (lacking_chunks == 0) return false;
  std::optional<ScopedTimer<uint64_t, thread_ns>> scan(environment_.stats.search_ns);
  const std::vector<dtr_run_block>& blocks = blocks_of(device.pool);
  const auto number_of = [&](uint64_t address) { return (address - room.base) / chunk; };
  std::vector<Storage*> owners(blocks.size(), nullptr);
  std::vector<Touched> touched;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const dtr_run_block& block = blocks[i];
    // What settles is under chunks that cannot be mapped elsewhere until it has.
    if (block.state == DTR_BLOCK_FREE) continue;
    // No gap is as large as two chunks.
    if (block.state == DTR_BLOCK_IN_USE && block.size_bytes < 2 * chunk)
      owners[i] = graph_.by_address.find(pointer(block.address));
    double cost = std::numeric_limits<double>::infinity();
    if (owners[i] && mover_.is_movable(owners[i])) cost = mover_.move_ns(owners[i]);
    const uint64_t last = number_of(block.address + block.size_bytes - 1);
    for (uint64_t at = number_of(block.address); at <= last; ++at) {
      if (touched.empty() || touched.back().number != at) touched.push_back({at, 0, i, i});
      touched.back().cost_ns += cost;
      touched.back().last = i;
      // What is inside of a block that stays is nobody else's.
      if (std::isinf(cost) && at < last) at = std::max(at, last - 1);
    }
  }
  const auto is_touched = [&](uint64_t at) {
    const auto found = std::ranges::lower_bound(touched, at, {}, &Touched::number);
    return found != touched.end() && found->number == at;
  };
  std::vector<Range> gaps;
  for (const dtr_run_block& block : blocks) {
    if (block.state != DTR_BLOCK_FREE) continue;
    const uint64_t end = block.address + block.size_bytes;
    const uint64_t first = number_of(block.address), last = number_of(end - 1);
    const bool low = is_touched(first), high = is_touched(last);
    if (low && high && last - first <= 1) {
      gaps.push_back({block.address, end});
      continue;
    }
    if (low) gaps.push_back({block.address, std::min(end, room.base + (first + 1) * chunk)});
    if (high && last > first) gaps.push_back({room.base + last * chunk, end});
  }
  std::vector<Touched> cheapest;
  for (const Touched& one : touched)
    if (!std::isinf(one.cost_ns)) cheapest.push_back(one);
  if (cheapest.size() < lacking_chunks) return false;
  std::ranges::sort(cheapest, {}, &Touched::cost_ns);
  for (size_t look_at = 0; look_at < std::min(cheapest.size(), kMostLooks); ++look_at) {
    const Touched& one = cheapest[look_at];
    const uint64_t begin = room.base + one.number * chunk, end = begin + chunk;
    std::vector<Storage*> moving;
    std::vector<uint64_t> sizes;
    for (size_t i = one.first; i <= one.last; ++i) {
      if (!owners[i]) continue;
      moving.push_back(owners[i]);
      sizes.push_back(blocks[i].size_bytes);
    }
    if (!fit(std::move(sizes), holes_outside(gaps, begin, end))) continue;
    scan.reset();
    return mover_.move_all(largest_first(std::move(moving)), pointer(begin), pointer(end), true,
                           deferred);
  }
  return false;
}

}  // namespace dtr
