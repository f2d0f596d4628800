// capture.cpp: operators, seen below autograd and without Python: a boxed fallback on a dispatch
// key of its own, which each thread includes whose operators are recorded.
//
// One operator, in order (the engine's side is native/run/op_recorder.cpp):
//
// 1. Its tensor arguments go to the core, which locks their storages and answers what is missing:
//    nearly always nothing. The rest of its arguments is kept as a closure.
// 2. What is missing is rematerialized first (repeat.h).
// 3. It runs, with the key excluded: what it calls inside is a part of it. Its allocations may
//    evict others.
// 4. Its results go to the core. If one of them can be recomputed, the record takes the closure.
//
// Where the key is taken, a dispatch mode in Python brings operators here by a second key
// (dtr_alloc/torch/recorder.py); all else is the same.
//
// Upstream contracts, by header:
//   ATen/core/dispatch/Dispatcher.h   redispatchBoxed() takes the key set as it is; a boxed kernel
//                                     finds its arguments on top of the stack and leaves its
//                                     results
//   c10/core/DispatchKeySet.h         a key set made with FULL_AFTER holds the keys below a key
#define AT_PER_OPERATOR_HEADERS

#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/util/ScopeExit.h>
#include <pthread.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <unordered_map>

#include "dtr/engine.h"
#include "dtr/storage.h"
#include "trial.h"

