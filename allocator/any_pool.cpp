#include "any_pool.h"

#include <algorithm>
#include <utility>

#include "at_exit.h"
#include "errors.h"

namespace dtr {

namespace {

// How often in a row a room callback may give an answer without a block being freed.
constexpr int kIdleAnswers = 64;

}  // namespace

AnyPool::AnyPool(std::shared_ptr<Driver> driver, uint64_t budget_bytes)
    : driver_(std::move(driver)), work_(*driver_), budget_(budget_bytes) {}

void AnyPool::set_room(RoomFn room, void* context) {
  Lock lock(mutex_);
  room_ = room;
  room_context_ = context;
}

int32_t AnyPool::ask_room(uint64_t size, uint64_t stream, int* idle_answers) {
  if (room_ == nullptr) return DTR_ROOM_IS_NONE;
  uint64_t before;
  {
    Lock lock(mutex_);
    before = counts_.frees;
    if (lowering_ == kNoLimit) events_.add(DTR_EVENT_ROOM, 0, size, stream);
  }
  const int32_t answer = room_(room_context_, size, stream);
  Lock lock(mutex_);
  *idle_answers = counts_.frees == before ? *idle_answers + 1 : 0;
  return *idle_answers < kIdleAnswers ? answer : DTR_ROOM_IS_NONE;
}

void AnyPool::set_budget(uint64_t budget_bytes) {
  check_budget(budget_bytes);
  const AtExit nothing_is_lowered([this] {
    Lock lock(mutex_);
    lowering_ = kNoLimit;
    grow();
  });
  int idle_answers = 0;
  for (bool last = false;;) {
    uint64_t excess;
    {
      Lock lock(mutex_);
      lowering_ = budget_bytes;
      const uint64_t held = shrink(budget_bytes, last);
      if (held <= budget_bytes) {
        budget_ = budget_bytes;
        events_.add(DTR_EVENT_BUDGET, 0, budget_);
        return;
      }
      excess = held - budget_bytes;
      if (last) {
        ++counts_.out_of_memory_errors;
        std::string text = "the budget cannot be lowered to " + size_text(budget_bytes) +
                           ": allocated " + size_text(counts_.allocated_bytes);
        if (*held_in() != '\0')
          text += std::string(" in ") + held_in() + " of " + size_text(held) + " that are in use";
        throw OutOfMemory(text + "; it stays " + size_text(budget_));
      }
    }
    last = ask_room(excess, 0, &idle_answers) == DTR_ROOM_IS_NONE;
  }
}

uint64_t AnyPool::allocate_beyond(uint64_t size_bytes, uint64_t stream) {
  if (size_bytes == 0) return 0;
  Lock lock(mutex_);
  if (driver_->capturing(stream))
    throw StateError("stream " + std::to_string(stream) +
                     " is being captured into a graph, which keeps its memory");
  uint64_t address = 0;
  try {
    address = driver_->allocate_on_stream(size_bytes, stream);
  } catch (const DriverError& error) {
    if (error.out_of_memory) throw OutOfMemory(error.what());
    throw;
  }
  beyond_[address] = {size_bytes, stream, std::chrono::steady_clock::now()};
  counts_.beyond_bytes += size_bytes;
  counts_.peak_beyond_bytes = std::max(counts_.peak_beyond_bytes, counts_.beyond_bytes);
  ++counts_.beyond_requests;
  return address;
}

void AnyPool::free_beyond(uint64_t address) {
  if (address == 0) return;
  Lock lock(mutex_);
  const auto found = beyond_.find(address);
  if (found == beyond_.end())
    throw InvalidArgument("free_beyond: address " + address_text(address) +
                          " is no memory beyond the budget (freed twice?); allowed: an address "
                          "from allocate_beyond");
  driver_->free_on_stream(address, found->second.stream);
  const std::chrono::nanoseconds held = std::chrono::steady_clock::now() - found->second.since;
  counts_.beyond_ns += static_cast<uint64_t>(held.count());
  counts_.beyond_bytes -= found->second.size_bytes;
  beyond_.erase(found);
}

void AnyPool::add_peer(int32_t device) {
  Lock lock(mutex_);
  driver_->add_peer(device);
}

uint64_t AnyPool::unused_bytes() {
  Lock lock(mutex_);
  const uint64_t taken = counts_.allocated_bytes + withheld_bytes();
  return budget_ > taken ? budget_ - taken : 0;
}

void AnyPool::require_no_blocks() const {
  if (counts_.beyond_bytes != 0)
    throw StateError("the pool has " + size_text(counts_.beyond_bytes) +
                     " beyond its budget in use; free it before it is destroyed");
  if (counts_.live_blocks == 0) return;
  throw StateError("the pool has " + std::to_string(counts_.live_blocks) + " blocks in use, " +
                   size_text(counts_.allocated_bytes) + "; free them before it is destroyed");
}

void AnyPool::set_log(EventLog* log, uint16_t device) {
  Lock lock(mutex_);
  events_.set(log, device);
  if (log == nullptr) return;
  events_.add(DTR_EVENT_BUDGET, 0, budget_);
  log_present();
}

void AnyPool::note(uint8_t kind, uint64_t address, uint64_t size_bytes) {
  if (!events_.is_on()) return;
  Lock lock(mutex_);
  events_.add(kind, address, size_bytes);
}

void AnyPool::note_move(uint64_t from, uint64_t to, uint64_t size_bytes) {
  if (!events_.is_on()) return;
  Lock lock(mutex_);
  events_.add_move(from, to, size_bytes);
}

uint64_t AnyPool::copy(uint64_t to, uint64_t from, uint64_t size_bytes, uint64_t stream,
                       bool timed) {
  Lock lock(mutex_);
  if (size_bytes == 0 || !driver_->has_contents()) return 0;
  follow_uses("copy", from, stream);
  Timers& timers = work_.timers();
  const uint64_t timer = timed ? timers.begin(stream) : 0;
  try {
    driver_->copy(to, from, size_bytes, stream);
    timers.end(timer);
  } catch (...) {
    timers.drop(timer);
    throw;
  }
  return timer;
}

// Others may allocate and free meanwhile.
void AnyPool::synchronize(uint64_t stream) { work_.synchronize(stream); }

}  // namespace dtr
