#include "runtime.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/check_heuristic.h"
#include "base/error.h"
#include "base/handles.h"
#include "fragmentation.h"
#include "graph/heap_blocks.h"
#include "not_copied.h"
#include "policy/move_price.h"
#include "run/engine.h"
#include "simulated_framework.h"

namespace dtr {

namespace {

constexpr uint8_t kDevice = 0;  // c10::DeviceType::CPU
constexpr int8_t kIndex = -1;
constexpr uint64_t kSimulatedUnit = 4096;  // the simulated driver maps multiples of it
// An eighth of the addresses that the simulated driver has.
constexpr uint64_t kManyBytes = uint64_t{1} << 37;
constexpr double kLeastRate = 1;  // bytes per second

struct Thrash {};
// What does not count is no reason to end before it has repeated so many times what it computes.
constexpr int64_t kMostTimes = 8;
// Beside visits to storages: for each score, and for each operator by bytes and in a heap.
constexpr uint64_t kScoreWork = 16;
constexpr uint64_t kOperatorWork = 150, kOperatorInHeapWork = 300;

// The bytes of all that is allocated, with 512 for each.
uint64_t needed_bytes(const Program& program) {
  unsigned __int128 bytes = 0;
  const auto add = [&](int64_t size_bytes) { bytes += static_cast<uint64_t>(size_bytes) + 512; };
  for (const Instruction& of : program.instructions)
    for (const Result& result : of.results)
      if (result.is_fresh()) add(result.size_bytes);
  for (size_t at = 0; at < program.workspace.size(); at += 2)
    if (program.workspace[at] == DTR_MEMORY_ALLOCATE) add(program.workspace[at + 1]);
  constexpr uint64_t kMost = uint64_t{1} << 60;
  return static_cast<uint64_t>(std::min<unsigned __int128>(bytes, kMost));
}

// A pool, an engine on it and a framework over it, taken apart in the right order.
struct SimulationSetup : NotCopied {
  // needed_bytes: the most that is in use at once.
  SimulationSetup(const dtr_runtime_options& options, uint64_t needed_bytes) {
    dtr_pool_options memory{};
    const bool counted = options.space == DTR_SPACE_BYTES;
    memory.driver = counted ? "counted" : "simulated";
    memory.budget_bytes = options.common.budget_bytes;
    memory.fixed = options.space == DTR_SPACE_FIXED;
    memory.placement = options.placement;
    if (!counted) memory.chunk_bytes = chunk_bytes(options);
    int32_t status = dtr_pool_create(&memory, &pool);
    const uint64_t most = std::min(memory.budget_bytes, needed_bytes);
    if (status == DTR_OUT_OF_MEMORY && !counted && most <= kManyBytes) {
      // A process of little address space: its records of the driver's whole range do not fit.
      memory.reserve_bytes = 4 * most + 1024 * memory.chunk_bytes;
      status = dtr_pool_create(&memory, &pool);
    }
    check_status(status);
    try {
      dtr_engine_options settings{};
      settings.heuristic = options.common.heuristic;
      settings.score = options.score;
      settings.score_context = options.score_context;
      settings.history_ops = options.history_ops;
      settings.room = options.room;
      settings.moving = options.move_bytes_per_s > 0;
      settings.move_bytes_per_s = options.move_bytes_per_s;
      settings.swap_bytes = options.swap_bytes;
      settings.swap_out_bytes_per_s = options.swap_out_bytes_per_s;
      settings.swap_in_bytes_per_s = options.swap_in_bytes_per_s;
      settings.dealloc = kDeallocNames[options.common.dealloc];
      settings.tiny_bytes = DTR_TINY_BYTES;
      settings.replay_ns = options.replay_ns;
      check_status(dtr_engine_create(&settings, &engine));
      of(engine).connect(&SimulatedFramework::table());
      framework.emplace(of(engine).core());
      check_status(dtr_engine_add_pool(engine, kDevice, kIndex, pool));
    } catch (...) {
      close();
      throw;
    }
  }
  ~SimulationSetup() {
    or_say("a simulation is not taken apart", [this] { close(); });
  }

  // StateError if something is left that should not be.
  void close() {
    if (framework && framework->objects() > 0)
      throw StateError("the simulation left " + std::to_string(framework->objects()) +
                       " tensors and storages");
    framework.reset();
    if (engine) check_status(dtr_engine_destroy(engine));
    engine = nullptr;
    if (pool) check_status(dtr_pool_destroy(pool));
    pool = nullptr;
  }

