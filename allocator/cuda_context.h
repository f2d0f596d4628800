// A device's context for the length of a call, and of a driver.
#pragma once

#include "cuda_api.h"
#include "not_copied.h"

namespace dtr {

// The device's primary context, which PyTorch and CuPy use too.
class PrimaryContext : NotCopied {
 public:
  PrimaryContext(const CudaApi& cuda, CuDevice device) : cuda_(cuda), device_(device) {
    cuda_.check(cuda_.primary_retain(&context_, device), "cuDevicePrimaryCtxRetain");
  }
  ~PrimaryContext() { cuda_.primary_release(device_); }
  CuContext get() const { return context_; }

 private:
  const CudaApi& cuda_;
  CuDevice device_;
  CuContext context_ = nullptr;
};

// Makes a context current on this thread for a scope, and lets the thread call what a stream
// capture of the process would forbid: nothing that we call becomes part of a capture, unless it
// is queued on a stream that is being captured.
class CurrentContext : NotCopied {
 public:
  CurrentContext(const CudaApi& cuda, CuContext context) : cuda_(cuda) {
    cuda_.check(cuda_.exchange_capture_mode(&capture_mode_), "cuThreadExchangeStreamCaptureMode");
    try {
      cuda_.check(cuda_.context_get(&before_), "cuCtxGetCurrent");
      if (before_ == context) return;
      cuda_.check(cuda_.context_set(context), "cuCtxSetCurrent");
      changed_ = true;
    } catch (...) {
      cuda_.exchange_capture_mode(&capture_mode_);
      throw;
    }
  }
  ~CurrentContext() {
    if (changed_) cuda_.context_set(before_);
    cuda_.exchange_capture_mode(&capture_mode_);
  }

 private:
  const CudaApi& cuda_;
  CuContext before_ = nullptr;
  bool changed_ = false;
  int capture_mode_ = kCaptureModeRelaxed;  // inside the scope: the one to go back to
};

}  // namespace dtr
