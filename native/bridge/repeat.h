// repeat.h: running operators again, to bring evicted content back (which: run/rematerializer.cpp).
//
// A repeated operator sees nothing of what surrounds it, but what the kernel saw in its first run
// (surroundings.h).
#pragma once

#include <ATen/ops/empty_strided.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "thread.h"

namespace dtr_bridge {

// One rematerialization at a time; whoever waits lets go of the GIL.
class Turn : NotCopied {
 public:
  Turn() { lock_without_gil(mutex()); }
  ~Turn() { mutex().unlock(); }

  // In a forked child, where whoever had it is not.
  static void renew() { new (&mutex()) std::recursive_mutex(); }

 private:
  static std::recursive_mutex& mutex() { return only<std::recursive_mutex, Turn>(); }
};

// An operator of others that runs again may write to what it was neither given nor has made, such as
// a buffer of its own that it gave to the job: when it has run, that stands as it stood before.
class Beside : NotCopied {
 public:
  Beside(Beside*& of_thread, const std::vector<at::Tensor>& arguments)
      : of_thread_(of_thread), outer_(of_thread) {
    of_thread = this;
    for (const at::Tensor& argument : arguments) made(argument);
  }
  ~Beside() {
    of_thread_ = outer_;
    for (const auto& [bytes, before] : saved_) bytes.copy_(before);
  }

  // By an operator inside.
  void made(const at::Tensor& tensor) {
    if (tensor.defined() && lies_in_storage(tensor))
      own_.insert(tensor.storage().unsafeGetStorageImpl());
  }
  // An operator inside is about to write to it; it is resident.
  void writes(const at::Tensor& tensor) {
    if (!lies_in_storage(tensor) || !own_.insert(tensor.storage().unsafeGetStorageImpl()).second)
      return;
    const Unseen unseen;
    const at::Tensor bytes = bytes_of(tensor.storage());
    saved_.emplace_back(bytes, bytes.clone());
  }

  static at::Tensor bytes_of(const c10::Storage& storage);

 private:
  Beside*& of_thread_;
  Beside* outer_;
  std::unordered_set<const c10::StorageImpl*> own_;  // given, made or saved
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
};

// Uses of tensors in the description of a step (dtr/framework.h, remat_next).
enum class StepUse : int64_t { by_value = 5 };

class Repeater {
 public:
  explicit Repeater(Thread& thread) : thread_(thread), frame_(thread.frame()) {}

  // Brings in what the op that was begun needs before it may run.
  void prepare() {
    const Turn turn;
    while (in_core([&] { return core->op_prepare(frame_); })) run();
  }

  // Makes a storage resident, if it is evicted. The caller keeps it alive.
  void bring_back(void* handle) {
    const Turn turn;
    if (in_core([&] { return core->remat_want(frame_, handle); })) run();
  }

  // Computes what depends on tensors, given by their addresses, as before an operator that
  // overwrites them all.
  void settle(const std::vector<int64_t>& tensors) {
    const Turn turn;
    const auto count = static_cast<uint32_t>(tensors.size());
    const auto wants = [&] {
      for (uint32_t i = 0; i < count; ++i) thread_.put(i, tensors[i]);
      return in_core([&] { return core->settle(frame_, count); });
    };
    while (wants()) run();
  }

  void bring_back_all() {
    const Turn turn;
    try {
      while (in_core([&] { return core->remat_want_any(frame_); })) run();
    } catch (...) {
      core->remat_abort(frame_);  // nothing is kept any more
      throw;
    }
  }

  // Runs a closure on these tensors. In the scope of an Unseen.
  c10::Stack repeat(Closure& closure, const std::vector<at::Tensor>& tensors) {
    const Surroundings::Restored surroundings(closure.surroundings());
    const Thread::Deeper deeper(thread_);
    std::optional<Lending> lending;
    if (closure.is_of_others()) lending.emplace(thread_.lending, settings.device);
    Tape tape(&closure.draws(), true);
    return closure.rule() ? run_operator(closure, tensors, tape)
                          : run_python(closure, tensors, tape);
  }