namespace dtr_bridge {
namespace {

// ---- arguments and results ----

// Whether a tensor is a parameter, by the type of its Python object, which does not change.
bool is_parameter(Thread& thread, const c10::TensorImpl& tensor) {
  const auto* object = reinterpret_cast<const char*>(tensor.pyobj_slot()->load_pyobj());
  if (!object) return false;
  void* type;
  std::memcpy(&type, object + python.type_offset, sizeof type);
  return thread.types.is_parameter(type);
}

int64_t entry_of(Thread& thread, const c10::TensorImpl* tensor, uint8_t use) {
  return reinterpret_cast<int64_t>(tensor) | use |
         (is_parameter(thread, *tensor) ? DTR_USE_CONSTANT : 0);
}

// What an operator does while it runs to tensors that it overwrites must not be the end of them:
// the core reads them once more when it has ended.
using Overwritten = c10::SmallVector<c10::IValue, 4>;

// A sparse tensor is what it is made of: the core knows nothing else of it. One that is overwritten
// comes itself, too: a kernel may as well give it other tensors as write to these, and the core is
// to see that it cannot be made again.
void put_tensor(Thread& thread, const at::Tensor& tensor, uint8_t use, uint32_t* count,
                Overwritten* overwritten) {
  const auto put = [&](const at::Tensor& part, uint8_t part_use) {
    thread.put((*count)++, entry_of(thread, part.unsafeGetTensorImpl(), part_use));
  };
  const bool is_read = use == DTR_USE_READ;
  const auto put_component = [&](const at::Tensor& part) {
    if (!is_read) overwritten->push_back(part);
    put(part, is_read ? DTR_USE_READ : DTR_USE_MUTATE);
  };
  if (!for_components(tensor, put_component) || !is_read) put(tensor, use);
}

uint32_t put_arguments(Thread& thread, const Rule& rule, const c10::IValue* arguments,
                       Overwritten* overwritten) {
  uint32_t count = 0;
  for (const TensorArgument& of : rule.tensors) {
    uint8_t use = of.use;
    if (of.in_training != use && (rule.training < 0 || arguments[rule.training].toBool()))
      use = of.in_training;
    for_tensors(arguments[of.position], [&](const at::Tensor& tensor) {
      put_tensor(thread, tensor, use, &count, overwritten);
    });
    if (use != DTR_USE_READ) overwritten->push_back(arguments[of.position]);
  }
  return count;
}

void put_result(Thread& thread, const c10::IValue& result, uint32_t* count) {
  const auto put = [&](const at::Tensor& tensor) {
    thread.put((*count)++,
               tensor.defined() ? reinterpret_cast<int64_t>(tensor.unsafeGetTensorImpl()) : 0);
  };
  if (result.isTensor()) {
    const at::Tensor& tensor = result.toTensor();
    if (!(tensor.defined() && for_components(tensor, put))) put(tensor);
  } else if (result.isList()) {
    for (const c10::IValue& part : result.toListRef()) put_result(thread, part, count);
  } else {
    thread.put((*count)++, 0);
  }
}

// The results on the stack, from base on.
uint32_t put_results(Thread& thread, const c10::Stack& stack, size_t base, uint32_t count = 0) {
  for (size_t i = base; i < stack.size(); ++i) put_result(thread, stack[i], &count);
  return count;
}

// Larger arguments on other devices are not kept: the operator's results are constants then.
constexpr size_t kMostKeptBytes = 65536;

// Copies what is on other devices into the closure; false if something is too large to keep.
bool keep_foreign(const Rule& rule, const c10::IValue* arguments, Closure* closure) {
  const Unseen unseen;
  bool kept = true;
  size_t index = 0;
  for_tensors(rule, arguments, [&](const at::Tensor& tensor) {
    for_parts(tensor, [&](const at::Tensor& part) {
      const size_t at = index++;
      if (part.device().type() == settings.device) return;
      if (part.is_meta() || part.layout() != c10::kStrided || part.nbytes() > kMostKeptBytes)
        kept = false;
      else if (kept)
        closure->keep_by_value(at, part.detach().clone());
    });
  });
  return kept;
}

// The first tensor among the results; null if there is none.
const at::Tensor* first_result(const c10::Stack& stack, size_t base) {
  return base < stack.size() && stack[base].isTensor() && stack[base].toTensor().defined()
             ? &stack[base].toTensor()
             : nullptr;
}

void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  op.redispatchBoxed(keys, stack);
}

// ---- the op log ----

constexpr uint32_t kOperatorsBetweenDrains = 512;

void op_log_begins(Thread& thread, const Rule& rule) {
  if (++thread.since_drain >= kOperatorsBetweenDrains && !python.is_ending()) {
    thread.since_drain = 0;
    c10::Stack stack;
    call_python_unseen("drain_log", &stack);
  }
  core->op_log_name(thread.frame(), rule.number);
}

void run_view(Thread& thread, const Rule& rule, c10::DispatchKeySet keys, c10::Stack* stack) {
  op_log_begins(thread, rule);
  Places::instance().tell(thread.position);
  const size_t base = stack->size() - rule.arguments;
  std::vector<at::Tensor> given;
  for_tensors(*stack, base, [&](const at::Tensor& tensor) { given.push_back(tensor); });
  const auto begin = std::chrono::steady_clock::now();
  run_kernel(rule.op, keys, stack);
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
  uint32_t count = 0;
  for (const at::Tensor& tensor : given)
    thread.put(count++, reinterpret_cast<int64_t>(tensor.unsafeGetTensorImpl()));
  const uint32_t all = put_results(thread, *stack, base, count);
  core->op_log_view(thread.frame(), count, all - count, rule.number, took.count());
}

// ---- one operator ----

// Makes a tensor resident, and keeps it so.
void keep_resident(Pinned& pinned, const at::Tensor& tensor) {
  Repeater(Thread::current()).bring_back(pinned.add(tensor));
}

// An operator may write to it at any time: it is a constant from now on, and stays where it is.
void keep_for_good(const at::Tensor& tensor) {
  const int32_t status = core->pin(Thread::engine(), tensor.unsafeGetTensorImpl(), 1);
  if (status != DTR_OK) fail_with_last_error(status);
}

// The memory of what an operator is given or gives stays where it is, for good: its work may use it
// by itself after the operator ended.
void give_away(const c10::Stack& stack, size_t base) {
  Pinned pinned;
  for_tensors(stack, base, [&](const at::Tensor& tensor) {
    for_parts(tensor, [&](const at::Tensor& part) {
      if (part.device().type() != settings.device || !lies_in_storage(part)) return;
      keep_resident(pinned, part);
      keep_for_good(part);
    });
  });
}

// The op that runs for the first time uses a tensor: what the core knows is there until it has ended,
// and becomes an input of its record if it is no argument, so that it is there when the op runs again,
// too. Whether it is none.
bool is_beside(Thread& thread, const at::Tensor& tensor) {
  if (tensor.device().type() != settings.device || !lies_in_storage(tensor)) return false;
  for (;;) {
    const int32_t answer = core->op_reads(thread.frame(), tensor.unsafeGetTensorImpl());
    if (answer < 0) fail_with_last_error(-answer);
    if (answer != DTR_READS_EVICTED) return answer == DTR_READS_BESIDE;
    Repeater(thread).bring_back(tensor.storage().unsafeGetStorageImpl());
  }
}

// Inside of an operator a tensor is used: its content is there until that has ended. Whether it is none
// that the operator was given or made, as far as the core knows.
bool is_used_inside(Thread& thread, const at::Tensor& tensor) {
  if (!thread.taping->tape.again()) return is_beside(thread, tensor);
  if (tensor.device().type() != settings.device || !lies_in_storage(tensor)) return false;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (!storage->_mutable_data_ptr_no_checks().get() && storage->nbytes() > 0)
    keep_resident(thread.taping->pinned, tensor);
  return false;
}

// Of an operator of others: whether it gives what was there before and was no argument, such as what
// it gave earlier.
bool gives_again(Thread& thread, const at::Tensor& result) {
  if (!result.defined() || !is_beside(thread, result)) return false;
  keep_for_good(result);
  return true;
}

// Whether somebody holds a tensor besides so many, by C++ or by its Python object.
bool is_held_besides(const at::Tensor& tensor, size_t ours) {
  const auto* object =
      reinterpret_cast<const char*>(tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj());
  if (!object) return tensor.use_count() > ours;
  // The two hold each other, once. The count stands before the type where there is a GIL.
  uint32_t references = 1;
  if (python.type_offset == sizeof(void*)) std::memcpy(&references, object, sizeof references);
  return references > 1 || tensor.use_count() > ours + 1;
}

// Whether an operator of others keeps some of what it has given, on the stack from base on: it may
// write to that later.
bool keeps_some(const c10::Stack& stack, size_t base) {
  std::unordered_map<const c10::TensorImpl*, size_t> given;
  std::unordered_map<const c10::StorageImpl*, size_t> storages;
  for_tensors(stack, base, [&](const at::Tensor& tensor) {
    if (lies_in_storage(tensor) && ++given[tensor.unsafeGetTensorImpl()] == 1)
      ++storages[tensor.storage().unsafeGetStorageImpl()];
  });
  bool keeps = false;
  for_tensors(stack, base, [&](const at::Tensor& tensor) {
    if (!lies_in_storage(tensor)) return;
    keeps |= is_held_besides(tensor, given[tensor.unsafeGetTensorImpl()]) ||
             tensor.storage().use_count() > storages[tensor.storage().unsafeGetStorageImpl()];
  });
  return keeps;
}

void say_not_repeated(const Rule& rule, const std::string& fault) {
  if (!rule.trials || !rule.trials->fail()) return;
  c10::Stack told{rule.name(), fault};
  call_python_unseen("failed_trial", &told);
}

// Whether what the call has just given, on the stack from base on, can be computed again.
bool passes(const Rule& rule, uint64_t signature, Trial& trial, const Tape& tape,
            const c10::Stack& stack, size_t base) {
  const Trial::Outcome outcome = trial.outcome(tape, stack.data() + base, stack.size() - base);
  if (outcome.passed()) rule.trials->pass(signature);
  if (!outcome.fault.empty()) say_not_repeated(rule, outcome.fault);
  return outcome.passed();
}

void record(Thread& thread, const Rule& rule, c10::DispatchKeySet keys, c10::Stack* stack) {
  const size_t base = stack->size() - rule.arguments;
  const c10::IValue* arguments = stack->data() + base;
  if (C10_UNLIKELY(rule.lasts)) give_away(*stack, base);
  Overwritten overwritten;
  const uint32_t tensors = put_arguments(thread, rule, arguments, &overwritten);
  const bool recomputable = rule.recomputable && !(rule.trials && rule.trials->has_failed());
  OpenOp op(thread, tensors,
            (recomputable ? DTR_OP_RECOMPUTABLE : 0) | (rule.copies ? DTR_OP_COPIES : 0), rule.key);
  Closure& closure = thread.empty_closure();
  const bool keeps = recomputable && !op.needs(DTR_NO_CLOSURE);
  if (keeps) {
    closure.keep(rule, *stack);
    closure.surroundings().keep(keys, settings.device);
    if (op.needs(DTR_HAS_FOREIGN) && !keep_foreign(rule, arguments, &closure)) op.is_constant();
  }
  if (op.needs(DTR_NEED_WORK)) Repeater(thread).prepare();
  op.runs();
  std::optional<Trial> trial;
  uint64_t signature = 0;
  if (C10_UNLIKELY(rule.trials && op.recomputable())) {
    signature = signature_of(arguments, rule.arguments);
    if (!keeps || op.needs(DTR_GRAPH_IS_CAPTURED) || python.is_ending())
      op.is_constant();
    else if (rule.trials->wants(signature))
      trial.emplace(thread, rule, arguments, closure);
  }
  Tape tape = op.tape(closure);
  run_drawing(thread, rule, *stack, tape, [&] { run_kernel(rule.op, keys, stack); });
  if (keeps && rule.device >= 0)
    if (const at::Tensor* made = first_result(*stack, base)) closure.ran_on(made->device());
  if (C10_UNLIKELY(trial.has_value())) {
    if (!tape.repeats() || !passes(rule, signature, *trial, tape, *stack, base)) op.is_constant();
    trial.reset();
  }
  if (C10_UNLIKELY(rule.of_others)) {
    bool again = false;
    for_tensors(*stack, base,
                [&](const at::Tensor& tensor) { again |= gives_again(thread, tensor); });
    if (again || !tape.repeats()) {
      op.is_constant();
      say_not_repeated(rule, tape.repeats() ? "gives what was there before"
                                            : "overwrites a tensor that is none of its arguments");
    } else if (op.recomputable() && keeps_some(*stack, base)) {
      op.is_constant();
    }
  }
  if (C10_UNLIKELY(rule.lasts)) give_away(*stack, base);
  op.end(put_results(thread, *stack, base));
}

// A failed heuristic becomes the cause of the error that the operator raises.
template <typename Body>
void explained(Body&& body) {
  if (!settings.scoring) {
    body();
    return;
  }
  try {
    body();
  } catch (const c10::Error& error) {
    if (python.is_ending()) throw;
    c10::Stack stack{std::string(error.what_without_backtrace())};
    call_python_unseen("explain", &stack);
    throw;
  }
}

// Inside of a call that can be repeated if all can be that runs inside. What an operator calls in
// turn is its own affair.
void run_judged(Thread& thread, const Rule& rule, c10::DispatchKeySet keys, c10::Stack* stack,
                Tape& tape) {
  tape.set_judging(false);
  const auto judge_on = c10::make_scope_exit([&] { tape.set_judging(true); });
  const c10::IValue* arguments = stack->data() + stack->size() - rule.arguments;
  const bool repeats = rule.recomputable && !(rule.trials && rule.trials->has_failed());
  if (!repeats && !rule.looks) {
    tape.note_unrepeatable();
    c10::Stack told{int64_t{rule.number}};
    if (!rule.recomputable) call_python_unseen("not_repeated_inside", &told);
  }
  const bool tried = repeats && rule.trials;
  const uint64_t signature = tried ? signature_of(arguments, rule.arguments) : 0;
  if (!tried || !rule.trials->wants(signature)) {
    run_drawing(thread, rule, *stack, tape, [&] { run_kernel(rule.op, keys, stack); });
    return;
  }
  const size_t base = stack->size() - rule.arguments;
  Closure closure;
  closure.keep(rule, *stack);
  closure.surroundings().keep(keys, settings.device);
  Trial trial(thread, rule, arguments, closure);
  Tape own(&closure.draws(), false);
  run_drawing(thread, rule, *stack, own, [&] { run_kernel(rule.op, keys, stack); });
  if (!passes(rule, signature, trial, own, *stack, base)) tape.note_unrepeatable();
  tape.note(std::move(closure.draws()));
}

// What an operator inside uses is there; whether it overwrites what the outer one was not given.
bool overwrites_beside(Thread& thread, const Rule& rule, const c10::Stack& stack) {
  bool overwrites = false;
  for (const TensorArgument& of : rule.tensors)
    for_tensors(stack[stack.size() - rule.arguments + of.position], [&](const at::Tensor& tensor) {
      const bool is_beside = is_used_inside(thread, tensor);
      if (of.use == DTR_USE_READ) return;
      if (thread.taping->tape.again() && thread.beside) thread.beside->writes(tensor);
      if (!is_beside) return;
      keep_for_good(tensor);
      overwrites = true;
    });
  return overwrites;
}

// Such an operator is an op of its own, so that what depends on the old content is computed before;
// the outer one is not repeated.
void run_overwriting(Thread& thread, const Rule& rule, c10::DispatchKeySet keys, c10::Stack* stack,
                     Tape& tape) {
  tape.note_unrepeatable();
  const Thread::Deeper deeper(thread);
  const size_t base = stack->size() - rule.arguments;
  Overwritten overwritten;
  const uint32_t tensors = put_arguments(thread, rule, stack->data() + base, &overwritten);
  if (settings.writes_op_log) core->op_log_name(thread.frame(), rule.number);
  OpenOp op(thread, tensors, 0, rule.key);
  if (op.needs(DTR_NEED_WORK)) Repeater(thread).prepare();
  op.runs();
  run_drawing(thread, rule, *stack, tape, [&] { run_kernel(rule.op, keys, stack); });
  op.end(put_results(thread, *stack, base));
}

// Inside of an operator that draws, or of a call of Python's: draws matter.
void run_inside(Thread& thread, const Rule& rule, c10::DispatchKeySet keys, c10::Stack* stack) {
  std::optional<c10::impl::ExcludeDispatchKeyGuard> excluded;
  if (rule.generator >= 0) excluded.emplace(settings.key());
  Tape& tape = thread.taping->tape;
  const size_t base = stack->size() - rule.arguments;
  if (rule.lasts) tape.note_lasting();
  if (tape.judges() && python.is_ending()) tape.note_unrepeatable();
  if (!rule.passes && overwrites_beside(thread, rule, *stack))
    run_overwriting(thread, rule, keys, stack, tape);
  else if (tape.judges() && tape.repeats() && !rule.passes)
    run_judged(thread, rule, keys, stack, tape);
  else
    run_drawing(thread, rule, *stack, tape, [&] { run_kernel(rule.op, keys, stack); });
  if (thread.beside && tape.again())
    for_tensors(*stack, base, [&](const at::Tensor& tensor) { thread.beside->made(tensor); });
}

// Too small to be evicted.
bool is_tiny(const at::Tensor& tensor) {
  if (!lies_in_storage(tensor)) return false;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  return storage->nbytes() <= settings.tiny_bytes.load(std::memory_order_relaxed) &&
         storage->_mutable_data_ptr_no_checks().get_deleter() == &free_block;
}

// Whether an operator is given tensors on the stack that all are so.
template <typename IsSo>
bool is_given_only(const Rule& rule, const c10::Stack& stack, IsSo&& is_so) {
  bool all = true;
  for_tensors(rule, stack.data() + stack.size() - rule.arguments,
              [&](const at::Tensor& tensor) { all = all && is_so(tensor); });
  return all;
}

void capture(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  if (!settings.capturing.load(std::memory_order_relaxed)) {
    const c10::impl::ExcludeDispatchKeyGuard excluded(settings.key());
    op.redispatchBoxed(keys, stack);
    return;
  }
  const Rule& rule = Rules::instance().of(op);
  Thread& thread = Thread::current();
  if (thread.taping) {
    run_inside(thread, rule, keys, stack);
    return;
  }
  if (rule.may_rest && !several_streams.load(std::memory_order_relaxed) &&
      core->op_begins_at_rest(Thread::engine())) {
    const auto end = c10::make_scope_exit([] { core->op_ended_at_rest(Thread::engine()); });
    const c10::impl::ExcludeDispatchKeyGuard excluded(settings.key());
    op.redispatchBoxed(keys, stack);
    return;
  }
  if (C10_UNLIKELY(rule.passes && !is_given_only(rule, *stack, std::not_fn(is_sparse)))) {
    // The kernel may be no view of what it is made of, but computes that by operators, which come by.
    op.redispatchBoxed(keys, stack);
    return;
  }
  const bool writes_op_log = settings.writes_op_log.load(std::memory_order_relaxed);
  const c10::impl::ExcludeDispatchKeyGuard excluded(settings.key());
  if (rule.passes) {
    if (writes_op_log)
      run_view(thread, rule, keys, stack);
    else
      run_kernel(op, keys, stack);
    return;
  }
  if (rule.looks && !writes_op_log && is_given_only(rule, *stack, is_tiny)) {
    run_kernel(op, keys, stack);
    return;
  }
  if (writes_op_log) op_log_begins(thread, rule);
  explained([&] { record(thread, rule, keys, stack); });
}

// A mode or a subclass handles an operator first, and what it does comes by again. Up to torch 2.12
// our key is above Python's, and PyTorch excludes all that are while one does. So here it is handed
// over as PyTorch does (pythonFallback in ATen/core/PythonFallbackKernel.cpp), but for our key.
void hand_to_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  using c10::DispatchKeySet;
  constexpr c10::DispatchKey kPython = c10::DispatchKey::Python;
  if (op.hasKernelForDispatchKey(kPython)) {  // that operator has a handler of its own
    op.redispatchBoxed(keys, stack);
    return;
  }
  constexpr DispatchKeySet above =
      DispatchKeySet(DispatchKeySet::FULL) ^
      (DispatchKeySet(DispatchKeySet::FULL_AFTER, kPython) | DispatchKeySet(kPython));
  const c10::impl::ExcludeDispatchKeyGuard excluded(above.remove(kKey));
  (*c10::impl::getGlobalPyInterpreter())->dispatch(op, stack);
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  if (below.has(c10::DispatchKey::Python))
    hand_to_python(op, below, stack);
  else
    capture(op, below, stack);
}

