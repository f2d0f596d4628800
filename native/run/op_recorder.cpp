#include "op_recorder.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "at_exit.h"

namespace dtr {

namespace {

// A storage with so many ops behind it has its history weighed against its size; if the
// size wins, one a few ops further on is looked at: the more of them, the more records the
// look had to count, for else a long history is counted again and again. (An odd number, so
// that in a chain of pairs both get their turn: the history of one may be live just when it
// is used. And fewer than kLongChain, so that one look never hides a history for long.) Where it is
// known when steps begin, they are told apart: ops are counted from there, and the history of what an
// earlier step left is weighed at each use. So a play settles what the job settles, though it does
// not know what was before.
constexpr uint32_t kLongChain = 64;
constexpr uint64_t kNextLook = 7;
constexpr uint64_t kFarthestLook = kLongChain - 1;

constexpr uint32_t kAhead = 4;  // arguments

// Bytes of the inputs; nothing if the results become constants, because the op cannot be repeated
// or overwrites what cannot be computed again.
std::optional<uint64_t> bytes_behind_results(const OpCall& call) {
  if (!call.recomputable) return std::nullopt;
  uint64_t bytes = 0;
  for (const Input& input : call.inputs) {
    if (!input.storage) continue;
    if (input.use == Use::mutate && !input.storage->parent) return std::nullopt;
    bytes += input.storage->size_bytes;
  }
  return bytes;
}

}  // namespace

// ---- before the op runs ----

int32_t OpRecorder::begin(Frame& frame, uint32_t tensors, uint32_t flags, uint64_t op_key,
                          Deferred& deferred) try {
  frame.op_key = op_key;
  const bool captures = parts_.capture.is_under_way();
  frame.recomputable = true;
  if (!(flags & DTR_OP_RECOMPUTABLE)) frame.cannot_be_repeated(DTR_KEPT_BY_RULE);
  if (captures) frame.cannot_be_repeated(DTR_KEPT_CAPTURED);
  if (parts_.rest.is_on()) frame.cannot_be_repeated(DTR_KEPT_UNRECORDED);
  frame.open = true;
  frame.runs = false;
  frame.place = place_of_thread();
  frame.requested = false;
  frame.keeps_old = flags & DTR_OP_KEEPS_OLD;
  frame.copies = (flags & DTR_OP_COPIES) && tensors == 2;
  frame.overwrites = frame.loses = frame.reads_others = false;
  frame.made = 0;
  frame.inputs.resize(tensors);
  describe_inputs(frame);
  int32_t need = captures ? DTR_GRAPH_IS_CAPTURED : 0;
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    Input& input = frame.inputs[i];
    const Use declared = input.use;
    try {
      classify(frame, input, deferred);
    } catch (...) {
      while (i < frame.inputs.size()) frame.inputs[i++].storage = nullptr;  // not locked yet
      throw;
    }
    if (input.use == Use::by_value) {
      if (overwrites(declared)) frame.cannot_be_repeated(DTR_KEPT_ELSEWHERE);
      need |= DTR_HAS_FOREIGN;
    }
    if (!input.storage) continue;
    if (input.storage->state != State::resident) need |= DTR_NEED_WORK;
    frame.overwrites |= overwrites(input.use);
  }
  if (captures) capture_inputs(frame, deferred);
  if ((frame.overwrites || captures) && !parts_.versions.begin(frame, deferred))
    need |= DTR_NEED_WORK;
  if (parts_.environment.stats.live_ops > parts_.environment.options.history_ops &&
      !parts_.settling.settle_history(nullptr, deferred))
    need |= DTR_NEED_WORK;
  parts_.op_log.begins(frame.log, frame.inputs, deferred);
  if ((flags & DTR_OP_RECOMPUTABLE) && (!frame.recomputable || frame.loses)) need |= DTR_NO_CLOSURE;
  if (!(need & DTR_NEED_WORK)) about_to_run(frame);
  return need;
} catch (...) {
  abort(frame, false, deferred);
  throw;
}

