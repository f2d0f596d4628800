// python.h: how the bridge reaches Python, without Python's headers.
//
// It calls functions of Python as operators that Python implements (dtr_alloc/torch/recorder.py):
// PyTorch takes the GIL, converts arguments and results, and carries exceptions in both directions.
// Whoever waits for one of the bridge's locks lets go of the GIL meanwhile, because the thread that
// holds the lock may be waiting for the GIL.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "objects.h"

namespace dtr_bridge {

// The functions of Python's C API that are needed, as ctypes finds them.
struct PythonApi {
  int (*gil_is_held)() = nullptr;                         // PyGILState_Check
  void* (*release_gil)() = nullptr;                       // PyEval_SaveThread
  void (*take_gil)(void*) = nullptr;                      // PyEval_RestoreThread
  int (*ensure_gil)() = nullptr;                          // PyGILState_Ensure
  void (*restore_gil)(int) = nullptr;                     // PyGILState_Release
  int (*is_subtype)(void*, void*) = nullptr;              // PyType_IsSubtype
  void* (*call)(void*, void*) = nullptr;                  // PyObject_CallObject
  void (*let_go)(void*) = nullptr;                        // Py_DecRef
  int (*read_bytes)(void*, char**, intptr_t*) = nullptr;  // PyBytes_AsStringAndSize
  void (*fetch_error)(void**, void**, void**) = nullptr;  // PyErr_Fetch
  void (*restore_error)(void*, void*, void*) = nullptr;   // PyErr_Restore
  void* (*dict_of)(void*, void*) = nullptr;               // PyObject_GenericGetDict
  int (*set_item)(void*, void*, void*) = nullptr;         // PyDict_SetItem
  void (*type_modified)(void*) = nullptr;                 // PyType_Modified
  int (*is_ending)() = nullptr;                           // Py_IsFinalizing
  int (*is_initialized)() = nullptr;                      // Py_IsInitialized
  void* parameter_type = nullptr;                         // torch.nn.Parameter
  uint64_t type_offset = 0;                               // of ob_type in every object
};

inline PythonApi python;

template <typename Mutex>
void lock_without_gil(Mutex& mutex) {
  if (mutex.try_lock()) return;
  if (!python.gil_is_held()) {
    mutex.lock();
    return;
  }
  void* state = python.release_gil();
  mutex.lock();
  python.take_gil(state);
}

template <typename Duration>
void sleep_without_gil(Duration duration) {
  void* state = python.gil_is_held() ? python.release_gil() : nullptr;
  std::this_thread::sleep_for(duration);
  if (state) python.take_gil(state);
}

// While it exists, nothing in Python runs but what this thread runs.
class HoldsGil : NotCopied {
 public:
  HoldsGil() : state_(python.ensure_gil()) {}
  ~HoldsGil() { python.restore_gil(state_); }

 private:
  int state_;
};

// What Python raised on this thread and C++ carries on as an error of its own, until Python asks
// for it (dtr_bridge_raise).
class Raised {
 public:
  static Raised& of_thread() {
    thread_local Raised raised;
    return raised;
  }

  // With the GIL held and an error set, which is none any more. call: what it is asked for by.
  void fetch(int64_t call) {
    drop();
    call_ = call;
    python.fetch_error(&parts_[0], &parts_[1], &parts_[2]);
  }

  // With the GIL held: sets the error of a call, if that was the last to raise.
  void restore(int64_t call) {
    if (!parts_[0] || call_ != call) return;
    python.restore_error(parts_[0], parts_[1], parts_[2]);
    parts_ = {};
  }

  // With the GIL held.
  void drop() {
    for (void*& part : parts_)
      if (void* old = std::exchange(part, nullptr)) python.let_go(old);
  }

 private:
  int64_t call_ = 0;
  std::array<void*, 3> parts_{};  // type, value, traceback
};

// Calls a Python object without arguments; the numbers in the bytes that it returns, none if it
// raised (see Raised; call is its number there). The caller has it kept alive.
inline std::optional<std::vector<int64_t>> call_object(void* object, int64_t call) {
  const HoldsGil gil;
  Raised::of_thread().drop();
  char* bytes = nullptr;
  intptr_t size = 0;
  void* returned = python.call(object, nullptr);
  if (!returned || python.read_bytes(returned, &bytes, &size) != 0) {
    Raised::of_thread().fetch(call);
    if (returned) python.let_go(returned);
    return std::nullopt;
  }
  std::vector<int64_t> numbers(static_cast<size_t>(size) / sizeof(int64_t));
  std::memcpy(numbers.data(), bytes, numbers.size() * sizeof(int64_t));
  python.let_go(returned);
  return numbers;
}

// The key at which operators are captured; the last resort is for a torch that uses it itself.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;
constexpr c10::DispatchKey kSecondKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// Excluded while operators run inside of another one that they are a part of. Nothing else uses it,
// so this says to Python where it is; and no exception can leave it so.
constexpr c10::DispatchKey kInsideKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// What is left to do for an operator once it was captured: choosing a backend, and kernels.
inline const c10::DispatchKeySet kKernels =
    c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey) -
    c10::DispatchKeySet(c10::DispatchKey::Python);

// While it exists, operators of this thread run as kernels only: without autograd, autocast,
// modes and transforms, and not captured.
class Unseen : NotCopied {
 public:
  Unseen()
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::DispatchKeySet(c10::DispatchKeySet::FULL) - kKernels),
        modes_(c10::impl::TorchDispatchModeTLS::get_state()),
        functions_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    c10::impl::TorchDispatchModeTLS::set_state({});
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::ALL_DISABLED);
  }
  ~Unseen() {
    c10::impl::TorchDispatchModeTLS::set_state(std::move(modes_));
    at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_);
  }

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::impl::TorchDispatchModeTLS modes_;
  at::impl::TorchFunctionDisabledState functions_;
};

// Calls dtr_alloc::<name>, which Python implements; the stack has its arguments, then its results.
// Not while the interpreter ends: its modules may be gone, and other threads do not get the GIL any
// more.
inline void call_python(const char* name, c10::Stack* stack) {
  TORCH_CHECK(!python.is_ending(), "dtr_alloc: ", name, " needs Python, which is ending");
  const std::string qualified = std::string("dtr_alloc::") + name;
  c10::Dispatcher::singleton().findSchemaOrThrow(qualified.c_str(), "").callBoxed(stack);
}

inline void call_python_unseen(const char* name, c10::Stack* stack) {
  const Unseen unseen;
  call_python(name, stack);
}

// Raises in Python the error of a status of the core, or of a failed heuristic
// (dtr_alloc/torch/recorder.py).
[[noreturn]] inline void fail(int32_t status, const std::string& message) {
  TORCH_CHECK(!python.is_ending(), message);
  c10::Stack stack{static_cast<int64_t>(status), message};
  call_python_unseen("fail", &stack);
  TORCH_CHECK(false, message);
}

}  // namespace dtr_bridge
