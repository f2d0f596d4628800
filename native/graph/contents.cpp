// contents.cpp: whether a content is still the one that the engine knows.
//
// Operators tell the engine what they overwrite. Others write past them: NumPy, kernels that get a
// pointer, processes that share the memory. Where the host can read the memory, which is on the
// CPU, every content has a checksum of its last known state, and is compared with it
//
//  - when an op begins to use it: if it differs, the old content ends as if an op had overwritten
//    it, and what is there now is a constant;
//  - before it is given up: if it differs, it stays, because its op would not give it again;
//  - before a rematerialization reads it: if it differs, it is computed again, too, or, where it
//    cannot be, the rematerialization fails.
//
// So nothing is computed from a content that changed unseen. The checksum is of the whole content
// where its address was given away, or with DTR_CONTENTS_WHOLE. Else it is of a few words, evenly
// spread: who overwrites all of a content is noticed, who changes a small part may not be.
#include <limits>

#include "base/checksum.h"
#include "base/error.h"
#include "run/engine.h"

namespace dtr {

uint64_t Engine::checksum_of(const Storage* storage) const {
  return storage->external || options_.contents == DTR_CONTENTS_WHOLE
             ? checksum(storage->address, storage->size_bytes)
             : sampled_checksum(storage->address, storage->size_bytes);
}

void Engine::note_content(Storage* storage) {
  if (is_watched(storage)) storage->checksum = checksum_of(storage);
}

bool Engine::has_changed(const Storage* storage) const {
  return is_watched(storage) && checksum_of(storage) != storage->checksum;
}

// The content of a live resident storage has changed; returns the record of what its memory holds
// now.
Storage* Engine::content_changed(Storage* old, Deferred& deferred) {
  ++stats_.unseen_writes;
  if (!old->parent) {
    ++old->locks;  // memory of others has a record only while something depends on it
    const bool settled = settle(old, nullptr, std::numeric_limits<uint64_t>::max(), deferred);
    --old->locks;
    if (settled) {
      note_content(old);
      return old;
    }
  }
  dtr_tensor_desc desc{};
  desc.handle = old->handle;
  desc.data = old->address;
  desc.storage_bytes = old->size_bytes;
  desc.device_type = old->device_type;
  desc.device_index = old->device_index;
  Storage* fresh = hand_over(old, desc);
  fresh->external = old->external;
  fresh->constant_for_good = old->constant_for_good;
  note_content(fresh);
  old->lost = !old->parent;
  become_evicted(old);
  update_candidate(fresh);
  maybe_remove(old, deferred);
  return fresh;
}

// What an op is about to read again is as it was, or evicted, if its own op can give it again.
void Engine::check_contents(const Op* op, Deferred& deferred) {
  for (const Edge& edge : op->edges) {
    Storage* input = edge.input;
    if (input->state != State::resident || input->overwriters > 0 || !has_changed(input)) continue;
    if (!input->live || !input->parent)
      throw StateError("storage " + std::to_string(input->id) + " (" +
                       std::to_string(input->size_bytes) +
                       " bytes) is needed for a rematerialization, but was changed by something "
                       "other than an operator (through numpy, DLPack, a raw pointer or a "
                       "storage); materialize what depends on it before");
    content_changed(input, deferred);
  }
}

// After the settings have changed.
void Engine::note_contents() {
  graph_.by_address.for_each([&](const void*, Storage* storage) {
    if (storage->state == State::resident) note_content(storage);
  });
}

}  // namespace dtr
