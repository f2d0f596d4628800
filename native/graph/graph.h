// graph.h: the records of a job, and the ways to find them: by handle, by address, in the order of
// execution. It owns them all. The engine's mutex guards it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
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
  Storage* new_storage(const dtr_tensor_desc& desc, bool managed) {
    Storage* storage = spare_storages_.get();
    *storage = Storage{};
    storage->record = static_cast<uint32_t>(storages_.size());
    storages_.push_back(storage);
    storage->id = next_storage_id_++;
    storage->size_bytes = desc.storage_bytes;
    storage->device_type = desc.device_type;
    storage->device_index = desc.device_index;
    storage->address = desc.data;
    storage->handle = desc.handle;
    storage->managed = managed;
    return storage;
  }
  // An empty one, without a place in the order of execution.
  Op* new_op() {
    Op* op = spare_ops_.get();
    op->id = next_op_id_++;
    op->closure = nullptr;
    op->log_index = -1;
    op->edges.clear();
    op->tensors.clear();
    op->outputs.clear();
    op->recorded_outputs = 0;
    op->needed_outputs = op->waiting_steps = 0;
    op->peak_look = 0;
    return op;
  }
  // The newest in that order.
  void append(Op* op) {
    op->older = newest_op_;
    op->newer = nullptr;
    (newest_op_ ? newest_op_->newer : oldest_op_) = op;
    newest_op_ = op;
  }
  // Of a storage that nothing refers to any more.
  void recycle(Storage* storage) {
    storages_.back()->record = storage->record;
    storages_[storage->record] = storages_.back();
    storages_.pop_back();
    spare_storages_.put(storage);
  }
  // Takes an op without edges and outputs out of the order of execution.
  void recycle(Op* op) {
    (op->older ? op->older->newer : oldest_op_) = op->newer;
    (op->newer ? op->newer->older : newest_op_) = op->older;
    spare_ops_.put(op);
  }

  static void link(Edge& edge, Op* op, Storage* input) {
    edge.op = op;
    edge.input = input;
    edge.previous = nullptr;
    edge.next = input->children;
    if (input->children) input->children->previous = &edge;
    input->children = &edge;
  }
  static void unlink(Edge& edge) {
    if (edge.previous)
      edge.previous->next = edge.next;
    else
      edge.input->children = edge.next;
    if (edge.next) edge.next->previous = edge.previous;
    edge = Edge{};
  }
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
  void check(uint64_t live_ops) const {
    const auto require = [](bool holds, const char* rule, uint64_t id) {
      if (!holds) throw StateError("storage " + std::to_string(id) + " breaks " + rule);
    };
    // The place of a removed record is another's, or none.
    const auto require_listed = [&](const Storage* storage) {
      const bool listed =
          storage->record < storages_.size() && storages_[storage->record] == storage;
      require(listed, "R3: a removed record is still referred to", storage->id);
    };
    for (const Storage* storage : storages_) require_listed(storage);
    by_handle.for_each([&](const void*, const Storage* storage) { require_listed(storage); });
    uint64_t bytes = 0, of_candidates = 0;
    by_address.for_each([&](const void*, const Storage* storage) {
      require_listed(storage);
      bytes += storage->size_bytes;
      if (is_candidate(storage)) of_candidates += storage->size_bytes;
    });
    if (bytes != by_address.size_bytes() || of_candidates != candidate_bytes)
      throw StateError("R6: " + std::to_string(bytes) + " bytes are resident, " +
                       std::to_string(of_candidates) + " of candidates; counted are " +
                       std::to_string(by_address.size_bytes()) + " and " +
                       std::to_string(candidate_bytes));
    uint64_t ops = 0;
    const Op* previous = nullptr;
    for (const Op* op = oldest_op_; op; previous = op, op = op->newer) {
      ++ops;
      if (op->older != previous || (previous && previous->id >= op->id))
        throw StateError("op " + std::to_string(op->id) + " breaks the order of execution");
      uint32_t recorded = 0;
      for (const Output& output : op->outputs) {
        if (!output.storage) continue;
        require_listed(output.storage);
        require(&output == &op->outputs[output.storage->output], "R3: an output stands elsewhere",
                output.storage->id);
        ++recorded;
        require(output.storage->parent == op, "R3: an op's output has another parent",
                output.storage->id);
      }
      if (recorded == 0 || recorded != op->recorded_outputs)
        throw StateError("op " + std::to_string(op->id) + " breaks R3: it has " +
                         std::to_string(recorded) + " recorded outputs and counts " +
                         std::to_string(op->recorded_outputs));
      for (const Edge& edge : op->edges) {
        require_listed(edge.input);
        bool listed = false;
        for (const Edge* child = edge.input->children; child; child = child->next)
          listed |= child == &edge;
        require(listed && edge.op == op, "R3: a child edge is missing", edge.input->id);
      }
    }
    if (ops != live_ops)
      throw StateError("there are " + std::to_string(ops) + " ops, counted are " +
                       std::to_string(live_ops));
  }

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
