// thread.h: what one thread keeps while its operators are captured, and how an op of the engine
// begins and ends: by objects, so that nothing stays open, whatever is thrown.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "bridge.h"
#include "closure.h"
#include "places.h"

namespace dtr_bridge {

// What Python sets for the whole process (dtr_alloc/torch/bridge.py).
struct Settings {
  std::atomic<bool> capturing{false};
  std::atomic<uint64_t> tiny_bytes{0};     // as the engine's option
  std::atomic<bool> by_mode{false};        // a dispatch mode feeds the capture (kSecondKey)
  std::atomic<bool> writes_op_log{false};  // an op log is written
  std::atomic<bool> scoring{false};        // a Python callable chooses what is evicted
  std::atomic<int64_t> repeats_left{-1};   // operators that may still run again; below 0: all
  std::atomic<c10::DeviceType> device{c10::kCPU};  // the kind that is managed

  c10::DispatchKeySet key() const { return c10::DispatchKeySet(by_mode ? kSecondKey : kKey); }
};

inline Settings settings;

[[noreturn]] inline void fail_with_last_error(int32_t status) { fail(status, core->last_error()); }

// Which types of Python are those of parameters.
class Types {
 public:
  bool is_parameter(void* type) {
    Known& known = known_[(reinterpret_cast<uintptr_t>(type) >> 5) % known_.size()];
    if (known.type != type) known = {type, python.is_subtype(type, python.parameter_type) != 0};
    return known.is_parameter;
  }

 private:
  struct Known {
    void* type = nullptr;
    bool is_parameter = false;
  };
  std::array<Known, 16> known_;
};

class Beside;
class Taping;
class Thread;

// All threads that have met the capture; and which of them has operators of its own alone, while a
// session ends. Operators that begin on others wait then, but not for longer than it was said.
//
// No operator is missed: a thread says that its operator runs before it looks whether it has to wait,
// who makes the others wait says so before it looks who runs, and all four are in one order.
class Threads {
 public:
  static Threads& instance() { return only<Threads>(); }
  void add(Thread* thread) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(own() = thread);
  }
  void remove(Thread* thread) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(all_, thread);
  }

  // Has the others wait for so long at most; 0: no longer.
  void hold(Thread& thread, int64_t longest_ns);
  bool must_wait(const Thread* thread) const {
    const Thread* alone = alone_.load();
    return alone && alone != thread && now() < until_.load(std::memory_order_relaxed);
  }
  // The keys of the operators that run on other threads.
  std::vector<uint64_t> running(const Thread* thread);

  // Held while the process forks.
  std::mutex& mutex() { return mutex_; }
  // In a forked child, where the others are not.
  void forget_others() {
    all_.clear();
    if (own()) all_.push_back(own());
    alone_ = nullptr;
  }

 private:
  // This thread, if it has met the capture.
  static Thread*& own() {
    thread_local Thread* own = nullptr;
    return own;
  }
  static int64_t now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::mutex mutex_;
  std::vector<Thread*> all_;
  std::atomic<const Thread*> alone_{nullptr};
  std::atomic<int64_t> until_{0};
};

class Thread {
  struct Level {
    dtr_frame* frame = nullptr;
    int64_t* buffer = nullptr;
    uint64_t capacity = 0;
  };

 public:
  static Thread& current() {
    thread_local Thread thread;
    return thread;
  }
  Thread() { Threads::instance().add(this); }
  ~Thread() {
    Threads::instance().remove(this);
    for (const Level& level : unused_) core->frame_destroy(level.frame);
    core->frame_destroy(level_.frame);
  }

  static dtr_engine* engine() { return static_cast<dtr_engine*>(core->engine); }
  dtr_frame* frame() const { return level_.frame; }

  // Writes the index-th number for the core.
  void put(uint32_t index, int64_t number) {
    if (index >= level_.capacity) {
      level_.capacity = std::max<uint64_t>(2 * level_.capacity, index + 64);
      level_.buffer = core->frame_buffer(level_.frame, level_.capacity);
    }
    level_.buffer[index] = number;
  }

