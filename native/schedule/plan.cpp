#include "plan.h"

#include <algorithm>
#include <string>

#include "errors.h"
#include "simulate/program.h"

namespace dtr::schedule {

namespace {

void add_once(std::vector<uint32_t>& list, uint32_t id) {
  if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
}

}  // namespace

uint32_t Plan::add_op(int64_t cost, const std::vector<uint32_t>& arguments, bool constant) {
  const auto id = static_cast<uint32_t>(ops.size());
  ops.emplace_back();
  Op& op = ops.back();
  op.cost = cost;
  op.first_output = static_cast<uint32_t>(tensors.size());
  op.inputs = static_cast<uint32_t>(inputs.size());
  inputs.insert(inputs.end(), arguments.begin(), arguments.end());
  events.push_back({constant ? Event::kConstant : Event::kRun, id});
  return id;
}

void Plan::add_output(uint32_t op, uint64_t size_bytes, uint32_t alias) {
  const auto id = static_cast<uint32_t>(tensors.size());
  Tensor tensor;
  tensor.op = op;
  if (alias == kNone) {
    tensor.storage = static_cast<uint32_t>(storages.size());
    tensor.size_bytes = size_bytes;
    storages.emplace_back();
    storages.back().size_bytes = size_bytes;
    storages.back().root = id;
  } else {
    tensor.storage = tensors[alias].storage;
  }
  tensors.push_back(tensor);
  storages[tensor.storage].tensors.push_back(id);
  ++ops[op].outputs;
  if (__builtin_add_overflow(ops[op].total_bytes, tensor.size_bytes, &ops[op].total_bytes))
    throw InvalidArgument("program: the sum of its sizes is too large; allowed: 63 bits");
}

// All outputs of the op are there: edges and uses.
void Plan::close_op(uint32_t id) {
  const Op& op = ops[id];
  const auto position = static_cast<uint32_t>(cost_before.size()) - 1;
  for (uint32_t i = op.inputs; i < inputs.size(); ++i) {
    const uint32_t from = tensors[inputs[i]].storage;
    std::vector<uint32_t>& uses = storages[from].uses;
    if (storages[from].constant) continue;  // it is always there
    if (uses.empty() || uses.back() != position) uses.push_back(position);
    for (uint32_t tensor = op.first_output; tensor < op.first_output + op.outputs; ++tensor) {
      const uint32_t to = tensors[tensor].storage;
      if (to == from) continue;
      add_once(storages[to].parents, from);
      if (storages[from].children.empty() || storages[from].children.back() != to)
        add_once(storages[from].children, to);
    }
  }
  int64_t after = cost_before.back();
  if (__builtin_add_overflow(after, op.cost, &after))
    throw InvalidArgument("program: the sum of its times is too large; allowed: 63 bits");
  cost_before.push_back(after);
}

Plan::Plan(const int64_t* numbers, uint64_t count) {
  ProgramReader program(numbers, count);
  std::vector<uint32_t> names;       // the tensor of each
  std::vector<int64_t> references;   // of each tensor
  std::vector<int64_t> of_storages;  // of each storage
  cost_before.push_back(0);
  const auto named = [&](const char* what) {
    return static_cast<uint32_t>(program.number(what, 0, static_cast<int64_t>(names.size()) - 1));
  };
  const auto define = [&](int64_t name, uint32_t tensor) {
    if (name != static_cast<int64_t>(names.size()))
      program.fail("a new name", name, std::to_string(names.size()) + ", the next one");
    names.push_back(tensor);
  };
  const auto count_new = [&](uint32_t op) {
    const uint32_t end = ops[op].first_output + ops[op].outputs;
    references.resize(end, 1);
    of_storages.resize(storages.size(), 0);
    for (uint32_t tensor = ops[op].first_output; tensor < end; ++tensor)
      ++of_storages[tensors[tensor].storage];
  };
  const auto refer = [&](uint32_t tensor, int change) {
    int64_t& storage = of_storages[tensors[tensor].storage];
    if (storage <= 0)
      throw InvalidArgument("program: tensor " + std::to_string(tensor) +
                            " is named anew or released after its storage died; allowed: before");
    storage += change;
    references[tensor] += change;
    events.push_back({change > 0 ? Event::kGet : Event::kRelease, tensor});
  };
  const auto constant = [&] {
    const int64_t name = program.amount("CONSTANT's name");
    const uint32_t op = add_op(0, {}, true);
    define(name, static_cast<uint32_t>(tensors.size()));
    add_output(op, static_cast<uint64_t>(program.amount("CONSTANT's size")), kNone);
    storages.back().constant = true;
    count_new(op);
  };
  std::vector<uint32_t> argument_names, arguments;
  const auto read_arguments = [&] {
    argument_names.clear();
    arguments.clear();
    for (uint32_t left = program.count("number of arguments"); left > 0; --left) {
      argument_names.push_back(named("an argument"));
      arguments.push_back(names[argument_names.back()]);
    }
  };
  while (!program.at_end()) switch (program.instruction()) {
      case Instruction::constant:
        constant();
        break;
      case Instruction::call: {
        const int64_t cost = program.amount("CALL's time");
        read_arguments();
        const uint32_t results = program.count("CALL's number of results", 3);
        if (results == 0) break;
        const uint32_t op = add_op(cost, arguments, false);
        for (uint32_t left = results; left > 0; --left) {
          define(program.amount("a result's name"), static_cast<uint32_t>(tensors.size()));
          const auto size = static_cast<uint64_t>(program.amount("a result's size"));
          const int64_t alias =
              program.number("a result's alias", -1, static_cast<int64_t>(arguments.size()) - 1);
          add_output(op, size, alias < 0 ? kNone : arguments[static_cast<size_t>(alias)]);
        }
        count_new(op);
        close_op(op);
        break;
      }
      case Instruction::mutate: {
        const int64_t cost = program.amount("MUTATE's time");
        read_arguments();
        std::vector<uint32_t> mutated;
        const int64_t last = static_cast<int64_t>(arguments.size()) - 1;
        for (uint32_t left = program.count("MUTATE's number of indices"); left > 0; --left) {
          const int64_t index = program.number("MUTATE's index", -1 - last, last);
          mutated.push_back(static_cast<uint32_t>(std::max(index, ~index)));
        }
        if (mutated.empty()) break;
        const uint32_t op = add_op(cost, arguments, false);
        for (const uint32_t index : mutated)
          add_output(op, storages[tensors[arguments[index]].storage].size_bytes, kNone);
        count_new(op);
        close_op(op);
        for (uint32_t i = 0; i < mutated.size(); ++i) {
          const uint32_t name = argument_names[mutated[i]];
          const uint32_t old = names[name];
          names[name] = ops[op].first_output + i;
          refer(old, -1);
        }
        break;
      }
      case Instruction::copy: {
        const int64_t name = program.amount("COPY's destination");
        const uint32_t source = names[named("COPY's source")];
        define(name, source);
        refer(source, 1);
        break;
      }
      case Instruction::copy_from: {
        const uint32_t name = named("COPY_FROM's destination");
        const uint32_t source = names[named("COPY_FROM's source")];
        const uint32_t old = names[name];
        names[name] = source;
        refer(old, -1);
        refer(source, 1);
        break;
      }
      case Instruction::release:
        refer(names[named("RELEASE's name")], -1);
        break;
      case Instruction::effect:
        program.amount("EFFECT's time");
        for (uint32_t left = program.count("EFFECT's number of arguments"); left > 0; --left)
          named("EFFECT's argument");
        for (uint32_t left = program.count("EFFECT's number of results", 3); left > 0; --left) {
          constant();
          program.number("EFFECT's alias", -1, -1);
        }
        break;
    }
  const auto end = static_cast<uint32_t>(cost_before.size()) - 1;
  for (const uint32_t tensor : names) {
    if (references[tensor] <= 0) continue;
    outputs.push_back(tensor);
    std::vector<uint32_t>& uses = storages[tensors[tensor].storage].uses;
    if (uses.empty() || uses.back() != end) uses.push_back(end);
  }
}

}  // namespace dtr::schedule
