#include "event_log.h"

#include <chrono>
#include <new>
#include <utility>

namespace dtr {

namespace {

using LogLock = std::lock_guard<std::mutex>;

int64_t clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void EventLog::add(uint16_t device, uint8_t kind, uint64_t address, uint64_t size_bytes,
                   uint64_t stream) noexcept {
  LogLock lock(mutex_);
  push(device, kind, address, size_bytes, stream);
}

void EventLog::add_move(uint16_t device, uint64_t from, uint64_t to, uint64_t size_bytes) noexcept {
  LogLock lock(mutex_);
  push(device, DTR_EVENT_MOVE_FROM, from, size_bytes, 0);
  push(device, DTR_EVENT_MOVE_TO, to, size_bytes, 0);
}

// Once one event is lost, all that follow are: what is there is the whole beginning.
void EventLog::push(uint16_t device, uint8_t kind, uint64_t address, uint64_t size_bytes,
                    uint64_t stream) noexcept {
  if (lost_ != 0) {
    ++lost_;
    return;
  }
  if (blocks_.empty() || blocks_.back()->count == kBlockEvents) {
    if (blocks_.size() == kMostBlocks) {
      ++lost_;
      return;
    }
    try {
      blocks_.reserve(blocks_.size() + 1);
      blocks_.push_back(spare_ != nullptr ? std::move(spare_) : std::make_unique<Block>());
    } catch (const std::bad_alloc&) {
      ++lost_;
      return;
    }
  }
  const int64_t now_ns = clock_ns();
  if (begin_ns_ == 0) begin_ns_ = now_ns;
  Block& block = *blocks_.back();
  block.events[block.count++] = {now_ns - begin_ns_,     address, size_bytes, stream,
                                 running_op_of_thread(), device,  kind,       place_of_thread()};
}

uint64_t EventLog::drain(const dtr_event_columns& to, uint64_t capacity) {
  uint64_t drained = 0;
  while (capacity - drained >= kBlockEvents) {
    std::unique_ptr<Block> block;
    {
      LogLock lock(mutex_);
      if (blocks_.empty()) break;
      block = std::move(blocks_.front());
      blocks_.erase(blocks_.begin());
    }
    for (uint64_t i = 0; i < block->count; ++i, ++drained) {
      const Event& event = block->events[i];
      to.kind[drained] = event.kind;
      to.time_ns[drained] = event.time_ns;
      to.address[drained] = event.address;
      to.size_bytes[drained] = event.size_bytes;
      to.stream[drained] = event.stream;
      to.device[drained] = event.device;
      to.op[drained] = event.op;
      to.place[drained] = event.place;
    }
    block->count = 0;
    LogLock lock(mutex_);
    if (spare_ == nullptr) std::swap(spare_, block);
  }
  return drained;
}

uint64_t EventLog::lost() const {
  LogLock lock(mutex_);
  return lost_;
}

}  // namespace dtr