  // 0: a page, the unit in which the host driver maps.
  static uint64_t chunk_bytes(const dtr_runtime_options& options) {
    return options.chunk_bytes > 0 ? options.chunk_bytes
                                   : static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  }

  dtr_pool* pool = nullptr;
  dtr_engine* engine = nullptr;
  std::optional<SimulatedFramework> framework;
};

// A storage, as the names of the program refer to it.
struct Buffer {
  SimulatedTensor* tensor = nullptr;
  uint64_t names = 0;
  uint64_t serial = 0;     // in order of creation
  bool is_partly = false;  // written, so far
};

class RuntimeSimulation final : private Observer {
 public:
  RuntimeSimulation(const dtr_runtime_options& options, const Program& program, Simulation& out)
      : options_(options),
        program_(program),
        out_(out),
        setup_(options, needed_bytes(program)),
        engine_(of(setup_.engine)),
        framework_(*setup_.framework),
        fragmentation_(setup_.pool,
                       options.space == DTR_SPACE_FIXED ? 0 : SimulationSetup::chunk_bytes(options),
                       options.space == DTR_SPACE_BYTES, out.result),
        tracer_(out.trace),
        names_(program.names, nullptr) {
    engine_.watch(this);
  }

  void run() {
    out_.result.status = DTR_SIMULATION_OK;
    try {
      execute_all();
      if (options_.outputs) want_outputs();
      if (tracer_.is_on()) note_survivors();
    } catch (const OutOfMemory&) {
      out_.result.status = DTR_SIMULATION_OUT_OF_MEMORY;
    } catch (const Thrash&) {
      out_.result.status = DTR_SIMULATION_THRASH;
    }
    count();
  }

  // Lets go of everything, however the run ended.
  void close() {
    engine_.unwatch(this);
    release_all(ahead_);
    release_all(results_);
    release_all(temporaries_);
    release_all(rebuilt_);
    engine_.remat_abort(frame_);
    engine_.op_abort(frame_, false);
    // The newest first: what others were computed from has no dependents left when it goes.
    std::vector<Buffer*> left;
    for (Buffer* buffer : names_)
      if (buffer) left.push_back(buffer);
    std::ranges::sort(left, std::ranges::greater(), &Buffer::serial);
    left.erase(std::unique(left.begin(), left.end()), left.end());
    names_.clear();
    for (Buffer* buffer : left) drop(buffer);
    engine_.reset();
    setup_.close();
  }

 private:
  // ---- the program ----

  void execute_all() {
    for (const Instruction& of : program_.instructions) switch (of.kind) {
        case Instruction::constant: {
          // As if for the operator behind it: a step's own constants have places, too.
          tracer_.run_begins(next_op_, true, true);
          Buffer* buffer = adopt(make_tensor(of.results[0].size_bytes));
          tracer_.run_ends();
          define(of.results[0].name, buffer);
          if (options_.swap_bytes > 0) meet(buffer->tensor);
          ++tensors_;
          break;
        }
        case Instruction::call:
        case Instruction::effect:
          execute_call(of);
          break;
        case Instruction::mutate:
          execute_mutate(of);
          break;
        case Instruction::copy:
        case Instruction::copy_from:
          define(of.results[0].name, names_[of.arguments[0]]);
          break;
        case Instruction::release:
          let_go(of.arguments[0]);
          break;
      }
  }

  // What an operator has met may be swapped out.
  void meet(SimulatedTensor* tensor) {
    frame_.buffer.assign(1, reinterpret_cast<int64_t>(tensor));
    frame_.told_ns = 0;
    engine_.op_begin(frame_, 1, 0, 0);
    engine_.op_end(frame_, 0, 0, 0);
  }

  SimulatedTensor* argument(const Instruction& of, size_t i) const {
    return names_[of.arguments[i]]->tensor;
  }

  static bool repeatable(const Instruction& of) { return of.kind != Instruction::effect; }

