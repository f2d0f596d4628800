// component.h: evicted components as union-find sets (DTR paper, appendix C.2.1,
// "approximate neighborhoods").
//
// A set's root holds the summed cost of the evicted storages in it. Union-find
// cannot split: when a storage comes back its cost is subtracted from its root and
// it leaves, but the sets that it had joined stay joined (the paper's "phantom
// connections").
//
// Nodes are counted: one for the storage that owns the node, one for each node
// below it. A node without either is freed, so memory follows the evicted storages.
#pragma once

#include <cstdint>

namespace dtr {

struct ComponentNode {
  ComponentNode* parent = nullptr;  // null: a root
  double cost_ns = 0;               // of a root: the sum over the set; else unused
  uint32_t rank = 0;
  uint32_t references = 1;
  uint64_t mark = 0;  // visited in the scoring of that number
};

class Components {
 public:
  ComponentNode* create(double cost_ns) {
    auto* node = new ComponentNode();
    node->cost_ns = cost_ns;
    return node;
  }

  // The set's root. Halves the path on the way: every node passed is linked to
  // its grandparent, and a node that only this path pointed to is freed.
  ComponentNode* root(ComponentNode* node) {
    while (node->parent && node->parent->parent) {
      ComponentNode* passed = node->parent;
      node->parent = passed->parent;
      ++node->parent->references;
      release(passed);
      node = node->parent;
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

  // A storage came back or vanished: its cost leaves the set, its node is let go.
  void leave(ComponentNode* node, double cost_ns) {
    ComponentNode* top = root(node);
    top->cost_ns = top->cost_ns > cost_ns ? top->cost_ns - cost_ns : 0;
    release(node);
  }

 private:
  void release(ComponentNode* node) {
    while (node && --node->references == 0) {
      ComponentNode* above = node->parent;
      delete node;
      node = above;
    }
  }
};

}  // namespace dtr
