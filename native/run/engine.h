// engine.h: the rematerialization engine (DTR). It knows storages, ops and costs; it knows neither
// PyTorch nor Python. Each idea is a class with its own state, which sees the records (graph/) and
// what it works with, never the engine. The engine owns them all, takes the mutex and calls them.
// Rules R1-R16 stand in graph/records.h.
//
// Locking. One mutex guards all of it (rank: allocator/locks.h). Under it the engine only decides
// and exchanges pointers. Whatever may run code of others (deleters, the driver, a pool) is put
// into a Deferred and done after the mutex is released. So a deleter may call the engine again.
//
// The clock. Staleness is counted in the time that the job's operators take, not in the
// time that passes: the clock starts at 1, and each op moves it on by its cost when it
// ends, a rematerialization by its op's cost when it is committed (DTR paper, appendix
// C.4). So a pause between two steps makes nothing stale, and with the costs fixed
// (costs.h) a deterministic job is evicted in the same way each time. What an op reads
// is stamped with the clock before it, what it makes with the clock after. An op that
// failed cost nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "at_fork.h"
#include "dtr/framework.h"
#include "dtr_alloc.h"
#include "eviction/compaction.h"
#include "eviction/evictor.h"
#include "eviction/move.h"
#include "eviction/placement_hint.h"
#include "eviction/room.h"
#include "eviction/swap_space.h"
#include "frame.h"
#include "graph/contents.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/pins.h"
#include "graph/rest.h"
#include "graph/stream_order.h"
#include "graph/unwritten.h"
#include "graph/verifier.h"
#include "locks.h"
#include "memory_use.h"
#include "not_copied.h"
#include "op_recorder.h"
#include "oplog/op_log_recorder.h"
#include "plan_executor.h"
#include "policy/cost_model.h"
#include "policy/costs.h"
#include "policy/devices.h"
#include "policy/victim_search.h"
#include "policy/waiting_inputs.h"
#include "policy/window_search.h"
#include "rematerializer.h"
#include "repeat_counts.h"
#include "step_plan.h"
#include "storage_lifecycle.h"
#include "thrash_guard.h"
#include "tuner.h"
#include "versions.h"

namespace dtr {

class Engine final : NotCopied {
 public:
  // make_tuner: for options that have something learned; null: never.
  explicit Engine(const dtr_engine_options& options, MakeTuner make_tuner = nullptr);
  ~Engine();

  // ---- settings (engine.cpp) ----
  void configure(const dtr_engine_options& options);
  void connect(const dtr_framework* framework);
  void check_connected() const;
  const dtr_core* core() const { return &core_; }
  void add_pool(uint8_t device_type, int8_t device_index, dtr_pool* pool);
  dtr_pool* pool_of(uint8_t device_type, int8_t device_index) const;
  void set_costs(const dtr_cost* costs, uint64_t count);
  uint64_t get_costs(dtr_cost* costs, uint64_t capacity);
  // While a graph is captured (graph_capture.h).
  void begin_capture();
  void end_capture();
  // Forgets every record. DTR_STATE if a live storage is evicted.
  uint64_t get_evicted(dtr_evicted* evicted, uint64_t capacity);
  void reset(std::vector<uint64_t> lost = {});

  // ---- memory (engine.cpp) ----
  void* allocate(uint8_t device_type, int8_t device_index, uint64_t size_bytes, uint64_t stream,
                 uint64_t arena, int32_t* status, const char** message);
  void* allocate_workspace(uint8_t device_type, int8_t device_index, uint64_t size_bytes,
                           uint64_t stream, int32_t* beyond);
  // Follows a plan of the pool's addresses, from the step on that begins just now.
  void follow_plan(StepPlan plan);
  // A step begins just now, which nobody has to follow.
  void begin_step() { environment_.step.begins(); }
  // Work on the stream uses the block.
  void record_stream(void* address, uint64_t stream);
  void freed(void* address);
  void evicted_died(Storage* storage);
  void guard_evicted();
  // A pool asks, with no lock held (room.h). 1 if memory was freed, 0 if there is nothing to free.
  // Throws StateError if a callback heuristic fails.
  int32_t make_room(Device& device, uint64_t size_bytes);

  // ---- an operator, and what it needs back (op_call.cpp) ----
  int32_t op_begin(Frame& frame, uint32_t tensors, uint32_t flags, uint64_t op_key);
  int32_t op_prepare(Frame& frame);
  int32_t op_reads(Frame& frame, const void* tensor);
  int64_t op_end(Frame& frame, uint32_t results, uint32_t flags, int64_t cost_ns,
                 void* closure = nullptr);
  void op_abort(Frame& frame, bool started);
  // An operator of which nothing is recorded, while the recorder rests.
  bool op_begins_at_rest() { return rest_.op_begins(); }
  void op_ended_at_rest() { rest_.op_ended(); }
  bool settle(Frame& frame, uint32_t tensors);
  bool remat_want(Frame& frame, void* handle);
  bool remat_want_any(Frame& frame);
  int64_t remat_next(Frame& frame);
  void remat_commit(Frame& frame, uint32_t tensors, uint32_t results);
  void remat_abort(Frame& frame);

  // ---- what users ask for (user_requests.cpp) ----
  bool user_evict(void* handle);
  bool user_is_resident(void* handle);
  dtr_holder user_why_kept(void* handle);
  // The handle, if a pin was added. owned: it stays an address of this storage, also if that dies,
  // until user_end_pin().
  void* user_pin(const void* tensor, int32_t escaped, uint32_t place, bool owned);
  void user_end_pin(void* handle);
  // What this thread's operators make is pinned until user_release_made() of the number returned.
  uint64_t user_pin_made();
  void user_release_made(uint64_t thread);
  bool user_unpin(void* handle);
  void describe(const void* tensor, dtr_tensor_desc* out) const;
  bool user_move(const void* which, const void* avoid_begin, const void* avoid_end);
  uint64_t compact(dtr_pool* pool);

