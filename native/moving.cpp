// moving.cpp: contents that go to other addresses of their pool.
//
// A block in the way of a large request need not be given up: it can be copied elsewhere, for the
// price of a copy instead of a recomputation. Views, aliases and saved tensors all look at one
// storage (a handle), so that exchanging the address in the handle moves them all.
//
//  M1  What may move: a resident content whose memory is ours and whose address nobody was told.
//      So nothing that is pinned, that escaped (R6's external ones: their address was given away,
//      on every device), or that a captured graph knows; and nothing at all while one is captured.
//      Constants may: escapes are where addresses are given away, and all of them pin
//      (dtr_alloc/escapes.py). What runs knows addresses too, so what is locked stays, but for
//      holds: they are of what does not run yet and looks again (R11).
//  M2  A move happens wholly under the engine's mutex: nobody meets a storage half moved, and what
//      an operator is given after it begins is the new address. No deleter runs there.
//  M3  The handle is held for that time. One that is dying on another thread, or that only a Python
//      object refers to, is not moved; that is no failure.
//  M4  The copy is queued on the stream of the last use, which is behind the last change of the
//      content, and behind all work that was recorded to use the block. It is a making of the
//      content like a rematerialization: another stream's use comes behind it by O2. The pool knows
//      that the old block is used by that stream, and its address goes back in that order.
//  M5  A failure leaves the content where it was, and the new place goes back.
//
// When. In a fixed pool, unless room is made by single evictions only: what was chosen for eviction
// is compared with moves. Either a hole is made by moves alone, which may take constants out of the
// way, or members of a window are moved that cost less to copy than to make anew, beside evictions.
// In every pool: before what only waits is evicted or a request fails.
//
// The price (move_price.h) is measured: what the host spends on a move by the clock, copies by the
// clock or, on streams, by timers that are read some operators later. Nothing waits for them.
#include <algorithm>
#include <set>

#include "engine.h"
#include "error.h"
#include "score.h"

namespace dtr {

namespace {

// The scratch blocks of a calibration.
constexpr uint64_t kMostScratch = 4 << 20;
constexpr int kCalibrationCopies = 4;

// Of the runs that would make a hole, how many of the cheapest are looked at closely.
constexpr size_t kMostRuns = 16;

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }
const void* pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }

}  // namespace

// M1.
bool Engine::is_movable(const Storage* storage) const {
  return storage->state == State::resident && storage->managed && !storage->external &&
         !storage->captured && storage->locks == storage->holds && storage->pins == 0 &&
         frozen_ == 0 && (storage->used_on != kNoStream || !has_streams(storage->device_type));
}

double Engine::move_ns(const Storage* storage) {
  Device& device = device_of(storage);
  if (device.move_price.needs_calibration()) calibrate_moves(device);
  return device.move_price.ns_of(storage->size_bytes);
}

// Copies between two free places, if there are two, as a move would.
void Engine::calibrate_moves(Device& device) {
  if (frozen_ > 0) return;
  const uint64_t stream = has_streams(device.type) ? stream_of(device.type, device.index) : 0;
  for (uint64_t bytes = kMostScratch; bytes >= Bandwidth::kLeastBytes; bytes /= 2) {
    void* scratch[2] = {nullptr, nullptr};
    for (void*& block : scratch)
      if (dtr_pool_try_outside(device.pool, bytes, stream, nullptr, nullptr, &block) != DTR_OK)
        block = nullptr;
    for (int i = 0; scratch[1] && i < kCalibrationCopies; ++i) {
      uint64_t timer = 0;
      const int64_t begin = now_ns();
      if (dtr_pool_copy(device.pool, scratch[1], scratch[0], bytes, stream, &timer) != DTR_OK)
        break;
      if (timer)
        device.pending_moves[timer] = bytes;
      else if (i > 0 && !has_streams(device.type))  // the first brings the memory along
        device.move_price.add_copy(bytes, now_ns() - begin);
    }
    for (void* block : scratch) dtr_pool_free(device.pool, block);
    if (scratch[1]) return;
  }
}

