// records.h: what the engine knows of a job: storages, ops and the edges between.
//
// Rules, by number; check_invariants() (run/engine.cpp) and the check() of each class test them.
//
//  R1  A storage is one content of one buffer. Overwriting a buffer ends one
//      storage and begins the next ("version"); the buffer changes hands, no byte moves.
//  R2  A storage with a parent can be recomputed. One without is a constant: its content is
//      never given up. It may be swapped out, where that is on (R14).
//  R3  A child edge exists for every (op, input) whose op can still be replayed.
//      An op exists while one of its outputs is recorded; an output is recorded
//      while it is live, locked or has children. So records vanish by themselves.
//  R4  Evicted: address is null; the storage counts for the costs of others, unless
//      lost. Resident: the address is set, and it does not.
//  R5  live: the framework holds the handle, and the engine holds it weakly. Dead
//      and resident (brought back, or a constant kept for its children): the engine
//      owns the memory, through a strong handle or, if the handle is null, as a
//      bare address. Such constants, and no others, stand in the list of those kept.
//  R6  Candidates for eviction are exactly the resident storages whose memory is ours, all of it
//      written (R16), that have a parent or, while swapping is on, could be swapped out. Locked and
//      pinned ones stay in the list and are passed over, because locks come and go with every op.
//  R7  locks > 0 keeps a record until unlocked; locks > holds its memory, too, while resident.
//  R8  While an op runs, what it overwrites has a parent or no children: its content is
//      about to go for good. So whoever makes a constant of it settles it first. (Of what others
//      hold, a part may be overwritten; children that read other parts stay.)
//  R9  A storage that is to be banished is dead, and it or one of its dependents is
//      locked, or one is evicted: else it would be gone (dead_storages.h).
//  R10 What the costs of a candidate are made of follows every change, and only what the
//      heuristic needs is kept: N1-N4 of neighborhoods.h, C1 and C2 of candidates.h.
//  R11 A waiting lock is one of what does not run yet (waiting_inputs.h): of an op whose inputs are
//      brought back, of a step that waits for another, or, on an output that is there already, of
//      the step that makes it anew. Its owner looks again whether the storage is resident.
//  R12 What is needed by what: G1 and G2 of needed_storages.h.
//  R13 What streams wait for: O1 and O2 of stream_order.h.
//  R14 Swapped out: the address is null, the content is in host memory, and it comes back from
//      there. To all others it is as good as resident: it counts for nobody's costs, and is no
//      history to be recomputed. It is managed and not external. (swap_space.h)
//  R15 Pins are of a handle, whatever content it has or whether the engine has met it; a live
//      managed storage has as many as its handle. What is pinned is not evicted; what was evicted
//      already comes back by whoever pinned it. (pins.h)
//  R16 A content is unwritten while a part of its buffer was written by no op, what that part holds
//      being nobody's: it has a parent, but is no candidate, as a replay gives that part another
//      content. What reads of it what was not written makes it a constant. (unwritten.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/scratch.h"
#include "dtr/storage.h"

