// surroundings.h: what a kernel sees besides its arguments, kept with the first run of an operator
// and put back when it runs again. Kernels call operators, which look at it in their turn. All of
// it stands in one table in context.h.
#pragma once

#include <c10/core/GradMode.h>

#include "context.h"

// Of ATen/autocast_mode.h, which takes seconds to compile.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device);
TORCH_API void set_autocast_dtype(at::DeviceType device, at::ScalarType dtype);
}  // namespace at::autocast

namespace dtr_bridge {

class Surroundings {
 public:
  // Of this thread now. keys: of the operator itself, below the capture.
  void keep(c10::DispatchKeySet keys, c10::DeviceType device) {
    keys_ = keys;
    excluded_ = c10::impl::tls_local_dispatch_key_set().excluded_;
    grad_ = c10::GradMode::is_enabled();
    context_ = ContextState::now();
    device_ = device;
    if (has_autocast()) autocast_ = at::autocast::get_autocast_dtype(device);
  }

  c10::DispatchKeySet keys() const { return keys_; }

  // Puts them back while it exists; transforms and modes of the first run are gone, as it was
  // captured below them.
  class Restored : NotCopied {
   public:
    explicit Restored(const Surroundings& of)
        : keys_(c10::DispatchKeySet(
                    {c10::DispatchKey::BackendSelect, c10::DispatchKey::ADInplaceOrView}),
                of.excluded_ | kNeverAgain),
          grad_(of.grad_),
          context_(of.context_),
          device_(of.device_) {
      if (!of.has_autocast()) return;
      before_ = at::autocast::get_autocast_dtype(device_);
      if (*before_ != of.autocast_) at::autocast::set_autocast_dtype(device_, of.autocast_);
    }
    ~Restored() {
      if (before_) at::autocast::set_autocast_dtype(device_, *before_);
    }

   private:
    c10::impl::ForceDispatchKeyGuard keys_;
    c10::AutoGradMode grad_;
    ContextState::Restored context_;
    c10::DeviceType device_;
    std::optional<c10::ScalarType> before_;
  };

 private:
  static constexpr c10::DispatchKeySet kNeverAgain{kKey,
                                                   c10::DispatchKey::Python,
                                                   c10::DispatchKey::PythonTLSSnapshot,
                                                   c10::DispatchKey::PythonDispatcher,
                                                   c10::DispatchKey::PreDispatch,
                                                   c10::DispatchKey::Functionalize,
                                                   c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
                                                   c10::DispatchKey::FuncTorchDynamicLayerBackMode};

  // A device's autocast is on unless its key is excluded.
  bool has_autocast() const {
    return !excluded_.has(device_ == c10::kCUDA ? c10::DispatchKey::AutocastCUDA
                                                : c10::DispatchKey::AutocastCPU);
  }

  c10::DispatchKeySet keys_;
  c10::DispatchKeySet excluded_;
  bool grad_ = true;  // oneDNN's RNN returns its workspace only in grad mode
  const ContextState* context_ = nullptr;
  c10::DeviceType device_ = c10::kCPU;
  c10::ScalarType autocast_ = c10::kBFloat16;
};

}  // namespace dtr_bridge