// While the dispatch mode hands an operator on, or inside of one that draws.
void second_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
  capture(op, keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kSecondKey), stack);
}

// ---- composite operators whose kernels use a tensor's memory themselves ----

// They run above the capture, which sees only what they call. (op_rules.py lists them, bridge.py
// says what each kind is.)
enum class Composite : int32_t { pinned = 0, whole = 1, whole_without_gradient = 2 };

// The composite kernel is that of every backend.
constexpr c10::DispatchKeySet kCompositeKernel(c10::DispatchKey::CPU);

bool is_outermost() {
  return settings.capturing.load(std::memory_order_relaxed) &&
         !c10::impl::tls_is_dispatch_key_excluded(settings.by_mode ? kSecondKey : kKey);
}

void run_pinned(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  Pinned pinned;
  const size_t arguments = op.schema().arguments().size();
  if (is_outermost())
    for (size_t i = stack->size() - arguments; i < stack->size(); ++i) {
      const c10::IValue& value = (*stack)[i];
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const at::Tensor& tensor = value.toTensor();
      if (tensor.is_cpu() && lies_in_storage(tensor) &&
          c10::isIntegralType(tensor.scalar_type(), false))
        keep_resident(pinned, tensor);
    }
  op.redispatchBoxed(kCompositeKernel, stack);
}

