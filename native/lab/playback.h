// playback.h: the machine of the papers: it plays a log by simrd's rules, whatever decides about
// evictions.
//
// A tensor is computed, again or for the first time, once all inputs of its op are there and locked.
// Undefined ones are computed before it, with an explicit stack. Inputs are stamped when the
// computation is asked for, before anything else is done; outputs after their operator. An op makes
// all its outputs anew; those that were there give their bytes back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "errors.h"
#include "simrd_log.h"

namespace dtr::simrd {

constexpr uint32_t kNone = UINT32_MAX;
constexpr int64_t kNever = INT64_MIN / 4;  // the last access of what was never accessed

template <typename T>
void add(T& sum, T amount, const char* what) {
  if (__builtin_add_overflow(sum, amount, &sum))
    throw InvalidArgument(std::string("program: the sum of its ") + what +
                          " is too large; allowed: 63 bits");
}

// A storage, as everyone who plays knows it.
struct InUse {
  int64_t last_access = kNever;
  int32_t locks = 0;
  int32_t references = 0;  // by the program
  bool pinned = false;
};

// Decider has: compute(op), which runs materialize(); is_resident(storage); begin(tensor), which
// stamps the inputs of its op and returns them; make_room(bytes); revive(storage, again), it has
// become resident; executed(op, step), which unlocks the inputs; enter(storage) and leave(storage),
// it may be evicted or not; unreferenced(storage). What must hold is checked by check(bool).
template <typename Decider>
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
    in_use_.assign(log_.storages.size(), {});
    defined_.assign(log_.tensors.size(), 0);
    stack_.clear();
    missing_.clear();
    memory_ = peak_ = 0;
    clock_ = 1;
    most_waiting_ = 0;
    for (const Event& event : log_.events) switch (event.kind) {
        case Event::run:
          self().compute(event.id);
          break;
        case Event::get:
          self().check(of(event.id).references > 0);
          ++of(event.id).references;
          break;
        case Event::release:
          self().check(of(event.id).references > 0);
          if (--of(event.id).references == 0) self().unreferenced(storage_of(event.id));
          break;
      }
    // The output condition: what the program still refers to, it wants.
    for (const uint32_t tensor : log_.outputs) {
      if (!defined_[tensor]) materialize(tensor, true);
      pin(tensor);
    }
  }

  void materialize(uint32_t wanted, bool again) {
    begin_step(wanted, again);
    while (!stack_.empty()) {
      Step& step = stack_.back();
      if (step.next_missing == missing_.size()) {
        const Step ready = step;
        missing_.resize(ready.missing);
        execute(ready);
        stack_.pop_back();
        continue;
      }
      const uint32_t input = missing_[step.next_missing];
      if (defined_[input]) {
        lock(storage_of(input));
        ++step.next_missing;
      } else {
        begin_step(input, true);
      }
    }
  }

  void pin(uint32_t tensor) {
    const uint32_t storage = storage_of(tensor);
    self().check(self().is_resident(storage));
    if (in_use_[storage].pinned) return;
    lock(storage);
    in_use_[storage].pinned = true;
  }

  void lock(uint32_t storage) {
    if (in_use_[storage].locks++ == 0) self().leave(storage);
  }

  void unlock(uint32_t storage) {
    self().check(self().is_resident(storage) && in_use_[storage].locks > 0);
    if (--in_use_[storage].locks == 0) self().enter(storage);
  }

  uint32_t storage_of(uint32_t tensor) const { return log_.tensors[tensor].storage; }
  const Op& op_of(uint32_t tensor) const { return log_.ops[log_.tensors[tensor].op]; }
  InUse& of(uint32_t tensor) { return in_use_[storage_of(tensor)]; }
  uint64_t bytes_of(uint32_t storage) const { return log_.storages[storage].size_bytes; }

  const Log& log_;
  std::vector<InUse> in_use_;     // by storage
  std::vector<uint8_t> defined_;  // by tensor
  uint64_t memory_ = 0, peak_ = 0;
  int64_t clock_ = 1;
  uint64_t most_waiting_ = 0;      // how many recomputations waited for one another
  std::vector<uint32_t> made_;     // tensors that the execution defined, the wanted one last
  std::vector<uint32_t> revived_;  // storages that it made resident, likewise
  std::vector<Step> stack_;
  std::vector<uint32_t> missing_;

 private:
  Decider& self() { return static_cast<Decider&>(*this); }

  void begin_step(uint32_t tensor, bool again) {
    const size_t first = missing_.size();
    for (const uint32_t input : self().begin(tensor))
      if (defined_[input])
        lock(storage_of(input));
      else
        missing_.push_back(input);
    stack_.push_back({tensor, again, first, first});
    most_waiting_ = std::max(most_waiting_, stack_.size() - (stack_.front().again ? 0 : 1));
  }

  // All inputs are there and locked.
  void execute(const Step& step) {
    const Op& op = op_of(step.tensor);
    self().make_room(op.total_bytes);
    add(clock_, op.cost, "times");
    add(memory_, op.total_bytes, "sizes");
    peak_ = std::max(peak_, memory_);
    made_.clear();
    revived_.clear();
    for (uint32_t tensor = op.first_output; tensor < op.end_output(); ++tensor) {
      if (tensor == step.tensor) continue;
      if (defined_[tensor])
        memory_ -= log_.tensors[tensor].size_bytes;
      else
        made_.push_back(tensor);
    }
    made_.push_back(step.tensor);
    for (const uint32_t tensor : made_) {
      defined_[tensor] = 1;
      if (self().is_resident(storage_of(tensor))) continue;
      // A view's storage is there before the view.
      self().check(log_.storages[storage_of(tensor)].root == tensor);
      revived_.push_back(storage_of(tensor));
    }
    for (const uint32_t storage : revived_) self().revive(storage, step.again);
    self().executed(op, step);
  }
};

}  // namespace dtr::simrd