  // An empty closure to fill, which is the spare one until a record has it: given_away().
  Closure& empty_closure() {
    if (spare_)
      spare_->clear();
    else
      spare_ = std::make_unique<Closure>();
    return *spare_;
  }
  Closure* spare() { return spare_.get(); }
  void given_away() { spare_.release(); }

  Types types;
  Position position;
  std::atomic<bool> runs_op{false};
  std::atomic<uint64_t> op_key{0};  // of that op
  Taping* taping = nullptr;    // of the operator that runs now, if others run inside of it (D4)
  Lending* lending = nullptr;  // to the operator that runs again now, if it might seed generators
  Beside* beside = nullptr;    // what that writes to
  uint32_t since_drain = 0;    // operators in the op log

  // While it exists, this thread has a frame of its own: an operator that runs now may need content
  // brought back that is none of its inputs.
  class Deeper : NotCopied {
   public:
    explicit Deeper(Thread& thread) : thread_(thread), outer_(thread.level_) {
      if (thread.depth_ == kDeepest)
        fail(DTR_STATE,
             "an operator that runs again needs the result of another one that is none of "
             "its arguments, and so on, " +
                 std::to_string(kDeepest) + " times: give such tensors as arguments");
      if (thread.unused_.empty()) thread.unused_.push_back(new_level());
      thread.level_ = thread.unused_.back();
      thread.unused_.pop_back();
      ++thread.depth_;
    }
    ~Deeper() {
      --thread_.depth_;
      thread_.unused_.push_back(thread_.level_);
      thread_.level_ = outer_;
    }

   private:
    static constexpr size_t kDeepest = 32;  // each takes some 10 KiB of the stack

    Thread& thread_;
    Level outer_;
  };

 private:
  static Level new_level() {
    Level level;
    const int32_t status = core->frame_create(engine(), &level.frame);
    if (status != DTR_OK) fail_with_last_error(status);
    return level;
  }

  Level level_ = new_level();
  std::vector<Level> unused_;
  size_t depth_ = 0;
  std::unique_ptr<Closure> spare_;
};

inline void Threads::hold(Thread& thread, int64_t longest_ns) {
  until_ = now() + longest_ns;
  alone_ = longest_ns > 0 ? &thread : nullptr;
}

inline std::vector<uint64_t> Threads::running(const Thread* thread) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<uint64_t> keys;
  for (const Thread* other : all_)
    if (other != thread && other->runs_op) keys.push_back(other->op_key);
  return keys;
}

// The core's op of a thread, from begin to end. What is neither ended nor began to run is undone.
class OpenOp : NotCopied {
 public:
  // tensors: how many of the numbers were put.
  OpenOp(Thread& thread, uint32_t tensors, uint32_t flags, uint64_t key)
      : thread_(thread), outer_runs_(thread.runs_op), outer_key_(thread.op_key), flags_(flags) {
    Places::instance().tell(thread.position);
    thread.op_key.store(key, std::memory_order_relaxed);
    thread.runs_op = true;
    // An operator inside of another one goes on: who ends the session waits for that one.
    while (!outer_runs_ && C10_UNLIKELY(Threads::instance().must_wait(&thread))) {
      thread.runs_op = false;
      sleep_without_gil(std::chrono::microseconds(200));
      thread.runs_op = true;
    }
    // The session may have ended meanwhile.
    if (!settings.capturing.load(std::memory_order_relaxed)) is_constant();
    need_ = core->op_begin(thread.frame(), tensors, flags_, key);
    if (need_ >= 0) return;
    ends();
    fail_with_last_error(-need_);
  }
  ~OpenOp() {
    if (open_) core->op_abort(thread_.frame(), started_);
    ends();
  }

  bool needs(int32_t what) const { return need_ & what; }
  void is_constant() { flags_ = 0; }
  bool recomputable() const { return flags_ & DTR_OP_RECOMPUTABLE; }
  void runs() { started_ = true; }
  // For the draws of its first run.
  Tape tape(Closure& closure) const {
    return {needs(DTR_GRAPH_IS_CAPTURED) ? nullptr : &closure.draws(), false};
  }

