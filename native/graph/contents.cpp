#include "contents.h"

#include <string>

#include "base/checksum.h"
#include "base/error.h"

namespace dtr {

namespace {

// Checksums read about 10 GB/s. An op that uses every byte it reads takes longer than a quarter of
// that. Of few bytes no op is too short.
constexpr double kCheckNsPerByte = 0.1;
constexpr double kMostChecksOfCost = 4;
constexpr uint64_t kFewBytes = 64 * 1024;

}  // namespace

uint64_t Contents::checksum_of(const Storage* storage) const {
  return environment_.options.contents == DTR_CONTENTS_WHOLE
             ? checksum(storage->address, storage->size_bytes)
             : sampled_checksum(storage->address, storage->size_bytes);
}

uint64_t Contents::checksum_of(const Edge& edge) {
  const Range span = span_of(edge);
  return checksum(static_cast<const unsigned char*>(edge.input->address) + span.begin,
                  span.end - span.begin);
}

void Contents::note_inputs(const OpCall& call) const {
  for (const Input& input : call.inputs)
    if (input.storage && reads(input.use) && !input.storage->external && !is_known(input.storage))
      note(input.storage);
}

bool Contents::reads_too_much(const OpCall& call, int64_t cost_ns) {
  uint64_t bytes = 0;
  for (const Input& input : call.inputs) {
    if (!input.storage || !reads(input.use) || input.constant || !others_hold(input.storage))
      continue;
    const Range span = span_of(input.desc);
    bytes += span.end - span.begin;
  }
  return bytes > kFewBytes && kCheckNsPerByte * static_cast<double>(bytes) >
                                  kMostChecksOfCost * static_cast<double>(cost_ns);
}

void Contents::note_what_others_hold(Op* op) {
  for (Edge& edge : op->edges) {
    if (!others_hold(edge.input)) continue;
    // Who has read the same before was compared when the op began, and no write since then may be
    // missed.
    const Edge* before = edge.next;
    const bool is_known = before && !before->lost && span_of(*before) == span_of(edge);
    edge.checksum = is_known ? before->checksum : checksum_of(edge);
  }
}

void Contents::note_dependents(const Storage* storage) {
  if (!others_hold(storage)) return;
  for (Edge* edge = storage->children; edge; edge = edge->next) edge->checksum = checksum_of(*edge);
}

void Contents::note_all() {
  for (Storage* storage : graph_.storages())
    if (storage->state == State::resident && is_known(storage)) note(storage);
}

bool Contents::has_changed(const Storage* storage, const dtr_tensor_desc& part) const {
  if (!others_hold(storage)) return has_changed(storage);
  const Range about = span_of(part);
  for (const Edge* edge = storage->children; edge; edge = edge->next) {
    const Range span = span_of(*edge);
    if (edge->lost || !meet(span, about)) continue;
    if (checksum_of(*edge) != edge->checksum) return true;
    // The older ones were compared when the edge's op began.
    if (span.begin <= about.begin && about.end <= span.end) return false;
  }
  return false;
}

Storage* Contents::changed(Storage* storage, const dtr_tensor_desc& part, Deferred& deferred) {
  if (!others_hold(storage)) return changed(storage, deferred);
  ++environment_.stats.unseen_writes;
  const Range about = span_of(part);
  ++storage->locks;
  const bool settled = settling_.settle(storage, nullptr, Settling::kAnyBytes, deferred, about);
  --storage->locks;
  for (Edge* edge = storage->children; edge && !settled; edge = edge->next)
    edge->lost |= meet(span_of(*edge), about) && checksum_of(*edge) != edge->checksum;
  return storage;
}

Storage* Contents::changed(Storage* old, Deferred& deferred) {
  ++environment_.stats.unseen_writes;
  if (!old->parent) {
    ++old->locks;  // memory that is not ours has a record only while something depends on it
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
    if (!edge.lost &&
        (input->state != State::resident || input->overwriters > 0 ||
         !(others_hold(input) ? checksum_of(edge) != edge.checksum : has_changed(input))))
      continue;
    if (!input->live || !input->parent)
      throw StateError("storage " + std::to_string(input->id) + ", " +
                       size_text(input->size_bytes) +
                       ", is needed for a rematerialization, but was changed by something "
                       "other than an operator (through numpy, DLPack, a raw pointer or a "
                       "storage); materialize what depends on it before");
    changed(input, deferred);
  }
}

}  // namespace dtr