  // ---- reports (engine.cpp) ----
  void get_stats(dtr_engine_stats* out, dtr_pool_stats* pools = nullptr, uint64_t capacity = 0);
  HeldBytes held_bytes();
  uint64_t holders(int32_t when, dtr_holder* holders, uint64_t capacity);
  void keep_account(bool on);
  uint64_t repeats(dtr_repeats* repeats, uint64_t capacity);
  void reset_peak();
  // The id of the record of a handle's storage, 0 if it has none.
  uint64_t id_of(const void* handle);
  // In a pool's heap.
  std::vector<BlockInUse> blocks_in_use(dtr_pool* pool) const;
  // Whether its content is in memory, and cannot be computed again.
  bool is_constant(const void* handle);
  // An observer must outlive the engine, or be taken back.
  void watch(Observer* observer);
  void unwatch(Observer* observer);
  // With the recorder of op logs and a Deferred, under the mutex.
  template <typename F>
  auto on_op_log(F&& call) {
    Transaction transaction(*this);
    rest_.wake();
    return call(op_log_, transaction.deferred);
  }
  // The op log is the caller's from now on.
  void stop_tuner();
  void check_invariants();

 private:
  struct Transaction : EngineCall {
    explicit Transaction(Engine& engine)
        : EngineCall(engine.environment_, engine.dead_, engine.mutex_) {}
  };
  bool could_have_room(dtr_pool* pool, uint64_t size_bytes);
  // What a pool's callback gets.
  struct RoomCaller {
    Engine* engine;
    Device* device;
  };

  void take(const dtr_engine_options& options);
  void note_pins(void* handle, uint32_t pins);
  void keep_spare(uint64_t tensors) const;
  void start(Frame& frame, Transaction& call);
  void begin_within(Frame& frame);
  void keep(Frame& frame, bool on);
  void start_tuner(Deferred& deferred);
  void follow(const EvictionPolicy& policy);
  void rescore();
  std::string advice(Transaction& call, const Shortage* at);
  std::string slowness() const;
  void look_at_repeats(Transaction& call);
  void take_over();
  void rest_if_steady(Transaction& call);

  mutable EngineMutex mutex_;
  HeldAcrossFork held_across_fork_{mutex_};
  Environment environment_;
  Graph graph_;
  GraphCapture capture_;
  Rest rest_{environment_};
  StreamOrder streams_{environment_, capture_};
  Pins pins_{environment_};
  Verifier verifier_{environment_, streams_};
  WaitingInputs waiting_{environment_};
  // Before those that take it as a Lifecycle.
  StorageLifecycle lifecycle_{{environment_, graph_, devices_, pins_, settling_, dead_, contents_,
                               unwritten_, swap_space_, cost_model_}};
  Settling settling_{environment_, graph_, lifecycle_};
  DeadStorages dead_{environment_, lifecycle_, settling_};
  Contents contents_{environment_, graph_, lifecycle_, settling_};
  UnwrittenParts unwritten_;
  Devices devices_;
  SwapSpace swap_space_{environment_, graph_,   devices_,    lifecycle_, dead_,
                        settling_,    streams_, cost_model_, search_};
  CostModel cost_model_{environment_, graph_, devices_, swap_space_.costs()};
  VictimSearch search_{environment_, devices_, capture_, cost_model_};
  WindowSearch windows_{environment_, devices_, graph_, cost_model_, search_};
  Mover mover_{environment_, graph_, devices_, capture_, rest_, streams_, lifecycle_};
  Compactor compactor_{environment_, graph_, capture_, mover_};
  Evictor evictor_{{environment_, graph_, devices_, lifecycle_, contents_, verifier_, waiting_,
                    swap_space_, cost_model_, search_}};
  RoomMaker room_{{mutex_, environment_, lifecycle_, dead_, cost_model_, search_, windows_,
                   evictor_, compactor_, repeat_rate_}};
  MemoryUse memory_use_{environment_, graph_, capture_, swap_space_};
  RepeatCounts repeat_counts_;
  Computed computed_;  // by the last look at repeats
  RepeatRate repeat_rate_;
  OpLogRecorder op_log_{environment_, graph_};
  PlacementHint hints_;
  PlanFollower plan_{environment_.step};
  PlanExecutor plan_executor_{{mutex_, environment_, graph_, devices_, capture_, lifecycle_, dead_,
                               search_, mover_, evictor_, plan_}};
  CostTable costs_;
  Rematerializer rematerializer_{{environment_, graph_, lifecycle_, streams_, contents_, dead_,
                                  verifier_, waiting_, hints_, plan_}};
  Versions versions_{{environment_, graph_, lifecycle_, capture_, streams_, settling_, dead_,
                      contents_, unwritten_}};
  OpRecorder recorder_{{environment_, graph_, devices_, lifecycle_, versions_, capture_, streams_,
                        settling_, contents_, unwritten_, swap_space_, waiting_, op_log_, hints_,
                        costs_, cost_model_, plan_, rest_}};
  dtr_engine_options& options_ = environment_.options;
  const dtr_framework*& framework_ = environment_.framework;
  dtr_core core_{};
  std::deque<RoomCaller> room_callers_;
  uint64_t checks_ = 0;  // of the invariants
  ThrashGuard guard_;
  MakeTuner make_tuner_;
  std::shared_ptr<Tuner> tuner_;  // the last: it goes first
};

// What a framework is told of the engine (core_table.cpp).
dtr_core core_table(Engine* engine);

}  // namespace dtr
