// threads.cpp: threads call operators under one budget, and look at what they computed. `make tsan`
// runs it under ThreadSanitizer, which python would not allow: it is not instrumented.
//
// An operator's result is a hash of its seed and of what it reads, so that a rematerialization on
// wrong inputs shows. All threads read tensors of one another; each overwrites its own. Meanwhile
// one more thread calls what the interface allows on "any thread": budgets, moves, checks.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "dtr_alloc.h"
#include "simulate/simulated_framework.h"

namespace {

using dtr::SimulatedFramework;
using dtr::SimulatedStorage;
using dtr::SimulatedTensor;

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kPageWords = kPageBytes / 8;
constexpr uint64_t kThreads = 4;

// Ends the process: other threads would wait for what this one leaves undone.
[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "threads: %s\n", what);
  std::_Exit(1);
}
int64_t answer(int64_t number) {
  if (number < 0) fail(dtr_last_error());
  return number;
}
void ok(int32_t status) { answer(-status); }
void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

uint64_t mixed(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9;
  return x ^ (x >> 29);
}

// What repeats an operator.
struct Closure {
  uint64_t seed;
  int64_t words;  // of its result; 0: it overwrites its last argument
};

// The framework's table, with closures that are ours.
const dtr_framework* table() {
  static const dtr_framework made = [] {
    dtr_framework of = SimulatedFramework::table();
    of.drop_closure = [](void* closure) { delete static_cast<Closure*>(closure); };
    return of;
  }();
  return &made;
}

struct Settings {
  const char* name;
  dtr_heuristic heuristic;
  int32_t room;
  int32_t fixed;
  uint64_t swap_bytes;
  const char* dealloc;
  int32_t learn = DTR_LEARN_NOTHING;
  uint64_t threads = kThreads;
  bool reconfigured = false;  // over and over, while threads learn and ask for advice
};

// An engine on one pool, for all threads.
class Machine {
 public:
  explicit Machine(const Settings& settings)
      : chunk((settings.threads == 1 ? 2 : 16) * kPageBytes),
        budget((settings.threads == 1 ? 50 : 160) * kPageBytes) {
    dtr_pool_options of_pool{};
    of_pool.driver = "host";
    of_pool.budget_bytes = budget;
    of_pool.chunk_bytes = chunk;
    of_pool.fixed = settings.fixed;
    ok(dtr_pool_create(&of_pool, &pool));
    options.heuristic = settings.heuristic;
    options.history_ops = 1 << 20;
    options.dealloc = settings.dealloc;
    options.room = settings.room;
    options.moving = 1;
    options.swap_bytes = settings.swap_bytes;
    options.contents = DTR_CONTENTS_SAMPLED;
    options.learn = settings.learn;
    options.thrash = settings.reconfigured ? 1e9 : 0;  // advice is given where it is on
    options.tiny_bytes = DTR_TINY_BYTES;
    ok(dtr_engine_create(&options, &engine));
    ok(dtr_engine_connect(engine, table()));
    core = static_cast<const dtr_core*>(dtr_engine_core(engine));
    framework.emplace(core);
    ok(dtr_engine_add_pool(engine, 0, -1, pool));
  }
  ~Machine() {
    ok(dtr_engine_check_invariants(engine));
    ok(dtr_pool_check_invariants(pool));
    ok(dtr_engine_reset(engine, nullptr, 0));
    require(framework->objects() == 0, "tensors or storages are left");
    framework.reset();
    ok(dtr_engine_destroy(engine));
    ok(dtr_pool_destroy(pool));
  }

  const uint64_t chunk, budget;
  dtr_engine_options options{};
  dtr_pool* pool = nullptr;
  dtr_engine* engine = nullptr;
  const dtr_core* core = nullptr;
  std::optional<SimulatedFramework> framework;
  std::recursive_mutex turn;  // of rematerializations, as in the bridge
};

// A reference, released at its end.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(SimulatedTensor* pointer) : pointer_(pointer) {}
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(expected, other.expected);
    return *this;
  }
  ~Tensor() {
    if (pointer_ != nullptr) pointer_->storage->framework->release_tensor(pointer_);
  }

  SimulatedTensor* pointer() const { return pointer_; }
  int64_t number() const { return reinterpret_cast<int64_t>(pointer_); }
  void* handle() const { return pointer_->storage; }

  // Of an operator that has it as an argument, and so keeps it in memory.
  uint64_t content() const {
    require(words()[0] == words()[pointer_->elements - 1], "a content of two parts");
    return words()[0];
  }
  void fill(uint64_t content) const {
    for (int64_t i = 0; i < pointer_->elements; ++i) words()[i] = content;
  }

  uint64_t expected = 0;

 private:
  uint64_t* words() const { return static_cast<uint64_t*>(pointer_->storage->address()); }

  SimulatedTensor* pointer_ = nullptr;
};

