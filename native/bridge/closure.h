// closure.h: what repeats an operator: its handle, and its arguments without the tensors that the
// engine knows. It keeps no tensor of the job alive.
#pragma once

#include <ATen/ScalarOps.h>
#include <c10/util/SmallVector.h>

#include <utility>
#include <vector>

#include "draws.h"
#include "rules.h"
#include "sparse.h"
#include "surroundings.h"

namespace dtr_bridge {

// Whether the engine hears of a tensor. Numbers among an operator's arguments ("x + 1") are tensors
// for the dispatcher; they are kept as numbers.
inline bool is_for_engine(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// Calls visit(tensor) for each tensor of an argument that the engine hears of, in order.
template <typename Visit>
void for_tensors(const c10::IValue& argument, Visit&& visit) {
  if (argument.isTensor()) {
    if (is_for_engine(argument.toTensor())) visit(argument.toTensor());
  } else if (argument.isList()) {
    for (const c10::IValue& part : argument.toListRef()) for_tensors(part, visit);
  }
}

// Of an operator's arguments, or of the values on a stack from base on.
template <typename Visit>
void for_tensors(const Rule& rule, const c10::IValue* arguments, Visit&& visit) {
  for (const TensorArgument& of : rule.tensors) for_tensors(arguments[of.position], visit);
}
template <typename Visit>
void for_tensors(const c10::Stack& stack, size_t base, Visit&& visit) {
  for (size_t i = base; i < stack.size(); ++i) for_tensors(stack[i], visit);
}

// Whether what a tensor holds lies in its storage.
inline bool lies_in_storage(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() &&
         !tensor.unsafeGetTensorImpl()->is_python_dispatch();
}

// Nothing needs a call of Python's any more (dtr_bridge_dropped_calls).
void drop_call(int64_t call);

class Closure : NotCopied {
 public:
  Closure() = default;
  ~Closure() { clear(); }

  void clear() {
    rule_ = nullptr;
    if (python_) drop_call(std::exchange(python_, 0));
    arguments_.clear();
    by_value_.clear();
    draws_.clear();
  }

  // The arguments of an operator, on top of the stack.
  void keep(const Rule& rule, const c10::Stack& stack) {
    rule_ = &rule;
    auto next = rule.tensors.begin();
    const c10::IValue* arguments = stack.data() + stack.size() - rule.arguments;
    for (uint32_t i = 0; i < rule.arguments; ++i)
      if (next != rule.tensors.end() && next->position == i)
        arguments_.push_back(without_tensors(arguments[i], next++->list == ListOf::tensors));
      else
        arguments_.push_back(arguments[i]);
  }

  // What Python keeps under a number, until the closure is emptied or goes.
  void keep(int64_t python) { python_ = python; }

  // The value of the index-th tensor, which is on a device that is not managed.
  void keep_by_value(size_t index, at::Tensor copy) {
    by_value_.emplace_back(index, std::move(copy));
  }

  // An operator that was told "cuda" ran on the device that was the current one then.
  void ran_on(c10::Device device) {
    if (!rule_ || rule_->device < 0) return;
    c10::IValue& told = arguments_[rule_->device];
    if (told.isDevice() && told.toDevice().type() == device.type()) told = device;
  }

  const Rule* rule() const { return rule_; }
  // Whether it runs code that is not PyTorch's own.
  bool is_of_others() const { return !rule_ || rule_->of_others; }
  int64_t python() const { return python_; }
  Surroundings& surroundings() { return surroundings_; }
  std::vector<Drawn>& draws() { return draws_; }

  // The arguments, on an empty stack, with tensors in their places, in order.
  c10::Stack arguments(std::vector<at::Tensor> tensors) const {
    for (const auto& [index, tensor] : by_value_) tensors[index] = tensor;
    c10::Stack filled(arguments_.begin(), arguments_.end());
    auto next = tensors.cbegin();
    const auto one = [&](const c10::IValue& kept) -> at::Tensor {
      if (kept.isCapsule())
        return static_cast<const SparseShape*>(kept.toCapsule().get())->over(next);
      if (kept.isTensor()) return kept.toTensor();
      if (kept.isDouble()) return at::native::wrapped_scalar_tensor(kept.toDouble());
      if (kept.isInt()) return at::native::wrapped_scalar_tensor(kept.toInt());
      if (kept.isBool()) return at::native::wrapped_scalar_tensor(kept.toBool());
      return *next++;
    };
    for (const TensorArgument& of : rule_->tensors) {
      c10::IValue& kept = filled[of.position];
      if (of.list == ListOf::none) {
        if (!kept.isNone()) kept = one(kept);
      } else if (of.list == ListOf::tensors) {
        c10::List<at::Tensor> list;
        if (kept.isInt())
          for (int64_t i = kept.toInt(); i > 0; --i) list.push_back(*next++);
        else
          for (const c10::IValue& part : kept.toListRef()) list.push_back(one(part));
        kept = std::move(list);
      } else if (kept.isList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const c10::IValue& part : kept.toListRef())
          list.push_back(part.isNone() ? std::nullopt : std::make_optional(one(part)));
        kept = std::move(list);
      }
    }
    return filled;
  }

 private:
  // A tensor that the engine hears of becomes the mark IValue::uninitialized(), a number the
  // number, and a list of such tensors alone their count. Of a sparse tensor its shape is kept.
  static c10::IValue forgotten(const at::Tensor& tensor) {
    if (is_for_engine(tensor))
      return is_sparse(tensor) ? c10::IValue::make_capsule(c10::make_intrusive<SparseShape>(tensor))
                               : c10::IValue::uninitialized();
    if (!tensor.defined()) return tensor;
    switch (tensor.scalar_type()) {
      case c10::kDouble:
        return *static_cast<const double*>(tensor.const_data_ptr());
      case c10::kLong:
        return *static_cast<const int64_t*>(tensor.const_data_ptr());
      case c10::kBool:
        return *static_cast<const bool*>(tensor.const_data_ptr());
      default:
        return tensor;
    }
  }

  static c10::IValue without_tensors(const c10::IValue& argument, bool counts) {
    if (argument.isTensor()) return forgotten(argument.toTensor());
    if (!argument.isList()) return argument;
    const c10::ArrayRef<c10::IValue> parts = argument.toListRef();
    for (const c10::IValue& part : parts)
      counts &= part.isTensor() && is_for_engine(part.toTensor()) && !is_sparse(part.toTensor());
    if (counts) return static_cast<int64_t>(parts.size());
    c10::impl::GenericList kept(c10::AnyType::get());
    kept.reserve(parts.size());
    for (const c10::IValue& part : parts)
      kept.push_back(part.isTensor() ? forgotten(part.toTensor()) : part);
    return kept;
  }

  const Rule* rule_ = nullptr;  // null: Python's
  int64_t python_ = 0;
  Surroundings surroundings_;
  c10::SmallVector<c10::IValue, 6> arguments_;
  std::vector<std::pair<size_t, at::Tensor>> by_value_;
  std::vector<Drawn> draws_;
};

}  // namespace dtr_bridge
