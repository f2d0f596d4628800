// rehearse_api.cpp: what a job would learn, from its op log.
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "dtr/op_log.h"
#include "rehearsal.h"
#include "simulate/program.h"
#include "step_log.h"

namespace dtr {

namespace {

// The records that the engine would have written of a program (dtr/op_log.h), without views. The
// program was run before, so it makes sense.
class Records {
 public:
  explicit Records(const Program& program) : program_(program) {}

  std::vector<int64_t> all() {
    ProgramReader in(program_.code, program_.numbers);
    while (!in.at_end()) {
      const Instruction instruction = in.instruction();
      if (instruction == Instruction::constant) {
        const auto name = static_cast<size_t>(in.amount("name"));
        const int64_t size_bytes = in.amount("size");
        add({DTR_OP_LOG_CONSTANT, make(), size_bytes});
        assign(name, newest());
      } else if (instruction == Instruction::release) {
        release(static_cast<size_t>(in.amount("name")));
      } else if (instruction == Instruction::copy || instruction == Instruction::copy_from) {
        const auto name = static_cast<size_t>(in.amount("name"));
        const auto source = static_cast<size_t>(in.amount("name"));
        const int64_t storage = of(source);
        ++names_of_[storage];
        assign(name, storage);
      } else {
        run(instruction, in);
      }
    }
    return std::move(records_);
  }

 private:
  static constexpr int64_t kNone = -1;

  void add(std::initializer_list<int64_t> numbers) {
    records_.insert(records_.end(), numbers.begin(), numbers.end());
  }
  int64_t of(size_t name) const { return storages_[name]; }
  // A storage that is about to get its first name.
  int64_t make() {
    names_of_.push_back(1);
    return newest();
  }
  int64_t newest() const { return static_cast<int64_t>(names_of_.size()) - 1; }
  // The name stands for the storage, which counts it already, and for nothing else.
  void assign(size_t name, int64_t storage) {
    if (name >= storages_.size()) storages_.resize(name + 1, kNone);
    release(name);
    storages_[name] = storage;
  }
  void release(size_t name) {
    if (name >= storages_.size()) return;
    const int64_t storage = std::exchange(storages_[name], kNone);
    if (storage != kNone && --names_of_[storage] == 0) add({DTR_OP_LOG_RELEASE, storage, 0});
  }

  void run(Instruction instruction, ProgramReader& in) {
    const int64_t time = in.amount("time");
    std::vector<int64_t> arguments(in.count("args"));
    for (int64_t& argument : arguments) argument = of(static_cast<size_t>(in.amount("name")));
    const uint32_t count = in.count("results");
    std::vector<int64_t> results;
    std::vector<int64_t> fresh(count, kNone);       // by result: which of those with memory it is
    std::vector<std::pair<size_t, int64_t>> named;  // once the operator has ended
    int64_t made = 0;
    for (uint32_t i = 0; i < count; ++i) {
      if (instruction == Instruction::mutate) {
        results.push_back(in.number("index", INT64_MIN, INT64_MAX));
        continue;
      }
      const auto name = static_cast<size_t>(in.amount("name"));
      const int64_t size_bytes = in.amount("size");
      const int64_t alias = in.number("alias", -1, INT32_MAX);
      if (alias >= 0) {
        ++names_of_[arguments[static_cast<size_t>(alias)]];
        named.emplace_back(name, arguments[static_cast<size_t>(alias)]);
        continue;
      }
      fresh[i] = made++;
      named.emplace_back(name, make());
      if (instruction == Instruction::effect)
        results.insert(results.end(), {DTR_OP_LOG_CONSTANT, newest(), size_bytes});
      else
        results.insert(results.end(), {newest(), 0, size_bytes, -1});
    }
    const uint64_t op = operators_++;
    if (instruction != Instruction::call || made > 0)
      add_operator(instruction, time, op, arguments, results, fresh, made);
    for (const auto& [name, storage] : named) assign(name, storage);
  }

  void add_operator(Instruction instruction, int64_t time, uint64_t op,
                    const std::vector<int64_t>& arguments, const std::vector<int64_t>& results,
                    const std::vector<int64_t>& fresh, int64_t made) {
    add_memory(op, fresh);
    const bool mutates = instruction == Instruction::mutate;
    const int32_t kind = instruction == Instruction::call ? DTR_OP_LOG_CALL
                         : mutates                        ? DTR_OP_LOG_MUTATE
                                                          : DTR_OP_LOG_EFFECT;
    add({kind, 0, time, static_cast<int64_t>(arguments.size())});
    for (const int64_t argument : arguments) add({argument, 0});
    add({mutates ? static_cast<int64_t>(results.size()) : made});
    records_.insert(records_.end(), results.begin(), results.end());
  }

  void add_memory(uint64_t op, const std::vector<int64_t>& fresh) {
    if (!program_.workspace_at) return;
    const int64_t begin = program_.workspace_at[op], end = program_.workspace_at[op + 1];
    const size_t at = records_.size() + 1;
    add({DTR_OP_LOG_MEMORY, 0});
    for (int64_t i = begin; i < end; i += 2) {
      const int64_t kind = program_.workspace[i], value = program_.workspace[i + 1];
      const int64_t number = kind == DTR_MEMORY_RESULT ? fresh[static_cast<size_t>(value)] : value;
      if (kind == DTR_MEMORY_RESULT && number == kNone) continue;
      add({kind, number});
      ++records_[at];
    }
  }