namespace dtr {

// Of Storage::candidate: none; and below it, -2 - i for the i-th of those that no search has
// met yet.
constexpr int64_t kNoCandidate = -1;

// No stream: on the CPU, or not known.
constexpr uint64_t kNoStream = UINT64_MAX;

constexpr uint8_t kCpu = 0;  // c10::DeviceType::CPU

// Of Storage::due_ns: it is not known when the storage is used again; or not before long.
constexpr int64_t kNoForesight = INT64_MIN;
constexpr int64_t kNeverDue = INT64_MAX;

struct Op;
struct Storage;
struct ComponentNode;
struct HostCopy;

enum class State : uint8_t {
  resident,     // the content is in memory
  swapped,      // the content is in host memory (R14)
  evicted,      // the content is gone; the parent op can bring it back, unless lost
  recomputing,  // evicted, and a rematerialization in progress will bring it back
  freed         // the record itself is on its way out
};

// What becomes of a storage that the framework drops while others depend on it.
enum class WhenDropped : uint8_t {
  by_policy,  // dead_storages.h
  goes,       // its plan has no use for it afterwards (step_plan.h, A2)
  stays       // its plan has one
};

// What the resident storages next to an evicted region know of it (N2).
enum class Known : uint8_t {
  maybe,  // some may know the summed cost
  no,     // none does, but their bounds may still count it
  gone    // none does, and none's bound counts it
};

// One input of one op, linked into the input's list of children.
struct Edge {
  Op* op = nullptr;
  Storage* input = nullptr;
  Edge* previous = nullptr;
  Edge* next = nullptr;
  uint64_t checksum = 0;  // of what the op has read, if others hold the input (contents.h)
  bool lost = false;      // others wrote there since, and have been noticed
};

// What searches for what to evict read stands in the first two cache lines.
struct alignas(64) Storage {
  uint64_t size_bytes = 0;
  void* address = nullptr;     // R4
  Op* parent = nullptr;        // R2
  int64_t last_access_ns = 0;  // by the engine's clock (engine.h)
  int64_t ancestors_ns = 0;    // the evicted ones' summed cost, or shares (N1)
  int64_t descendants_ns = 0;
  double price = 0;  // of a member of a window, when the search number priced looked
  uint64_t priced = 0;

  ComponentNode* component = nullptr;  // if counted, and the heuristic needs components
  HostCopy* host = nullptr;            // R14
  uint64_t id = 0;
  uint32_t locks = 0;
  uint32_t pins = 0;
  uint32_t needed_by = 0;   // G2
  uint32_t dependents = 0;  // recorded storages computed from it, when it was last evicted
  uint32_t recomputes = 0;
  Known below = Known::maybe;  // N2
  Known above = Known::maybe;
  State state = State::resident;
  bool live = false;
  bool managed = false;          // the memory comes from our pools
  bool external = false;         // others hold the pointer, and may write
  bool lost = false;             // evicted, and nothing can bring it back; live: since a reset
  bool counted = false;          // R4
  bool ancestors_known = false;  // N1
  bool descendants_known = false;
  bool parked = false;    // C2
  bool needed = false;    // G1
  bool captured = false;  // others may overwrite it at any time (graph_capture.h, F2)
  uint8_t device_type = 0;
  int8_t device_index = -1;