  // What an operator has given. in_parts: as those that a sparse tensor is made of.
  static void add_results(const c10::IValue& result, std::vector<at::Tensor>* out, bool in_parts) {
    const auto add = [&](const at::Tensor& tensor) { out->push_back(tensor); };
    if (result.isTensor()) {
      const at::Tensor& tensor = result.toTensor();
      if (!(in_parts && tensor.defined() && for_components(tensor, add))) add(tensor);
    } else if (result.isList()) {
      for (const c10::IValue& part : result.toListRef()) add_results(part, out, in_parts);
    } else {
      out->emplace_back();
    }
  }

  static at::Tensor over(const c10::Storage& storage, c10::ScalarType type, c10::IntArrayRef sizes,
                         c10::IntArrayRef strides, int64_t offset) {
    const c10::DispatchKey key = c10::computeDispatchKey(type, c10::kStrided, storage.device());
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    return tensor;
  }

  // Without what autograd and Python know of it.
  static at::Tensor alone(const at::Tensor& tensor) { return alone(tensor, tensor.storage()); }

 private:
  static at::Tensor alone(const at::Tensor& tensor, const c10::Storage& storage) {
    at::Tensor made = over(storage, tensor.scalar_type(), tensor.sizes(), tensor.strides(),
                           tensor.storage_offset());
    made.unsafeGetTensorImpl()->_set_conj(tensor.is_conj());
    made.unsafeGetTensorImpl()->_set_neg(tensor.is_neg());
    return made;
  }

  // What a function of the core answers, if that is not a failure.
  template <typename Call>
  static int64_t in_core(Call&& call) {
    const int64_t answer = call();
    if (answer < 0) fail_with_last_error(static_cast<int32_t>(-answer));
    return answer;
  }

  // Runs the frame's stack until it is empty.
  void run() {
    struct Repeating {
      const bool outer = std::exchange(repeats, true);
      ~Repeating() { repeats = outer; }
    } const repeating;
    try {
      const Unseen unseen;
      while (in_core([&] { return core->remat_next(frame_); }))
        step(*static_cast<Closure*>(core->step_closure(frame_)));
    } catch (...) {
      core->remat_abort(frame_);
      throw;
    }
  }

  void step(Closure& closure) {
    if (settings.repeats_left >= 0 && settings.repeats_left-- == 0) {
      settings.repeats_left = 0;
      fail(DTR_STATE, "more operators were run again than limit_rematerializations() allows");
    }
    const std::vector<at::Tensor> arguments = rebuild();
    std::vector<at::Tensor> results;
    {
      std::optional<Beside> beside;
      if (closure.is_of_others()) beside.emplace(thread_.beside, arguments);
      for (const c10::IValue& result : repeat(closure, arguments))
        add_results(result, &results, closure.rule() != nullptr);
      if (beside) part_from_others(arguments, &results);
    }
    const size_t count = arguments.size() + results.size();
    int64_t* numbers = core->frame_step(frame_, count);
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& tensor =
          i < arguments.size() ? arguments[i] : results[i - arguments.size()];
      numbers[i] = tensor.defined() ? reinterpret_cast<int64_t>(tensor.unsafeGetTensorImpl()) : 0;
    }
    const int32_t status = core->remat_commit(frame_, static_cast<uint32_t>(arguments.size()),
                                              static_cast<uint32_t>(results.size()));
    if (status < 0) fail_commit(closure, -status);
  }

  // A result that an operator of others keeps, too, or has given before, stays that operator's: the
  // engine gets a copy.
  static void part_from_others(const std::vector<at::Tensor>& arguments,
                               std::vector<at::Tensor>* results) {
    const auto aliases = [](const at::Tensor& tensor, const std::vector<at::Tensor>& others) {
      return std::ranges::count_if(others, [&](const at::Tensor& other) {
        return other.defined() && other.has_storage() && other.is_alias_of(tensor);
      });
    };
    for (at::Tensor& result : *results)
      if (result.defined() && lies_in_storage(result)) result = alone(result);
    for (at::Tensor& result : *results) {
      if (!result.defined() || !lies_in_storage(result) || aliases(result, arguments) > 0) continue;
      const auto ours = static_cast<size_t>(aliases(result, *results));
      if (result.storage().use_count() > ours) result = alone(result, copy_of(result.storage()));
    }
  }

