// Random evictions and returns on native/policy/component.h against sets that are joined by hand.
//
// usage: random_components SEED STEPS. Prints "ok NODES MERGES" or the first difference.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "policy/component.h"

using dtr::ComponentNode;
using dtr::Components;

namespace {

struct Member {
  ComponentNode* node;
  int64_t cost;
  size_t set;  // of the brute force: members of one set are joined, those gone included
};

int fail(uint64_t step, const char* what, double found, double expected) {
  std::printf("step %lu: %s is %f, expected %f\n", static_cast<unsigned long>(step), what, found,
              expected);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const uint64_t steps = std::strtoull(argv[2], nullptr, 10);
  const auto below = [&](size_t end) { return static_cast<size_t>(random() % end); };
  Components components;
  std::vector<Member> members;
  size_t nodes = 0, merges = 0;
  for (uint64_t step = 0; step < steps; ++step) {
    const size_t action = below(10);
    if (members.empty() || (action < 4 && members.size() < 200)) {
      // Whole numbers: their sums are exact in any order.
      const auto cost = static_cast<int64_t>(1 + below(1000));
      members.push_back({components.create(cost), cost, nodes++});
    } else if (action < 7) {
      const size_t a = below(members.size()), b = below(members.size());
      components.merge(members[a].node, members[b].node);
      const size_t from = members[b].set, to = members[a].set;
      for (Member& member : members)
        if (member.set == from) member.set = to;
      ++merges;
    } else {
      const size_t gone = below(members.size());
      components.leave(members[gone].node);
      members[gone] = members.back();
      members.pop_back();
    }
    for (size_t i = 0; i < members.size(); ++i) {
      int64_t expected = 0;
      ComponentNode* root = components.root(members[i].node);
      for (const Member& member : members) {
        if (member.set == members[i].set) expected += member.cost;
        const bool joined = components.root(member.node) == root;
        if (joined != (member.set == members[i].set))
          return fail(step, "joined", joined, member.set == members[i].set);
      }
      if (root->cost_ns != expected)
        return fail(step, "a set's cost", static_cast<double>(root->cost_ns),
                    static_cast<double>(expected));
    }
  }
  // Every node is counted: without members none is left (the leak checker sees to it).
  for (const Member& member : members) components.leave(member.node);
  std::printf("ok %zu %zu\n", nodes, merges);
  return 0;
}
