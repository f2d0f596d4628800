// at_fork.h: locks that are held while the process forks, so that the child's copies of them are
// free, and what they guard is whole.
//
// fork() takes them by pthread_atfork, after all that Python does before it. The caller holds the
// GIL then. That cannot deadlock, because nobody waits for the GIL under one of these locks.
#pragma once

#include "locks.h"
#include "not_copied.h"

namespace dtr {

// Has a mutex held across fork() as long as this exists; the mutex must exist longer. Mutexes are
// taken in the order of their ranks, leaves last, and of one rank in that of their registration.
class HeldAcrossFork : NotCopied {
 public:
  template <LockRank rank>
  explicit HeldAcrossFork(RankedMutex<rank>& mutex)
      : HeldAcrossFork(static_cast<int>(rank), mutex) {}
  template <typename Mutex>
  static HeldAcrossFork leaf(Mutex& mutex) {
    return HeldAcrossFork(kLast, mutex);
  }
  ~HeldAcrossFork();

  int order() const { return order_; }
  void hold() const { lock_(mutex_); }
  void let_go() const { unlock_(mutex_); }

 private:
  static constexpr int kLast = 1000;

  template <typename Mutex>
  HeldAcrossFork(int order, Mutex& mutex)
      : order_(order),
        mutex_(&mutex),
        lock_([](void* of) { static_cast<Mutex*>(of)->lock(); }),
        unlock_([](void* of) { static_cast<Mutex*>(of)->unlock(); }) {
    enlist();
  }
  void enlist();

  int order_;
  void* mutex_;
  void (*lock_)(void*);
  void (*unlock_)(void*);
};

}  // namespace dtr
