// program.h: an op log in the form of numbers (dtr/simulate.h), as typed instructions.
//
// Every number is checked when it is decoded, so that a program from anywhere is either run or
// named as malformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dtr {

// Elements of a vector that somebody else owns.
template <typename T>
struct Span {
  const T* first = nullptr;
  size_t count = 0;
  const T* begin() const { return first; }
  const T* end() const { return first + count; }
  size_t size() const { return count; }
  const T& operator[](size_t i) const { return first[i]; }
};

struct Result {
  uint32_t name;        // of MUTATE: the name of the argument that is overwritten
  int32_t alias;        // the index of the argument whose memory it has; -1: memory of its own
  int64_t size_bytes;   // of MUTATE, COPY and COPY_FROM: 0
  bool is_read = true;  // of MUTATE: whether the old content is
  bool is_fresh() const { return alias < 0; }
};

struct Instruction {
  enum Kind : int64_t {
    constant = 0,
    call = 1,
    mutate = 2,
    copy = 3,
    copy_from = 4,
    release = 5,
    effect = 6
  };
  Kind kind = constant;
  bool is_operator() const { return kind == call || kind == mutate || kind == effect; }
  uint64_t op = 0;  // of a CALL, MUTATE or EFFECT: its index among these
  int64_t cost = 0;
  Span<uint32_t> arguments;  // names; of COPY and COPY_FROM the source, of RELEASE its name
  Span<Result> results;      // of COPY and COPY_FROM the destination
};

// What names a program may use.
enum class Names {
  ordered,  // a new name is the next number; any name that was new once may be used
  live      // any numbers; a name that is used stands for something there
};

class Instructions {
 public:
  // Throws InvalidArgument if the program is malformed.
  Instructions(const int64_t* numbers, uint64_t count, Names names);
  Instructions(const Instructions&) = delete;
  Instructions& operator=(const Instructions&) = delete;

  const Instruction* begin() const { return instructions_.data(); }
  const Instruction* end() const { return instructions_.data() + instructions_.size(); }
  uint64_t operators() const { return operators_; }
  size_t arguments() const { return arguments_.size(); }  // of all instructions
  size_t names() const { return is_live_.size(); }        // all of them are below

 private:
  void decode(Instruction& to);
  uint32_t use(const char* what);
  uint32_t define(const char* what, bool is_new = true);
  int64_t amount(const char* what) { return number(what, 0, kMost); }
  uint32_t count(const char* what, uint64_t numbers_each = 1);
  int64_t number(const char* what, int64_t least, int64_t most);
  std::string described(const char* what) const;
  [[noreturn]] void fail(const char* what, const std::string& allowed) const;

  // Sums of a few billion such numbers stay below 2^127, products of two below 2^124.
  static constexpr int64_t kMost = int64_t{1} << 62;
  const int64_t* const numbers_;
  const uint64_t count_;
  const Names which_;
  uint64_t at_ = 0;
  const char* kind_ = nullptr;  // of the instruction that is being decoded
  uint64_t operators_ = 0;
  std::vector<Instruction> instructions_;
  std::vector<uint32_t> arguments_;
  std::vector<Result> results_;
  std::vector<bool> is_live_;  // by name, up to the highest
};

}  // namespace dtr
