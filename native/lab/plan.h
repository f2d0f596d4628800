// plan.h: an op log with all that will happen known from the beginning: which storages are computed
// from which, and when each is read.
//
// The semantics are those of simrd with eager eviction (simrd.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "errors.h"
#include "simrd_log.h"

namespace dtr::schedule {

using simrd::Event;
using simrd::Op;
constexpr uint32_t kNone = UINT32_MAX;

struct Links {
  std::vector<uint32_t> tensors;
  std::vector<uint32_t> parents;   // storages that its ops read, each once, without itself
  std::vector<uint32_t> children;  // the reverse
  std::vector<uint32_t> uses;      // positions of the program that read it, ascending
};

// A position counts the ops that are no constants.
struct Plan : simrd::Log {
  // Throws InvalidArgument if the program is malformed.
  Plan(const int64_t* program, uint64_t numbers) : Log(program, numbers), links(storages.size()) {
    std::vector<int64_t> references(storages.size(), 0);
    for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor)
      links[tensors[tensor].storage].tensors.push_back(tensor);
    for (const Event& event : events) {
      if (event.kind != Event::run) {
        int64_t& left = references[tensors[event.id].storage];
        if (left <= 0)
          throw InvalidArgument(
              "program: tensor " + std::to_string(event.id) +
              " is named anew or released after its storage died; allowed: before");
        left += event.kind == Event::get ? 1 : -1;
        continue;
      }
      const Op& op = ops[event.id];
      for (uint32_t tensor = op.first_output; tensor < op.end_output(); ++tensor)
        ++references[tensors[tensor].storage];
      if (!op.constant) add_op(op);
    }
    const auto end = static_cast<uint32_t>(cost_before.size()) - 1;
    for (const uint32_t tensor : outputs) add_use(links[tensors[tensor].storage].uses, end);
  }

  std::vector<Links> links;  // by storage
  // By position: the cost of all that the program ran before; one more for the end.
  std::vector<int64_t> cost_before{0};

 private:
  static void add_once(std::vector<uint32_t>& list, uint32_t id) {
    if (std::ranges::find(list, id) == list.end()) list.push_back(id);
  }
  static void add_use(std::vector<uint32_t>& uses, uint32_t position) {
    if (uses.empty() || uses.back() != position) uses.push_back(position);
  }
  void add_op(const Op& op) {
    for (const uint32_t input : op.inputs) {
      const uint32_t from = tensors[input].storage;
      if (ops[tensors[storages[from].root].op].constant) continue;  // it is always there
      add_use(links[from].uses, static_cast<uint32_t>(cost_before.size()) - 1);
      for (uint32_t tensor = op.first_output; tensor < op.end_output(); ++tensor) {
        const uint32_t to = tensors[tensor].storage;
        if (to == from) continue;
        add_once(links[to].parents, from);
        if (links[from].children.empty() || links[from].children.back() != to)
          add_once(links[from].children, to);
      }
    }
    int64_t after = cost_before.back();
    if (__builtin_add_overflow(after, op.cost, &after))
      throw InvalidArgument("program: the sum of its times is too large; allowed: 63 bits");
    cost_before.push_back(after);
  }
};

}  // namespace dtr::schedule
