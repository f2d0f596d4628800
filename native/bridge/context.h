// context.h: the settings of the process and of a thread that kernels look at, as one value.
//
// A setting can change between an operator's first run and a later one, so that the later one
// would give other bits. What is looked at, kept and put back:
//
//   setting, as Python calls it                           where it is              whose it is
//   ----------------------------------------------------  -----------------------  ------------
//   set_float32_matmul_precision, *.fp32_precision,       at::Context              the process's
//     allow_tf32, reduced-precision reductions
//   backends.cudnn.enabled, benchmark, deterministic      at::Context              the process's
//   backends.mkldnn.enabled, deterministic, nnpack        at::Context              the process's
//   use_deterministic_algorithms, fill_uninitialized_     at::Context              the process's
//     memory
//   backends.cuda.enable_*_sdp, nn.attention.sdpa_kernel  at::Context              the process's
//   preferred_linalg_library, preferred_blas_library,     at::Context              the process's
//     backends.quantized.engine
//   set_default_dtype                                     c10                      the process's
//   set_num_threads                                       ATen/Parallel.h          the thread's
//   set_flush_denormal                                    control register         the thread's
//   grad mode, autocast's dtype, excluded keys            surroundings.h           the thread's
//
// Autocast's cache is none of them: a repeated run is below autocast, on tensors that it does not
// cache. Environment variables are read once by PyTorch and cannot change.
//
// All that at::Context has is kept, whatever is added to it. Its setters complain where old and new
// settings are mixed, so its members are copied as they are.
//
// Upstream contract: ATen/Context.h: between init_ and fp32_precision stand members that may be
// copied as bytes; entries of fp32_precision are never removed.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DefaultDtype.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "python.h"

namespace dtr_bridge {

// A private member is named as in torch_bridge.cpp: a torch without it is an error of the compiler.
template <auto Member>
struct Precisions {
  friend auto& precisions_of(at::Context& context) { return context.*Member; }
};
auto& precisions_of(at::Context& context);
template struct Precisions<&at::Context::fp32_precision>;

// What makes denormal numbers zero, in this thread's control register.
class Denormals {
 public:
#if defined(__SSE__)
  static uint32_t now() { return _mm_getcsr() & kFlushes; }
  static void put(uint32_t flushes) { _mm_setcsr((_mm_getcsr() & ~kFlushes) | flushes); }

 private:
  static constexpr uint32_t kFlushes = 0x8040;  // flush to zero, denormals are zero
#elif defined(__aarch64__)
  static uint32_t now() { return static_cast<uint32_t>(read() & kFlushes); }
  static void put(uint32_t flushes) {
    const uint64_t control = (read() & ~kFlushes) | flushes;
    asm volatile("msr fpcr, %0" : : "r"(control));
  }

 private:
  static constexpr uint64_t kFlushes = 1 << 24;
  static uint64_t read() {
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
#else
  static uint32_t now() { return 0; }
  static void put(uint32_t) {}
#endif
};

// The settings at one time. Equal ones are one object, which stays for good: a job has few.
class ContextState {
 public:
  // Of this thread now.
  static const ContextState* now() {
    Lending& lending = Lending::instance();
    if (lending.to_repeat.load(std::memory_order_acquire)) {
      lock_without_gil(lending.mutex);
      lending.mutex.unlock();
    }
    thread_local const ContextState* last = nullptr;
    if (!last || !last->is_now()) last = find();
    return last;
  }

  // Puts settings back while it exists, where they differ. While the process's are put, operators
  // that begin on other threads wait; one that runs there already may see them.
  class Restored : NotCopied {
   public:
    explicit Restored(const ContextState* state) : before_(now()), put_(state) {
      if (before_ == put_) return;
      if (!before_->is_same_process(*put_)) {
        Lending& lending = Lending::instance();
        lock_without_gil(lending.mutex);
        lock_ = std::unique_lock(lending.mutex, std::adopt_lock);
        lending.to_repeat.store(true, std::memory_order_release);
      }
      put_->put_over(*before_);
    }
    ~Restored() {
      if (before_ == put_) return;
      before_->put_over(*put_);
      if (lock_) Lending::instance().to_repeat.store(false, std::memory_order_release);
    }

   private:
    const ContextState* before_;
    const ContextState* put_;
    std::unique_lock<std::recursive_mutex> lock_;
  };

 private:
  // Whether an operator that runs again has put the process's settings as it needs them.
  struct Lending {
    static Lending& instance() { return only<Lending>(); }
    std::recursive_mutex mutex;
    std::atomic<bool> to_repeat{false};
  };

  // Where at::Context has its members.
  struct Layout {
    static const Layout& instance() { return only<Layout>(); }
    Layout() {
      at::Context& context = at::globalContext();
      auto& entries = precisions_of(context);
      auto* base = reinterpret_cast<char*>(&context);
      members = base + sizeof(std::array<c10::once_flag, at::COMPILE_TIME_MAX_DEVICE_TYPES>);
      size = static_cast<size_t>(reinterpret_cast<char*>(&entries) - members);
      for (auto& entry : entries) precisions.push_back(&entry.second);
    }
    char* members;
    size_t size;
    std::vector<at::Float32Precision*> precisions;
  };

  ContextState() {
    const Layout& layout = Layout::instance();
    members_.assign(layout.members, layout.members + layout.size);
    for (const at::Float32Precision* precision : layout.precisions)
      precisions_.push_back(*precision);
    default_dtype_ = c10::get_default_dtype_as_scalartype();
    threads_ = at::get_num_threads();
    denormals_ = Denormals::now();
  }

  bool is_now() const {
    const Layout& layout = Layout::instance();
    if (std::memcmp(members_.data(), layout.members, layout.size) != 0) return false;
    for (size_t i = 0; i < precisions_.size(); ++i)
      if (precisions_[i] != *layout.precisions[i]) return false;
    return default_dtype_ == c10::get_default_dtype_as_scalartype() &&
           threads_ == at::get_num_threads() && denormals_ == Denormals::now();
  }

  static const ContextState* find() {
    const std::lock_guard<std::mutex> lock(only<std::mutex, ContextState>());
    auto& known = only<std::deque<ContextState>>();
    const ContextState now;
    for (const ContextState& state : known)
      if (state.is_same_process(now) && state.is_same_thread(now)) return &state;
    known.push_back(now);
    return &known.back();
  }

  bool is_same_process(const ContextState& other) const {
    return members_ == other.members_ && precisions_ == other.precisions_ &&
           default_dtype_ == other.default_dtype_;
  }

  bool is_same_thread(const ContextState& other) const {
    return threads_ == other.threads_ && denormals_ == other.denormals_;
  }

  // Puts what differs from the settings that were there. What somebody has changed since stays.
  void put_over(const ContextState& there) const {
    const Layout& layout = Layout::instance();
    for (size_t i = 0; i < layout.size; ++i)
      if (members_[i] != there.members_[i] && layout.members[i] == there.members_[i])
        layout.members[i] = members_[i];
    for (size_t i = 0; i < precisions_.size(); ++i)
      if (*layout.precisions[i] == there.precisions_[i]) *layout.precisions[i] = precisions_[i];
    if (default_dtype_ != there.default_dtype_)
      c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_dtype_));
    if (threads_ != there.threads_) at::set_num_threads(threads_);
    if (denormals_ != there.denormals_) Denormals::put(denormals_);
  }

  std::vector<char> members_;
  std::vector<at::Float32Precision> precisions_;
  c10::ScalarType default_dtype_;
  int threads_;
  uint32_t denormals_;
};

}  // namespace dtr_bridge
