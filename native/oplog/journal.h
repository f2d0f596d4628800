// journal.h: what the job did, as the engine saw it: the substance of an op log
// (dtr_alloc/oplog.py says what the lines mean; dtr_alloc/journal.py writes them).
//
// Rules
//  J1  The journal tells what the job does, never what the engine decides: the same job
//      under another budget gives the same records but for their times. So nothing here
//      looks at parents, states or record ids. (Decisions are a list of their own.)
//  J2  A name is a pair (number, view). A number stands for one storage of the framework,
//      from when an op first meets it until it dies or its memory is exchanged; numbers
//      are given in that order. An overwritten storage keeps its number: MUTATE gives the
//      name another content. View 0 is the tensor as it was first met; each other
//      geometry is a view, with a name of its own until the storage is overwritten.
//  J3  While it writes, every number that is known has been defined in the records, and
//      none is released while an op in flight has it as an argument.
//  J4  Memory of others has no size, and its death is looked for, since nobody tells.
//
// All of it under the engine's mutex, except OpenLog::memory: that belongs to the thread
// on which the op runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "dtr/framework.h"
#include "graph/records.h"

namespace dtr {

// What an op allocates while it runs.
class MemoryTrace {
 public:
  void clear() {
    pieces_.clear();
    events_.clear();
  }
  void allocated(const void* address, uint64_t size_bytes);
  void freed(const void* address);
  // Appends what happened as pairs of numbers (dtr_alloc.h, DTR_JOURNAL_MEMORY), nothing if
  // the op allocated its results in order and no more. results: their addresses; ignored:
  // those of what counts as neither result nor temporary.
  void put(const std::vector<const void*>& results, const std::vector<const void*>& ignored,
           std::vector<int64_t>* out) const;

 private:
  struct Piece {
    const void* address;  // null once it was freed
    uint64_t size_bytes;
  };
  struct Event {
    uint32_t piece;
    bool freed;
  };
  std::vector<Piece> pieces_;
  std::vector<Event> events_;
};

struct LogName {
  uint64_t number = 0;  // 0: none
  uint32_t view = 0;
};

// What the journal keeps of an op in flight.
struct OpenLog {
  struct Argument {
    LogName name;
    bool made_here = false;  // new memory, first written by this op: a result
  };
  struct Result {
    Storage* storage;
    uint64_t look;
    bool constant;  // a parameter
  };
  bool open = false;  // the op began while the journal was on
  int32_t operator_name = -1;
  std::vector<Argument> arguments;  // one for each input
  std::vector<Result> results;      // new storages
  MemoryTrace memory;
};

class Journal {
 public:
  // off; following: gives numbers and forgets them, but keeps no records; writing.
  enum class Mode : int32_t { off, following, writing };
  // Why a storage lost its content.
  enum class Cause : int64_t { room = 0, by_hand = 1, gone = 2 };

  // The only question on the way of a job that is not logged. Any thread.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool writing() const { return mode_ == Mode::writing; }
  Mode mode() const { return mode_; }
  // To writing: what is known now becomes constants.
  void set_mode(Mode mode);
  // Off, and numbers begin anew: no storage is left that has one.
  void reset();

  // A number that says how a tensor looks at its storage.
  static uint64_t look(const dtr_tensor_desc& desc);

  bool knows(const Storage* storage) const { return names_.count(storage->log_number) > 0; }
  bool knows(const Storage* storage, uint64_t look) const;
  // A storage that nothing recorded has made.
  void constant(Storage* storage, uint64_t look);
  // A tensor's name. One that is no root and has none yet becomes a view that costs nothing.
  LogName name(const Storage* storage, uint64_t look);
  // The views `looks` of the storage, made of one tensor by one operator.
  void views(const Storage* storage, LogName base, const std::vector<uint64_t>& looks,
             int32_t operator_name, int64_t cost_ns);
  // The framework let go of it.
  void released(const Storage* storage);

  void hold(uint64_t number);
  void unhold(uint64_t number);

  // The lines of one op; see Engine::journal_end.
  struct Argument {
    LogName name;
    bool overwritten;
    bool read;
  };
  // Returns the index of the operator's line among those of all operators, or -1. Every operator
  // has one: all move the engine's clock, and read their arguments.
  int64_t operator_ended(const OpenLog& log, const std::vector<Argument>& arguments,
                         const std::vector<OpenLog::Result>& results, bool pure, int64_t cost_ns);
  // The content that `number` stands for is another now: which version.
  uint32_t overwritten(uint64_t number);
  // From now on the storage is a constant: the job made a parameter of it, or an op that
  // nobody can repeat overwrote it. A new number takes it over, unless it is one already.
  void turned_constant(Storage* storage, bool overwritten);

  // Memory of others: the number that its handle has, or 0.
  std::unordered_map<void*, uint64_t>& others() { return others_; }
  void other_died(uint64_t number);

  uint64_t drain(int64_t* numbers, uint64_t capacity);

  // ---- decisions ----
  bool deciding() const { return deciding_; }
  void set_deciding(bool on);
  void evicted(const Storage* storage, Cause cause);
  void ran_again(const Op* op);
  uint64_t drain_decisions(int64_t* numbers, uint64_t capacity);

 private:
  struct View {
    uint64_t look;
    uint32_t view;
  };
  struct Known {
    uint64_t size_bytes;  // 0: memory of others (J4)
    uint64_t root;        // the look of view 0
    std::vector<View> views;
    uint32_t last_view = 0;
    uint32_t version = 0;
    uint32_t held = 0;  // ops in flight
    bool constant = false;
    bool released = false;
  };

  void put(int64_t number) { records_.push_back(number); }
  void put(LogName name);
  void put_constant(uint64_t number, const Known& known);
  void put_view_releases(uint64_t number, Known& known);
  void put_releases(uint64_t number, Known& known);
  uint64_t define(Storage* storage, uint64_t look);

  std::atomic<bool> on_{false};
  Mode mode_ = Mode::off;
  bool deciding_ = false;
  uint64_t last_number_ = 0;
  int64_t operators_ = 0;  // lines of operators so far
  std::unordered_map<uint64_t, Known> names_;
  std::unordered_map<void*, uint64_t> others_;
  std::vector<int64_t> records_;
  std::vector<int64_t> decisions_;
};

}  // namespace dtr