// Moves the content to a place outside of [avoid_begin, avoid_end). False, and nothing changed, if
// it may not be moved, its handle cannot be held, or there is no such place. Throws what the driver
// says, the content where it was (M5).
bool Engine::relocate(Storage* storage, const void* avoid_begin, const void* avoid_end,
                      Deferred& deferred) {
  if (!is_movable(storage)) return false;
  const int64_t begin_ns = now_ns();
  void* const handle = storage->handle;
  if (storage->live) {
    if (!framework_->retain_strong(handle)) return false;
    deferred.release_strong(handle);  // after the mutex: ours may be the last by then
  }
  void* const from = storage->address;
  if (handle && framework_->data(handle) != from) return false;
  Device& device = device_of(storage);
  const bool queues = has_streams(storage->device_type);
  const uint64_t stream = queues ? storage->used_on : 0;
  const uint64_t bytes = storage->size_bytes;
  void* to = nullptr;
  check_status(dtr_pool_try_outside(device.pool, bytes, stream, avoid_begin, avoid_end, &to));
  if (!to) return false;

  const bool timed = device.move_price.wants_reading(bytes);
  uint64_t timer = 0;
  const int64_t copy_ns = now_ns();
  int32_t status =
      dtr_pool_copy(device.pool, to, from, bytes, stream, queues && timed ? &timer : nullptr);
  const int64_t copied_ns = now_ns();
  if (timer) device.pending_moves[timer] = bytes;
  // The block's own stream may be another one than that of the copy.
  if (status == DTR_OK && queues) status = dtr_pool_record_stream(device.pool, from, stream);
  if (status != DTR_OK) {
    const std::string text = dtr_last_error();
    dtr_pool_free(device.pool, to);
    throw_status(status, "move: the content of storage " + std::to_string(storage->id) + " (" +
                             std::to_string(bytes) + " bytes) cannot be copied: " + text);
  }
  if (handle && framework_->replace(handle, to) != from) {
    dtr_pool_free(device.pool, to);
    return false;
  }
  const bool is_candidate = storage->candidate >= 0;  // they stand in the order of addresses
  if (is_candidate) device.candidates.remove(storage);
  by_address_.erase(from);
  by_address_.insert(to, storage);
  storage->address = to;
  if (is_candidate) {
    device.candidates.add(storage);
    reset_bounds(device, storage);
  }
  if (queues) storage->used_on = storage->remade_on = stream;  // O2
  storage->ordered_on = kNoStream;
  dtr_pool_note_move(device.pool, from, to, bytes);
  dtr_pool_free(device.pool, from);

  const int64_t end_ns = now_ns();
  const int64_t by_hand = queues ? 0 : copied_ns - copy_ns;
  if (timed && !queues) device.move_price.add_copy(bytes, by_hand);
  device.move_price.add_launch(end_ns - begin_ns - by_hand);
  ++stats_.moves;
  stats_.moved_bytes += bytes;
  stats_.move_ns += static_cast<uint64_t>(end_ns - begin_ns);
  if (watcher_) watcher_->moved(storage->id);
  return true;
}

bool Engine::hand_move(void* handle, const void* avoid_begin, const void* avoid_end) {
  Deferred deferred(*this);
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* storage = by_handle_.find(handle);
  return storage && relocate(storage, avoid_begin, avoid_end, deferred);
}

Engine::Device& Engine::device_with(const dtr_pool* pool) const {
  for (Device* device : devices_)
    if (device->pool == pool) return *device;
  throw InvalidArgument("pool is not one of the engine's; allowed: given to dtr_engine_add_pool");
}

namespace {

// All blocks of a pool, by address.
std::vector<dtr_block> blocks_of(dtr_pool* pool) {
  std::vector<dtr_block> blocks;
  uint64_t count = 0;
  check_status(dtr_pool_snapshot(pool, nullptr, 0, &count));
  do {
    blocks.resize(count + count / 8 + 8);
    check_status(dtr_pool_snapshot(pool, blocks.data(), blocks.size(), &count));
  } while (count > blocks.size());
  blocks.resize(count);
  return blocks;
}

}  // namespace

uint64_t Engine::compact(dtr_pool* pool) {
  Deferred deferred(*this);
  std::lock_guard<EngineMutex> lock(mutex_);
  device_with(pool);
  const std::vector<dtr_block> blocks = blocks_of(pool);
  const uint64_t before = stats_.moved_bytes;
  for (size_t i = blocks.size(); i-- > 0;) {
    if (blocks[i].state != 1 || blocks[i].is_small) continue;
    Storage* storage = by_address_.find(pointer(blocks[i].address));
    if (storage) relocate(storage, storage->address, pointer(UINT64_MAX), deferred);
  }
  return stats_.moved_bytes - before;
}