  // results: how many of the numbers were put.
  void end(uint32_t results) {
    constexpr int64_t kMeasured = -1;
    const int64_t id = core->op_end(thread_.frame(), results, flags_, kMeasured, thread_.spare());
    if (id > 0) thread_.given_away();
    if (id < 0) fail_with_last_error(static_cast<int32_t>(-id));
    open_ = false;
  }

 private:
  void ends() {
    thread_.op_key.store(outer_key_, std::memory_order_relaxed);
    thread_.runs_op.store(outer_runs_, std::memory_order_release);
  }

  Thread& thread_;
  bool outer_runs_;
  uint64_t outer_key_;
  uint32_t flags_;
  int32_t need_ = 0;
  bool open_ = true;
  bool started_ = false;
};

// Keeps tensors from being evicted.
class Pinned : NotCopied {
 public:
  Pinned() = default;
  ~Pinned() {
    for (const c10::Storage& storage : storages_)
      core->unpin(Thread::engine(), storage.unsafeGetStorageImpl());
  }

  // Its storage: one that is evicted stays so until somebody brings it back.
  void* add(const at::Tensor& tensor) {
    const int32_t status = core->pin(Thread::engine(), tensor.unsafeGetTensorImpl(), 0);
    if (status != DTR_OK) fail_with_last_error(status);
    storages_.push_back(tensor.storage());
    return storages_.back().unsafeGetStorageImpl();
  }

 private:
  c10::SmallVector<c10::Storage, 2> storages_;
};

// Lets operators that run inside of another one come by, to note their draws or draw them again.
class Taping : NotCopied {
 public:
  Taping(Thread& thread, Tape& tape)
      : tape(tape),
        thread_(thread),
        outer_(thread.taping),
        before_(c10::impl::tls_local_dispatch_key_set()),
        keys_(before_.included_ | settings.key(),
              (before_.excluded_ - settings.key()) | c10::DispatchKeySet(kInsideKey)) {
    thread.taping = this;
  }
  ~Taping() { thread_.taping = outer_; }

  Tape& tape;
  Pinned pinned;  // whose addresses the operator asked for

 private:
  Thread& thread_;
  Taping* outer_;
  c10::impl::LocalDispatchKeySet before_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

// The device whose generator an operator draws from if it is given none.
inline c10::Device device_of(const Rule& rule, const c10::IValue* arguments) {
  // What it is told goes before the device of a tensor whose shape alone it may want (rand_like).
  if (rule.device >= 0 && arguments[rule.device].isDevice())
    return arguments[rule.device].toDevice();
  std::optional<c10::Device> found;
  for_tensors(rule, arguments, [&](const at::Tensor& tensor) {
    if (!found) found = tensor.device();
  });
  return found.value_or(c10::Device(c10::kCPU));
}

// Runs an operator, whose arguments are on top of the stack, by run(). What it draws goes to the
// tape, or comes from it.
template <typename Run>
void run_drawing(Thread& thread, const Rule& rule, c10::Stack& stack, Tape& tape, Run&& run) {
  c10::IValue* arguments = stack.data() + stack.size() - rule.arguments;
  const auto draws_nothing = [&] {
    if (!rule.random || tape.is_off()) return true;
    if (rule.dropout >= 0 && arguments[rule.dropout].isDouble())
      return arguments[rule.dropout].toDouble() == 0;
    return false;
  };
  if (draws_nothing()) {
    run();
    return;
  }
  const c10::Device device = device_of(rule, arguments);
  if (!knows_generators_of(device)) {
    run();
  } else if (rule.generator >= 0) {
    Draw draw(tape, arguments[rule.generator], device);
    run();
    draw.commit();
  } else {
    std::optional<DirectDraw> direct;
    if (device.is_cuda()) direct.emplace(tape, device);
    const Taping taping(thread, tape);
    run();
  }
}

}  // namespace dtr_bridge