template <bool kWithoutGradient>
void run_whole(const c10::OperatorHandle& op, c10::DispatchKeySet, c10::Stack* stack) {
  // As max_pool1d itself decides.
  const auto calls_others = [&] {
    const at::Tensor& first = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
    return (at::GradMode::is_enabled() &&
            (first.requires_grad() || first._fw_grad(/*level=*/0).defined())) ||
           at::isTensorSubclassLike(first);
  };
  if (is_outermost() && !(kWithoutGradient && calls_others()))
    capture(op, kCompositeKernel, stack);
  else
    op.redispatchBoxed(kCompositeKernel, stack);
}

using Registered = std::vector<c10::RegistrationHandleRAII>;

void register_kernel(c10::OperatorName op, c10::DispatchKey key, c10::KernelFunction kernel,
                     Registered* registered) {
  registered->push_back(c10::Dispatcher::singleton().registerImpl(
      std::move(op), key, std::move(kernel), std::nullopt, nullptr, "dtr_alloc"));
}

template <auto* function>
c10::KernelFunction boxed() {
  return c10::KernelFunction::makeFromBoxedFunction<function>();
}

// ---- operators that Python calls (dtr_alloc/torch/recorder.py) ----

at::Tensor tensor_at(int64_t address) {
  return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(
      reinterpret_cast<c10::TensorImpl*>(address)));
}

