// op_log_recorder.h: what the job did, as the engine saw it: the substance of an op log
// (dtr_alloc/oplog says what the lines mean, dtr/op_log.h what the numbers mean).
//
// Rules
//  J1  The records tell what the job does, never what the engine decides: the same job
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
// All of it is guarded by the engine's mutex, except the trace of what an op allocates, which belongs
// to the thread that runs it. Whatever a job without a log calls returns at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "dtr/framework.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/observer.h"
#include "graph/op_call.h"

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
  // The sizes of what was not freed.
  std::vector<uint64_t> sizes() const;
  // Appends what happened as pairs of numbers (dtr/op_log.h, DTR_OP_LOG_MEMORY), nothing if
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
  mutable std::vector<int64_t> temporary_;  // of put(): by piece
};

struct LogName {
  uint64_t number = 0;  // 0: none
  uint32_t view = 0;
};

// What the recorder keeps of an op in flight.
struct OpenLog {
  struct Argument {
    LogName name;
    bool made_here = false;  // new memory, first written by this op: a result
  };
  struct Result {
    Storage* storage;
    uint64_t geometry;
    bool constant;  // a parameter
  };
  bool open = false;  // the op began while the recorder was on
  int32_t operator_name = -1;
  uint64_t signature = 0;           // of the call (policy/costs.h)
  uint64_t made_ahead = 0;          // results whose memory was there before it began
  std::vector<Argument> arguments;  // one for each input
  std::vector<Result> results;      // new storages
};

// For the step tuner, the field of the operator's name says what call it was: the signature, and in the
// lowest bits how many results had memory before it began, or as many as these bits can say.
constexpr uint64_t kMadeAheadBits = 7;
inline int64_t tuner_call(uint64_t signature, uint64_t made_ahead) {
  return static_cast<int64_t>((signature & ~kMadeAheadBits) | std::min(made_ahead, kMadeAheadBits));
}

class OpLogRecorder final : public Observer {
 public:
  // To the step tuner, beside the index of what a MUTATE overwrites: see Argument::partly.
  static constexpr int64_t kPartlyWritten = int64_t{1} << 32;

  OpLogRecorder(const Environment& environment, const Graph& graph)
      : environment_(environment), graph_(graph) {}

  // off; following: gives numbers and forgets them, but keeps no records; writing.
  enum class Mode : int32_t { off, following, writing };

  // ---- control ----
  // To writing: what is known now becomes constants.
  // for_tuner: for the engine's own use (run/tuner.h), with numbers of their own. Such a log begins
  // with all that is live, so that what is in use is known from the beginning.
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  void set_mode(Mode mode, Deferred& deferred, bool for_tuner = false);
  // Off, and numbers begin anew: no storage is left that has one.
  void reset(Deferred& deferred);
  uint64_t drain(int64_t* numbers, uint64_t capacity);
  // The same; whatever *records held is gone.
  void take(std::vector<int64_t>* records) {
    records->clear();
    records->swap(records_);
  }
  void set_deciding(bool on);
  uint64_t drain_decisions(int64_t* numbers, uint64_t capacity);

  // ---- what the thread of an op does; no mutex ----
  void allocated(const void* address, uint64_t size_bytes) const;
  void freed(const void* address) const;
  // What this thread allocates belongs to the op from now on; and to none any more.
  void runs(const OpenLog& log) const;
  static void stops();
  // Of what the op that this thread runs has allocated so far.
  std::vector<uint64_t> running_sizes() const;

  // ---- what the job does ----
  void begins(OpenLog& log, const Scratch<Input>& inputs, Deferred& deferred);
  // A storage that the op made.
  void made(OpenLog& log, Storage* storage, const dtr_tensor_desc& desc) const;
  // After the new versions and results have their records. pure: the op could be repeated. Returns
  // the index of its line among those of all operators, or -1. Every operator has one: all move
  // the clock, and read their arguments.
  int64_t ended(OpenLog& log, const Scratch<Input>& inputs, bool pure, int64_t cost_ns);
  void aborted(OpenLog& log);
  // An operator made views: `tensors` of the buffer are its arguments, `results` follow.
  void viewed(const int64_t* buffer, uint32_t tensors, uint32_t results, int32_t operator_name,
              int64_t cost_ns);
  // The framework let go of a live storage.
  void released(const Storage* storage) override;

