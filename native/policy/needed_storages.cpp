#include "needed_storages.h"

#include <string>
#include <utility>

namespace dtr {

void NeededStorages::update(Storage* changed, bool loses_parent) {
  pending_.assign(1, changed);
  while (!pending_.empty()) {
    Storage* storage = pending_.back();
    pending_.pop_back();
    const bool needed = !(loses_parent && storage == changed) && storage->counted &&
                        storage->parent && (storage->live || storage->needed_by > 0);
    if (needed == storage->needed) continue;
    storage->needed = needed;
    if (!storage->live) neighborhoods_.share_changed(storage, !needed);
    Op* const op = storage->parent;
    op->needed_outputs += needed ? 1 : -1;
    if (op->needed_outputs != (needed ? 1 : 0)) continue;
    for (const Edge& edge : op->edges) {
      Storage* input = edge.input;
      input->needed_by += needed ? 1 : -1;
      if (input->needed_by != (needed ? 1 : 0) || input->live) continue;
      if (input->counted)
        pending_.push_back(input);
      else if (input->candidate >= 0)
        bounds_.reweigh(input);
    }
  }
}

void NeededStorages::catch_up() {
  to_follow_ = graph_.storages().size();
  if (!std::exchange(is_behind_, false)) return;
  for (Storage* storage : graph_.storages()) update(storage, false);
}

namespace {

uint32_t needed_outputs(const Op* op) {
  uint32_t count = 0;
  for (const Output& output : op->outputs)
    if (output.storage && output.storage->needed) ++count;
  return count;
}

}  // namespace

void NeededStorages::check(const Storage* storage) {
  uint32_t needed_by = 0;
  for (const Edge* edge = storage->children; edge; edge = edge->next)
    if (needed_outputs(edge->op) > 0) ++needed_by;
  if (storage->parent && needed_outputs(storage->parent) != storage->parent->needed_outputs)
    throw StateError("storage " + std::to_string(storage->id) +
                     " breaks G2: its op miscounts its needed outputs");
  if (needed_by != storage->needed_by)
    throw StateError("storage " + std::to_string(storage->id) + " breaks G2: needed by " +
                     std::to_string(needed_by) + ", counted are " +
                     std::to_string(storage->needed_by));
  if (storage->needed !=
      (storage->counted && storage->parent && (storage->live || storage->needed_by > 0)))
    throw StateError("storage " + std::to_string(storage->id) + " breaks G1: it " +
                     (storage->needed ? "is needed" : "is not needed"));
}

}  // namespace dtr