// What concerns hundreds of arguments is not near the processor: it is fetched some arguments
// ahead, first the tensors, then what is known of their storages.
void OpRecorder::describe_inputs(Frame& frame) {
  frame.signature = Signature(frame.op_key);
  frame.geometry.clear();
  const size_t count = frame.inputs.size();
  for (size_t i = 0; i < count; ++i) {
    Input& input = frame.inputs[i];
    const int64_t entry = frame.buffer[i];
    input.tensor = reinterpret_cast<const void*>(entry & ~int64_t{7});
    input.use = static_cast<Use>(entry & 3);
    input.constant = entry & DTR_USE_CONSTANT;
    input.opaque = input.shared = input.adopted = input.part = input.begins = false;
    input.copy = nullptr;
    if (i + kAhead < count) fetch(reinterpret_cast<const void*>(frame.buffer[i + kAhead]), 3);
    dtr_tensor_desc& desc = input.desc;
    parts_.environment.framework->describe(input.tensor, &desc);
    parts_.graph.by_handle.fetch(desc.handle);
    frame.signature.add(desc);
    const auto dims = static_cast<size_t>(desc.ndim);
    input.geometry = static_cast<uint32_t>(frame.geometry.size());
    frame.geometry.resize(input.geometry + 2 * dims);
    int64_t* geometry = frame.geometry.data() + input.geometry;
    for (size_t d = 0; d < dims; ++d) {
      geometry[d] = desc.sizes[d];
      geometry[dims + d] = desc.strides[d];
    }
  }
  for (Input& input : frame.inputs) {
    // The op may resize its arguments, or drop the last reference to one.
    input.desc.sizes = frame.geometry.data() + input.geometry;
    input.desc.strides = input.desc.sizes + input.desc.ndim;
    input.storage = parts_.graph.by_handle.find(input.desc.handle);
    if (input.storage && count > kAhead) fetch(input.storage, 4);
  }
}

// input.storage: the record of the tensor's handle, if there is one; then, the locked record of
// its content, if it is tracked.
void OpRecorder::classify(Frame& frame, Input& input, Deferred& deferred) {
  const auto is_opaque = [&] {
    input.opaque = true;
    frame.cannot_be_repeated(DTR_KEPT_OPAQUE);
  };
  const dtr_tensor_desc& desc = input.desc;
  if (desc.flags & DTR_TENSOR_OPAQUE) is_opaque();
  if (!desc.handle) return;
  Storage* storage = std::exchange(input.storage, nullptr);
  if (!is_managed_device(desc)) {
    input.use = Use::by_value;
    return;
  }
  if (desc.storage_bytes == 0) {
    input.use = Use::empty;
    return;
  }
  // Memory taken away by others (resize_(0) and back, fake tensors): not ours to judge.
  if (!desc.data && !storage) return is_opaque();
  if (!storage || storage->address != desc.data) {
    storage = parts_.lifecycle.find_or_adopt(desc, deferred);
    input.adopted = true;
  }
  if (!storage) return is_opaque();
  if (storage->state == State::resident && storage->overwriters == 0 &&
      parts_.contents.has_changed(storage, desc))
    storage = parts_.contents.changed(storage, desc, deferred);
  frame.reads_others |= storage->external;
  if (storage->captured) frame.cannot_be_repeated(DTR_KEPT_CAPTURED);  // F2
  if (storage->prefetched) parts_.swap_space.note_return(storage, &frame.returned);
  if (storage->unwritten && parts_.unwritten.reads(frame, input, storage))
    parts_.lifecycle.forget_parent(storage, deferred);
  if (input.constant) {
    storage->constant_for_good = true;
    if (has_content(storage)) parts_.lifecycle.forget_parent(storage, deferred);
  }
  if ((storage->chain >= kLongChain || parts_.environment.step.is_left(storage)) &&
      storage->state == State::resident) {
    uint64_t counted = 0;
    const bool outweighs = parts_.settling.history_outweighs(storage, &counted);
    const uint64_t next = std::min(std::max(kNextLook, counted / 2 | 1), kFarthestLook);
    storage->chain = kLongChain - static_cast<uint32_t>(next);
    if (outweighs) parts_.lifecycle.forget_parent(storage, deferred);
  }
  ++storage->locks;
  storage->last_access_ns = parts_.environment.clock_ns;
  input.storage = storage;
}

// While a graph is captured (F2). What cannot be settled at once is left to prepare().
void OpRecorder::capture_inputs(const Frame& frame, Deferred& deferred) {
  for (const Input& input : frame.inputs) {
    Storage* storage = input.storage;
    if (!storage || storage->captured || storage->state != State::resident) continue;
    storage->captured = true;
    storage->constant_for_good = true;
    parts_.lifecycle.forget_parent(storage, deferred);
    parts_.lifecycle.update_candidate(storage);
    parts_.settling.settle(storage, nullptr, Settling::kAnyBytes, deferred);
  }
}

