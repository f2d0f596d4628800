// scoped_timer.h: adds the time that a scope takes to a sum.
#pragma once

#include <cstdint>

#include "clock.h"
#include "not_copied.h"

namespace dtr {

template <typename Nanoseconds, int64_t (*kNow)() = now_ns>
class ScopedTimer : NotCopied {
 public:
  explicit ScopedTimer(Nanoseconds& total_ns) : total_ns_(total_ns), begin_ns_(kNow()) {}
  ~ScopedTimer() { total_ns_ += static_cast<Nanoseconds>(kNow() - begin_ns_); }

 private:
  Nanoseconds& total_ns_;
  int64_t begin_ns_;
};

}  // namespace dtr