uint64_t Engine::move_some(dtr_pool* pool, uint64_t seed, uint64_t count) {
  Deferred deferred(*this);
  std::lock_guard<EngineMutex> lock(mutex_);
  device_with(pool);
  std::vector<Storage*> movable;
  by_address_.for_each([&](const void* address, Storage* storage) {
    if (is_movable(storage) && dtr_pool_contains(pool, address)) movable.push_back(storage);
  });
  std::sort(movable.begin(), movable.end(),
            [](const Storage* a, const Storage* b) { return a->id < b->id; });
  Random random(seed);
  uint64_t moved = 0;
  for (uint64_t draw = 0; draw < count && !movable.empty(); ++draw) {
    Storage* storage = movable[random.below(movable.size())];
    if (relocate(storage, nullptr, nullptr, deferred)) ++moved;
  }
  return moved;
}

namespace {

// A stretch of neighboring blocks that are free or can be moved.
struct Run {
  double cost_ns;
  size_t first, last;   // of the blocks
  uint64_t begin, end;  // what shall be one hole: the request's size
};

}  // namespace

// What evicting it loses, where nothing is known of when it is needed again.
double Engine::loss_ns(Storage* storage) {
  return is_idle(storage) ? 0
                          : with_swap(storage, storage->parent ? recompute_cost_ns(storage) : 0);
}

// Only in a fixed pool: elsewhere holes are made of memory that is mapped anew, and a place to move
// to may take as much.
bool Engine::moves_aside(const Device& device) const {
  return options_.moving && device.fixed && options_.room != DTR_ROOM_SINGLE && frozen_ == 0;
}

void Engine::find_largest_hole(const Device& device) {
  largest_hole_ = 0;
  if (!moves_aside(device)) return;
  dtr_pool_stats stats;
  dtr_pool_get_stats(device.pool, &stats);
  largest_hole_ = stats.largest_free_bytes;
}

// What it costs to have a window's member out of the way: giving it up for cost_ns, or, if a hole
// is as large, a copy. (Others may be first at the hole, or it may be the window's own.)
double Engine::at_most_move(Storage* storage, double cost_ns) {
  if (storage->size_bytes > largest_hole_ || !is_movable(storage)) return cost_ns;
  return std::min(cost_ns, move_ns(storage));
}

// Before victims_ are evicted for a request: if a hole for it can be made by moves alone that cost
// less than they would, it is (true, and no victims are left). Else, of a window's members, those
// that are cheaper to move go elsewhere; true if any did.
bool Engine::move_instead(Device& device, uint64_t size_bytes, bool fragmented, bool is_window,
                          Deferred& deferred) {
  if (!moves_aside(device)) return false;
  constexpr double kLooks = 4;  // what is at stake is worth at least so many looks at the heap
  double evicting_ns = 0;
  for (Storage* storage : victims_) {
    const double loss = loss_ns(storage);
    evicting_ns += is_window ? std::min(loss, move_ns(storage)) : loss;
  }
  if (fragmented && evicting_ns > kLooks * device.hole_search_ns &&
      open_hole(device, size_bytes, evicting_ns, deferred)) {
    victims_.clear();
    return true;
  }
  if (!is_window) return false;
  uint64_t begin = UINT64_MAX, end = 0;
  for (const Storage* storage : victims_) {
    const uint64_t address = number(storage->address);
    begin = std::min(begin, address);
    end = std::max(end, address + storage->size_bytes);
  }
  // With the free bytes at both ends, which the window may need.
  for (size_t blocks = 2 * victims_.size() + 2, count = blocks; count == blocks; blocks *= 2) {
    count = run_of(device, pointer(begin), blocks);
    size_t i = 0;
    while (i < count && run_[i].address < end) ++i;
    while (i < count && (run_[i].state == 0 || run_[i].state == 3)) {
      end = run_[i].address + run_[i].size_bytes;
      ++i;
    }
    if (count > 0) begin = std::min(begin, run_[0].address);
    if (i < count) break;
  }
  const auto first_kept =
      std::stable_partition(victims_.begin(), victims_.end(), [&](Storage* storage) {
        return move_ns(storage) < loss_ns(storage) &&
               relocate(storage, pointer(begin), pointer(end), deferred);
      });
  const bool moved = first_kept != victims_.begin();
  victims_.erase(victims_.begin(), first_kept);
  return moved;
}