bool OpRecorder::prepare(Frame& frame, Deferred& deferred) {
  const auto wants = [&] {
    const bool any = !frame.remat.stack.empty();
    WaitingInputs::set_waiting(frame, any);
    return any;
  };
  if (!frame.requested) parts_.waiting.begin_request();
  frame.requested = true;
  parts_.waiting.begin_round();
  std::vector<Storage*> wanted;
  for (const Input& input : frame.inputs)
    if (input.storage && input.storage->state != State::resident) wanted.push_back(input.storage);
  parts_.waiting.order_by_peak(wanted);
  // The last one pushed is brought back first.
  for (size_t i = wanted.size(); i-- > 0;) Rematerializer::want(frame.remat, wanted[i], false);
  if (wants()) return true;
  std::vector<Storage*> targets;
  for (const Input& input : frame.inputs)
    if (input.storage && input.constant) parts_.lifecycle.forget_parent(input.storage, deferred);
  parts_.versions.settle(frame, &targets, deferred);
  if (targets.empty()) parts_.settling.settle_history(&targets, deferred);
  want_settled(frame, targets);
  if (wants()) return true;
  about_to_run(frame);
  return false;
}

bool OpRecorder::settle(Frame& frame, uint32_t tensors, uint64_t least_bytes, Deferred& deferred) {
  std::vector<Storage*> overwritten, lost, targets;
  // As if an op ran that overwrites them all.
  const AtExit ran([&] {
    for (Storage* storage : overwritten) {
      --storage->overwriters;
      parts_.lifecycle.unlock(storage, deferred);
    }
  });
  overwritten.reserve(tensors);
  for (uint32_t i = 0; i < tensors; ++i) {
    dtr_tensor_desc desc;
    parts_.environment.framework->describe(reinterpret_cast<const void*>(frame.buffer[i]), &desc);
    Storage* storage = desc.handle ? parts_.graph.by_handle.find(desc.handle) : nullptr;
    if (!storage) continue;
    ++storage->locks;
    ++storage->overwriters;
    overwritten.push_back(storage);
    if (!storage->parent) lost.push_back(storage);
  }
  parts_.settling.settle(lost, &targets, least_bytes, deferred);
  if (targets.empty()) return false;
  parts_.waiting.begin_request();
  parts_.waiting.begin_round();
  want_settled(frame, targets);
  return true;
}

// The oldest first, from which younger ones may be computed.
void OpRecorder::want_settled(Frame& frame, std::vector<Storage*>& targets) {
  std::ranges::sort(targets, std::ranges::greater(), &Storage::id);
  for (Storage* target : targets) Rematerializer::want(frame.remat, target, true);
}

// Everything is resident.
void OpRecorder::about_to_run(Frame& frame) {
  if (frame.recomputable && !frame.loses) parts_.contents.note_inputs(frame);
  if (frame.log.open) parts_.op_log.runs(frame.log);
  parts_.streams.before_use(frame);
  timer_.decide(frame.timing, frame, frame.signature.value(), frame.told_ns >= 0);
  frame.outer = CurrentOp::of_thread();
  running_op_of_thread() = frame.op_key;
  if (parts_.hints.is_used()) {
    frame.call = frame.signature.value();
    parts_.hints.op_begins(
        frame.call, frame.told_ns,
        parts_.capture.is_under_way() ? std::nullopt : bytes_behind_results(frame));
  }
  if (parts_.plan.is_on()) parts_.plan.op_begins();
  frame.runs = true;
}

// ---- while it runs ----

int32_t OpRecorder::reads_inside(Frame& frame, const void* tensor, Deferred& deferred) {
  dtr_tensor_desc desc;
  parts_.environment.framework->describe(tensor, &desc);
  Storage* storage = desc.handle ? parts_.graph.by_handle.find(desc.handle) : nullptr;
  if (!storage || storage->address != desc.data) return DTR_READS_UNKNOWN;
  for (const Input& input : frame.inputs)
    if (input.storage == storage) return DTR_READS_ARGUMENT;
  if (std::ranges::find(frame.beside, storage) == frame.beside.end()) {
    frame.beside.push_back(storage);
    ++storage->locks;
    storage->last_access_ns = parts_.environment.clock_ns;
    if (storage->unwritten) parts_.lifecycle.forget_parent(storage, deferred);
    if (storage->captured) frame.cannot_be_repeated(DTR_KEPT_CAPTURED);  // F2
  }
  if (storage->state != State::resident) return DTR_READS_EVICTED;
  parts_.streams.before_use(storage, false);
  return DTR_READS_BESIDE;
}

// ---- after it ran ----