  void execute_call(const Instruction& of) {
    const uint64_t first = tensors_;
    tensors_ += of.results.size();
    if (!repeatable(of) ||
        std::ranges::any_of(of.results, [](const Result& result) { return result.is_fresh(); })) {
      execute(of, first);
      for (size_t i = 0; i < of.results.size(); ++i)
        if (of.results[i].is_fresh()) {
          if (repeatable(of)) note_storage(results_[i]->storage, first + i);
          define(of.results[i].name, adopt(results_[i]));
          results_[i] = nullptr;
        }
      results_.clear();
    }
    for (const Result& result : of.results)
      if (!result.is_fresh())
        define(result.name, names_[of.arguments[static_cast<size_t>(result.alias)]]);
  }

  void execute_mutate(const Instruction& of) {
    const uint64_t first = tensors_;
    tensors_ += of.results.size();
    execute(of, first);
    // If two of the arguments are one storage, its new version is the first's.
    for (size_t i = of.results.size(); i-- > 0;) {
      Buffer& buffer = *names_[of.results[i].name];
      note_storage(buffer.tensor->storage, first + i);
      // Until all is written it cannot be evicted.
      if (of.results[i].is_partly == buffer.is_partly) continue;
      buffer.is_partly = of.results[i].is_partly;
      if (buffer.is_partly)
        engine_.user_pin(buffer.tensor, 0, 0, false);
      else
        engine_.user_unpin(buffer.tensor->storage);
    }
  }

  // An op from begin to end, as the recorder has it; its new tensors are left in results_.
  void execute(const Instruction& of, uint64_t first_tensor) {
    const size_t arguments = of.arguments.size();
    if (of.op == out_.counted_from && of.op > 0) begin_counting();
    if (out_.period > 0 && of.op % out_.period == 0) engine_.begin_step();
    if (of.op == out_.plan_from && out_.make_plan) begin_plan();
    tracer_.begins(of.op);
    if (frame_.buffer.size() < arguments + of.results.size())
      frame_.buffer.resize(arguments + of.results.size());
    for (size_t i = 0; i < arguments; ++i)
      frame_.buffer[i] = reinterpret_cast<int64_t>(argument(of, i));
    if (of.kind == Instruction::mutate)
      for (const Result& result : of.results)
        frame_.buffer[static_cast<size_t>(result.alias)] |=
            result.is_read ? DTR_USE_MUTATE : DTR_USE_WRITE_ONLY;
    const uint32_t flags = repeatable(of) ? DTR_OP_RECOMPUTABLE : 0;
    const int64_t told_ns = told_cost(of);
    frame_.told_ns = told_ns;
    make_ahead(of);
    const int32_t need = engine_.op_begin(frame_, static_cast<uint32_t>(arguments), flags, 0);
    if (need & DTR_NEED_WORK)
      while (engine_.op_prepare(frame_) > 0) rematerialize();
    for (size_t i = 0; i < arguments; ++i) check_resident(*argument(of, i)->storage);
    tracer_.run_begins(of.op, true);
    for (SimulatedTensor* tensor : ahead_) results_.push_back(tensor);
    ahead_.clear();
    run_kernel(of);
    for (size_t i = 0; i < arguments; ++i) used(argument(of, i));
    end_run();
    for (uint64_t i = 0; i < results_.size(); ++i)
      frame_.buffer[i] = reinterpret_cast<int64_t>(results_[i]);
    if (repeatable(of)) {
      out_.decide('M', first_tensor);  // before what dies because it has run
      ++out_.result.model_ops;
    }
    engine_.op_end(frame_, static_cast<uint32_t>(results_.size()), flags, told_ns,
                   const_cast<Instruction*>(&of));
    tracer_.ended(frame_.signature.value());
    next_op_ = of.op + 1;
    out_.result.model_cost += of.cost;
    ++operators_;
    check_work();
  }

  uint64_t work(const dtr_engine_stats& engine) const {
    const uint64_t each = options_.space == DTR_SPACE_BYTES ? kOperatorWork : kOperatorInHeapWork;
    return engine.storage_accesses + kScoreWork * engine.evaluations +
           each * (operators_ + out_.result.remat_ops);
  }

  // Where it is limited; else what all took counts.
  void check_work() {
    if (out_.most_work == UINT64_MAX) return;
    dtr_engine_stats engine;
    engine_.get_stats(&engine);
    out_.work = work(engine);
    if (out_.work > out_.most_work) throw Thrash{};
  }

