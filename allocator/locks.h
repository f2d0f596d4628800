// Every lock of the core, in the order in which a thread may take them.
//
// - the Python GIL: outermost, taken by the caller or not at all; nothing below asks for it
// - kEngine: the engine's records (native/)
// - kPool: one pool's heap, chunks, slabs, streams and counters
// - kDriverTable: which libcuda is loaded, and who uses it
// - an EventLog's: innermost, without a rank, as nothing is called under it
//
// A thread takes only locks of a higher rank than those it holds (of the same rank only around
// fork, where all pools are held, and a SegmentedPool's segments under its own), and no callback
// runs under any of them: dtr_room_fn is called with nothing held, because it frees blocks and may
// take kEngine. Under kPool the driver is called (map, unmap, events); drivers call nobody back.
#pragma once

#include <cassert>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace dtr {

enum class LockRank : int { kNone = 0, kEngine = 1, kPool = 2, kDriverTable = 3 };

// Nanoseconds that this thread has waited for locks that others held.
inline int64_t& waited_ns_of_thread() {
  thread_local int64_t waited = 0;
  return waited;
}

// A mutex that asserts the order above in builds with assertions, and counts what is waited.
template <LockRank rank>
class RankedMutex {
 public:
  void lock() {
#ifndef NDEBUG
    assert(rank >= held() && "locks taken against the order of locks.h");
#endif
    if (!mutex_.try_lock()) {
      const auto begin = std::chrono::steady_clock::now();
      mutex_.lock();
      waited_ns_of_thread() +=
          std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    }
#ifndef NDEBUG
    below_ = held();
    held() = rank;
#endif
  }

  void unlock() {
#ifndef NDEBUG
    held() = below_;
#endif
    mutex_.unlock();
  }

 private:
  std::mutex mutex_;
#ifndef NDEBUG
  static LockRank& held();
  LockRank below_ = LockRank::kNone;
#endif
};

#ifndef NDEBUG
// The highest rank that this thread holds.
inline LockRank& held_lock_rank() {
  thread_local LockRank rank = LockRank::kNone;
  return rank;
}

template <LockRank rank>
LockRank& RankedMutex<rank>::held() {
  return held_lock_rank();
}
#endif

using EngineMutex = RankedMutex<LockRank::kEngine>;
using PoolMutex = RankedMutex<LockRank::kPool>;
using DriverTableMutex = RankedMutex<LockRank::kDriverTable>;

}  // namespace dtr
