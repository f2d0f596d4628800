// step_log.cpp: see step_log.h.
#include "step_log.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "dtr/op_log.h"
#include "simulate/program.h"

namespace dtr {

namespace {

// A step may leave this share of the most memory more, or less, than it found; and it has that much
// more in use at some point. (What fills parameters one after the other repeats, too.)
constexpr double kBalance = 0.005;
constexpr double kSwing = 0.05;
// What repeats is the job's step only if it fills this share of what was recorded.
constexpr uint64_t kShare = 4;
// So many are played at most.
constexpr uint64_t kMostSteps = 4;

class Hash {
 public:
  void add(uint64_t number) {
    value_ = (value_ ^ number) * 1099511628211u;
    value_ ^= value_ >> 29;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037u;  // FNV-1a, a number at a time
};

int64_t number_of(Instruction::Kind instruction) { return static_cast<int64_t>(instruction); }

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

uint64_t StepLog::name_of(int64_t number) {
  const auto [entry, is_new] = names_.emplace(number, sizes_.size());
  if (!is_new) return entry->second;
  last_number_ = std::max(last_number_, static_cast<uint64_t>(number));
  if (unused_.empty()) {
    sizes_.push_back(0);
  } else {
    entry->second = unused_.back();
    unused_.pop_back();
  }
  return entry->second;
}

void StepLog::define(uint64_t name, uint64_t size_bytes) {
  sizes_[name] = size_bytes;
  live_bytes_ += size_bytes;
}

void StepLog::add_operator(const Operator& of) {
  program_.workspace_at.push_back(static_cast<int64_t>(program_.workspace.size()));
  program_.cost_ns += of.cost_ns;
  operators_.push_back(of);
}

void StepLog::append(const std::vector<int64_t>& records) {
  std::vector<int64_t>& code = program_.code;
  std::vector<int64_t> arguments, results;
  Records in(records);
  while (!in.at_end()) {
    const int64_t kind = in.next();
    if (kind == DTR_OP_LOG_CONSTANT) {
      const uint64_t name = name_of(in.next());
      const int64_t size_bytes = in.next();
      code.insert(code.end(),
                  {number_of(Instruction::constant), static_cast<int64_t>(name), size_bytes});
      define(name, static_cast<uint64_t>(size_bytes));
      continue;
    }
    if (kind == DTR_OP_LOG_RELEASE) {
      bool is_view = false;
      const int64_t number = in.next_name(&is_view);
      const auto found = names_.find(number);
      if (is_view || found == names_.end()) continue;
      code.insert(code.end(),
                  {number_of(Instruction::release), static_cast<int64_t>(found->second)});
      live_bytes_ -= sizes_[found->second];
      if (!operators_.empty()) operators_.back().live_bytes = live_bytes_;
      unused_.push_back(found->second);
      names_.erase(found);
      continue;
    }
    if (kind == DTR_OP_LOG_MEMORY) {
      for (int64_t pairs = in.next(); pairs > 0; --pairs) {
        program_.workspace.push_back(in.next());
        program_.workspace.push_back(in.next());
      }
      continue;
    }
    const int64_t last_kind = std::exchange(last_kind_, kind);
    const uint64_t code_at = code.size(), last_number = last_number_;
    Hash hash;
    hash.add(static_cast<uint64_t>(kind));
    const auto said = static_cast<uint64_t>(in.next());
    const uint64_t call = StepPlan::call_of(said);
    const int64_t cost_ns = in.next();
    arguments.clear();
    for (int64_t count = in.next(); count > 0; --count) {
      arguments.push_back(static_cast<int64_t>(name_of(in.next_name())));
      hash.add(sizes_[static_cast<size_t>(arguments.back())]);
    }
    results.clear();
    const int64_t count = in.next();
    bool is_fresh = kind != DTR_OP_LOG_CALL;
    if (kind == DTR_OP_LOG_MUTATE) {
      for (int64_t i = 0; i < count; ++i) results.push_back(in.next());
    } else {
      for (int64_t i = 0; i < count; ++i) {
        int64_t number = 0, size_bytes = 0, alias = -1;
        if (kind == DTR_OP_LOG_EFFECT) {
          in.next();  // DTR_OP_LOG_CONSTANT
          number = in.next();
          size_bytes = in.next();
        } else {
          number = in.next_name();
          size_bytes = in.next();
          alias = in.next();
        }
        hash.add(static_cast<uint64_t>(size_bytes));
        if (alias >= 0) continue;
        is_fresh = true;
        const uint64_t name = name_of(number);
        define(name, static_cast<uint64_t>(size_bytes));
        results.insert(results.end(), {static_cast<int64_t>(name), size_bytes, -1});
      }
    }
    if (!is_fresh) continue;  // views alone
    const Instruction::Kind instruction = kind == DTR_OP_LOG_CALL     ? Instruction::call
                                          : kind == DTR_OP_LOG_MUTATE ? Instruction::mutate
                                                                      : Instruction::effect;
    code.insert(code.end(),
                {number_of(instruction), cost_ns, static_cast<int64_t>(arguments.size())});
    code.insert(code.end(), arguments.begin(), arguments.end());
    const size_t each = kind == DTR_OP_LOG_MUTATE ? 1 : 3;
    code.push_back(static_cast<int64_t>(results.size() / each));
    code.insert(code.end(), results.begin(), results.end());
    // What overwrites besides making results has two records.
    const bool is_same_call = kind == DTR_OP_LOG_MUTATE && last_kind == DTR_OP_LOG_CALL &&
                              !operators_.empty() && operators_.back().call == call && cost_ns == 0;
    add_operator({code_at, hash.value(), is_same_call ? StepPlan::kSameCall : call,
                  static_cast<uint32_t>(said & kMadeAheadBits), cost_ns, live_bytes_, last_number});
  }
}

// Z[p] of the reversed sequence of hashes (Gusfield, 1997): how far what is read backwards from the
// p-th last operator is the same as from the last one. A step of p operators has been repeated if
// that is p and more.
StepLog::Repetition StepLog::repetition() const {
  const uint64_t count = operators_.size();
  const auto hash = [&](uint64_t i) { return operators_[count - 1 - i].hash; };
  const auto live = [&](uint64_t i) {
    return static_cast<double>(operators_[count - 1 - i].live_bytes);
  };
  double most = 0;
  for (const Operator& of : operators_) most = std::max(most, static_cast<double>(of.live_bytes));
  std::vector<uint64_t> z(count, 0);
  // Of the operators 1 to i: the most in use after one, and the one with the least, the farthest of
  // several. They grow with i, as looking through each period would take the square of a loop.
  double high = 0;
  uint64_t low = 1;
  for (uint64_t i = 1, left = 0, right = 0; i < count; ++i) {
    if (i < right) z[i] = std::min(right - i, z[i - left]);
    while (i + z[i] < count && hash(z[i]) == hash(i + z[i])) ++z[i];
    if (i + z[i] > right) {
      left = i;
      right = i + z[i];
    }
    high = std::max(high, live(i));
    const uint64_t low_within = low;
    if (live(i) <= live(low)) low = i;
    // What dies behind the last operator may do so because the job ends: that a step earlier counts.
    if (i == 1 || z[i] < i || kShare * (i + z[i]) < count ||
        std::abs(live(1) - live(i + 1)) > kBalance * most)
      continue;
    if (high - live(low) < kSwing * most) continue;
    // The point before the period's first operator is the same as that behind its last.
    const uint64_t behind = live(i) < live(low_within) ? 0 : low_within;
    return {i, count - behind, (i + z[i] - behind) / i};
  }
  return {};
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
  const auto live = [&](uint64_t i) { return operators_[i].live_bytes; };
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

// The operators from `first` on and before `last`, and what is between them, beginning at `from` in
// the code. The second step and those behind it count.
void StepLog::add_operators(const Repetition& of, uint64_t first, uint64_t last, uint64_t from,
                            OwnedProgram& to) const {
  const std::vector<int64_t>& code = program_.code;
  const uint64_t first_step = first_of(of);
  const auto at = [](uint64_t number) { return static_cast<std::ptrdiff_t>(number); };
  to.code.insert(
      to.code.end(), code.begin() + at(from),
      last == operators_.size() ? code.end() : code.begin() + at(operators_[last].code_at));
  const bool fills_first = of.period > 0 && last - first_step >= 2 * of.period;
  to.counted_from = first_step - first + (fills_first ? of.period : 0);
  const int64_t skipped = program_.workspace_at[first];
  for (uint64_t i = first; i < last; ++i) {
    to.workspace_at.push_back(program_.workspace_at[i + 1] - skipped);
    if (i >= first + to.counted_from) to.cost_ns += operators_[i].cost_ns;
    to.calls.push_back(operators_[i].call);
    to.made_ahead.push_back(operators_[i].made_ahead);
  }
  to.workspace.assign(program_.workspace.begin() + skipped,
                      program_.workspace.begin() + program_.workspace_at[last]);
}

OwnedProgram StepLog::whole(const Repetition& of) const {
  OwnedProgram all;
  add_operators(of, 0, end_of(of), 0, all);
  return all;
}

OwnedProgram StepLog::whole(const Repetition& of, const Begun& begun) const {
  OwnedProgram all;
  add_operators(of, 0, operators_.size(), 0, all);
  if (of.period == 0) {
    all.counted_from = 0;
    all.cost_ns = program_.cost_ns;
  }
  const size_t at = all.code.size();
  all.code.insert(all.code.end(), {number_of(Instruction::effect), 0, 0});
  for (const uint64_t number : begun.reads)
    if (const auto name = names_.find(static_cast<int64_t>(number)); name != names_.end())
      all.code.push_back(static_cast<int64_t>(name->second));
  all.code[at + 2] = static_cast<int64_t>(all.code.size() - at - 3);
  all.code.push_back(0);
  for (const uint64_t size : begun.sizes)
    all.workspace.insert(all.workspace.end(), {DTR_MEMORY_ALLOCATE, static_cast<int64_t>(size)});
  all.workspace_at.push_back(static_cast<int64_t>(all.workspace.size()));
  all.calls.push_back(StepPlan::kSameCall);
  all.made_ahead.push_back(0);
  return all;
}

OwnedProgram StepLog::last_steps(const Repetition& of) const {
  const uint64_t first = first_of(of);
  const std::vector<int64_t>& code = program_.code;
  const uint64_t from = operators_[first].code_at;
  // What is alive there is a constant.
  std::vector<int64_t> alive(sizes_.size(), -1);
  const auto define = [&](int64_t name, int64_t size) { alive[static_cast<size_t>(name)] = size; };
  OwnedProgram steps;
  for (uint64_t at = 0; at < from;) {
    const auto instruction = static_cast<Instruction::Kind>(code[at]);
    if (instruction == Instruction::constant) {
      define(code[at + 1], code[at + 2]);
      at += 3;
    } else if (instruction == Instruction::release) {
      define(code[at + 1], -1);
      at += 2;
    } else {
      at += 3 + static_cast<uint64_t>(code[at + 2]);
      const auto results = static_cast<uint64_t>(code[at++]);
      if (instruction == Instruction::mutate) {
        at += results;
        continue;
      }
      for (uint64_t i = 0; i < results; ++i, at += 3) define(code[at], code[at + 1]);
    }
  }
  for (size_t name = 0; name < alive.size(); ++name)
    if (alive[name] >= 0) {
      steps.code.insert(steps.code.end(), {number_of(Instruction::constant),
                                           static_cast<int64_t>(name), alive[name]});
      steps.constant_bytes += static_cast<uint64_t>(alive[name]);
    }
  add_operators(of, first, end_of(of), from, steps);
  return steps;
}

}  // namespace dtr