  int64_t told_cost(const Instruction& of) const {
    if (out_.weights.empty()) return of.cost;
    return static_cast<int64_t>(out_.weights[of.op] * static_cast<double>(of.cost));
  }

  // The first results have memory that was allocated before, for the operator to fill.
  void make_ahead(const Instruction& of) {
    if (program_.made_ahead.empty() || of.kind == Instruction::mutate) return;
    const size_t count = std::min<size_t>(program_.made_ahead[of.op], of.results.size());
    if (count == 0) return;
    tracer_.run_begins(of.op, true, true);
    for (size_t i = 0; i < count && of.results[i].is_fresh(); ++i)
      ahead_.push_back(make_tensor(of.results[i].size_bytes));
    tracer_.run_ends();
  }

  void used(const SimulatedTensor* tensor) const {
    if (tensor && tensor->storage->memory == Memory::core) tracer_.used(tensor->storage->pointer);
  }

  // The kernel has run, and its results are made.
  void end_run() {
    uint32_t rank = 0;
    for (const SimulatedTensor* result : results_) {
      if (!result) continue;
      used(result);
      tracer_.gave(rank++, result->storage->pointer);
    }
    tracer_.run_ends();
  }

  // What an op allocates and frees while it runs. results_ gets a tensor for each result, null
  // for views.
  void run_kernel(const Instruction& of) {
    const size_t count = of.kind == Instruction::mutate ? 0 : of.results.size();
    results_.resize(count, nullptr);
    const auto make_result = [&](size_t i) {
      const Result& result = of.results[i];
      if (result.is_fresh() && !results_[i]) results_[i] = make_tensor(result.size_bytes);
    };
    if (!program_.workspace_at.empty()) {
      const int64_t end = program_.workspace_at[of.op + 1];
      for (int64_t at = program_.workspace_at[of.op]; at < end; at += 2) {
        const int64_t kind = program_.workspace[at];
        const int64_t value = program_.workspace[at + 1];
        if (kind == DTR_MEMORY_ALLOCATE) {
          temporaries_.push_back(make_tensor(value));
        } else if (kind == DTR_MEMORY_RESULT) {
          make_result(static_cast<size_t>(value));
        } else {
          used(temporaries_[value]);
          framework_.release_tensor(temporaries_[value]);
          temporaries_[value] = nullptr;
        }
      }
    }
    for (size_t i = 0; i < count; ++i) make_result(i);
    for (const SimulatedTensor* tensor : temporaries_) used(tensor);
    release_all(temporaries_);
  }

  // At the end each name that still stands for something, in the order of their definition, is
  // made resident, and stays (simrd's output condition).
  void want_outputs() {
    for (Buffer* buffer : names_) {
      if (!buffer) continue;
      if (engine_.remat_want(frame_, buffer->tensor->storage)) rematerialize();
      engine_.user_pin(buffer->tensor, 0, 0, false);
    }
  }

  // ---- rematerialization, as native/bridge/repeat.h has it ----

  void rematerialize() {
    while (engine_.remat_next(frame_))
      step(*static_cast<const Instruction*>(frame_.remat.stack.back().inputs.op->closure));
  }

  void step(const Instruction& of) {
    uint64_t waiting = 0;  // those not begun stand at the bottom, and wait for nothing
    while (!frame_.remat.stack[waiting].inputs.op) ++waiting;
    out_.result.chain_depth =
        std::max<uint64_t>(out_.result.chain_depth, frame_.remat.stack.size() - waiting);
    const uint64_t target = frame_.remat.stack.back().target->id;
    uint64_t revived = 0;
    for (const Storage* storage : frame_.remat.step_outputs)
      revived += storage->state != State::resident;

    tracer_.run_begins(of.op, false);
    rebuild();
    for (const SimulatedTensor* tensor : rebuilt_) check_resident(*tensor->storage);
    run_kernel(of);
    for (const SimulatedTensor* tensor : rebuilt_) used(tensor);
    end_run();
    const uint64_t arguments = arguments_.size();
    frame_.remat.step.resize(arguments + results_.size());
    for (uint64_t i = 0; i < arguments; ++i)
      frame_.remat.step[i] = reinterpret_cast<int64_t>(arguments_[i]);
    for (uint64_t i = 0; i < results_.size(); ++i)
      frame_.remat.step[arguments + i] = reinterpret_cast<int64_t>(results_[i]);
    out_.decide('R', serial_of(target));
    engine_.remat_commit(frame_, static_cast<uint32_t>(arguments),
                         static_cast<uint32_t>(results_.size()));
    release_all(results_);
    release_all(rebuilt_);

    out_.result.remat_cost += of.cost;
    out_.replay_cost += options_.replay_ns;
    ++out_.result.remat_ops;
    out_.result.collateral += revived - 1;
    check_work();
    int64_t most = options_.common.max_recompute;
    if (most < 0) return;
    if (!is_counting_) most = std::max(most, kMostTimes * out_.result.model_cost);
    if (out_.result.remat_cost + out_.replay_cost > most) throw Thrash{};
  }

