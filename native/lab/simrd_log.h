// simrd_log.h: an op log as simrd understands it, whatever will be evicted.
//
// Tensors, storages and ops are numbered in the order of creation. Which of them there are, who
// refers to them and when, does not depend on what is evicted, so all of it is gathered once, for
// the machine (simrd.h) and for the search for schedules (plan.h).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "errors.h"
#include "not_copied.h"
#include "simulate/program.h"

namespace dtr::simrd {

struct Op {
  int64_t cost = 0;
  uint64_t total_bytes = 0;  // of its outputs
  uint32_t first_output = 0;
  uint32_t outputs = 0;
  bool constant = false;
  std::vector<uint32_t> inputs;  // tensors in argument order, repeated if given twice

  uint32_t end_output() const { return first_output + outputs; }
};

struct Tensor {
  uint32_t op = 0;
  uint32_t storage = 0;
  uint64_t size_bytes = 0;  // 0: a view
};

struct LogStorage {
  uint64_t size_bytes = 0;
  uint32_t root = 0;  // its first tensor
};

// What the program does, one after the other.
struct Event {
  enum Kind : uint8_t { run, get, release };
  Kind kind;
  uint32_t id;  // of the op, or of the tensor that is referred to once more, or once less
};

class Log : NotCopied {
 public:
  // Throws InvalidArgument if the program is malformed.
  Log(const int64_t* program, uint64_t numbers) {
    Program decoded = dtr::decoded(program, numbers, Names::ordered);
    std::vector<uint32_t> names(decoded.names);  // the tensor of each
    std::vector<int32_t> references;             // of each tensor, by names
    const auto refer = [&](uint32_t tensor, int32_t change) {
      references.resize(tensors.size(), 1);
      references[tensor] += change;
      events.push_back({change > 0 ? Event::get : Event::release, tensor});
    };
    for (Instruction& of : decoded.instructions) switch (of.kind) {
        case Instruction::constant:
        case Instruction::effect:  // simrd knows but its constants
          for (const Result& result : of.results) {
            names[result.name] = static_cast<uint32_t>(tensors.size());
            begin_op(true, 0);
            add_output(static_cast<uint64_t>(result.size_bytes), nullptr);
          }
          break;
        case Instruction::call:
        case Instruction::mutate: {
          if (of.results.size() == 0) break;
          begin_op(false, of.cost);
          Op& op = ops.back();
          op.inputs = std::move(of.arguments);
          for (uint32_t& input : op.inputs) input = names[input];
          // What MUTATE makes has the arguments' sizes, and takes their names; then the old go.
          const bool mutates = of.kind == Instruction::mutate;
          for (const Result& result : of.results) {
            const uint32_t* of_alias =
                result.is_fresh() ? nullptr : &op.inputs[static_cast<size_t>(result.alias)];
            if (mutates)
              add_output(storages[tensors[*of_alias].storage].size_bytes, nullptr);
            else
              add_output(static_cast<uint64_t>(result.size_bytes), of_alias);
          }
          for (uint32_t i = 0; i < op.outputs; ++i) {
            uint32_t& name = names[of.results[i].name];
            const uint32_t old = name;
            name = op.first_output + i;
            if (mutates) refer(old, -1);
          }
          break;
        }
        case Instruction::copy:
          names[of.results[0].name] = names[of.arguments[0]];
          refer(names[of.arguments[0]], 1);
          break;
        case Instruction::copy_from: {
          const uint32_t old = names[of.results[0].name], source = names[of.arguments[0]];
          names[of.results[0].name] = source;
          refer(old, -1);
          refer(source, 1);
          break;
        }
        case Instruction::release:
          refer(names[of.arguments[0]], -1);
          break;
      }
    references.resize(tensors.size(), 1);
    for (const uint32_t tensor : names)
      if (references[tensor] > 0) outputs.push_back(tensor);
  }

  // Whether a view is made of more than the storage that it looks at.
  bool has_wide_views() const {
    for (const Op& op : ops)
      for (uint32_t tensor = op.first_output; tensor < op.end_output(); ++tensor)
        if (is_view(tensor))
          for (const uint32_t input : op.inputs)
            if (tensors[input].storage != tensors[tensor].storage) return true;
    return false;
  }
  bool is_view(uint32_t tensor) const { return storages[tensors[tensor].storage].root != tensor; }

  std::vector<Op> ops;
  std::vector<Tensor> tensors;
  std::vector<LogStorage> storages;
  std::vector<Event> events;
  std::vector<uint32_t> outputs;  // the tensors with a name at the end, in order

 private:
  void begin_op(bool constant, int64_t cost) {
    events.push_back({Event::run, static_cast<uint32_t>(ops.size())});
    ops.emplace_back();
    ops.back().constant = constant;
    ops.back().cost = cost;
    ops.back().first_output = static_cast<uint32_t>(tensors.size());
  }
  // Of the newest op. looks_at: the tensor that it is a view of, or null.
  void add_output(uint64_t size_bytes, const uint32_t* looks_at) {
    Op& op = ops.back();
    const auto id = static_cast<uint32_t>(tensors.size());
    const auto op_id = static_cast<uint32_t>(ops.size() - 1);
    ++op.outputs;
    if (looks_at) {
      tensors.push_back({op_id, tensors[*looks_at].storage, 0});
      return;
    }
    tensors.push_back({op_id, static_cast<uint32_t>(storages.size()), size_bytes});
    storages.push_back({size_bytes, id});
    if (__builtin_add_overflow(op.total_bytes, size_bytes, &op.total_bytes))
      throw InvalidArgument("program: the sum of its sizes is too large; allowed: 63 bits");
  }
};

}  // namespace dtr::simrd
