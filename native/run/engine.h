// engine.h: the rematerialization engine (DTR). It knows storages, ops and costs;
// it knows neither PyTorch nor Python. Rules R1-R14 stand in records.h.
//
// Locking. One mutex guards all of it (rank: allocator/locks.h). Under it the engine
// only decides and exchanges pointers; whatever may run code of others (deleters,
// the driver, a pool) is put into a Deferred and done after the mutex is released.
// So a deleter may re-enter.
//
// The clock. Staleness is counted in the time that the job's operators take, not in the
// time that passes: the clock starts at 1, and each op moves it on by its cost when it
// ends, a rematerialization by its op's cost when it is committed (DTR paper, appendix
// C.4). So a pause between two steps makes nothing stale, and with the costs fixed
// (costs.h) a deterministic job is evicted in the same way each time. What an op reads
// is stamped with the clock before it, what it makes with the clock after. An op that
// failed cost nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "at_fork.h"
#include "base/clock.h"
#include "base/scoped_timer.h"
#include "dtr/framework.h"
#include "dtr_alloc.h"
#include "eviction/compaction.h"
#include "eviction/move.h"
#include "eviction/placement_hint.h"
#include "eviction/swap_space.h"
#include "frame.h"
#include "graph/component.h"
#include "graph/contents.h"
#include "graph/dead_storages.h"
#include "graph/deferred.h"
#include "graph/environment.h"
#include "graph/graph.h"
#include "graph/graph_capture.h"
#include "graph/pins.h"
#include "graph/records.h"
#include "graph/stream_order.h"
#include "graph/unwritten.h"
#include "graph/verifier.h"
#include "locks.h"
#include "memory_use.h"
#include "op_recorder.h"
#include "oplog/op_log_recorder.h"
#include "policy/costs.h"
#include "policy/device.h"
#include "policy/score.h"
#include "policy/search_context.h"
#include "policy/waiting_inputs.h"
#include "policy/window.h"
#include "rematerializer.h"
#include "storage_lifecycle.h"
#include "versions.h"

