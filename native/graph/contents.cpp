// contents.cpp: see contents.h.
#include "contents.h"

#include <algorithm>
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

// The op may have dropped the last reference to it.
bool reads_what_others_hold(const Input& input) {
  const Storage* storage = input.storage;
  return storage && storage->external && storage->state == State::resident && reads(input.use);
}

bool is_only_reader(const Op* op, const Storage* storage) {
  return storage->children && storage->children->op == op && !storage->children->next;
}

Range both(const Range& a, const Range& b) {
  if (a.begin == a.end) return b;
  if (b.begin == b.end) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

// From the start of its storage.
Range span_of(const dtr_tensor_desc& desc) {
  const Range all{0, desc.storage_bytes};
  if (desc.item_bytes == 0) return all;
  auto first = static_cast<uint64_t>(desc.offset), last = first;
  for (int32_t d = 0; d < desc.ndim; ++d) {
    if (desc.sizes[d] == 0) return {};
    last += static_cast<uint64_t>((desc.sizes[d] - 1) * desc.strides[d]);
  }
  const Range span{first * desc.item_bytes, (last + 1) * desc.item_bytes};
  return span.begin < span.end && span.end <= all.end ? span : all;
}

}  // namespace

Range Contents::watched(const Storage* storage) const {
  const auto found = spans_.find(storage->id);
  if (found == spans_.end() || environment_.options.contents == DTR_CONTENTS_WHOLE)
    return {0, storage->size_bytes};
  return found->second;
}

uint64_t Contents::checksum_of(const Storage* storage) const {
  const auto* bytes = static_cast<const unsigned char*>(storage->address);
  if (storage->external) {
    const Range span = watched(storage);
    return checksum(bytes + span.begin, span.end - span.begin);
  }
  return environment_.options.contents == DTR_CONTENTS_WHOLE
             ? checksum(bytes, storage->size_bytes)
             : sampled_checksum(bytes, storage->size_bytes);
}

void Contents::note_inputs(const OpCall& call) const {
  for (const Input& input : call.inputs)
    if (input.storage && reads(input.use) && !input.storage->external && !is_known(input.storage))
      renew(input.storage);
}

bool Contents::reads_too_much(const OpCall& call, int64_t cost_ns) const {
  uint64_t bytes = 0;
  for (const Input& input : call.inputs) {
    if (!reads_what_others_hold(input) || input.constant || !is_watched(input.storage)) continue;
    Range span = span_of(input.desc);
    if (is_known(input.storage)) span = both(span, watched(input.storage));
    bytes += span.end - span.begin;
  }
  return bytes > kFewBytes && kCheckNsPerByte * static_cast<double>(bytes) >
                                  kMostChecksOfCost * static_cast<double>(cost_ns);
}

void Contents::note_what_others_hold(const OpCall& call, const Op* op) {
  const auto each = [&](auto&& visit) {
    for (const Input& input : call.inputs)
      if (reads_what_others_hold(input)) visit(input.storage, input.desc);
  };
  each([&](Storage* storage, const dtr_tensor_desc&) {
    if (!is_only_reader(op, storage)) return;
    spans_[storage->id] = {};
    renew(storage);
  });
  each([&](Storage* storage, const dtr_tensor_desc& desc) {
    const auto found = spans_.find(storage->id);
    if (found == spans_.end()) return;
    const Range wider = both(found->second, span_of(desc));
    if (wider.begin == found->second.begin && wider.end == found->second.end) return;
    // What was written meanwhile to what others have read stays to be noticed.
    if (has_changed(storage)) return;
    found->second = wider;
    renew(storage);
  });
}

void Contents::note_all() {
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
