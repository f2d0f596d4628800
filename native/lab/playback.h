// playback.h: plays a log by simrd's rules, whatever decides about evictions.
//
// A tensor is computed, again or for the first time, once all inputs of its op are there and locked.
// Undefined ones are computed before it, with an explicit stack. Inputs are stamped when the
// computation is asked for, before anything else is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simrd_log.h"

namespace dtr::simrd {

// Machine has: compute(op), which runs materialize(); pin(tensor), get(tensor), release(tensor);
// is_defined(tensor); begin(tensor), which stamps the inputs of its op and returns them;
// lock(storage); waits(steps), how many computations wait; execute(step).
template <typename Machine>
class Playback {
 protected:
  explicit Playback(const Log& log) : log_(log) {}

  // One computation that waits for its inputs.
  struct Step {
    uint32_t tensor;
    bool again;
    size_t missing;       // the first of its undefined inputs in missing_
    size_t next_missing;  // the one it waits for
  };

  void play() {
    for (const Event& event : log_.events) switch (event.kind) {
        case Event::run:
          self().compute(event.id);
          break;
        case Event::get:
          self().get(event.id);
          break;
        case Event::release:
          self().release(event.id);
          break;
      }
    // The output condition: what the program still refers to, it wants.
    for (const uint32_t tensor : log_.outputs) {
      if (!self().is_defined(tensor)) materialize(tensor, true);
      self().pin(tensor);
    }
  }

  void materialize(uint32_t wanted, bool again) {
    begin_step(wanted, again);
    while (!stack_.empty()) {
      Step& step = stack_.back();
      if (step.next_missing == missing_.size()) {
        const Step ready = step;
        missing_.resize(ready.missing);
        self().execute(ready);
        stack_.pop_back();
        continue;
      }
      const uint32_t input = missing_[step.next_missing];
      if (self().is_defined(input)) {
        self().lock(log_.tensors[input].storage);
        ++step.next_missing;
      } else {
        begin_step(input, true);
      }
    }
  }

  const Log& log_;
  std::vector<Step> stack_;
  std::vector<uint32_t> missing_;

 private:
  Machine& self() { return static_cast<Machine&>(*this); }

  void begin_step(uint32_t tensor, bool again) {
    const size_t first = missing_.size();
    for (const uint32_t input : self().begin(tensor)) {
      if (self().is_defined(input))
        self().lock(log_.tensors[input].storage);
      else
        missing_.push_back(input);
    }
    stack_.push_back({tensor, again, first, first});
    self().waits(stack_.size() - (stack_.front().again ? 0 : 1));
  }
};

}  // namespace dtr::simrd