// One thread's calls of operators.
class Worker {
 public:
  explicit Worker(Machine& machine) : machine_(machine), core_(*machine.core) {
    ok(core_.frame_create(static_cast<dtr_engine*>(core_.engine), &frame_));
  }
  ~Worker() { core_.frame_destroy(frame_); }

  Tensor make(int64_t words, uint64_t content) {
    Tensor tensor = empty(words);
    tensor.fill(content);
    tensor.expected = content;
    return tensor;
  }

  // A new tensor of so many words; words 0: overwrites the last argument.
  Tensor call(uint64_t seed, const std::vector<Tensor*>& arguments, int64_t words) {
    const auto count = static_cast<uint32_t>(arguments.size());
    int64_t* buffer = core_.frame_buffer(frame_, count + 1);
    for (uint32_t i = 0; i < count; ++i) buffer[i] = arguments[i]->number();
    if (words == 0) buffer[count - 1] |= DTR_USE_MUTATE;
    const int64_t need = answer(core_.op_begin(frame_, count, DTR_OP_RECOMPUTABLE, seed % 16 + 1));
    if (need & DTR_NEED_WORK) prepare();
    uint64_t expected = seed;
    for (const Tensor* argument : arguments) expected = mixed(expected, argument->expected);
    auto closure = std::make_unique<Closure>(Closure{seed, words});
    std::vector<const Tensor*> read(arguments.begin(), arguments.end());
    Tensor result = execute(*closure, read);
    buffer = core_.frame_buffer(frame_, 1);
    buffer[0] = words == 0 ? arguments.back()->number() : result.number();
    // The record has it, unless the answer is that there is none.
    Closure* given = closure.release();
    if (answer(core_.op_end(frame_, 1, DTR_OP_RECOMPUTABLE, 1000 + words, given)) == 0)
      closure.reset(given);
    (words == 0 ? *arguments.back() : result).expected = expected;
    return result;
  }

  // Whether it holds its content; an operator without a result keeps it in memory meanwhile.
  void look(Tensor& tensor) {
    core_.frame_buffer(frame_, 1)[0] = tensor.number();
    if (answer(core_.op_begin(frame_, 1, 0, 99)) & DTR_NEED_WORK) prepare();
    require(tensor.content() == tensor.expected, "a wrong content");
    answer(core_.op_end(frame_, 0, 0, 1, nullptr));
  }

  void materialize(const Tensor& tensor) {
    const std::lock_guard lock(machine_.turn);
    if (answer(core_.remat_want(frame_, tensor.handle()))) rematerialize();
  }

 private:
  Tensor empty(int64_t words) {
    int32_t status = DTR_OK;
    const char* message = "";
    SimulatedTensor* made = machine_.framework->make_tensor(0, -1, 0, SimulatedTensor::kInt64,
                                                            words, &status, &message);
    if (made == nullptr) fail(message);
    return Tensor(made);
  }

  Tensor execute(const Closure& closure, const std::vector<const Tensor*>& arguments) {
    Tensor result = closure.words == 0 ? Tensor() : empty(closure.words);
    uint64_t content = closure.seed;
    for (const Tensor* argument : arguments) content = mixed(content, argument->content());
    (closure.words == 0 ? *arguments.back() : result).fill(content);
    return result;
  }

  void prepare() {
    const std::lock_guard lock(machine_.turn);
    while (answer(core_.op_prepare(frame_))) rematerialize();
  }

  void rematerialize() {
    while (answer(core_.remat_next(frame_)))
      step(*static_cast<const Closure*>(core_.step_closure(frame_)));
  }