  // The step's argument tensors, from its description (remat_next in dtr/framework.h).
  void rebuild() {
    description_ = frame_.remat.step;
    arguments_.clear();
    const int64_t* numbers = description_.data();
    const int64_t edges = *numbers++;
    for (int64_t i = 0; i < edges; ++i, numbers += 2) {
      auto* storage = reinterpret_cast<SimulatedStorage*>(numbers[0]);
      rebuilt_.push_back(numbers[1] ? make_tensor(static_cast<int64_t>(storage->size_bytes))
                                    : whole(storage));
    }
    const int64_t count = *numbers++;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t edge = numbers[1];
      const int64_t ndim = numbers[5];
      // Without an edge: overwritten and not read, or zero bytes.
      if (edge < 0) rebuilt_.push_back(make_tensor(numbers[6]));
      arguments_.push_back(edge < 0 ? rebuilt_.back() : rebuilt_[edge]);
      numbers += 6 + 2 * ndim;
    }
  }

  static SimulatedTensor* whole(SimulatedStorage* storage) {
    return SimulatedFramework::tensor_over(storage, SimulatedTensor::kByte, 0,
                                           static_cast<int64_t>(storage->size_bytes));
  }

  // A kernel is about to read it.
  static void check_resident(const SimulatedStorage& storage) {
    if (storage.size_bytes > 0 && storage.memory != Memory::core)
      throw StateError("an operator reads a storage that is not resident");
  }

  // ---- names and buffers ----

  SimulatedTensor* make_tensor(int64_t size_bytes) {
    int32_t status = DTR_OK;
    const char* message = "";
    SimulatedTensor* tensor = framework_.make_tensor(kDevice, kIndex, 0, SimulatedTensor::kByte,
                                                     size_bytes, &status, &message);
    if (!tensor) throw_status(status, message);
    tracer_.allocated(tensor->storage->pointer, static_cast<uint64_t>(size_bytes));
    fragmentation_.placed();
    return tensor;
  }

  Buffer* adopt(SimulatedTensor* tensor) { return new Buffer{tensor, 0, ++serials_, false}; }

  void define(uint32_t name, Buffer* buffer) {
    ++buffer->names;
    let_go(name);
    names_[name] = buffer;
  }

  void let_go(uint32_t name) {
    Buffer* buffer = names_[name];
    names_[name] = nullptr;
    if (buffer && --buffer->names == 0) drop(buffer);
  }

  void drop(Buffer* buffer) {
    SimulatedTensor* tensor = buffer->tensor;
    if (tracer_.is_on() && engine_.is_constant(tensor->storage)) used(tensor);
    if (tensor->storage->memory == Memory::core) tracer_.dropped(tensor->storage->pointer);
    delete buffer;
    framework_.release_tensor(tensor);
  }

  void release_all(std::vector<SimulatedTensor*>& tensors) {
    for (SimulatedTensor* tensor : tensors)
      if (tensor) framework_.release_tensor(tensor);
    tensors.clear();
  }

  // ---- decisions ----

  // Remembers by which tensor the log knows a storage's content. Constants, and what has no
  // record because it has no bytes, are no subject of decisions.
  void note_storage(const SimulatedStorage* storage, uint64_t tensor) {
    const uint64_t id = engine_.id_of(storage);
    if (id == 0) return;
    if (storage_tensors_.size() <= id) storage_tensors_.resize(id + 1, kUnknown);
    storage_tensors_[id] = tensor;
  }

  uint64_t serial_of(uint64_t storage_id) const {
    return storage_id < storage_tensors_.size() ? storage_tensors_[storage_id] : kUnknown;
  }