  // ---- what the engine decides ----
  void lost(const Storage* storage, EvictionCause cause) override;
  void ran_again(const Op* op) override;

 private:
  struct View {
    uint64_t geometry;
    uint32_t view;
  };
  struct Known {
    uint64_t size_bytes;  // 0: memory of others (J4)
    uint64_t root;        // the geometry of view 0
    std::vector<View> views;
    uint32_t last_view = 0;
    uint32_t version = 0;
    uint32_t held = 0;  // ops in flight
    bool constant = false;
    bool released = false;
    // Which view has the geometry; -1: none.
    int64_t view_of(uint64_t geometry) const {
      if (geometry == root) return 0;
      for (const View& view : views)
        if (view.geometry == geometry) return view.view;
      return -1;
    }
  };
  struct Argument {
    LogName name;
    bool overwritten;
    bool read;
    bool partly;  // some of its buffer is still to be written (R16)
  };

  void turn(Mode mode, Deferred& deferred);
  bool is_writing() const { return mode_ == Mode::writing; }

  void put_one(LogName name) { put(name.number, name.view); }
  template <typename Number>
  void put_one(Number number) {
    records_.push_back(static_cast<int64_t>(number));
  }
  // Numbers and names, one after the other.
  template <typename... Parts>
  void put(Parts... parts) {
    (put_one(parts), ...);
  }
  // If it is another than that of the operator before.
  void put_place();
  void put_constant(uint64_t number, const Known& known);
  void put_view_releases(uint64_t number, Known& known);
  void put_releases(uint64_t number, Known& known);
  void put_memory(const OpenLog& log, const std::vector<OpenLog::Result>& results,
                  const std::vector<OpenLog::Result>& ignored);
  int64_t put_operator(const OpenLog& log, bool pure, int64_t cost_ns);
  void put_views(const Storage* storage, LogName base, const std::vector<uint64_t>& geometries,
                 int32_t operator_name, int64_t cost_ns);

  Known* known_of(const Storage* storage) {
    const auto found = names_.find(storage->log_number);
    return found == names_.end() ? nullptr : &found->second;
  }
  bool knows(const Storage* storage) const { return names_.count(storage->log_number) > 0; }
  // The step tuner knows no views: there every tensor lies in its storage as any other.
  uint64_t geometry_of(const dtr_tensor_desc& desc) const;
  Known& define(Storage* storage, uint64_t geometry);
  // A storage that nothing recorded has made.
  Known& define_constant(Storage* storage, uint64_t geometry);
  // Gives such a storage its number.
  Known& meet(Storage* storage, const dtr_tensor_desc& desc, Deferred& deferred);
  // Finds memory of others that died.
  void sweep(Deferred& deferred);
  // A tensor's name. One that is no root and has none yet becomes a view that costs nothing.
  LogName name_of(const Storage* storage, uint64_t geometry);
  // From now on the storage is a constant: the job made a parameter of it, or an op that
  // nobody can repeat overwrote it. A new number takes it over, unless it is one already.
  Known& turn_constant(Storage* storage, Known& known, bool overwritten);
  void forget(uint64_t number);
  void unhold(OpenLog& log);

  const Environment& environment_;
  const Graph& graph_;
  std::atomic<bool> on_{false};
  Mode mode_ = Mode::off;
  bool deciding_ = false;
  uint64_t last_number_ = 0, last_for_tuner_ = uint64_t{1} << 62;
  bool for_tuner_ = false;
  int64_t operators_ = 0;  // lines of operators so far
  uint32_t place_ = 0;     // of the last of them
  std::unordered_map<uint64_t, Known> names_;
  std::unordered_map<void*, uint64_t> others_;  // memory of others: the numbers of their handles
  std::vector<int64_t> records_;
  std::vector<int64_t> decisions_;
  // Of the operator that ends, here to keep their memory.
  struct {
    std::vector<Argument> arguments;
    std::vector<Storage*> overwritten;
    std::vector<OpenLog::Result> called, constants;
    std::vector<const void*> addresses, ignored;
  } ended_;
};

}  // namespace dtr