// Moves what lies in the cheapest stretch that is large enough to places outside of it, if that
// costs less than most_ns: infinity is the last resort before what only waits is evicted, or the
// request fails. True if something was moved and the stretch is free now. (If one is free already,
// more holes would not help.)
bool Engine::open_hole(Device& device, uint64_t size_bytes, double most_ns, Deferred& deferred) {
  const int64_t begin_ns = now_ns();
  struct Look {
    double& ns;
    uint64_t& total;
    int64_t begin;
    bool is_given;  // the price of a move: then no clock decides
    bool over = false;
    void end() {
      if (over) return;
      over = true;
      if (!is_given) ns = static_cast<double>(now_ns() - begin);
      total += static_cast<uint64_t>(now_ns() - begin);
    }
    ~Look() { end(); }
  } look{device.hole_search_ns, stats_.search_ns, begin_ns, device.move_price.is_fixed()};
  const std::vector<dtr_block> blocks = blocks_of(device.pool);
  std::vector<Storage*> in_way(blocks.size(), nullptr);
  std::vector<double> cost(blocks.size(), 0);
  std::vector<bool> ends(blocks.size(), false);  // a run
  for (size_t i = 0; i < blocks.size(); ++i) {
    const dtr_block& block = blocks[i];
    if (block.state == 1 && !block.is_small) in_way[i] = by_address_.find(pointer(block.address));
    if (block.state == 1) ends[i] = !in_way[i] || !is_movable(in_way[i]);
    if (block.is_small) ends[i] = true;
    if (in_way[i] && !ends[i]) cost[i] = move_ns(in_way[i]);
  }
  // Two pointers: for each last block the latest first one that makes the run large enough.
  std::vector<Run> runs;
  uint64_t bytes = 0;
  double total = 0;
  for (size_t first = 0, last = 0; last < blocks.size(); ++last) {
    const bool gap =
        last > 0 && blocks[last - 1].address + blocks[last - 1].size_bytes != blocks[last].address;
    if (gap || ends[last]) {
      first = ends[last] ? last + 1 : last;
      bytes = 0;
      total = 0;
      if (ends[last]) continue;
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
  const size_t most = std::min(runs.size(), kMostRuns);
  std::partial_sort(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(most), runs.end(),
                    [](const Run& a, const Run& b) { return a.cost_ns < b.cost_ns; });
  for (size_t r = 0; r < most; ++r) {
    const Run& run = runs[r];
    if (run.cost_ns >= most_ns) return false;
    // Whether all find a place, the largest first.
    std::vector<uint64_t> moving;
    std::multiset<uint64_t> holes;
    for (size_t i = run.first; i <= run.last; ++i)
      if (in_way[i] && blocks[i].address < run.end &&
          blocks[i].address + blocks[i].size_bytes > run.begin)
        moving.push_back(i);
    if (moving.empty()) return false;
    for (const dtr_block& block : blocks) {
      if (block.state != 0 || block.is_small) continue;
      const uint64_t end = block.address + block.size_bytes;
      if (block.address >= run.end || end <= run.begin) {
        holes.insert(block.size_bytes);
      } else {
        if (block.address < run.begin) holes.insert(run.begin - block.address);
        if (end > run.end) holes.insert(end - run.end);
      }
    }
    std::sort(moving.begin(), moving.end(),
              [&](uint64_t a, uint64_t b) { return blocks[a].size_bytes > blocks[b].size_bytes; });
    bool fits = true;
    for (size_t i = 0; fits && i < moving.size(); ++i) {
      const uint64_t wanted = blocks[moving[i]].size_bytes;
      const auto hole = holes.lower_bound(wanted);
      fits = hole != holes.end();
      if (!fits) break;
      const uint64_t rest = *hole - wanted;
      holes.erase(hole);
      if (rest > 0) holes.insert(rest);
    }
    if (!fits) continue;
    look.end();
    bool moved = true;
    for (size_t i = 0; moved && i < moving.size(); ++i)
      moved = relocate(in_way[moving[i]], pointer(run.begin), pointer(run.end), deferred);
    return moved;
  }
  return false;
}

// The options have changed.
void Engine::configure_moving() {
  for (Device* device : devices_)
    if (options_.move_bytes_per_s > 0 || device->move_price.is_fixed())
      device->move_price = MovePrice(options_.move_bytes_per_s, device->type == 0);
}

}  // namespace dtr