  void evicted(const Storage* storage) override {
    ++out_.result.forced;
    out_.decide('E', serial_of(storage->id));
  }

  void died(const Storage* storage) override {
    // A dead one may have been kept, as it cannot be computed again.
    if (!storage->parent) tracer_.used(storage->address);
    if (serial_of(storage->id) == kUnknown) return;
    ++out_.result.other;
    out_.decide('D', serial_of(storage->id));
  }

  void banished(uint64_t storage_id) override {
    if (serial_of(storage_id) != kUnknown) out_.decide('B', serial_of(storage_id));
  }

  void asked_for_room(uint64_t size_bytes) override {
    if (options_.measure) fragmentation_.asked(size_bytes);
  }

  // What has a name at the end stays, and what of it cannot be computed again is needed.
  void note_survivors() {
    for (const Buffer* buffer : names_) {
      if (!buffer) continue;
      tracer_.survives(buffer->serial);
      if (engine_.is_constant(buffer->tensor->storage)) used(buffer->tensor);
    }
  }

  void begin_plan() {
    std::unordered_map<const void*, uint64_t> serials;
    for (const Buffer* buffer : names_)
      if (buffer) serials[buffer->tensor->storage] = buffer->serial;
    std::vector<NamedBlock> blocks;
    for (const BlockInUse& block : engine_.blocks_in_use(setup_.pool)) {
      const Storage* storage = block.storage;
      const bool is_live = storage && storage->live;
      if (storage && !is_live && storage->parent) continue;
      const auto found = is_live ? serials.find(storage->handle) : serials.end();
      blocks.push_back({found == serials.end() ? 0 : found->second, block.offset, block.size_bytes,
                        is_live ? storage->handle : nullptr});
    }
    engine_.follow_plan(out_.make_plan(blocks));
  }

  // What has happened so far does not count.
  void begin_counting() {
    is_counting_ = true;
    out_.result.remat_cost = out_.replay_cost = 0;
    engine_.get_stats(&engine_before_);
    dtr_pool_get_stats(setup_.pool, &pool_before_);
  }

  void count() {
    dtr_engine_stats engine;
    engine_.get_stats(&engine);
    if (out_.most_work == UINT64_MAX) out_.work = work(engine);
    dtr_pool_stats pool = stats_of(setup_.pool);
    engine.searches -= engine_before_.searches;
    engine.moves -= engine_before_.moves;
    engine.moved_bytes -= engine_before_.moved_bytes;
    engine.swapped_out_bytes -= engine_before_.swapped_out_bytes;
    engine.swapped_in_bytes -= engine_before_.swapped_in_bytes;
    engine.swap_ns -= engine_before_.swap_ns;
    pool.remaps -= pool_before_.remaps;
    pool.mapped_chunks -= pool_before_.mapped_chunks;
    dtr_simulation_result& result = out_.result;
    result.clock = static_cast<int64_t>(engine.clock_ns);
    result.peak_bytes = pool.peak_allocated_bytes;
    result.end_bytes = pool.allocated_bytes;
    result.search_ns = engine.search_ns;
    result.banished = engine.banished;
    result.evaluations = engine.evaluations;
    result.accesses = engine.storage_accesses;
    result.preemptions = engine.preemptions;
    result.remaps = pool.remaps;
    result.mapped_chunks = pool.mapped_chunks;
    result.moves = engine.moves;
    result.moved_bytes = engine.moved_bytes;
    if (engine.moves > 0) {
      const MovePrice price(options_.move_bytes_per_s, true);
      result.move_cost =
          static_cast<int64_t>(price.ns_of(engine.moved_bytes) +
                               price.launch_ns() * static_cast<double>(engine.moves - 1));
    }
    result.swapped_out_bytes = engine.swapped_out_bytes;
    result.swapped_in_bytes = engine.swapped_in_bytes;
    result.swap_cost = static_cast<int64_t>(engine.swap_ns);
    const int64_t most = options_.common.max_recompute;
    if (result.status == DTR_SIMULATION_OK && most >= 0 &&
        result.remat_cost + out_.replay_cost + result.move_cost + result.swap_cost > most)
      result.status = DTR_SIMULATION_THRASH;
    result.searches = engine.searches;
    result.window_evictions = engine.window_evictions;
    const HeldBytes held = engine_.held_bytes();
    result.constant_bytes = held.constant;
    result.running_bytes = held.running;
    result.waiting_bytes = held.waiting;
  }

