// graph.h: the records of a job, and the ways to find them: by handle, by address, in the order of
// execution. It owns them all. The engine's mutex guards it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fetch.h"
#include "base/pointer_map.h"
#include "dtr/framework.h"
#include "not_copied.h"
#include "records.h"

namespace dtr {

// What a record refers to, and is written when it is used again.
inline void fetch_buffers(const Storage*) {}
inline void fetch_buffers(const Op* op) {
  fetch(op->edges.data(), 3);
  fetch(op->tensors.data(), 3);
  fetch(op->outputs.data(), 1);
}

// Keeps dead objects for reuse, so that the steady state does not allocate. An
// Op keeps the capacity of its vectors.
template <typename T>
class Recycler : NotCopied {
 public:
  Recycler() = default;
  ~Recycler() {
    for (T* object : spare_) delete object;
  }
  T* get() {
    if (spare_.empty()) return new T();
    T* object = spare_.back();
    spare_.pop_back();
    // The next one but one, and what the next one, which is there by now, refers to.
    const size_t left = spare_.size();
    if (left >= 1) fetch_buffers(spare_[left - 1]);
    if (left >= 2) fetch_all(spare_[left - 2]);
    return object;
  }
  void put(T* object) {
    if (spare_.size() < kMost)
      spare_.push_back(object);
    else
      delete object;
  }

 private:
  static constexpr size_t kMost = 1 << 15;
  std::vector<T*> spare_;
};

// Resident storages whose memory is ours, by their addresses.
class ResidentStorages : public PointerMap<Storage> {
 public:
  void insert(const void* address, Storage* storage) {
    size_bytes_ += storage->size_bytes - bytes_of(PointerMap::insert(address, storage));
  }
  void erase(const void* address) { size_bytes_ -= bytes_of(PointerMap::erase(address)); }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  static uint64_t bytes_of(const Storage* storage) { return storage ? storage->size_bytes : 0; }

  uint64_t size_bytes_ = 0;
};

class Graph {
 public:
  // A record that nothing refers to yet.
  Storage* new_storage(const dtr_tensor_desc& desc, bool managed);
  // An empty one, without a place in the order of execution.
  Op* new_op();
  // The newest in that order.
  void append(Op* op);
  // Of a storage that nothing refers to any more.
  void recycle(Storage* storage);
  // Takes an op without edges and outputs out of the order of execution.
  void recycle(Op* op);

  static void link(Edge& edge, Op* op, Storage* input);
  static void unlink(Edge& edge);
  // The op has made the storage's content.
  static void add_output(Op* op, Storage* storage, int32_t position, bool mutation, int32_t rank) {
    storage->parent = op;
    storage->chain = op->chain;
    storage->output = static_cast<uint32_t>(op->outputs.size());
    op->outputs.push_back({storage, position, mutation, rank});
    ++op->recorded_outputs;
  }

  Op* oldest_op() const { return oldest_op_; }
  Op* newest_op() const { return newest_op_; }
  // A number above every Storage::mark, for one walk.
  uint64_t next_walk() { return ++walk_; }
  uint64_t last_walk() const { return walk_; }

  // All records, in no order. Some are met in no other way for a while: what thread A swaps in or
  // out has neither handle nor address once thread B has dropped it.
  const std::vector<Storage*>& storages() const { return storages_; }
  // The order of execution, both ends of each edge, each output's place, and that whatever is
  // referred to is a record. Throws StateError.
  void check(uint64_t live_ops) const;

  PointerMap<Storage> by_handle;
  ResidentStorages by_address;
  uint64_t candidate_bytes = 0;  // of those that may be evicted (R6)

 private:
  std::vector<Storage*> storages_;
  Recycler<Storage> spare_storages_;
  Recycler<Op> spare_ops_;
  Op* oldest_op_ = nullptr;
  Op* newest_op_ = nullptr;
  uint64_t next_storage_id_ = 1;
  uint64_t next_op_id_ = 1;
  uint64_t walk_ = 0;
};

// Nanoseconds of the storage's own op, as scores count them.
inline int64_t cost_of(const Storage* storage) {
  return storage->parent ? storage->parent->cost_ns + storage->parent->replay_ns : 0;
}

// Made from nothing (random data, a range). A source is a component of its own:
// it is next to all that read it, and would join everything into one.
inline bool is_source(const Storage* storage) {
  return storage->parent && storage->parent->edges.empty();
}

// What a storage was computed from, and what was computed from it, where that is recorded.
template <typename F>
void for_inputs(const Storage* storage, F&& visit) {
  if (!storage->parent) return;
  for (const Edge& edge : storage->parent->edges)
    if (edge.input && edge.input != storage) visit(edge.input);
}

template <typename F>
void for_dependents(const Storage* storage, F&& visit) {
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    for (const Output& output : edge->op->outputs)
      if (output.storage && output.storage != storage) visit(output.storage);
}

// Those on both sides that count for the costs of others (R4).
template <typename F>
void for_evicted_neighbors(const Storage* storage, F&& visit) {
  if (storage->parent)
    for (const Edge& edge : storage->parent->edges)
      if (edge.input && edge.input->counted) visit(edge.input);
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    for (const Output& output : edge->op->outputs)
      if (output.storage && output.storage->counted && output.storage != storage)
        visit(output.storage);
}

}  // namespace dtr