  // Runs the step that remat_next described: edges, then arguments.
  void step(const Closure& closure) {
    const int64_t* at = core_.frame_step(frame_, 0);
    std::vector<Tensor> edges;
    for (int64_t left = *at++; left > 0; --left) {
      auto* storage = reinterpret_cast<SimulatedStorage*>(*at++);
      const bool on_a_copy = *at++ != 0;
      const auto words = static_cast<int64_t>(storage->size_bytes / 8);
      Tensor whole = over(storage, words);
      if (on_a_copy) {
        Tensor copy = empty(words);
        copy.fill(whole.content());
        whole = std::move(copy);
      }
      edges.push_back(std::move(whole));
    }
    std::vector<Tensor> arguments;
    for (int64_t left = *at++; left > 0; --left) {
      const int64_t edge = at[1], words = at[6];
      at += 6 + 2 * at[5];
      arguments.push_back(edge < 0 ? empty(words) : over(edges[edge].pointer()->storage, words));
    }
    std::vector<const Tensor*> read;
    for (const Tensor& argument : arguments) read.push_back(&argument);
    const Tensor result = execute(closure, read);
    int64_t* numbers = core_.frame_step(frame_, arguments.size() + 1);
    for (size_t i = 0; i < arguments.size(); ++i) numbers[i] = arguments[i].number();
    numbers[arguments.size()] = closure.words == 0 ? arguments.back().number() : result.number();
    answer(core_.remat_commit(frame_, static_cast<uint32_t>(arguments.size()), 1));
  }

  static Tensor over(SimulatedStorage* storage, int64_t words) {
    return Tensor(SimulatedFramework::tensor_over(storage, SimulatedTensor::kInt64, 0, words));
  }

  Machine& machine_;
  const dtr_core& core_;
  dtr_frame* frame_ = nullptr;
};

uint64_t evictions_and_swaps(const Machine& machine) {
  dtr_engine_stats stats{};
  ok(dtr_engine_get_stats(machine.engine, &stats, nullptr, 0));
  return stats.evictions + stats.swaps;
}

// Layers on layers, some of them overwritten, all looked at; until there were so many evictions.
// A step is the one before again, so that it can be learned, if `repeats`.
void train(Machine& machine, std::vector<Tensor>& shared, uint64_t seed, uint64_t evictions,
           bool repeats) {
  Worker worker(machine);
  Tensor weight = worker.make(kPageWords, seed);
  for (uint64_t step = 0; evictions_and_swaps(machine) < evictions; step += !repeats) {
    std::vector<Tensor> layers;
    layers.push_back(worker.call(mixed(seed, step), {&shared[step % shared.size()]}, kPageWords));
    for (uint64_t i = 1; i < 24; ++i) {
      const auto words = static_cast<int64_t>((mixed(seed, step + i) % 4 + 1) * kPageWords);
      layers.push_back(
          worker.call(i, {&layers[i - 1], &weight, &shared[i % shared.size()]}, words));
    }
    worker.call(100, {&layers[4], &layers[5]}, 0);
    answer(dtr_evict(machine.engine, layers[9].handle()));
    ok(dtr_pin(machine.engine, layers[9].pointer(), 0, 0));
    worker.materialize(layers[9]);
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) worker.look(*layer);
    answer(dtr_unpin(machine.engine, layers[9].handle()));
    for (uint64_t i = 0; i < layers.size(); i += 2) layers[i] = Tensor();
    worker.look(layers.back());
    layers.clear();
    worker.call(101, {&shared[0], &weight}, 0);
    // By this thread, as it holds on to what is in memory meanwhile: to who overwrites, what another
    // thread's check holds is alive, and must be kept.
    if (repeats) ok(dtr_engine_check_invariants(machine.engine));
  }
  worker.look(weight);
}

// Of four blocks, what can be moved.
void move_some(Machine& machine, uint64_t turn) {
  std::vector<dtr_block> blocks(machine.budget / 256);
  uint64_t count = 0;
  ok(dtr_pool_snapshot(machine.pool, blocks.data(), blocks.size(), &count));
  for (uint64_t i = 0; i < 4 && count > 0; ++i) {
    void* address = reinterpret_cast<void*>(blocks[mixed(turn, i) % count].address);
    answer(dtr_engine_relocate(machine.engine, address, nullptr, nullptr));
  }
}