int64_t OpRecorder::end(Frame& frame, uint32_t results, uint32_t flags, int64_t cost_ns,
                        void* closure, Deferred& deferred) {
  describe_results(frame, results);
  timer_.learn(frame.timing, cost_ns < 0 ? frame.signature.value() : 0, frame.op_key, parts_.costs);
  if (cost_ns < 0) cost_ns = cost_of_call(frame);
  parts_.hints.op_cost(frame.call, cost_ns);
  parts_.environment.clock_ns += cost_ns;
  if (parts_.cost_model.foresight().is_on()) foresee(frame, cost_ns);
  parts_.environment.stats.total_cost_ns += static_cast<uint64_t>(cost_ns);
  if (frame.reads_others && parts_.contents.reads_too_much(frame, cost_ns))
    frame.cannot_be_repeated(DTR_KEPT_WATCHED);
  if (!(flags & DTR_OP_RECOMPUTABLE)) frame.cannot_be_repeated(DTR_KEPT_BY_CALL);
  if (parts_.rest.is_on()) frame.cannot_be_repeated(DTR_KEPT_UNRECORDED);
  const bool pure = frame.recomputable;
  if (frame.log.open) {
    OpLogRecorder::stops();
    frame.log.signature = frame.signature.value();
  }
  Op* op = nullptr;
  const auto record = [&] {
    if (!op) op = build_op(frame, cost_ns);
    return op;
  };
  if (frame.overwrites) {
    if (parts_.versions.ran(frame) && frame.recomputable) record();
    parts_.versions.end(frame, op, deferred);
  }
  for (uint32_t i = 0; i < results; ++i) {
    const dtr_tensor_desc& desc = frame.results[i];
    Storage* storage = new_result(frame, desc, deferred);
    if (storage && parts_.cost_model.foresight().is_on())
      parts_.cost_model.foresight().uses(storage);
    if (!storage) continue;
    const int32_t rank = frame.made++;
    storage->constant_as = frame.recomputable ? uint8_t{DTR_KEPT_TINY} : frame.constant_as;
    if (!frame.recomputable || desc.storage_bytes <= parts_.environment.options.tiny_bytes)
      continue;
    Graph::add_output(record(), storage, static_cast<int32_t>(i), false, rank);
    parts_.contents.note(storage);
    parts_.lifecycle.update_candidate(storage);
  }
  if (op && op->recorded_outputs == 0) {
    // Everything it overwrote stays constant: no closure is wanted.
    op->id = 0;  // nobody was told of it
    parts_.lifecycle.discard_op(op, deferred);
    op = nullptr;
  }
  if (parts_.plan.is_on()) parts_.plan.ended(frame.signature.value(), op);
  const int64_t log_index = parts_.op_log.ended(frame.log, frame.inputs, pure, cost_ns);
  int64_t id = 0;
  if (op) {
    id = static_cast<int64_t>(op->id);
    op->closure = closure;
    op->log_index = log_index;
    // Whatever it was when the op began: its address may have been given away since.
    Contents::note_what_others_hold(op);
  }
  close(frame, deferred);
  return id;
}

// The next use of the arguments is known anew.
void OpRecorder::foresee(Frame& frame, int64_t cost_ns) {
  CostModel& costs = parts_.cost_model;
  Foresight& foresight = costs.foresight();
  const auto own_ns = static_cast<int64_t>(parts_.environment.stats.total_cost_ns);
  const bool changes = foresight.ran(frame.signature.value(), own_ns, cost_ns);
  for (const Input& input : frame.inputs) {
    if (!input.storage) continue;
    foresight.uses(input.storage);
    if (!changes && foresight.sees() && input.storage->candidate >= 0)
      costs.bounds().reweigh(input.storage);
  }
  if (changes) costs.bounds().reset_all();
}

// Reads the result tensors, whose sizes complete the signature.
void OpRecorder::describe_results(Frame& frame, uint32_t results) {
  frame.results.assign(results, dtr_tensor_desc{});
  for (uint32_t i = 0; i < results; ++i) {
    const auto* tensor = reinterpret_cast<const void*>(frame.buffer[i]);
    if (tensor) parts_.environment.framework->describe(tensor, &frame.results[i]);
    frame.signature.add(frame.results[i].storage_bytes);
  }
}

