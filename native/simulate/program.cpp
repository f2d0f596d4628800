#include "program.h"

#include <algorithm>

#include "errors.h"

namespace dtr {

Instructions::Instructions(const int64_t* numbers, uint64_t count, Names names)
    : numbers_(numbers), count_(count), which_(names) {
  while (at_ < count_) {
    Instruction next;
    const size_t arguments = arguments_.size(), results = results_.size();
    decode(next);
    next.arguments.count = arguments_.size() - arguments;
    next.results.count = results_.size() - results;
    instructions_.push_back(next);
  }
  const uint32_t* argument = arguments_.data();
  const Result* result = results_.data();
  for (Instruction& of : instructions_) {
    of.arguments.first = argument;
    of.results.first = result;
    argument += of.arguments.count;
    result += of.results.count;
  }
}

void Instructions::decode(Instruction& to) {
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
      results_.push_back({name, static_cast<int32_t>(alias), size_bytes});
    }
  };
  if (to.kind == Instruction::constant) return read_results(1, -2);
  if (to.kind == Instruction::release) {
    arguments_.push_back(use("name"));
    is_live_[arguments_.back()] = which_ == Names::ordered;
    return;
  }
  if (!to.is_operator()) {
    const bool is_new = to.kind == Instruction::copy;
    const uint64_t destination = at_++;
    arguments_.push_back(use("source"));
    at_ = destination;
    results_.push_back({define("destination", is_new), 0, 0});
    ++at_;
    return;
  }
  to.op = operators_++;
  to.cost = amount("time");
  const uint32_t arguments = count("number of arguments");
  const size_t first = arguments_.size();
  for (uint32_t left = arguments; left > 0; --left) arguments_.push_back(use("argument"));
  if (to.kind != Instruction::mutate)
    return read_results(count("number of results", 3),
                        to.kind == Instruction::call ? int64_t{arguments} - 1 : -1);
  for (uint32_t left = count("number of indices"); left > 0; --left) {
    const int64_t index = number("index of an argument", -int64_t{arguments}, arguments - 1);
    const auto which = static_cast<int32_t>(std::max(index, ~index));
    results_.push_back({arguments_[first + static_cast<size_t>(which)], which, 0, index >= 0});
  }
}

// A name that was defined.
uint32_t Instructions::use(const char* what) {
  const int64_t name = number(what, 0, static_cast<int64_t>(is_live_.size()) - 1);
  if (!is_live_[static_cast<size_t>(name)]) fail(what, "a name that stands for something there");
  return static_cast<uint32_t>(name);
}

uint32_t Instructions::define(const char* what, bool is_new) {
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

// A count of numbers that follow, each of them at least `numbers_each` long.
uint32_t Instructions::count(const char* what, uint64_t numbers_each) {
  const int64_t value = number(what, 0, INT32_MAX);
  if (static_cast<uint64_t>(value) > (count_ - at_) / numbers_each)
    fail(what, "no more than the program has left");
  return static_cast<uint32_t>(value);
}

int64_t Instructions::number(const char* what, int64_t least, int64_t most) {
  if (at_ >= count_) throw InvalidArgument("program: it ends before " + described(what));
  const int64_t value = numbers_[at_++];
  if (value < least || value > most)
    fail(what, least > most    ? "none, as there is no name yet"
               : least == most ? std::to_string(least)
                               : std::to_string(least) + " to " + std::to_string(most));
  return value;
}

std::string Instructions::described(const char* what) const {
  return (kind_ ? std::string(kind_) + "'s " : "") + what;
}

// The last number that was read is wrong.
void Instructions::fail(const char* what, const std::string& allowed) const {
  throw InvalidArgument("program: number " + std::to_string(at_ - 1) + ", " + described(what) +
                        ", is " + std::to_string(numbers_[at_ - 1]) + "; allowed: " + allowed);
}

}  // namespace dtr
