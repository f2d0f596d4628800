#include "graph.h"

#include <string>

#include "base/error.h"

namespace dtr {

Storage* Graph::new_storage(const dtr_tensor_desc& desc, bool managed) {
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

Op* Graph::new_op() {
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

void Graph::append(Op* op) {
  op->older = newest_op_;
  op->newer = nullptr;
  (newest_op_ ? newest_op_->newer : oldest_op_) = op;
  newest_op_ = op;
}

void Graph::recycle(Storage* storage) {
  storages_.back()->record = storage->record;
  storages_[storage->record] = storages_.back();
  storages_.pop_back();
  spare_storages_.put(storage);
}

void Graph::recycle(Op* op) {
  (op->older ? op->older->newer : oldest_op_) = op->newer;
  (op->newer ? op->newer->older : newest_op_) = op->older;
  spare_ops_.put(op);
}

void Graph::link(Edge& edge, Op* op, Storage* input) {
  edge.op = op;
  edge.input = input;
  edge.previous = nullptr;
  edge.next = input->children;
  if (input->children) input->children->previous = &edge;
  input->children = &edge;
}

void Graph::unlink(Edge& edge) {
  if (edge.previous)
    edge.previous->next = edge.next;
  else
    edge.input->children = edge.next;
  if (edge.next) edge.next->previous = edge.previous;
  edge = Edge{};
}

void Graph::check(uint64_t live_ops) const {
  const auto require = [](bool holds, const char* rule, uint64_t id) {
    if (!holds) throw StateError("storage " + std::to_string(id) + " breaks " + rule);
  };
  // The place of a removed record is another's, or none.
  const auto require_listed = [&](const Storage* storage) {
    const bool listed = storage->record < storages_.size() && storages_[storage->record] == storage;
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

}  // namespace dtr
