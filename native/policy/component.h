// component.h: evicted components as union-find sets (DTR paper, appendix C.2,
// "relaxed evicted neighborhood").
//
// A set's root holds the summed cost of the evicted storages in it. Union-find
// cannot split: when a storage comes back its cost is subtracted from its root and
// it leaves, but the sets that it had joined stay joined (the paper's "phantom
// connections").
//
// Costs are whole nanoseconds, and a node remembers what it brought. So a sum is
// exact, in whatever order members come and go:
//
//     root.cost_ns == sum of own_ns over the members that have not left
//
// Nodes are counted: one for the storage that owns the node, one for each node
// below it. A node without either is freed, so memory follows the evicted storages.
//
// A node knows nothing of the record that owns it: the engine's storages and the
// simulator's use the same sets.
#pragma once

#include <cassert>
#include <cstdint>

namespace dtr {

struct ComponentNode {
  ComponentNode* parent = nullptr;  // null: a root
  int64_t own_ns = 0;               // what its storage brought; 0 once it left
  int64_t cost_ns = 0;              // of a root: the sum over the set; else 0
  uint32_t rank = 0;
  uint32_t references = 1;
  uint64_t mark = 0;  // visited in the scoring of that number
};

class Components {
 public:
  ComponentNode* create(int64_t cost_ns) {
    auto* node = new ComponentNode();
    node->own_ns = node->cost_ns = cost_ns;
    ++visited_;
    return node;
  }

  // The set's root. Halves the path on the way: every node passed is linked to
  // its grandparent, and a node that only this path pointed to is freed.
  ComponentNode* root(ComponentNode* node) {
    ++visited_;
    while (node->parent && node->parent->parent) {
      ComponentNode* passed = node->parent;
      node->parent = passed->parent;
      ++node->parent->references;
      release(passed);
      node = node->parent;
      ++visited_;
    }
    return node->parent ? node->parent : node;
  }

  void merge(ComponentNode* a, ComponentNode* b) {
    a = root(a);
    b = root(b);
    if (a == b) return;
    if (a->rank < b->rank) {
      ComponentNode* swap = a;
      a = b;
      b = swap;
    }
    if (a->rank == b->rank) ++a->rank;
    b->parent = a;
    ++a->references;
    a->cost_ns += b->cost_ns;
    b->cost_ns = 0;
  }

  // A storage came back or vanished: what it brought leaves the set, its node is let go.
  void leave(ComponentNode* node) {
    ComponentNode* top = root(node);
    assert(top->cost_ns >= node->own_ns);
    top->cost_ns -= node->own_ns;
    // A set of one has no other neighbors than the storage's own.
    if (top != node || node->references > 1) decreased_ns_ += node->own_ns;
    node->own_ns = 0;
    release(node);
  }

  // Everything that ever left a set that others may be next to. Between two readings no
  // set's cost has fallen by more than this has grown.
  int64_t decreased_ns() const { return decreased_ns_; }
  // Nodes looked at, made ones included.
  uint64_t visited() const { return visited_; }

 private:
  void release(ComponentNode* node) {
    while (node && --node->references == 0) {
      ComponentNode* above = node->parent;
      delete node;
      node = above;
    }
  }

  int64_t decreased_ns_ = 0;
  uint64_t visited_ = 0;
};

}  // namespace dtr
