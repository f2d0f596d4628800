// versions.h: what an op overwrites. The content before it ends as one storage, the content after
// it begins as the next (R1), as a result of the op if the op can be repeated, else as a constant.
#pragma once

#include <vector>

#include "graph/contents.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/op_call.h"
#include "graph/settling.h"
#include "graph/stream_order.h"
#include "graph/unwritten.h"
#include "storage_lifecycle.h"

namespace dtr {

// All of it under the engine's mutex.
class Versions {
 public:
  // What it works with.
  struct Parts {
    Environment& environment;
    Graph& graph;
    StorageLifecycle& lifecycle;
    const GraphCapture& capture;
    const StreamOrder& streams;
    Settling& settling;
    DeadStorages& dead;
    Contents& contents;
    UnwrittenParts& unwritten;
  };
  explicit Versions(const Parts& parts) : parts_(parts) {}

  // Of an op that begins, and overwrites arguments, or touches some while a graph is captured.
  // False if what depends on one must be computed first.
  bool begin(OpCall& call, Deferred& deferred);
  // Settles what the op is about to lose (R8). False if something must be computed first, which
  // *targets gets.
  bool settle(const OpCall& call, std::vector<Storage*>* targets, Deferred& deferred);
  // The op ran: sees what it overwrote in fact, and whether it can be repeated. False if it
  // overwrote nothing but scratch memory.
  bool ran(OpCall& call);
  // Begins the next versions; op: its record, or null if it cannot be repeated.
  void end(OpCall& call, Op* op, Deferred& deferred);
  // The op failed. started: it may have overwritten some in part, which are constants of unknown
  // content then.
  void abandon(OpCall& call, bool started, Deferred& deferred);

 private:
  void find_shared(OpCall& call);
  bool still_covers(const Input& input) const;
  bool may_begin(const Storage* storage, const dtr_tensor_desc& part) const;
  void* copy_of(const Storage* storage) const;
  void keep_in_copy(Input& input);
  void next(OpCall& call, Input& input, Op* op, int32_t position, Deferred& deferred);

  Parts parts_;
  std::vector<Settling::Loss> losses_;  // of settle()
};

}  // namespace dtr