// materialize(int handle) -> (): makes a storage resident.
void materialize(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  void* handle = reinterpret_cast<void*>(torch::jit::pop(*stack).toInt());
  Repeater(Thread::current()).bring_back(handle);
}

// materialize_all() -> ()
void materialize_all(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack*) {
  Repeater(Thread::current()).bring_back_all();
}

// run_trial(int trial) -> ()
void run_trial(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  reinterpret_cast<Trial*>(torch::jit::pop(*stack).toInt())->run_again();
}

// settle(int entry) -> (): as before an operator that overwrites the tensor. Inside of an operator,
// also one that runs again, it does nothing: that one's schema says what it overwrites.
void settle(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  Thread& thread = Thread::current();
  const int64_t entry = torch::jit::pop(*stack).toInt();
  if (thread.runs_op || thread.taping) return;
  thread.put(0, entry);
  OpenOp op(thread, 1, 0, 0);
  if (op.needs(DTR_NEED_WORK)) Repeater(thread).prepare();
}

// settle_all(int[] tensors) -> (): as before one operator that overwrites them all. Likewise.
void settle_all(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  Thread& thread = Thread::current();
  const std::vector<int64_t> tensors = torch::jit::pop(*stack).toIntVector();
  if (!thread.runs_op && !thread.taping) Repeater(thread).settle(tensors);
}

