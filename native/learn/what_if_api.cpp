// what_if_api.cpp: what a job would learn, from its op log.
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "simulate/program.h"
#include "step_log.h"
#include "what_if.h"

namespace dtr {

namespace {

// Tells a log what the engine would have written of a program, without views.
class Teller {
 public:
  Teller(const Program& program, StepLog& log) : program_(program), log_(log) {}

  void tell() {
    for (const Instruction& of : program_.instructions) {
      if (of.kind == Instruction::constant) {
        log_.constant(make(), static_cast<uint64_t>(of.results[0].size_bytes));
        assign(of.results[0].name, newest());
      } else if (of.kind == Instruction::release) {
        release(of.arguments[0]);
      } else if (of.is_operator()) {
        run(of);
      } else {
        const int64_t storage = storages_[of.arguments[0]];
        ++names_of_[storage];
        assign(of.results[0].name, storage);
      }
    }
  }

 private:
  static constexpr int64_t kNone = -1;

  // A storage that is about to get its first name.
  int64_t make() {
    names_of_.push_back(1);
    return newest();
  }
  int64_t newest() const { return static_cast<int64_t>(names_of_.size()) - 1; }
  // The name stands for the storage, which counts it already, and for nothing else.
  void assign(size_t name, int64_t storage) {
    release(name);
    storages_[name] = storage;
  }
  void release(size_t name) {
    const int64_t storage = std::exchange(storages_[name], kNone);
    if (storage != kNone && --names_of_[storage] == 0) log_.release(storage);
  }

  void run(const Instruction& of) {
    StepLog::Ran ran{of.kind, 0, of.cost, {}, {}, {}};
    for (const uint32_t name : of.arguments) ran.reads.push_back(storages_[name]);
    std::vector<int64_t> fresh(of.results.size(), kNone);  // which of those with memory it is
    std::vector<std::pair<size_t, int64_t>> named;         // once the operator has ended
    for (size_t i = 0; i < of.results.size(); ++i) {
      const Result& result = of.results[i];
      if (of.kind == Instruction::mutate) {
        ran.overwritten.push_back(result.is_read ? result.alias : ~result.alias);
      } else if (result.is_fresh()) {
        fresh[i] = static_cast<int64_t>(ran.made.size());
        ran.made.push_back({make(), static_cast<uint64_t>(result.size_bytes)});
        named.emplace_back(result.name, newest());
      } else {
        const int64_t storage = ran.reads[static_cast<size_t>(result.alias)];
        ++names_of_[storage];
        named.emplace_back(result.name, storage);
      }
    }
    if (of.kind != Instruction::call || !ran.made.empty()) {
      tell_memory(of.op, fresh);
      log_.ran(ran);
    }
    for (const auto& [name, storage] : named) assign(name, storage);
  }

  void tell_memory(uint64_t op, const std::vector<int64_t>& fresh) {
    if (program_.workspace_at.empty()) return;
    for (int64_t i = program_.workspace_at[op]; i < program_.workspace_at[op + 1]; i += 2) {
      const int64_t kind = program_.workspace[i], value = program_.workspace[i + 1];
      const bool is_result = kind == DTR_MEMORY_RESULT;
      const int64_t number = is_result ? fresh[static_cast<size_t>(value)] : value;
      if (!is_result || number != kNone) log_.memory(kind, number);
    }
  }

  const Program& program_;
  StepLog& log_;
  std::vector<int64_t> storages_ = std::vector<int64_t>(program_.names, kNone);  // by name
  std::vector<int64_t> names_of_;  // by storage: how many it has
};

SimulatedMemory memory_of(const dtr_what_if_options& options, uint64_t constant_bytes) {
  const dtr_runtime_options& runtime = options.runtime;
  SimulatedMemory memory;
  memory.budget_bytes = memory.pool_bytes = runtime.common.budget_bytes;
  memory.options = runtime;
  if (options.maps_on >= 0)
    memory.room_price = RoomPrice::of(static_cast<uint8_t>(options.maps_on), runtime.chunk_bytes);
  memory.held.push_back({0, constant_bytes, nullptr});
  return memory;
}

void play(const dtr_what_if_options& options, const Program& log, dtr_what_if_result& out) {
  StepLog recorded;
  Teller(log, recorded).tell();
  if (recorded.operators() == 0) return;
  const StepLog::Repetition step = recorded.repetition();
  SearchProgress progress;
  EvictionPolicy policy;
  policy.heuristic = options.runtime.common.heuristic;
  policy.room = options.runtime.room;
  policy.dealloc = static_cast<Dealloc>(options.runtime.common.dealloc);
  std::optional<WhatIf::Found> usual, learned;
  {
    const JobProgram program = recorded.whole(step);
    const SimulatedMemory memory = memory_of(options, 0);
    usual = WhatIf(program, memory, progress).usual(policy);
  }
  const JobProgram program = recorded.last_steps(step);
  const SimulatedMemory memory = memory_of(options, program.constant_bytes);
  if (options.learn) {
    const WhatIf plays(program, memory, progress);
    learned = plays.best(policy, usual ? usual->cost_ns + usual->search_ns
                                       : std::numeric_limits<double>::infinity());
    out.first_work = plays.first_work();
    if (options.learn > 1 && learned && learned->has_plan())
      if (std::optional<WhatIf::Found> better = plays.better(*learned)) learned = std::move(better);
  }
  out.recorded = recorded.operators();
  out.operators = step.period;
  const uint64_t steps =
      step.period > 0 && program.counted_from > 0 ? program.calls.size() / step.period - 1 : 1;
  out.step_cost = program.cost_ns / static_cast<int64_t>(steps);
  const auto own_ns = static_cast<double>(std::max<int64_t>(program.cost_ns, 1));
  if (usual) {
    out.usual_repeated = usual->repeats;
    out.usual_cost = usual->cost_ns / own_ns;
  }
  out.is_planned = learned && learned->has_plan();
  if (!learned) learned = usual;
  if (!learned) return;
  out.learned_repeated = learned->repeats;
  out.learned_cost = learned->cost_ns / own_ns;
}

}  // namespace

extern "C" int32_t dtr_what_if(const dtr_what_if_options* options, const int64_t* program,
                               uint64_t numbers, const int64_t* workspace,
                               const int64_t* workspace_at, uint64_t operators,
                               dtr_what_if_result* out) {
  return guard([&] {
    require(out, "out");
    *out = {0, 0, 0, -1, -1, -1, -1, 0, 0};
    require(options, "options");
    const dtr_runtime_options& runtime = options->runtime;
    require_between("space", runtime.space, DTR_SPACE_HEAP, DTR_SPACE_FIXED);
    require_between("maps_on", options->maps_on, -1, 1);
    require_between("learn", options->learn, 0, 2);
    const Program log = checked(&runtime, program, numbers, workspace, workspace_at, operators);
    if (runtime.common.heuristic.select == DTR_SELECT_CALLBACK)
      throw InvalidArgument("the heuristic is a callable; allowed in a what-if play: scores");
    play(*options, log, *out);
  });
}

}  // namespace dtr