  void* handle = nullptr;  // weak while live, strong while dead (R5)
  Edge* children = nullptr;
  HostCopy* expected = nullptr;      // evicted: what must come back (verifier.h)
  uint64_t visit = 0;                // visited in the neighborhood walk of that number
  uint64_t checksum = 0;             // of the content, if it is watched (contents.h)
  int64_t candidate = kNoCandidate;  // index in the list of candidates (R6), or below 0
  int64_t kept = -1;                 // index in the list of kept constants, or -1
  uint64_t mark = 0;                 // visited in the walk of that number
  uint32_t holds = 0;                // of the locks (R11)
  uint32_t overwriters = 0;          // ops in flight that will end this version (R8)
  // Ops of its step behind it, along the longest path, since the last look at its history.
  uint32_t chain = 0;
  uint32_t output = 0;     // index in its parent's outputs
  bool unwritten = false;  // R16
  WhenDropped when_dropped = WhenDropped::by_policy;
  bool kept_for_later = false;     // dead, and resident ever since
  bool to_banish = false;          // dead, and to go for good as soon as possible (R9)
  bool queued = false;             // to be tried when the call is done
  bool constant_for_good = false;  // parameters, escapes: overwriting keeps it a constant
  bool is_source = false;          // a rematerialization under way has used it (dead_storages.h)
  bool forgets = false;      // evicted; its parent, once it is back (Settling::settle_with_others)
  bool in_unneeded = false;  // stands among the candidates' unneeded ones
  bool prefetched = false;   // came back from host memory, and was not used since
  bool was_evicted = false;  // when it had to become a constant (SwapSpace::settled_on)
  uint8_t constant_as = DTR_KEPT_FOUND;  // why it has no parent, if it has none
  uint32_t record = 0;                   // index in the graph's list
  uint32_t log_version = 0;              // how often what log_number stands for was overwritten
  uint32_t place = 0;                    // where in the job it was made, or escaped (dtr_place)
  uint64_t made_by = 0;                  // the op_key of what made the content, if an op did
  uint64_t log_number = 0;               // op_log_recorder.h, J2; 0: it has not met it
  uint64_t last_use = 0;                 // the number of its last use (policy/foresight.h)
  int64_t due_ns = kNoForesight;         // when the next one is, in the job's own compute
  uint64_t used_on = kNoStream;          // the pool knows that this stream uses the block (O1)
  bool on_streams = false;          // several have used it, or what its buffer held before (O3)
  uint64_t remade_on = kNoStream;   // where the content was rematerialized (O2)
  uint64_t ordered_on = kNoStream;  // this stream is ordered behind that
};

static_assert(offsetof(Storage, component) == 64 && offsetof(Storage, handle) == 128,
              "two cache lines");

inline bool is_candidate(const Storage* storage) { return storage->candidate != kNoCandidate; }

// Whether the content is there, at once or after a copy.
inline bool has_content(const Storage* storage) {
  return storage->state == State::resident || storage->state == State::swapped;
}

// What an op does with the storage of one of its tensor arguments.
enum class Use : uint8_t {
  read,
  mutate,      // reads and overwrites: the replay consumes the old version
  write_only,  // overwrites all of it: the old content is no input
  scratch,     // hidden state (running statistics): the replay writes to a scratch copy
  empty,       // zero bytes: rebuilt from its shape
  by_value     // of a device that is not managed: the recorder keeps the value
};

// One tensor argument, in the order in which the recorder walks the arguments.
struct TensorSpec {
  int32_t edge = -1;  // index in Op::edges; -1: no content needed
  Use use = Use::read;
  uint8_t item_bytes = 0;
  int32_t scalar_type = 0;
  uint32_t flags = 0;  // DTR_TENSOR_CONJ, DTR_TENSOR_NEG
  int32_t ndim = 0;
  uint32_t geometry = 0;  // first of 2 * ndim numbers (sizes, strides) in Op::geometry
  int64_t offset = 0;
  uint64_t part_of = 0;  // bytes: it is a part of as much new memory (R16); 0: it is all of its own
};

struct Output {
  Storage* storage = nullptr;  // null: its record is gone, or it has a constant's
  int32_t position = 0;        // index among the result tensors, or among the arguments
  bool mutation = false;       // a new version of the argument at position
  int32_t rank = -1;  // among what the op made in new memory, as in its op log; -1: in other
};

struct Op {
  uint64_t id = 0;
  uint64_t op_key = 0;      // which operator it is
  void* closure = nullptr;  // what repeats it; null: whoever recorded it keeps that by id
  // As of its recording: components are sums of costs, and a cost that has moved on
  // would take out another number than went in.
  int64_t cost_ns = 0;
  int64_t replay_ns = 0;   // RoomPrice, when it was recorded
  int64_t log_index = -1;  // of its line among the operators of the op log
  uint32_t chain = 0;      // Storage::chain of its outputs
  Op* older = nullptr;     // ops in order of execution
  Op* newer = nullptr;
  std::vector<Edge> edges;  // one per distinct input; never resized once linked
  std::vector<TensorSpec> tensors;
  Scratch<int64_t> geometry;
  std::vector<Output> outputs;
  uint32_t recorded_outputs = 0;  // outputs whose storage is not null (R3)
  uint32_t needed_outputs = 0;    // G2
  uint32_t waiting_steps = 0;     // steps that wait for its inputs (waiting_inputs.h)
  uint32_t planned_as = 0;        // its number in the plan of that number (run/step_plan.h)
  uint32_t step = 0;              // StepCount, when it was recorded
  uint32_t planned_runs = 0;      // how often it was run again since
  uint64_t planned_by = 0;
  uint64_t peak_look = 0;  // peak_bytes is of the look of that number
  uint64_t peak_bytes = 0;

  size_t index_of(const Edge* edge) const { return static_cast<size_t>(edge - edges.data()); }
};

}  // namespace dtr