// What any thread may do beside. Moves cost a job that is learned more than a plan saves, which would
// go.
void meddle(Machine& machine, const std::atomic<bool>& over, bool is_learned) {
  for (uint64_t turn = 0; !over.load(); ++turn) {
    const int32_t lowered =
        dtr_pool_set_budget(machine.pool, machine.budget - (turn % 3) * machine.budget / 10);
    if (lowered != DTR_OUT_OF_MEMORY) ok(lowered);  // running operators may need it all
    if (!is_learned) {
      move_some(machine, turn);
      ok(dtr_engine_compact(machine.engine, machine.pool, nullptr));
      ok(dtr_engine_check_invariants(machine.engine));
    }
    ok(dtr_pool_check_invariants(machine.pool));
    ok(dtr_pool_trim(machine.pool, nullptr));
    dtr_pool_stats stats{};
    ok(dtr_pool_get_stats(machine.pool, &stats));
    require(stats.reserved_bytes <= machine.budget, "more memory than the budget");
    dtr_engine_get_costs(machine.engine, nullptr, 0);
    dtr_engine_holders(machine.engine, 0, nullptr, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void reconfigure(Machine& machine, const std::atomic<bool>& over) {
  for (uint64_t turn = 0; !over.load(); ++turn) {
    ok(dtr_engine_configure(machine.engine, &machine.options));
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * (turn % 8)));
  }
}

// A request that nothing fits is answered with a budget that would do, which is played for.
void ask_for_advice(Machine& machine, const std::atomic<bool>& over) {
  while (!over.load()) {
    const auto words = static_cast<int64_t>(machine.budget);
    int32_t status = DTR_OK;
    const char* message = "";
    machine.framework->make_tensor(0, -1, 0, SimulatedTensor::kInt64, words, &status, &message);
    require(status == DTR_OUT_OF_MEMORY, "eight times the budget fits");
    std::this_thread::yield();
  }
}

void run(const Settings& settings, uint64_t evictions) {
  Machine machine(settings);
  {
    Worker first(machine);
    Tensor constant = first.make(kPageWords, 1);
    std::vector<Tensor> shared;
    for (uint64_t i = 0; i < 6; ++i) shared.push_back(first.call(200 + i, {&constant}, kPageWords));
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < settings.threads; ++i)
      threads.emplace_back(
          [&, i] { train(machine, shared, i + 2, evictions, settings.threads == 1); });
    std::vector<std::thread> beside;
    beside.emplace_back([&] { meddle(machine, over, settings.threads == 1); });
    if (settings.reconfigured) {
      beside.emplace_back([&] { reconfigure(machine, over); });
      beside.emplace_back([&] { ask_for_advice(machine, over); });
    }
    for (std::thread& thread : threads) thread.join();
    over = true;
    for (std::thread& thread : beside) thread.join();
    ok(dtr_pool_set_budget(machine.pool, machine.budget));
    for (Tensor& tensor : shared) first.look(tensor);
  }
  dtr_engine_stats stats{};
  ok(dtr_engine_get_stats(machine.engine, &stats, nullptr, 0));
  std::printf("%-24s %8llu evictions %8llu operators again %6llu swaps %6llu moves %6llu planned\n",
              settings.name, static_cast<unsigned long long>(stats.evictions),
              static_cast<unsigned long long>(stats.rematerializations),
              static_cast<unsigned long long>(stats.swaps),
              static_cast<unsigned long long>(stats.moves),
              static_cast<unsigned long long>(stats.planned));
  std::fflush(stdout);
}

}  // namespace

// threads [EVICTIONS]: so many with each of the settings.
int main(int argc, char** argv) {
  const uint64_t evictions = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100'000;
  const auto score = [](int32_t cost, int32_t size) {
    return dtr_heuristic{DTR_SELECT_SCORE, cost, size, 1.0, 1.0, 1};
  };
  const auto marginal = score(DTR_COST_MARGINAL, DTR_SIZE_BYTES);
  run({"marginal", marginal, DTR_ROOM_AUTO, 0, 0, "eager"}, evictions);
  run({"windows, fixed heap", marginal, DTR_ROOM_WINDOW, 1, 0, "eager"}, evictions);
  run({"swapping", marginal, DTR_ROOM_AUTO, 0, 64 << 20, "eager"}, evictions);
  run({"components, lazy", score(DTR_COST_COMPONENT, DTR_SIZE_BYTES), DTR_ROOM_SINGLE, 0, 0,
       "lazy"},
      evictions);
  run({"learned from threads", marginal, DTR_ROOM_AUTO, 0, 0, "lazy", DTR_LEARN_POLICY}, evictions);
  run({"a step learned", marginal, DTR_ROOM_AUTO, 0, 0, "lazy", DTR_LEARN_POLICY, 1}, evictions);
  run({"options anew", marginal, DTR_ROOM_AUTO, 0, 0, "lazy", DTR_LEARN_AT_ONCE, 1, true},
      evictions);
}