  const Program& program_;
  std::vector<int64_t> records_;
  std::vector<int64_t> storages_;  // by name
  std::vector<int64_t> names_of_;  // by storage: how many it has
  uint64_t operators_ = 0;
};

Stage stage_of(const dtr_rehearsal_options& options, uint64_t constant_bytes) {
  const dtr_runtime_options& runtime = options.runtime;
  Stage stage;
  stage.budget_bytes = stage.pool_bytes = runtime.common.budget_bytes;
  stage.chunk_bytes = runtime.chunk_bytes;
  stage.fixed = runtime.space == DTR_SPACE_FIXED;
  if (options.maps_on >= 0)
    stage.room_price = RoomPrice::of(static_cast<uint8_t>(options.maps_on), runtime.chunk_bytes);
  stage.move_bytes_per_s = runtime.move_bytes_per_s;
  stage.swap_bytes = runtime.swap_bytes;
  stage.swap_out_bytes_per_s = runtime.swap_out_bytes_per_s;
  stage.swap_in_bytes_per_s = runtime.swap_in_bytes_per_s;
  stage.history_ops = runtime.history_ops;
  stage.held.push_back({0, constant_bytes, nullptr});
  return stage;
}

void rehearse(const dtr_rehearsal_options& options, const Program& log, dtr_rehearsal_result& out) {
  StepLog heard;
  heard.append(Records(log).all());
  if (heard.operators() == 0) return;
  const StepLog::Repetition step = heard.repetition();
  const std::atomic<bool> never{false};
  EvictionPolicy policy;
  policy.heuristic = options.runtime.common.heuristic;
  policy.room = options.runtime.room;
  policy.dealloc = static_cast<Dealloc>(options.runtime.common.dealloc);
  std::optional<Rehearsal::Found> usual, learned;
  {
    const OwnedProgram program = heard.whole(step);
    const Stage stage = stage_of(options, 0);
    usual = Rehearsal(program, stage, never).usual(policy);
  }
  const OwnedProgram program = heard.last_steps(step);
  const Stage stage = stage_of(options, program.constant_bytes);
  if (options.learn) {
    const Rehearsal rehearsal(program, stage, never);
    learned = rehearsal.best(policy);
    if (options.learn > 1 && learned && !learned->plan.calls.empty())
      if (std::optional<Rehearsal::Found> better = rehearsal.better(*learned))
        learned = std::move(better);
  }
  out.heard = heard.operators();
  out.operators = step.period;
  const uint64_t steps =
      step.period > 0 && program.counted_from > 0 ? program.calls.size() / step.period - 1 : 1;
  out.step_cost = program.cost_ns / static_cast<int64_t>(steps);
  const auto own_ns = static_cast<double>(std::max<int64_t>(program.cost_ns, 1));
  if (usual) {
    out.usual_repeated = usual->repeats;
    out.usual_cost = usual->cost_ns / own_ns;
  }
  out.is_planned = learned && !learned->plan.calls.empty();
  if (!learned) learned = usual;
  if (!learned) return;
  out.learned_repeated = learned->repeats;
  out.learned_cost = learned->cost_ns / own_ns;
}

}  // namespace

}  // namespace dtr

extern "C" int32_t dtr_rehearse(const dtr_rehearsal_options* options, const int64_t* program,
                                uint64_t numbers, const int64_t* workspace,
                                const int64_t* workspace_at, uint64_t operators,
                                dtr_rehearsal_result* out) {
  // A run without a limit checks everything that both take.
  const int32_t status = dtr::guard([&] {
    dtr::require(out, "out");
    *out = {0, 0, 0, -1, -1, -1, -1, 0};
    dtr::require(options, "options");
    dtr::require_between("space", options->runtime.space, DTR_SPACE_HEAP, DTR_SPACE_FIXED);
    dtr::require_between("maps_on", options->maps_on, -1, 1);
    dtr::require_between("learn", options->learn, 0, 2);
    if (options->runtime.common.heuristic.select == DTR_SELECT_CALLBACK)
      throw dtr::InvalidArgument("the heuristic is a callable; allowed in a rehearsal: scores");
  });
  if (status) return status;
  dtr_runtime_options unlimited = options->runtime;
  unlimited.common.budget_bytes = UINT64_MAX;
  unlimited.common.max_recompute = -1;
  dtr_simulation* checked = nullptr;
  if (const int32_t failed = dtr_simulate_runtime(&unlimited, program, numbers, workspace,
                                                  workspace_at, operators, &checked))
    return failed;
  dtr_simulation_result whole{};
  dtr_simulation_get_result(checked, &whole);
  dtr_simulation_destroy(checked);
  if (whole.status != DTR_SIMULATION_OK) return DTR_OK;  // it does not work without a limit, either
  return dtr::guard([&] {
    dtr::rehearse(*options, {program, numbers, workspace, workspace_at, operators}, *out);
  });
}
