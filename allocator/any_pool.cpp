#include "any_pool.h"

#include <mutex>

namespace dtr {

namespace {

using Lock = std::lock_guard<PoolMutex>;

// How often a room callback may claim to have freed something without a block being freed.
constexpr int kIdleAnswers = 64;

}  // namespace

void AnyPool::set_room(RoomFn room, void* context) {
  Lock lock(mutex_);
  room_ = room;
  room_context_ = context;
}

bool AnyPool::ask_room(uint64_t size, uint64_t stream, int* idle_answers) {
  if (room_ == nullptr) return false;
  uint64_t before;
  {
    Lock lock(mutex_);
    before = counts_.frees;
  }
  if (room_(room_context_, size, stream) == 0) return false;
  Lock lock(mutex_);
  *idle_answers = counts_.frees == before ? *idle_answers + 1 : 0;
  return *idle_answers < kIdleAnswers;
}

}  // namespace dtr
