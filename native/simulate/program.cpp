#include "program.h"

#include <algorithm>
#include <string>

#include "dtr/op_log.h"
#include "errors.h"

namespace dtr {

namespace {

// Sums of a few billion such numbers stay below 2^127, products of two below 2^124.
constexpr int64_t kMost = int64_t{1} << 62;

class Decoder {
 public:
  Decoder(const int64_t* numbers, uint64_t count, Names names)
      : numbers_(numbers), count_(count), which_(names) {}

  Program program() {
    Program all;
    while (at_ < count_) decode(all.instructions.emplace_back());
    all.operators = operators_;
    all.names = is_live_.size();
    return all;
  }

 private:
  void decode(Instruction& to) {
    static constexpr const char* kKinds[] = {"CONSTANT",  "CALL",    "MUTATE", "COPY",
                                             "COPY_FROM", "RELEASE", "EFFECT"};
    kind_ = nullptr;
    to.kind = static_cast<Instruction::Kind>(number("instruction", 0, 6));
    kind_ = kKinds[to.kind];
    const auto read_results = [&](uint32_t left, int64_t most_alias) {
      for (; left > 0; --left) {
        const uint32_t name = define("new name");
        const int64_t size_bytes = amount("size");
        // A constant has no alias.
        const int64_t alias = most_alias < -1 ? -1 : number("alias", -1, most_alias);
        to.results.push_back({name, static_cast<int32_t>(alias), size_bytes});
      }
    };
    if (to.kind == Instruction::constant) return read_results(1, -2);
    if (to.kind == Instruction::release) {
      to.arguments.push_back(use("name"));
      is_live_[to.arguments[0]] = which_ == Names::ordered;
      return;
    }
    if (!to.is_operator()) {
      const bool is_new = to.kind == Instruction::copy;
      const uint64_t destination = at_++;
      to.arguments.push_back(use("source"));
      at_ = destination;
      to.results.push_back({define("destination", is_new), 0, 0});
      ++at_;
      return;
    }
    to.op = operators_++;
    to.cost = amount("time");
    const uint32_t arguments = count("number of arguments");
    for (uint32_t left = arguments; left > 0; --left) to.arguments.push_back(use("argument"));
    if (to.kind != Instruction::mutate)
      return read_results(count("number of results", 3),
                          to.kind == Instruction::call ? int64_t{arguments} - 1 : -1);
    for (uint32_t left = count("number of indices"); left > 0; --left) {
      const int64_t index = number("index of an argument", -int64_t{arguments}, arguments - 1);
      const auto which = static_cast<int32_t>(std::max(index, ~index));
      to.results.push_back({to.arguments[static_cast<size_t>(which)], which, 0, index >= 0});
    }
  }
  // A name that was defined.
  uint32_t use(const char* what) {
    const int64_t name = number(what, 0, static_cast<int64_t>(is_live_.size()) - 1);
    if (!is_live_[static_cast<size_t>(name)]) fail(what, "a name that stands for something there");
    return static_cast<uint32_t>(name);
  }
  uint32_t define(const char* what, bool is_new = true) {
    const auto names = static_cast<int64_t>(is_live_.size());
    // Every name takes a number of the program, at least.
    const int64_t most = which_ == Names::live
                             ? static_cast<int64_t>(std::min<uint64_t>(count_, INT32_MAX))
                             : names - (is_new ? 0 : 1);
    const int64_t least = which_ == Names::ordered && is_new ? names : 0;
    const auto name = static_cast<size_t>(number(what, least, most));
    if (name >= is_live_.size()) is_live_.resize(name + 1, false);
    is_live_[name] = true;
    return static_cast<uint32_t>(name);
  }
  int64_t amount(const char* what) { return number(what, 0, kMost); }
  // A count of numbers that follow, each of them at least `numbers_each` long.
  uint32_t count(const char* what, uint64_t numbers_each = 1) {
    const int64_t value = number(what, 0, INT32_MAX);
    if (static_cast<uint64_t>(value) > (count_ - at_) / numbers_each)
      fail(what, "no more than the program has left");
    return static_cast<uint32_t>(value);
  }
  int64_t number(const char* what, int64_t least, int64_t most) {
    if (at_ >= count_) throw InvalidArgument("program: it ends before " + described(what));
    const int64_t value = numbers_[at_++];
    if (value < least || value > most)
      fail(what, least > most    ? "none, as there is no name yet"
                 : least == most ? std::to_string(least)
                                 : std::to_string(least) + " to " + std::to_string(most));
    return value;
  }
  std::string described(const char* what) const {
    return (kind_ ? std::string(kind_) + "'s " : "") + what;
  }
  // The last number that was read is wrong.
  [[noreturn]] void fail(const char* what, const std::string& allowed) const {
    throw InvalidArgument("program: number " + std::to_string(at_ - 1) + ", " + described(what) +
                          ", is " + std::to_string(numbers_[at_ - 1]) + "; allowed: " + allowed);
  }

