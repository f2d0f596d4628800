// step_count.h: which step of the job runs, where it is known when steps begin.
#pragma once

#include <cstdint>

#include "records.h"

namespace dtr {

class StepCount {
 public:
  void begins() { now_ = ++last_; }
  void is_unknown() { now_ = 0; }
  uint32_t now() const { return now_; }  // 0: not known
  // Whether it can be computed again and was made before this step. In a play, which knows nothing
  // of what was before its steps, such contents are constants.
  bool is_left(const Storage* storage) const {
    return now_ > 0 && storage->parent && storage->parent->step != now_;
  }

 private:
  uint32_t now_ = 0, last_ = 0;
};

}  // namespace dtr