// keep_inside(int tensor) -> bool: if others run inside of the operator that runs now, a tensor is
// resident and stays so until that one has ended.
void keep_inside(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  const at::Tensor tensor = tensor_at(torch::jit::pop(*stack).toInt());
  Thread& thread = Thread::current();
  if (thread.taping && !is_used_inside(thread, tensor))
    keep_resident(thread.taping->pinned, tensor);
  stack->emplace_back(thread.taping != nullptr);
}

// lend(Generator generator) -> (): an operator that runs again may put it elsewhere (draws.h, D7).
void lend(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  const at::Generator generator = torch::jit::pop(*stack).toGenerator();
  if (Lending* lending = Thread::current().lending) lending->lend(generator);
}

// run(int call, int first, int[] entries, int key, bool judged, bool constant) -> (): an operator
// that Python implements. call: the number of what repeats it; it is dropped when nothing needs it,
// whatever is thrown here. first: the address of the object that runs it now, and gives the addresses
// of its result tensors, 0 for what is none. entries: its tensors with their uses. judged: it can be
// repeated only if what runs inside can. constant: it is not repeated. It runs by a plain call, not
// by an operator, so that it sees the modes that are entered.
void run(const c10::OperatorHandle&, c10::DispatchKeySet, c10::Stack* stack) {
  Thread& thread = Thread::current();
  const bool constant = torch::jit::pop(*stack).toBool();
  const bool judged = torch::jit::pop(*stack).toBool();
  const auto key = static_cast<uint64_t>(torch::jit::pop(*stack).toInt());
  const std::vector<int64_t> entries = torch::jit::pop(*stack).toIntVector();
  auto* first = reinterpret_cast<void*>(torch::jit::pop(*stack).toInt());
  Closure& closure = thread.empty_closure();
  closure.keep(torch::jit::pop(*stack).toInt());
  uint32_t count = 0;
  Overwritten overwritten;
  for (const int64_t entry : entries) {
    const at::Tensor tensor = tensor_at(entry & ~int64_t{7});
    const auto use = static_cast<uint8_t>(entry & 3);
    put_tensor(thread, tensor, use, &count, &overwritten);
    if (use != DTR_USE_READ)
      overwritten.emplace_back(tensor);
    else if (is_sparse(tensor))  // what Python keeps makes none again
      thread.put(count++, entry & ~int64_t{7});
  }
  explained([&] {
    OpenOp op(thread, count, DTR_OP_RECOMPUTABLE | DTR_OP_KEEPS_OLD, key);
    closure.surroundings().keep({}, settings.device);
    if (constant || op.needs(DTR_HAS_FOREIGN)) op.is_constant();
    if (op.needs(DTR_NEED_WORK)) Repeater(thread).prepare();
    op.runs();
    Tape tape = op.tape(closure);
    tape.set_judging(judged && !tape.is_off());
    std::optional<std::vector<int64_t>> results;
    {
      const Taping taping(thread, tape);
      results = call_object(first, closure.python());
    }
    TORCH_CHECK(results, "dtr_alloc: an operator of Python failed");
    bool again = false;
    for (const int64_t address : *results)
      if (address) again |= gives_again(thread, tensor_at(address));
    if (again || !tape.repeats()) op.is_constant();
    const auto made = static_cast<uint32_t>(results->size());
    for (uint32_t i = 0; i < made; ++i) thread.put(i, (*results)[i]);
    op.end(made);
  });
}

void register_operators() {
  static auto* registered = new Registered();
  if (!registered->empty()) return;
  const std::pair<const char*, c10::KernelFunction> operators[] = {
      {"materialize(int handle) -> ()", boxed<&materialize>()},
      {"materialize_all() -> ()", boxed<&materialize_all>()},
      {"run_trial(int trial) -> ()", boxed<&run_trial>()},
      {"settle(int entry) -> ()", boxed<&settle>()},
      {"settle_all(int[] tensors) -> ()", boxed<&settle_all>()},
      {"keep_inside(int tensor) -> bool", boxed<&keep_inside>()},
      {"lend(Generator generator) -> ()", boxed<&lend>()},
      {"run(int call, int first, int[] entries, int key, bool judged, bool constant) -> ()",
       boxed<&run>()}};
  for (const auto& [schema, kernel] : operators) {
    c10::FunctionSchema parsed = torch::jit::parseSchema(std::string("dtr_alloc::") + schema);
    const c10::OperatorName name = parsed.operator_name();
    registered->push_back(c10::Dispatcher::singleton().registerDef(std::move(parsed), "dtr_alloc"));
    register_kernel(name, c10::DispatchKey::CompositeImplicitAutograd, kernel, registered);
  }
}

// ---- closures that are needed no more ----

std::mutex dropped_mutex;
std::deque<int64_t> dropped_calls;  // of Python

// ---- fork ----

// Held across fork() are the locks under which nobody waits for Python, and that of PyTorch's
// generator: workers of a data loader seed it first of all, and would hang where a thread was
// drawing. The others are new in the child, where nothing is captured and nothing runs again.
std::mutex& generator_mutex() {
  static auto* generator = new at::Generator(at::detail::getDefaultCPUGenerator());
  return generator->mutex();
}