namespace dtr {

class Engine final : private StorageLifecycle::Costs {
 public:
  explicit Engine(const dtr_engine_options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- engine.cpp ----
  void configure(const dtr_engine_options& options);
  void connect(const dtr_framework* framework);
  const dtr_core* core() const { return &core_; }
  Bookkeeping& bookkeeping() { return bookkeeping_; }
  void add_pool(uint8_t device_type, int8_t device_index, dtr_pool* pool);
  dtr_pool* pool_of(uint8_t device_type, int8_t device_index) const;
  void* allocate(uint8_t device_type, int8_t device_index, uint64_t size_bytes, uint64_t stream,
                 uint64_t arena, int32_t* status, const char** message);
  void freed(void* address);
  // Work on the stream uses the block.
  void record_stream(void* address, uint64_t stream);
  void evicted_died(Storage* storage);
  // Forgets every record. DTR_STATE if a live storage is evicted.
  void reset();
  void get_stats(dtr_engine_stats* out);
  void set_costs(const dtr_cost* costs, uint64_t count);
  uint64_t get_costs(dtr_cost* costs, uint64_t capacity);
  HeldBytes held_bytes();
  std::string why_no_memory(const std::string& refusal, uint64_t size_bytes, dtr_pool* pool);
  uint64_t drain_dropped(int64_t* op_ids, uint64_t capacity);
  // An observer must outlive the engine, or be taken back.
  void watch(Observer* observer);
  void unwatch(Observer* observer);
  void tell_of_room(uint64_t size_bytes);
  // The id of the record of a handle's storage, 0 if it has none.
  uint64_t id_of(const void* handle);
  uint64_t holders(uint64_t* op_keys, uint64_t* size_bytes, uint64_t capacity);

  // While a graph is captured (graph_capture.h).
  void freeze(bool on);

  // ---- op_call.cpp ----
  int32_t op_begin(Frame& frame, uint32_t tensors, uint32_t flags, uint64_t op_key);
  int32_t op_prepare(Frame& frame);
  int64_t op_end(Frame& frame, uint32_t results, uint32_t flags, int64_t cost_ns,
                 void* closure = nullptr);
  void op_abort(Frame& frame, bool started);

  // ---- bringing content back (rematerializer.h) ----
  bool remat_want(Frame& frame, void* handle);
  bool remat_want_any(Frame& frame);
  int64_t remat_next(Frame& frame);
  void remat_commit(Frame& frame, uint32_t tensors, uint32_t results);
  void remat_abort(Frame& frame);

  // ---- make_room.cpp ----
  // 1 if memory was freed, 0 if there is nothing to free. Throws StateError if a callback
  // heuristic fails: through the pool's allocate, which asked with no lock held.
  int32_t make_room(Device& device, uint64_t size_bytes);

  // ---- what users ask for (user_requests.cpp) ----
  bool user_evict(void* handle);
  bool user_is_resident(void* handle);
  // The handle, if a pin was added. owned: it stays an address of this storage, also if that dies,
  // until user_end_pin().
  void* user_pin(const void* tensor, int32_t escaped, bool owned);
  void user_end_pin(void* handle);
  bool user_unpin(void* handle);
  void describe(const void* tensor, dtr_tensor_desc* out) const;
  void check_connected() const;
  // Throws for what can be told to be no tensor of the connected framework.
  void check_tensor(const void* tensor) const;

  bool user_move(void* handle, const void* avoid_begin, const void* avoid_end);
  uint64_t compact(dtr_pool* pool);
  uint64_t move_some(dtr_pool* pool, uint64_t seed, uint64_t count);

  // ---- the op log ----
  // With the recorder and a Deferred, under the mutex.
  template <typename F>
  auto on_op_log(F&& call) {
    Transaction transaction(*this);
    return call(op_log_, transaction.deferred);
  }

  // ---- invariants.cpp ----
  void check_invariants();

 private:
  // A call under the mutex. What it defers happens after the mutex is released.
  struct Transaction {
    explicit Transaction(Engine& engine)
        : deferred(engine.environment_, engine.dead_, engine.mutex_), lock(engine.mutex_) {}
    Deferred deferred;
    std::unique_lock<EngineMutex> lock;
  };

  // engine.cpp, all under the mutex
  void prices_changed() override;
  void host_memory_freed() override;
  void grow_up(Device& device);
  // Of a storage whose memory is ours.
  Device& device_of(const Storage* storage) const { return devices_.of(storage); }
  bool is_managed_device(const dtr_tensor_desc& desc) const {
    return pool_of(desc.device_type, desc.device_index) != nullptr;
  }

  // op_call.cpp
  void start(Frame& frame, Transaction& call);
  void keep(Frame& frame, bool on);

  // ghosts.cpp
  void update_asking(Storage* changed, bool gone) override;
  double ghost_factor(const Storage* storage) const;
  void release_ghosts(Deferred& deferred);

  // neighborhood.cpp
  void merge_components(const Storage* storage);
  void leave_neighborhoods(Storage* storage) override;
  void join_neighborhoods(Storage* storage) override;
  void neighborhood_changed(Storage* storage, bool grew);
  void toll_changed(Storage* storage, bool grew) override;
  void count_dependents(Storage* storage);
  // Dead, and nothing evicted asks for it (ghosts.cpp).
  static bool is_idle(const Storage* storage) { return !storage->live && storage->askers == 0; }
  int64_t part_of(const Storage* storage) const;
  template <typename ForNext>
  int64_t evicted_cost(Storage* storage, Known Storage::* level_of, ForNext&& for_next);
  int64_t ancestors_ns(Storage* storage);
  int64_t descendants_ns(Storage* storage);
  int64_t component_ns(Storage* storage);
  void bounds_lowered(Storage* storage);
  void rebuild_neighborhoods();

  // make_room.cpp
  class Evicting;
  bool is_better_swapped(Storage* storage);
  bool evict(Storage* storage, EvictionCause cause, Deferred& deferred,
             std::unique_lock<EngineMutex>& lock);
  bool drop(Storage* storage, EvictionCause cause, Deferred& deferred);
  Storage* evict_victims(Deferred& deferred, std::unique_lock<EngineMutex>& lock, size_t* evicted);
  Storage* choose(Device& device, const SearchContext& moment);
  Storage* choose_by_callback(Device& device, const SearchContext& moment,
                              std::unique_lock<EngineMutex>& lock);
  Storage* choose_randomly(Device& device);
  SearchContext context_of(Device& device);
  bool is_eligible(Device& device, Storage* storage);
  double recompute_cost_ns(Storage* storage);
  double exact_cost_ns(Storage* storage);
  uint64_t free_bytes(const Storage* storage, const SearchContext& moment);
  bool is_free_to_go(const Storage* storage) const;
  double score_of(const Storage* storage, const SearchContext& moment, double cost_ns,
                  uint64_t free_bytes) const;
  double exact_score(const Storage* storage, const SearchContext& moment, double cost_ns) {
    return score_of(storage, moment, cost_ns, free_bytes(storage, moment));
  }
  double learn_cost(Device& device, Storage* storage);
  double weight_of(const Storage* storage) const;
  double floor_cost_ns(const Storage* storage) const;
  void set_bounds(Device& device, Storage* storage, double numerator_ns);
  void reweigh(Storage* storage) override;
  void unpark(Storage* storage) {
    if (storage->parked) reweigh(storage);
  }
  void reset_bounds(Device& device, Storage* storage) override;

  // window.cpp
  // How a request gets its place: by evicting one, or neighbors, or with memory from elsewhere.
  enum class Way { single, window, remap };
  size_t run_of(const Device& device, const void* address, size_t blocks);
  double price_factor(const Storage* storage, const SearchContext& moment) const;
  double price_of(Device& device, Storage* storage, const SearchContext& moment);
  bool extend_window(Device& device, const SearchContext& moment, uint64_t size_bytes,
                     Storage* first, double most, Window* window);
  void take_members(const Device& device, const Window& window);
  void search_windows(Device& device, const SearchContext& moment, uint64_t size_bytes);
  template <typename ForNext>
  int64_t further_cost(const Storage* storage, uint64_t visit, ForNext&& for_next);
  double joint_price(const SearchContext& moment);
  bool find_window(Device& device, const SearchContext& moment, uint64_t size_bytes);
  bool makes_place(const Device& device, const Storage* storage, uint64_t size_bytes);
  static double remap_ns(const Device& device, uint64_t size_bytes);
  Way choose_victims(Device& device, const SearchContext& moment, uint64_t size_bytes,
                     std::unique_lock<EngineMutex>& lock);

  // What evicting it loses, where nothing is known of when it is needed again.
  double loss_ns(Storage* storage);
  bool swap_in(Storage* storage, Deferred& deferred, std::unique_lock<EngineMutex>& lock);
  bool preempt(Device& device, Deferred& deferred, std::unique_lock<EngineMutex>& lock);

  // invariants.cpp
  void check_asking(const Storage* storage);
  int64_t sum_of(const std::unordered_set<const Storage*>& storages) const;
  void check_neighborhoods();
  void check_search();
  void check_windows(Device& device, const SearchContext& moment);

  mutable EngineMutex mutex_;
  HeldAcrossFork held_across_fork_{mutex_};
  Environment environment_;
  Graph graph_;
  GraphCapture capture_;
  StreamOrder streams_{environment_, capture_};
  Pins pins_{environment_};
  Verifier verifier_{environment_, streams_};
  WaitingInputs waiting_{environment_};
  // Before those that take it as a Lifecycle.
  StorageLifecycle lifecycle_{{environment_, graph_, devices_, pins_, settling_, dead_, contents_,
                               unwritten_, swap_space_, *this}};
  Settling settling_{environment_, graph_, lifecycle_};
  DeadStorages dead_{environment_, lifecycle_, settling_};
  Contents contents_{environment_, graph_, lifecycle_, settling_};
  UnwrittenParts unwritten_;
  Devices devices_;
  SwapSpace swap_space_{environment_, graph_, devices_, lifecycle_, dead_, settling_, streams_};
  const SwapCosts& swap_costs_ = swap_space_.costs();
  Mover mover_{environment_, graph_, devices_, capture_, streams_, lifecycle_};
  Compactor compactor_{environment_, graph_, capture_, mover_};
  MemoryUse memory_use_{environment_, graph_, devices_, capture_, swap_space_};
  OpLogRecorder op_log_{environment_, graph_};
  PlacementHint hints_;
  CostTable costs_;
  Rematerializer rematerializer_{{environment_, graph_, lifecycle_, streams_, contents_, dead_,
                                  verifier_, waiting_, hints_, costs_}};
  Versions versions_{{environment_, graph_, lifecycle_, capture_, streams_, settling_, dead_,
                      contents_, unwritten_}};
  OpRecorder recorder_{{environment_, graph_, devices_, lifecycle_, versions_, capture_, streams_,
                        settling_, contents_, unwritten_, swap_space_, waiting_, op_log_, hints_,
                        costs_}};
  dtr_engine_options& options_ = environment_.options;
  Needs needs_;
  const dtr_framework*& framework_ = environment_.framework;
  dtr_core core_{};
  struct RoomCaller {
    Engine* engine;
    Device* device;
  };
  std::deque<RoomCaller> room_callers_;  // what the pools' callbacks get

  Components components_;
  int64_t& clock_ns_ = environment_.clock_ns;
  Random random_;
  uint64_t visits_ = 0;
  std::vector<Storage*> pending_;          // worklist of walks through neighborhoods
  uint64_t price_look_ = 0;                // the search for windows that prices are of
  std::vector<dtr_run_block> run_;         // blocks, as the pool tells them
  FewWindows few_;                         // the best of the last search
  std::vector<Storage*> members_;          // of the window that was looked at last
  std::vector<int64_t> costs_of_members_;  // of joint_price()
  std::vector<Storage*> victims_;          // what choose_victims() chose
  std::vector<Storage*> other_victims_;    // buffer of evict_victims()
  std::vector<Storage*> asking_;           // worklist of update_asking()
  uint64_t checks_ = 0;                    // of the invariants

  std::condition_variable_any evicted_;  // another thread's Evicting is over
  uint32_t evicting_ = 0;                // threads whose victims are not yet free
  bool parked_for_host_ = false;         // some constants are parked for lack of host memory

  Bookkeeping bookkeeping_;
  dtr_engine_stats& stats_ = environment_.stats;
};

// What a framework is told of the engine (core_table.cpp).
dtr_core core_table(Engine* engine);

}  // namespace dtr
