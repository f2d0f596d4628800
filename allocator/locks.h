// Every lock of the core, in the order in which a thread may take them.
//
// - the Python GIL: outermost, taken by the caller or not at all; nothing below asks for it
// - kEngine: the engine's records (native/)
// - kPool: one pool's heap, chunks, slabs, streams and counters
// - kDriverTable: which libcuda is loaded, and who uses it
// - an EventLog's: innermost, without a rank, as nothing is called under it
//
// All of them are held across fork() (at_fork.h), but for kDriverTable: CUDA does not work in a
// forked child. A thread takes only locks of a higher rank than those it holds (of the same rank
// only around fork, where all pools are held), and no callback runs under any of them: dtr_room_fn is
// called with nothing held, because it frees blocks and may take kEngine. Under kPool the driver is
// called (map, unmap, events); drivers call nobody back.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cassert>

namespace dtr {

enum class LockRank : int { kNone = 0, kEngine = 1, kPool = 2, kDriverTable = 3 };

// A mutex that asserts the order above in builds with assertions. Taking it free is one atomic
// instruction, and who waits does so in the kernel (U. Drepper, "Futexes are tricky", 2011, section
// 6). Leaving it is a plain store where nobody waits, as an atomic one would first wait for every
// store before it. So a thread that starts to wait at that very moment is not woken: no wait in the
// kernel lasts longer than a millisecond.
template <LockRank rank>
class RankedMutex {
 public:
  void lock() {
#ifndef NDEBUG
    assert(rank >= held() && "locks taken against the order of locks.h");
#endif
    int free = kFree;
    if (!state_.compare_exchange_strong(free, kTaken, std::memory_order_acquire)) wait();
#ifndef NDEBUG
    below_ = held();
    held() = rank;
#endif
  }

  void unlock() {
#ifndef NDEBUG
    held() = below_;
#endif
    const bool is_awaited = state_.load(std::memory_order_relaxed) == kAwaited;
    state_.store(kFree, std::memory_order_release);
    if (is_awaited) futex(FUTEX_WAKE_PRIVATE, 1, nullptr);
  }

 private:
  static constexpr int kFree = 0, kTaken = 1, kAwaited = 2;

  void wait() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      const timespec longest{0, 1'000'000};
      futex(FUTEX_WAIT_PRIVATE, kAwaited, &longest);
    }
  }
  void futex(int what, int value, const timespec* longest) {
    static_assert(sizeof(state_) == sizeof(int), "the kernel reads an int");
    ::syscall(SYS_futex, reinterpret_cast<int*>(&state_), what, value, longest, nullptr, 0);
  }

  std::atomic<int> state_{kFree};
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