// What a call is reckoned to cost: by its own reading, too, if it was read on the CPU; where work is
// queued its reading comes later. Of calls that are not read, one with results of a new size may be
// the first of its signature: then the clock says it.
int64_t OpRecorder::cost_of_call(Frame& frame) {
  const uint64_t signature = frame.signature.value();
  uint64_t bytes = 0;
  bool queued = frame.timing.queued_in != nullptr;
  for (const dtr_tensor_desc& result : frame.results) {
    bytes += result.storage_bytes;
    queued |= parts_.streams.has_streams(result.device_type);
  }
  if (!queued) {
    const CallTiming& timing = frame.timing;
    const int64_t known_ns = timing.took_ns > 0 ? 0 : parts_.costs.known(signature);
    if (known_ns > 0) return known_ns;
    return parts_.costs.add(
        signature, frame.op_key,
        timing.took_ns > 0 ? timing.took_ns : CallTimer::since_start_ns(timing));
  }
  for (const Input& input : frame.inputs)
    if (input.storage) bytes += input.storage->size_bytes;
  return parts_.costs.estimate(signature, bytes, 1);
}

// The record of the op that just ran, without outputs yet.
Op* OpRecorder::build_op(Frame& frame, int64_t cost_ns) {
  Op* op = parts_.graph.new_op();
  op->op_key = frame.op_key;
  op->cost_ns = cost_ns;
  op->replay_ns = parts_.environment.replay_ns + parts_.environment.options.replay_ns;
  op->geometry.swap(frame.geometry);  // which the inputs' descriptions still point into
  const auto is_input = [](const Input& input) { return input.storage && reads(input.use); };
  // A storage's first edge marks it: its number is what the mark is above `before`.
  const uint64_t before = parts_.graph.last_walk();
  for (const Input& input : frame.inputs) {
    if (!is_input(input) || input.storage->mark > before) continue;
    input.storage->mark = parts_.graph.next_walk();
    op->edges.emplace_back();
    op->edges.back().input = input.storage;
  }
  for (Storage* storage : frame.beside) {
    op->edges.emplace_back();
    op->edges.back().input = storage;
  }
  op->tensors.reserve(frame.inputs.size());
  for (const Input& input : frame.inputs) {
    TensorSpec spec;
    spec.use = input.use;
    spec.item_bytes = input.desc.item_bytes;
    spec.scalar_type = input.desc.scalar_type;
    spec.flags = input.desc.flags;
    spec.offset = input.desc.offset;
    spec.ndim = input.desc.ndim;
    spec.geometry = input.geometry;
    if (is_input(input)) spec.edge = static_cast<int32_t>(input.storage->mark - before) - 1;
    if (input.begins) spec.part_of = input.storage->size_bytes;
    op->tensors.push_back(spec);
  }
  // Linked only now: the vector no longer grows.
  for (Edge& edge : op->edges) Graph::link(edge, op, edge.input);
  op->step = parts_.environment.step.now();
  op->chain = 1;
  for (const Edge& edge : op->edges)
    if (edge.input->parent && edge.input->parent->step == op->step)
      op->chain = std::max(op->chain, edge.input->chain + 1);
  parts_.graph.append(op);
  ++parts_.environment.stats.live_ops;
  ++parts_.environment.stats.recorded_ops;
  return op;
}

// The record of a result whose storage is new; null for views of arguments, and what is known.
Storage* OpRecorder::new_result(Frame& frame, const dtr_tensor_desc& desc, Deferred& deferred) {
  if (!desc.handle || !desc.data || (desc.flags & DTR_TENSOR_OPAQUE)) return nullptr;
  if (!desc.owned || !is_managed_device(desc)) return nullptr;
  if (Storage* known = parts_.graph.by_handle.find(desc.handle)) {
    if (known->address == desc.data) return nullptr;
    parts_.lifecycle.content_replaced(known, deferred);
  }
  Storage* storage = parts_.lifecycle.new_live(desc, deferred);
  storage->used_on = parts_.streams.current(desc.device_type, desc.device_index);
  storage->made_by = frame.op_key;
  storage->place = frame.place;
  parts_.op_log.made(frame.log, storage, desc);
  return storage;
}

void OpRecorder::abort(Frame& frame, bool started, Deferred& deferred) {
  if (frame.runs) frame.outer.put_back();
  frame.timing.is_due = false;
  WaitingInputs::set_waiting(frame, false);
  if (frame.log.open) OpLogRecorder::stops();
  parts_.versions.abandon(frame, started, deferred);
  parts_.op_log.aborted(frame.log);
  close(frame, deferred);
}

void OpRecorder::close(Frame& frame, Deferred& deferred) {
  for (const Input& input : frame.inputs)
    if (input.storage) parts_.lifecycle.unlock(input.storage, deferred);
  for (Storage* storage : frame.beside) parts_.lifecycle.unlock(storage, deferred);
  frame.inputs.clear();
  frame.beside.clear();
  frame.open = frame.runs = false;
}

}  // namespace dtr