  static constexpr uint64_t kUnknown = UINT64_MAX;

  const dtr_runtime_options& options_;
  const Program& program_;
  Simulation& out_;
  SimulationSetup setup_;
  Engine& engine_;
  SimulatedFramework& framework_;
  Frame frame_;
  Fragmentation fragmentation_;
  AllocationTracer tracer_;
  bool is_counting_ = out_.counted_from == 0;
  dtr_engine_stats engine_before_{};
  dtr_pool_stats pool_before_{};
  std::vector<Buffer*> names_;
  std::vector<uint64_t> storage_tensors_;  // by the engine's storage ids
  uint64_t tensors_ = 0;                   // of the log, so far
  uint64_t operators_ = 0;                 // first executions
  uint64_t next_op_ = 0;
  uint64_t serials_ = 0;
  // Of the op in flight; kept to be released if it does not come to its end.
  std::vector<SimulatedTensor*> ahead_;
  std::vector<SimulatedTensor*> results_;
  std::vector<SimulatedTensor*> temporaries_;
  std::vector<SimulatedTensor*> rebuilt_;
  std::vector<SimulatedTensor*> arguments_;  // borrowed from rebuilt_
  std::vector<int64_t> description_;
};

}  // namespace

Program checked(const dtr_runtime_options* given, const int64_t* program, uint64_t numbers,
                const int64_t* workspace, const int64_t* workspace_at, uint64_t operators) {
  require_array(program, numbers, "program");
  require(given, "options");
  const dtr_runtime_options& options = *given;
  check(options.common);
  require_between("outputs", options.outputs, 0, 1);
  require_between("measure", options.measure, 0, 1);
  constexpr double kMost = std::numeric_limits<double>::max();
  require_between("space", options.space, DTR_SPACE_BYTES, DTR_SPACE_FIXED);
  require_number("move_bytes_per_s", options.move_bytes_per_s, 0, kMost,
                 "0 (nothing is moved) and more, finite");
  if (options.swap_bytes > 0) {
    constexpr const char* kAllowed = "1 and more, finite, where anything is swapped";
    require_number("swap_out_bytes_per_s", options.swap_out_bytes_per_s, kLeastRate, kMost,
                   kAllowed);
    require_number("swap_in_bytes_per_s", options.swap_in_bytes_per_s, kLeastRate, kMost, kAllowed);
  }
  if (options.space == DTR_SPACE_BYTES && options.placement != DTR_PLACE_BEST_FIT)
    invalid("placement", std::to_string(options.placement), "0 where only bytes are counted");
  if (options.chunk_bytes % kSimulatedUnit != 0)
    invalid("chunk_bytes", std::to_string(options.chunk_bytes),
            "0 (a page), or a multiple of " + std::to_string(kSimulatedUnit));
  if ((workspace == nullptr) != (workspace_at == nullptr))
    require(nullptr, workspace ? "workspace_at" : "workspace");
  return decoded(program, numbers, workspace, workspace_at, operators);
}

void simulate_runtime(const dtr_runtime_options& options, const Program& program,
                      Simulation& simulation) {
  if (options.space != DTR_SPACE_BYTES &&
      options.common.budget_bytes < SimulationSetup::chunk_bytes(options)) {
    // No chunk fits, so no block does.
    simulation.result.status = DTR_SIMULATION_OUT_OF_MEMORY;
    simulation.result.clock = 1;
    return;
  }
  RuntimeSimulation run(options, program, simulation);
  try {
    run.run();
  } catch (...) {
    run.close();
    throw;
  }
  run.close();
}

DTR_EXPORT int32_t dtr_simulate_runtime(const dtr_runtime_options* options, const int64_t* program,
                                        uint64_t numbers, const int64_t* workspace,
                                        const int64_t* workspace_at, uint64_t operators,
                                        dtr_simulation_result* result, const char** decisions) {
  return guard([&] {
    require(result, "result");
    const Program log = checked(options, program, numbers, workspace, workspace_at, operators);
    Simulation simulation;
    thread_local std::string text;
    text.clear();
    if (decisions) simulation.decisions = &text;
    simulate_runtime(*options, log, simulation);
    *result = simulation.result;
    if (decisions) *decisions = text.c_str();
  });
}

}  // namespace dtr