void before_fork() {
  generator_mutex().lock();
  Rules::instance().mutex().lock();
  Places::instance().mutex().lock();
  dropped_mutex.lock();
  Threads::instance().mutex().lock();
}

void after_fork() {
  Threads::instance().mutex().unlock();
  dropped_mutex.unlock();
  Places::instance().mutex().unlock();
  Rules::instance().mutex().unlock();
  generator_mutex().unlock();
}

void after_fork_in_child() {
  after_fork();
  Turn::renew();
  DrawsOf::renew();
  Threads::instance().forget_others();
  Lending::renew();
}

}  // namespace

void drop_call(int64_t call) {
  const std::lock_guard<std::mutex> lock(dropped_mutex);
  dropped_calls.push_back(call);
}

void meet_thread() {
  thread_local bool is_met = false;
  if (is_met || !settings.capturing.load(std::memory_order_relaxed) || settings.by_mode) return;
  // A worker of a kernel belongs to the operator that runs there.
  if (at::in_parallel_region()) return;
  is_met = true;
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

bool has_python() { return python.is_initialized(); }

void drop_closure(void* pointer) { delete static_cast<Closure*>(pointer); }

namespace {

// The operators whose results take the most, of those that are meant.
template <typename IsMeant>
std::string largest(const std::vector<dtr_holder>& holders, const char* title, IsMeant&& is_meant) {
  constexpr size_t kShown = 5;
  std::map<uint64_t, uint64_t> held;
  for (const dtr_holder& holder : holders)
    if (holder.op_key && is_meant(holder.why_kept)) held[holder.op_key] += holder.size_bytes;
  std::vector<std::pair<uint64_t, uint64_t>> largest;
  for (const auto& [key, bytes] : held) largest.emplace_back(bytes, key);
  std::sort(largest.rbegin(), largest.rend());
  std::string text;
  for (size_t i = 0; i < std::min(largest.size(), kShown); ++i) {
    const auto bytes = static_cast<unsigned long long>(largest[i].first);
    char size[64];
    std::snprintf(size, sizeof size, " %.1f MiB (%llu bytes)", static_cast<double>(bytes) / 0x1p20,
                  bytes);
    text += (i ? std::string(", ") : std::string("\n") + title + ": ") +
            Rules::instance().name_of(largest[i].second) + size;
  }
  return text.empty() ? text : text + ".";
}

}  // namespace

std::string largest_holders() {
  constexpr uint64_t kMost = 1024;
  std::vector<dtr_holder> holders(kMost);
  holders.resize(std::min(core->engine_holders(Thread::engine(), holders.data(), kMost), kMost));
  return largest(holders, "Results that can be recomputed",
                 [](int32_t why) { return why == DTR_KEPT_NOT; }) +
         largest(holders, "Results that are kept (dtr_alloc.kept() says why)", [](int32_t why) {
           return why != DTR_KEPT_NOT && why != DTR_KEPT_IN_USE && why != DTR_KEPT_PARAMETER;
         });
}

// ---- what Python calls by ctypes (dtr_alloc/torch/bridge.py) ----

// Once, before all else here. The addresses are those of functions of Python's C API, in the order of
// PythonApi.
DTR_EXPORT void dtr_bridge_meet_python(void* const* functions, void* parameter_type,
                                       uint64_t type_offset) {
  std::memcpy(&python, functions, offsetof(PythonApi, parameter_type));
  python.parameter_type = parameter_type;
  python.type_offset = type_offset;
  [[maybe_unused]] static const int registered =
      pthread_atfork(&before_fork, &after_fork, &after_fork_in_child);
}

// Sets the error of Python that a call (dtr_alloc::run) has just failed with on this thread, if it
// has. With the GIL held.
DTR_EXPORT void dtr_bridge_raise(int64_t call) { Raised::of_thread().restore(call); }

// Puts a value in the place of an entry of a type that Python lets nobody change. With the GIL held;
// an error of Python is set where it fails.
DTR_EXPORT void dtr_bridge_set_member(void* type, void* name, void* value) {
  void* members = python.dict_of(type, nullptr);
  if (!members) return;
  // First: Python drops what it remembers of lookups, without references, while the old entry is
  // there. Nobody looks it up in between.
  python.type_modified(type);
  python.set_item(members, name, value);
  python.let_go(members);
}

// Exchanges what a function of C (PyCFunctionObject) calls, its __self__ and how it is called, at once
// for whoever interrupts Python. With the GIL held.
DTR_EXPORT void dtr_bridge_exchange(void* function, void** definition_self_vectorcall) {
  struct Function {
    void *head[2], *definition, *self, *module, *weak_references, *vectorcall;
  };
  auto* it = static_cast<Function*>(function);
  std::swap(it->definition, definition_self_vectorcall[0]);
  std::swap(it->self, definition_self_vectorcall[1]);
  std::swap(it->vectorcall, definition_self_vectorcall[2]);
}

// Registers the capture for devices of a type (c10::DeviceType). by_mode: at the second key, for a
// dispatch mode. 1, or 0 if the key is taken. The second time it does nothing.
DTR_EXPORT int32_t dtr_bridge_register_capture(int32_t device_type, int32_t by_mode) {
  auto& fallbacks = only<std::map<bool, c10::RegistrationHandleRAII>>();
  settings.device = static_cast<c10::DeviceType>(device_type);
  register_operators();
  if (!fallbacks.count(by_mode)) {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    const c10::DispatchKey key = by_mode ? kSecondKey : kKey;
    if (dispatcher.hasBackendFallbackForDispatchKey(key)) return 0;
    fallbacks.emplace(
        by_mode, dispatcher.registerFallback(
                     key, by_mode ? boxed<&second_fallback>() : boxed<&fallback>(), "dtr_alloc"));
  }
  settings.by_mode = by_mode != 0;
  return 1;
}

// Operators that nobody records (views) do not come by at all from now on: on's names and
// overloads, count of each. Not while operators run. count 0: they come by again.
DTR_EXPORT void dtr_bridge_let_pass(const char* const* names, const char* const* overloads,
                                    uint64_t count) {
  static auto* passing = new Registered();
  passing->clear();
  const c10::DispatchKey key = settings.by_mode ? kSecondKey : kKey;
  for (uint64_t i = 0; i < count; ++i)
    register_kernel({names[i], overloads[i]}, key, c10::KernelFunction::makeFallthrough(), passing);
}

// Composite operators whose kernels use memory themselves are met from now on, for good; kind: as
// Composite of dtr_alloc/torch/bridge.py. Those that this torch has.
DTR_EXPORT void dtr_bridge_watch_composites(const char* const* names, const char* const* overloads,
                                            uint64_t count, int32_t kind) {
  static auto* registered = new Registered();
  const auto kernel = [&] {
    switch (static_cast<Composite>(kind)) {
      case Composite::pinned:
        return boxed<&run_pinned>();
      case Composite::whole:
        return boxed<&run_whole<false>>();
      case Composite::whole_without_gradient:
        return boxed<&run_whole<true>>();
    }
    fail(DTR_INVALID, "kind is none of Composite");
  };
  for (uint64_t i = 0; i < count; ++i) {
    if (!c10::Dispatcher::singleton().findSchema({names[i], overloads[i]})) continue;
    for (const c10::DispatchKey key :
         {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA})
      register_kernel({names[i], overloads[i]}, key, kernel(), registered);
  }
}

// Whether operators that come by are recorded, on every thread.
DTR_EXPORT void dtr_bridge_capture(int32_t on) { settings.capturing = on != 0; }
DTR_EXPORT void dtr_bridge_tiny(uint64_t size_bytes) { settings.tiny_bytes = size_bytes; }

// Operators that begin on other threads wait from now on, but no longer than so many nanoseconds
// from now; 0: they do not wait any more.
DTR_EXPORT void dtr_bridge_hold_others(int64_t longest_ns) {
  Threads::instance().hold(Thread::current(), longest_ns);
}
// The operators that run on other threads: writes the keys of up to capacity of them, and returns
// how many there are.
DTR_EXPORT uint64_t dtr_bridge_running(uint64_t* keys, uint64_t capacity) {
  const auto running = Threads::instance().running(&Thread::current());
  std::copy_n(running.begin(), std::min<uint64_t>(capacity, running.size()), keys);
  return running.size();
}

// Whether this thread's operators come by. (For a dispatch mode they do while it is entered.)
DTR_EXPORT void dtr_bridge_include_thread(int32_t on) {
  c10::impl::tls_set_dispatch_key_included(kKey, on != 0);
}

// So many observers of operators more, or fewer, are on from now on (observers). 0: as many
// as there are at all: one, if this thread has any.
DTR_EXPORT void dtr_bridge_observe(int32_t more) {
  observers = more ? std::max(0, observers + more) : at::hasCallbacks();
  core->guard_evicted(core->engine);
}

// Whether places are followed, and that this thread is at one from now on (dtr_place).
DTR_EXPORT void dtr_bridge_follow_places(int32_t on) { Places::instance().follow(on != 0); }
DTR_EXPORT void dtr_bridge_place(uint32_t place) {
  Places::instance().move(Thread::current().position, place);
}

DTR_EXPORT void dtr_bridge_op_log(int32_t on) { settings.writes_op_log = on != 0; }
DTR_EXPORT void dtr_bridge_score(int32_t on) { settings.scoring = on != 0; }
DTR_EXPORT void dtr_bridge_limit_repeats(int64_t most) { settings.repeats_left = most; }
DTR_EXPORT void dtr_bridge_name(uint64_t key, const char* name) {
  Rules::instance().name(key, name);
}
DTR_EXPORT void dtr_bridge_forget_rules() { Rules::instance().forget(); }

// Forgets the first numbers of the last answer, and writes up to capacity numbers of calls
// (dtr_alloc::run) that nothing needs any more. One thread at a time. So none is lost where the
// caller is interrupted.
DTR_EXPORT uint64_t dtr_bridge_dropped_calls(uint64_t forget, int64_t* calls, uint64_t capacity) {
  const std::lock_guard<std::mutex> lock(dropped_mutex);
  dropped_calls.erase(dropped_calls.begin(), std::next(dropped_calls.begin(), forget));
  const size_t count = std::min<size_t>(capacity, dropped_calls.size());
  std::copy_n(dropped_calls.begin(), count, calls);
  return count;
}

}  // namespace dtr_bridge
