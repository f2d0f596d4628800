#include "at_fork.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace dtr {

namespace {

struct Enlisted {
  std::mutex mutex;
  std::vector<const HeldAcrossFork*> in_order;
};

// Never destroyed: a process may fork while it ends.
Enlisted& enlisted() {
  static auto* all = new Enlisted();
  return *all;
}

void before() {
  Enlisted& all = enlisted();
  all.mutex.lock();
  for (const HeldAcrossFork* held : all.in_order) held->hold();
}

void after() {
  Enlisted& all = enlisted();
  for (auto held = all.in_order.rbegin(); held != all.in_order.rend(); ++held) (*held)->let_go();
  all.mutex.unlock();
}

}  // namespace

void HeldAcrossFork::enlist() {
  static const int registered = pthread_atfork(&before, &after, &after);
  (void)registered;
  Enlisted& all = enlisted();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto place = std::ranges::upper_bound(all.in_order, order(), {}, &HeldAcrossFork::order);
  all.in_order.insert(place, this);
}

HeldAcrossFork::~HeldAcrossFork() {
  Enlisted& all = enlisted();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.in_order.erase(std::ranges::find(all.in_order, this));
}

}  // namespace dtr
