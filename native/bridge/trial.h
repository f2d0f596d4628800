// trial.h: operators that nobody vouches for, such as those of custom libraries: whether one repeats
// is found out by running it twice (dtr_alloc/torch/custom_operators.py says which are tried).
//
// Rules
//  T1  A trial is a call of the job that runs a second time at once, with what its closure kept: as
//      it would run after an eviction. It passes if both runs gave the same bits, in memory of
//      their own. What overwrites its arguments, or speaks to other processes, fails without that.
//  T2  Of each signature (shapes, types, and the values of what is no tensor) the first three calls
//      are tried. What passes can be evicted, the results of the trials among it.
//  T3  One trial that fails is enough: all later results of the operator are constants. What was
//      evicted before has passed.
//  T4  A trial takes memory for other results. Where that is not to be had, the call's results are
//      constants, and the next call is tried.
#pragma once

#include <ATen/ops/clone.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sum.h>
#include <c10/util/hash.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "repeat.h"

namespace dtr_bridge {

// Of a value: of a tensor all but what is in it.
inline uint64_t hash_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return 0;
    uint64_t hash = c10::get_hash(tensor.scalar_type(), tensor.sizes());
    const auto add = [&](const at::Tensor& part) {
      hash = c10::get_hash(hash, part.scalar_type(), part.sizes(), part.strides());
    };
    for_parts(tensor, add);
    return hash;
  }
  if (value.isList()) {
    uint64_t hash = value.toListRef().size();
    for (const c10::IValue& part : value.toListRef()) hash = c10::hash_combine(hash, hash_of(part));
    return hash;
  }
  if (value.isInt()) return c10::get_hash(value.toInt());
  if (value.isDouble()) return c10::get_hash(value.toDouble());
  if (value.isBool()) return c10::get_hash(value.toBool());
  return value.isString() ? c10::get_hash(value.toStringRef()) : 0;
}

// Of a call, by its arguments.
inline uint64_t signature_of(const c10::IValue* arguments, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; ++i) hash = c10::hash_combine(hash, hash_of(arguments[i]));
  return hash;
}

// Construct, run the operator, ask outcome().
class Trial {
 public:
  // Why it failed; empty: it did not. unknown: there was no memory for it.
  struct Outcome {
    bool unknown = false;
    std::string fault;
    bool passed() const { return !unknown && fault.empty(); }
  };

  // The arguments are resident; the closure has kept them.
  Trial(Thread& thread, const Rule& rule, const c10::IValue* arguments, Closure& closure)
      : thread_(thread), closure_(closure) {
    const Unseen unseen;
    for_tensors(rule, arguments, [&](const at::Tensor& tensor) {
      for_parts(tensor, [&](const at::Tensor& part) {
        plain_ = plain_ && is_plain(part);
        if (!plain_) return;
        tensors_.push_back(Repeater::alone(part));
        before_.push_back(sum_of(part));
      });
    });
  }

  // tape, results: of the first run.
  Outcome outcome(const Tape& tape, const c10::IValue* results, size_t count) {
    const Unseen unseen;
    if (!plain_) return {false, "is given what is no plain tensor"};
    // Before it runs once more than the job wanted.
    if (tape.lasts()) return {false, "calls torch.distributed"};
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (sum_of(tensors_[i]) != before_[i])
        return {false, "overwrites an argument, of which its schema says nothing"};
    for (size_t i = 0; i < count; ++i) Repeater::add_results(results[i], &first_, true);
    c10::Stack stack{reinterpret_cast<int64_t>(this)};
    call_python("try_again", &stack);
    const std::string error = stack.back().toStringRef();
    if (error == "OutOfMemoryError") return {true, ""};
    if (!error.empty()) return {false, "failed with " + error + " when it ran again"};
    return {false, alike_ ? "" : "gave other results when it ran again on the same arguments"};
  }

  // By way of Python, which knows its errors.
  void run_again() {
    std::vector<at::Tensor> again;
    for (const c10::IValue& result : Repeater(thread_).repeat(closure_, tensors_))
      Repeater::add_results(result, &again, true);
    alike_ = first_.size() == again.size();
    for (size_t i = 0; alike_ && i < first_.size(); ++i) alike_ = are_alike(first_[i], again[i]);
  }

 private:
  static bool is_plain(const at::Tensor& tensor) {
    return lies_in_storage(tensor) && !tensor.is_quantized();
  }

  // The bytes from the first element to the last.
  static at::Tensor span(const at::Tensor& tensor) {
    const auto size = static_cast<int64_t>(tensor.element_size());
    int64_t elements = tensor.numel() > 0;
    for (int64_t d = 0; elements && d < tensor.dim(); ++d)
      elements += (tensor.size(d) - 1) * tensor.stride(d);
    return Repeater::over(tensor.storage(), c10::kByte, {elements * size}, {1},
                          tensor.storage_offset() * size);
  }

  // Of the bytes; it takes no memory to speak of. On other devices than the CPU it says nothing of
  // their order.
  static uint64_t sum_of(const at::Tensor& tensor) {
    const at::Tensor bytes = span(tensor);
    if (!bytes.is_cpu()) return static_cast<uint64_t>(bytes.sum(c10::kLong).item().toLong());
    return std::hash<std::string_view>()(
        {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())});
  }

  static bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
    if (a.is_non_overlapping_and_dense()) return span(a).equal(span(b));
    // What lies between elements is nobody's.
    const at::MemoryFormat dense = at::MemoryFormat::Contiguous;
    return span(Repeater::alone(a).clone(dense)).equal(span(Repeater::alone(b).clone(dense)));
  }

  bool are_alike(const at::Tensor& a, const at::Tensor& b) const {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    if (!is_plain(a) || !is_plain(b) || a.scalar_type() != b.scalar_type() ||
        a.device() != b.device() || a.sizes() != b.sizes() || a.strides() != b.strides() ||
        a.storage_offset() != b.storage_offset() || a.storage().nbytes() != b.storage().nbytes())
      return false;
    for (const at::Tensor& argument : tensors_)
      if (a.storage().is_alias_of(argument.storage())) return false;
    // The same memory twice is the operator's own.
    return !a.storage().is_alias_of(b.storage()) && same_bytes(a, b);
  }

  Thread& thread_;
  Closure& closure_;
  bool plain_ = true;                // so are all arguments
  std::vector<at::Tensor> tensors_;  // the arguments
  std::vector<uint64_t> before_;     // sum_of() each
  std::vector<at::Tensor> first_;    // results
  bool alike_ = false;               // so are those of the second run
};

}  // namespace dtr_bridge
