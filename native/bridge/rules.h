// rules.h: how each operator is treated, decided once, in Python (dtr_alloc/torch/op_rules.py).
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "dtr/framework.h"
#include "python.h"

namespace dtr_bridge {

// What trials of an operator have shown: whether it repeats (trial.h, T1 to T3).
class Trials {
 public:
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }
  // Whether it is the first that fails.
  bool fail() { return !failed_.exchange(true); }

  // Whether a call is to be tried.
  bool wants(uint64_t signature) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = passed_.find(signature);
    return found != passed_.end() ? found->second < kTrials : passed_.size() < kSignatures;
  }
  void pass(uint64_t signature) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++passed_[signature];
  }

 private:
  static constexpr uint32_t kTrials = 3;
  static constexpr size_t kSignatures = 64;  // what passed with so many passes with any other

  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::unordered_map<uint64_t, uint32_t> passed_;  // trials, by signature
};

enum class ListOf : uint8_t { none, tensors, optional_tensors };

// An argument that can hold tensors.
struct TensorArgument {
  uint32_t position = 0;
  ListOf list = ListOf::none;
  uint8_t use = DTR_USE_READ;
  uint8_t in_training = DTR_USE_READ;  // the use in training mode
};

struct Rule {
  c10::OperatorHandle op;
  uint64_t key = 0;     // op_begin's op_key
  int32_t number = 0;   // its place in Python's list of rules; the op log's name for it
  bool passes = false;  // needs no data and changes none: nobody records it
  bool looks = false;   // reads tensors, and makes and changes none
  bool lasts = false;   // its work may go on, with its tensors' memory, after it ended
  bool recomputable = false;
  // Set: it is recomputable only as far as they show (trial.h).
  std::unique_ptr<Trials> trials;
  bool of_others = false;               // of another library than PyTorch
  bool may_rest = false;                // is not recorded while the recorder rests
  bool copies = false;                  // copies its second tensor to its first
  bool random = false;                  // draws from a generator
  int32_t generator = -1;               // position of the generator it can be given; -1: none such
  int32_t device = -1;                  // position of the device
  int32_t dropout = -1;                 // position of a probability, at 0 of which nothing is drawn
  int32_t training = -1;                // position of the flag; -1: it always trains
  uint32_t arguments = 0;               // of the schema
  std::vector<TensorArgument> tensors;  // by position

  std::string name() const {
    const c10::OperatorName& of = op.operator_name();
    return of.overload_name.empty() ? of.name + ".default" : of.name + "." + of.overload_name;
  }
};

// All rules, by operator. A rule that was decided stays for good, because closures refer to it.
class Rules {
 public:
  static Rules& instance() { return only<Rules>(); }
  Rules()
      : listening_(c10::Dispatcher::singleton().addRegistrationListener(
            std::make_unique<Listener>(*this))) {}

  const Rule& of(const c10::OperatorHandle& op) {
    const void* identity = &op.schema();
    Cached& cached = cache()[(reinterpret_cast<uintptr_t>(identity) >> 4) % kCached];
    const uint64_t epoch = epoch_.load(std::memory_order_acquire);
    if (cached.identity != identity || cached.epoch != epoch)
      cached = {identity, epoch, &look_up(op, identity)};
    return *cached.rule;
  }

  // Has all operators decided anew: Python's tables are others now.
  void forget() {
    const std::lock_guard<std::mutex> lock(mutex_);
    by_identity_.clear();
    epoch_.fetch_add(1, std::memory_order_release);
  }

  // The name for messages of an operator that Python implements.
  void name(uint64_t key, const char* name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_[key] = name;
  }

  // Held while the process forks.
  std::mutex& mutex() { return mutex_; }

  std::string name_of(uint64_t key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Rule& rule : rules_)
      if (rule.key == key) return rule.name();
    return names_[key];
  }

 private:
  struct Cached {
    const void* identity = nullptr;
    uint64_t epoch = 0;
    const Rule* rule = nullptr;
  };
  static constexpr size_t kCached = 1024;

  // An operator that goes may leave its address to another one.
  class Listener final : public c10::OpRegistrationListener {
   public:
    explicit Listener(Rules& rules) : rules_(rules) {}
    void onOperatorRegistered(const c10::OperatorHandle&) override {}
    void onOperatorDeregistered(const c10::OperatorHandle&) override { rules_.forget(); }

   private:
    Rules& rules_;
  };

  static Cached* cache() {
    thread_local std::vector<Cached> entries(kCached);
    return entries.data();
  }

  const Rule& look_up(const c10::OperatorHandle& op, const void* identity) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = by_identity_.find(identity);
      if (found != by_identity_.end()) return *found->second;
    }
    // Without the mutex, as Python may run operators of its own. Two threads may both decide.
    Rule rule = decide(op);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_identity_.find(identity);
    if (found != by_identity_.end()) return *found->second;
    rules_.push_back(std::move(rule));
    return *(by_identity_[identity] = &rules_.back());
  }

  // Where nobody can be asked any more: the results are constants.
  static void set_by_schema(Rule* rule) {
    const c10::FunctionSchema& schema = rule->op.schema();
    rule->lasts = schema.name().rfind("aten::", 0) != 0;
    for (uint32_t i = 0; i < rule->arguments; ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      const uint8_t use = alias && alias->isWrite() ? DTR_USE_MUTATE : DTR_USE_READ;
      rule->tensors.push_back({i, ListOf::none, use, use});
    }
  }

  // Asks Python; the layout of its answer is Rule.numbers() of dtr_alloc/torch/op_rules.py.
  static Rule decide(const c10::OperatorHandle& op) {
    Rule rule{op};
    rule.arguments = static_cast<uint32_t>(op.schema().arguments().size());
    const c10::OperatorName& name = op.operator_name();
    if (name.name.rfind("dtr_alloc::", 0) == 0) {
      rule.passes = true;
      return rule;
    }
    if (python.is_ending()) {
      set_by_schema(&rule);
      return rule;
    }
    c10::Stack stack{name.name, name.overload_name};
    call_python_unseen("decide", &stack);
    const c10::ArrayRef<c10::IValue> numbers = stack.back().toListRef();
    size_t at = 0;
    const auto next = [&] { return numbers[at++].toInt(); };
    rule.key = static_cast<uint64_t>(next());
    rule.number = static_cast<int32_t>(next());
    rule.passes = next();
    rule.looks = next();
    rule.lasts = next();
    rule.recomputable = next();
    if (next()) rule.trials = std::make_unique<Trials>();
    rule.of_others = next();
    rule.copies = next();
    rule.random = next();
    for (int32_t* position : {&rule.generator, &rule.device, &rule.dropout, &rule.training})
      *position = static_cast<int32_t>(next());
    // The others may pin their tensors, for good.
    rule.may_rest = !rule.passes && !rule.lasts && !rule.of_others && !rule.trials;
    const auto next_use = [&] { return static_cast<uint8_t>(next()); };
    while (at < numbers.size())
      rule.tensors.push_back(
          {static_cast<uint32_t>(next()), static_cast<ListOf>(next()), next_use(), next_use()});
    return rule;
  }

  std::mutex mutex_;
  std::atomic<uint64_t> epoch_{1};
  std::deque<Rule> rules_;
  std::unordered_map<const void*, const Rule*> by_identity_;
  std::unordered_map<uint64_t, std::string> names_;
  c10::RegistrationHandleRAII listening_;
};

}  // namespace dtr_bridge
