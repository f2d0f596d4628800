// contents.cpp: see contents.h.
#include "contents.h"

#include <string>

#include "base/checksum.h"
#include "base/error.h"

namespace dtr {

uint64_t Contents::checksum_of(const Storage* storage) const {
  return storage->external || environment_.options.contents == DTR_CONTENTS_WHOLE
             ? checksum(storage->address, storage->size_bytes)
             : sampled_checksum(storage->address, storage->size_bytes);
}

void Contents::note_inputs(const OpCall& call) const {
  for (const Input& input : call.inputs)
    if (input.storage && reads(input.use) && !is_known(input.storage)) note(input.storage);
}

void Contents::note_all() const {
  graph_.by_address.for_each([&](const void*, Storage* storage) {
    if (storage->state == State::resident && is_known(storage)) note(storage);
  });
}

Storage* Contents::changed(Storage* old, Deferred& deferred) {
  ++environment_.stats.unseen_writes;
  if (!old->parent) {
    ++old->locks;  // memory of others has a record only while something depends on it
    const bool settled = settling_.settle(old, nullptr, Settling::kAnyBytes, deferred);
    --old->locks;
    if (settled) return old;
  }
  dtr_tensor_desc desc{};
  desc.handle = old->handle;
  desc.data = old->address;
  desc.storage_bytes = old->size_bytes;
  desc.device_type = old->device_type;
  desc.device_index = old->device_index;
  Storage* fresh = lifecycle_.hand_over(old, desc);
  fresh->external = old->external;
  fresh->constant_for_good = old->constant_for_good;
  old->lost = !old->parent;
  lifecycle_.become_evicted(old, EvictionCause::gone);
  lifecycle_.update_candidate(fresh);
  lifecycle_.maybe_remove(old, deferred);
  return fresh;
}

void Contents::compare_inputs(const Op* op, Deferred& deferred) {
  for (const Edge& edge : op->edges) {
    Storage* input = edge.input;
    if (input->state != State::resident || input->overwriters > 0 || !has_changed(input)) continue;
    if (!input->live || !input->parent)
      throw StateError("storage " + std::to_string(input->id) + " (" +
                       std::to_string(input->size_bytes) +
                       " bytes) is needed for a rematerialization, but was changed by something "
                       "other than an operator (through numpy, DLPack, a raw pointer or a "
                       "storage); materialize what depends on it before");
    changed(input, deferred);
  }
}

}  // namespace dtr