  c10::Stack run_operator(Closure& closure, const std::vector<at::Tensor>& tensors, Tape& tape) {
    const Rule& rule = *closure.rule();
    c10::Stack stack = closure.arguments(tensors);
    run_drawing(thread_, rule, stack, tape,
                [&] { rule.op.redispatchBoxed(closure.surroundings().keys(), &stack); });
    return stack;
  }

  c10::Stack run_python(const Closure& closure, const std::vector<at::Tensor>& tensors,
                        Tape& tape) {
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& tensor : tensors)
      list.push_back(tensor.defined() ? std::make_optional(tensor) : std::nullopt);
    c10::Stack stack{closure.python(), std::move(list)};
    const Taping taping(thread_, tape);
    call_python("execute", &stack);
    return stack;
  }

  [[noreturn]] static void fail_commit(const Closure& closure, int32_t status) {
    std::string message = core->last_error();
    if (message.rfind("verify:", 0) == 0)
      message +=
          ". Its kernel may be nondeterministic, or read what is not captured: try "
          "torch.use_deterministic_algorithms(True), or pin() its result";
    fail(status,
         (closure.rule() ? closure.rule()->name() : "an operator of Python") + ": " + message);
  }

  // The argument tensors of a step, from its description (layout: remat_next). Undefined
  // where the closure has the value.
  std::vector<at::Tensor> rebuild() {
    const int64_t* at = core->frame_step(frame_, 0);
    std::vector<c10::Storage> storages(static_cast<size_t>(*at++));
    for (c10::Storage& storage : storages) {
      storage = hold(reinterpret_cast<void*>(*at++));
      if (*at++) storage = copy_of(storage);
    }
    // Where what is only written to belongs, if no other argument says it.
    const c10::Device home =
        storages.empty() ? c10::Device(settings.device,
                                       static_cast<c10::DeviceIndex>(core->frame_device(frame_)))
                         : storages[0].device();
    std::vector<at::Tensor> tensors(static_cast<size_t>(*at++));
    for (at::Tensor& tensor : tensors) {
      const auto use = static_cast<StepUse>(*at++);
      const int64_t edge = *at++;
      const auto type = static_cast<c10::ScalarType>(*at++);
      const int64_t flags = *at++;
      const int64_t offset = *at++;
      const auto dims = static_cast<size_t>(*at++);
      const c10::IntArrayRef sizes(at, dims), strides(at + dims, dims);
      at += 2 * dims;
      if (use == StepUse::by_value) continue;
      if (edge < -1) {
        const auto whole =
            at::empty_strided({-edge}, {1}, c10::TensorOptions(home).dtype(c10::kByte));
        tensor = over(whole.storage(), type, sizes, strides, offset);
      } else if (edge < 0) {
        // Overwritten or empty: only its shape counts.
        tensor = at::empty_strided(sizes, strides, c10::TensorOptions(home).dtype(type));
      } else {
        tensor = over(storages[static_cast<size_t>(edge)], type, sizes, strides, offset);
      }
      if (flags & DTR_TENSOR_CONJ) tensor.unsafeGetTensorImpl()->_set_conj(true);
      if (flags & DTR_TENSOR_NEG) tensor.unsafeGetTensorImpl()->_set_neg(true);
    }
    return tensors;
  }

  // An input's, which the engine holds while the step runs.
  static c10::Storage hold(void* handle) {
    return c10::Storage(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(static_cast<c10::StorageImpl*>(handle)));
  }

  static c10::Storage copy_of(const c10::Storage& storage) {
    return Beside::bytes_of(storage).clone().storage();
  }

  Thread& thread_;
  dtr_frame* frame_;
};

inline at::Tensor Beside::bytes_of(const c10::Storage& storage) {
  return Repeater::over(storage, c10::kByte, {static_cast<int64_t>(storage.nbytes())}, {1}, 0);
}

}  // namespace dtr_bridge
