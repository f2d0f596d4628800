#include "step_log.h"

#include <algorithm>
#include <utility>

#include "policy/costs.h"
#include "simulate/program.h"

namespace dtr {

namespace {

// What repeats is the job's step only if it fills this share of what was recorded.
constexpr uint64_t kShare = 4;
// So many are played at most.
constexpr uint64_t kMostSteps = 4;

// Reads one record after the other.
class Records {
 public:
  explicit Records(const std::vector<int64_t>& numbers) : numbers_(numbers) {}
  bool at_end() const { return at_ == numbers_.size(); }
  int64_t next() { return numbers_[at_++]; }
  // Of a name, the number of its storage; *is_view: it is none of the storage itself.
  int64_t next_name(bool* is_view = nullptr) {
    const int64_t number = next(), view = next();
    if (is_view) *is_view = view != 0;
    return number;
  }

 private:
  const std::vector<int64_t>& numbers_;
  size_t at_ = 0;
};

}  // namespace

// A new storage gets a new name, or one that is not used any more.
uint32_t StepLog::define(int64_t number, uint64_t size_bytes) {
  const auto [entry, is_new] = names_.emplace(number, static_cast<uint32_t>(sizes_.size()));
  uint32_t& name = entry->second;
  if (is_new && unused_.empty()) {
    sizes_.push_back(0);
  } else if (is_new) {
    name = unused_.back();
    unused_.pop_back();
  }
  last_number_ = std::max(last_number_, static_cast<uint64_t>(number));
  sizes_[name] = size_bytes;
  live_bytes_ += size_bytes;
  return name;
}

// What was never told of is a constant of no bytes.
uint32_t StepLog::use(int64_t number) {
  const auto found = names_.find(number);
  if (found != names_.end()) return found->second;
  constant(number, 0);
  return names_[number];
}

void StepLog::constant(int64_t number, uint64_t size_bytes) {
  const uint32_t name = define(number, size_bytes);
  program_.instructions.push_back(
      {Instruction::constant, 0, 0, {}, {{name, -1, static_cast<int64_t>(size_bytes)}}});
  numbers_ += 3;
}

void StepLog::release(int64_t number) {
  const auto found = names_.find(number);
  if (found == names_.end()) return;
  program_.instructions.push_back({Instruction::release, 0, 0, {found->second}});
  numbers_ += 2;
  live_bytes_ -= sizes_[found->second];
  if (!operators_.empty()) steps_.leaves(live_bytes_);
  unused_.push_back(found->second);
  names_.erase(found);
}

void StepLog::memory(int64_t kind, int64_t value) {
  program_.workspace.insert(program_.workspace.end(), {kind, value});
}

void StepLog::ran(const Ran& of) {
  const Instruction::Kind last_kind = std::exchange(last_kind_, of.kind);
  const uint64_t last_number = last_number_, call = StepPlan::call_of(of.operator_name);
  const bool mutates = of.kind == Instruction::mutate;
  Instruction instruction{of.kind, operators_.size(), of.cost_ns};
  Signature signature(static_cast<uint64_t>(of.kind));
  for (const int64_t number : of.reads) {
    instruction.arguments.push_back(use(number));
    signature.add(sizes_[instruction.arguments.back()]);
  }
  for (const int64_t index : of.overwritten) {
    const int64_t bits = std::max(index, ~index);
    const auto which = static_cast<int32_t>(bits & ~OpLogRecorder::kPartlyWritten);
    instruction.results.push_back({instruction.arguments[static_cast<size_t>(which)], which, 0,
                                   index >= 0, (bits & OpLogRecorder::kPartlyWritten) != 0});
  }
  for (const Made& made : of.made) {
    signature.add(made.size_bytes);
    if (made.number == kView) continue;
    const uint32_t name = define(made.number, made.size_bytes);
    instruction.results.push_back({name, -1, static_cast<int64_t>(made.size_bytes)});
  }
  if (of.kind == Instruction::call && instruction.results.empty()) return;  // views alone
  numbers_ += 4 + instruction.arguments.size() + (mutates ? 1 : 3) * instruction.results.size();
  // What overwrites besides making results has two records.
  const bool is_same_call = mutates && last_kind == Instruction::call && !operators_.empty() &&
                            operators_.back().call == call && of.cost_ns == 0;
  steps_.ran(signature.value(), live_bytes_);
  operators_.push_back({program_.instructions.size(), is_same_call ? StepPlan::kSameCall : call,
                        static_cast<uint32_t>(of.operator_name & kMadeAheadBits), of.cost_ns,
                        last_number});
  program_.instructions.push_back(std::move(instruction));
  program_.workspace_at.push_back(static_cast<int64_t>(program_.workspace.size()));
  program_.cost_ns += of.cost_ns;
}

void StepLog::append(const std::vector<int64_t>& records) {
  Records in(records);
  while (!in.at_end()) {
    const int64_t kind = in.next();
    if (kind == DTR_OP_LOG_CONSTANT) {
      const int64_t number = in.next();
      constant(number, static_cast<uint64_t>(in.next()));
      continue;
    }
    if (kind == DTR_OP_LOG_RELEASE) {
      bool is_view = false;
      const int64_t number = in.next_name(&is_view);
      if (!is_view) release(number);
      continue;
    }
    if (kind == DTR_OP_LOG_MEMORY) {
      for (int64_t pairs = in.next(); pairs > 0; --pairs) {
        const int64_t what = in.next();
        memory(what, in.next());
      }
      continue;
    }
    Ran of;
    of.kind = kind == DTR_OP_LOG_CALL     ? Instruction::call
              : kind == DTR_OP_LOG_MUTATE ? Instruction::mutate
                                          : Instruction::effect;
    of.operator_name = static_cast<uint64_t>(in.next());
    of.cost_ns = in.next();
    for (int64_t count = in.next(); count > 0; --count) of.reads.push_back(in.next_name());
    for (int64_t count = in.next(); count > 0; --count) {
      if (kind == DTR_OP_LOG_MUTATE) {
        of.overwritten.push_back(in.next());
        continue;
      }
      if (kind == DTR_OP_LOG_EFFECT) in.next();  // DTR_OP_LOG_CONSTANT
      const int64_t number = kind == DTR_OP_LOG_EFFECT ? in.next() : in.next_name();
      const auto size_bytes = static_cast<uint64_t>(in.next());
      const bool is_view = kind == DTR_OP_LOG_CALL && in.next() >= 0;
      of.made.push_back({is_view ? kView : number, size_bytes});
    }
    ran(of);
  }
}

StepLog::Repetition StepLog::repetition() const {
  const uint64_t period = steps_.complete(kShare);
  if (period == 0) return {};
  const auto live = [&](uint64_t i) { return steps_.live_bytes_after(operators_.size() - 1 - i); };
  // The step begins behind the operator that leaves the least in use, the earliest of several. What
  // dies behind the last operator may do so because the job ends: the one a step earlier stands for it.
  uint64_t behind = 1;
  for (uint64_t i = 2; i < period; ++i)
    if (live(i) <= live(behind)) behind = i;
  if (live(period) < live(behind)) behind = 0;
  return {period, operators_.size() - behind, (period + steps_.matched(period) - behind) / period};
}

int64_t StepLog::cost_of_last(uint64_t operators) const {
  int64_t cost_ns = 0;
  for (uint64_t i = operators_.size() - std::min<uint64_t>(operators, operators_.size());
       i < operators_.size(); ++i)
    cost_ns += operators_[i].cost_ns;
  return cost_ns;
}

// Where the last steps begin.
uint64_t StepLog::first_of(const Repetition& of) const {
  if (of.period > 0) return of.end - std::min(of.steps, kMostSteps) * of.period;
  const uint64_t count = operators_.size();
  const auto live = [&](uint64_t i) { return steps_.live_bytes_after(i); };
  uint64_t low = count - 1;
  for (uint64_t i = count; i-- > 0;) {
    const bool is_late = kShare * (count - i) < count;
    if (live(i) < live(low)) low = i;
    if (!is_late && low == i) return i + 1 < count ? i + 1 : i;
  }
  return 0;
}

uint64_t StepLog::last_number_before_steps(const Repetition& of) const {
  const uint64_t second = first_of(of) + of.period;
  return second < operators_.size() ? operators_[second].last_number : last_number_;
}

// The operators from `first` on and before `last`, and what is between them, beginning with the
// instruction `from`. The second step and those behind it count.
void StepLog::add_operators(const Repetition& of, uint64_t first, uint64_t last, size_t from,
                            JobProgram& to) const {
  const uint64_t first_step = first_of(of);
  const size_t end =
      last == operators_.size() ? program_.instructions.size() : operators_[last].instruction;
  for (size_t i = from; i < end; ++i) {
    to.instructions.push_back(program_.instructions[i]);
    if (to.instructions.back().is_operator()) to.instructions.back().op = to.operators++;
  }
  to.names = sizes_.size();
  const bool fills_first = of.period > 0 && last - first_step >= 2 * of.period;
  to.counted_from = first_step - first + (fills_first ? of.period : 0);
  // What operator i allocates ends at at(i + 1).
  const auto at = [&](uint64_t i) { return i == 0 ? 0 : program_.workspace_at[i - 1]; };
  const int64_t skipped = at(first);
  to.workspace_at.assign(1, 0);
  for (uint64_t i = first; i < last; ++i) {
    to.workspace_at.push_back(at(i + 1) - skipped);
    if (i >= first + to.counted_from) to.cost_ns += operators_[i].cost_ns;
    to.calls.push_back(operators_[i].call);
    to.made_ahead.push_back(operators_[i].made_ahead);
  }
  to.workspace.assign(program_.workspace.begin() + skipped, program_.workspace.begin() + at(last));
}

JobProgram StepLog::whole(const Repetition& of) const {
  JobProgram all;
  add_operators(of, 0, end_of(of), 0, all);
  return all;
}

JobProgram StepLog::whole(const Repetition& of, const Begun& begun) const {
  JobProgram all;
  add_operators(of, 0, operators_.size(), 0, all);
  if (of.period == 0) {
    all.counted_from = 0;
    all.cost_ns = program_.cost_ns;
  }
  Instruction last{Instruction::effect, all.operators++};
  for (const uint64_t number : begun.reads)
    if (const auto name = names_.find(static_cast<int64_t>(number)); name != names_.end())
      last.arguments.push_back(name->second);
  all.instructions.push_back(std::move(last));
  for (const uint64_t size : begun.sizes)
    all.workspace.insert(all.workspace.end(), {DTR_MEMORY_ALLOCATE, static_cast<int64_t>(size)});
  all.workspace_at.push_back(static_cast<int64_t>(all.workspace.size()));
  all.calls.push_back(StepPlan::kSameCall);
  all.made_ahead.push_back(0);
  return all;
}

JobProgram StepLog::last_steps(const Repetition& of) const {
  const uint64_t first = first_of(of);
  const size_t from = operators_[first].instruction;
  // What is alive there is a constant.
  std::vector<int64_t> alive(sizes_.size(), -1);
  for (size_t i = 0; i < from; ++i) {
    const Instruction& before = program_.instructions[i];
    if (before.kind == Instruction::release) alive[before.arguments[0]] = -1;
    for (const Result& result : before.results)
      if (result.is_fresh()) alive[result.name] = result.size_bytes;
  }
  JobProgram steps;
  for (uint32_t name = 0; name < alive.size(); ++name)
    if (alive[name] >= 0) {
      steps.instructions.push_back({Instruction::constant, 0, 0, {}, {{name, -1, alive[name]}}});
      steps.constant_bytes += static_cast<uint64_t>(alive[name]);
    }
  add_operators(of, first, end_of(of), from, steps);
  return steps;
}

}  // namespace dtr