  const int64_t* const numbers_;
  const uint64_t count_;
  const Names which_;
  uint64_t at_ = 0;
  const char* kind_ = nullptr;  // of the instruction that is being decoded
  uint64_t operators_ = 0;
  std::vector<bool> is_live_;  // by name, up to the highest
};

// Throws InvalidArgument if an operator has entries that make no sense.
void check_workspace(const Program& program, const int64_t* workspace, const int64_t* workspace_at,
                     uint64_t operators) {
  if (program.operators != operators)
    throw InvalidArgument("operators is " + std::to_string(operators) + "; the program has " +
                          std::to_string(program.operators));
  std::vector<bool> is_there;  // by temporary of the operator
  int64_t at = 0;
  for (const Instruction& of : program.instructions) {
    if (!of.is_operator()) continue;
    const size_t results = of.kind == Instruction::mutate ? 0 : of.results.size();
    const int64_t begin = workspace_at[of.op], end = workspace_at[of.op + 1];
    if (begin != at || end < begin || (end - begin) % 2 != 0)
      throw InvalidArgument("workspace_at: operator " + std::to_string(of.op) + " has " +
                            std::to_string(begin) + " to " + std::to_string(end) +
                            "; allowed: whole pairs, from " + std::to_string(at) + " on");
    is_there.clear();
    for (; at < end; at += 2) {
      const int64_t kind = workspace[at], value = workspace[at + 1];
      bool allowed = value >= 0;
      if (kind == DTR_MEMORY_ALLOCATE) {
        allowed &= value <= kMost;
        is_there.push_back(true);
      } else if (kind == DTR_MEMORY_FREE) {
        allowed = allowed && static_cast<uint64_t>(value) < is_there.size() && is_there[value];
        if (allowed) is_there[value] = false;
      } else {
        allowed &= kind == DTR_MEMORY_RESULT && static_cast<uint64_t>(value) < results;
      }
      if (!allowed)
        throw InvalidArgument("workspace: operator " + std::to_string(of.op) + " has the entry " +
                              std::to_string(kind) + ", " + std::to_string(value) +
                              "; allowed: 0 with bytes up to 2^62, 1 with a temporary that is "
                              "there, 2 with a result");
    }
  }
}

}  // namespace

Program decoded(const int64_t* numbers, uint64_t count, Names names) {
  return Decoder(numbers, count, names).program();
}

Program decoded(const int64_t* numbers, uint64_t count, const int64_t* workspace,
                const int64_t* workspace_at, uint64_t operators) {
  Program program = decoded(numbers, count, Names::live);
  if (!workspace_at) return program;
  check_workspace(program, workspace, workspace_at, operators);
  program.workspace_at.assign(workspace_at, workspace_at + operators + 1);
  program.workspace.assign(workspace, workspace + workspace_at[operators]);
  return program;
}

}  // namespace dtr
