// op_call.cpp: one operator call, from begin to end.
#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine.h"
#include "event_log.h"

namespace dtr {

namespace {

constexpr uint64_t kManyDropped = 64;

// Results up to this size (a grain of the heap) are constants: evicting one frees next to
// nothing, and chains of scalars (running averages, counters) would be remembered for it.
constexpr uint64_t kTinyBytes = 64;

// A storage with so many ops behind it has its history weighed against its size; if the
// size wins, one a few ops further on is looked at: the more of them, the more records the
// look had to count, for else a long history is counted again and again. (An odd number, so
// that in a chain of pairs both get their turn: the history of one may be live just when it
// is used. And fewer than kLongChain, so that one look never hides a history for long.)
constexpr uint32_t kLongChain = 64;
constexpr uint64_t kNextLook = 7;
constexpr uint64_t kFarthestLook = kLongChain - 1;

// Contents up to this size are copied before an op overwrites them, where that is asked for.
constexpr uint64_t kMostCopied = 64 * 1024;

constexpr uint32_t kAhead = 4;  // arguments

// Has so many cache lines brought near.
void fetch(const void* address, size_t lines) {
  for (size_t i = 0; i < lines; ++i) __builtin_prefetch(static_cast<const char*>(address) + 64 * i);
}

bool overwrites(Use use) {
  return use == Use::mutate || use == Use::write_only || use == Use::scratch;
}

// Bytes of the inputs; nothing if the results become constants, because the op cannot be repeated
// or overwrites what cannot be computed again.
std::optional<uint64_t> bytes_behind_results(const Frame& frame) {
  if (!frame.recomputable) return std::nullopt;
  uint64_t bytes = 0;
  for (const Input& input : frame.inputs) {
    if (!input.storage) continue;
    if (input.use == Use::mutate && !input.storage->parent) return std::nullopt;
    bytes += input.storage->size_bytes;
  }
  return bytes;
}

}  // namespace

// input.storage: the record of the tensor's handle, if there is one; then, the locked record of
// its content, if it is tracked.
void Engine::classify(Frame& frame, Input& input, Deferred& deferred) {
  const dtr_tensor_desc& desc = input.desc;
  if (desc.flags & DTR_TENSOR_OPAQUE) {
    input.opaque = true;
    frame.recomputable = false;
  }
  if (!desc.handle) return;
  if (!is_managed_device(desc)) {
    input.use = Use::by_value;
    input.storage = nullptr;
    return;
  }
  if (desc.storage_bytes == 0) {
    input.use = Use::empty;
    input.storage = nullptr;
    return;
  }
  if (!desc.data && !input.storage) {
    // Memory taken away by others (resize_(0) and back, fake tensors): not ours to judge.
    input.opaque = true;
    frame.recomputable = false;
    return;
  }
  Storage* storage = input.storage;
  if (!storage || storage->address != desc.data) storage = lifecycle_.find_or_adopt(desc, deferred);
  input.storage = nullptr;
  if (!storage) {
    input.opaque = true;
    frame.recomputable = false;
    return;
  }
  if (storage->state == State::resident && storage->overwriters == 0 &&
      contents_.has_changed(storage))
    storage = contents_.changed(storage, deferred);
  if (storage->captured) frame.recomputable = false;  // F2
  if (storage->prefetched) swap_space_.note_return(storage, &frame.returned);
  if (storage->unwritten && unwritten_.reads(frame, input, storage))
    lifecycle_.forget_parent(storage, deferred);
  if (input.constant) {
    storage->constant_for_good = true;
    if (has_content(storage)) lifecycle_.forget_parent(storage, deferred);
  }
  if (storage->chain >= kLongChain && storage->state == State::resident) {
    uint64_t counted = 0;
    const bool outweighs = settling_.history_outweighs(storage, &counted);
    const uint64_t next = std::min(std::max(kNextLook, counted / 2 | 1), kFarthestLook);
    storage->chain = kLongChain - static_cast<uint32_t>(next);
    if (outweighs) lifecycle_.forget_parent(storage, deferred);
  }
  ++storage->locks;
  storage->last_access_ns = clock_ns_;
  input.storage = storage;
}

// An optimizer's operator has hundreds of arguments: their storages are marked, not compared.
void Engine::find_shared(Frame& frame) {
  const uint64_t once = graph_.next_walk();
  const uint64_t twice = graph_.next_walk();
  for (const Input& input : frame.inputs)
    if (input.storage) input.storage->mark = input.storage->mark < once ? once : twice;
  for (Input& input : frame.inputs) input.shared = input.storage && input.storage->mark == twice;
}

// All that the operator needs is there.
void Engine::prefetch(Frame& frame) {
  const uint64_t returned = std::exchange(frame.returned, 0);
  if (returned == 0) return;
  Deferred deferred(environment_, dead_, mutex_);
  std::unique_lock<EngineMutex> lock(mutex_);
  swap_space_.prefetch(returned, capture_, deferred, lock);
}

int32_t Engine::op_begin(Frame& frame, uint32_t tensors, uint32_t flags, uint64_t op_key) {
  if (frame.open) throw StateError("dtr_op_begin: the frame's last op has not ended");
  Deferred deferred(environment_, dead_, mutex_);
  int32_t need = 0;
  {
    std::lock_guard<EngineMutex> lock(mutex_);
    try {
      need = begin_op(frame, tensors, flags, op_key, deferred);
      if (!(need & DTR_NEED_WORK)) about_to_run(frame);
    } catch (...) {
      abandon(frame, false, deferred);
      throw;
    }
  }
  if (!(need & DTR_NEED_WORK)) prefetch(frame);
  CallTimer::start(frame.timing);
  return need;
}

// Everything is resident.
void Engine::about_to_run(Frame& frame) {
  streams_.before_use(frame);
  timer_.decide(frame.timing, frame, frame.signature.value());
  if (!frame.room_ns) {
    frame.room_ns = &room_ns_of_thread();
    frame.running_op = &running_op_of_thread();
  }
  *frame.running_op = frame.op_key;
  if (hints_.is_used()) {
    frame.call = frame.signature.value();
    hints_.op_begins(frame.call, frame.told_ns,
                     capture_.is_under_way() ? std::nullopt : bytes_behind_results(frame));
  }
  // The op's cost is counted from here: looking at its inputs, and bringing them back, is
  // not part of it.
  frame.begin_ns = now_ns();
  frame.room_ns_at_begin = *frame.room_ns;
}

int32_t Engine::begin_op(Frame& frame, uint32_t tensors, uint32_t flags, uint64_t op_key,
                         Deferred& deferred) {
  frame.op_key = op_key;
  frame.recomputable = flags & DTR_OP_RECOMPUTABLE;
  frame.open = true;
  frame.requested = false;
  frame.keeps_old = flags & DTR_OP_KEEPS_OLD;
  frame.copies = (flags & DTR_OP_COPIES) && tensors == 2;
  frame.overwrites = frame.loses = false;
  frame.inputs.resize(tensors);
  describe_inputs(frame);
  int32_t need = lifecycle_.dropped_ops() >= kManyDropped ? DTR_HAS_DROPPED : 0;
  bool covers = false;
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
      if (overwrites(declared)) frame.recomputable = false;
      need |= DTR_HAS_FOREIGN;
    }
    if (!input.storage) continue;
    if (input.storage->state != State::resident) need |= DTR_NEED_WORK;
    if (!overwrites(input.use)) continue;
    frame.overwrites = true;
    covers |= input.use != Use::mutate;
  }
  if (capture_.is_under_way()) capture_inputs(frame, deferred);
  if (covers) find_shared(frame);
  if (frame.overwrites || capture_.is_under_way()) need |= begin_overwriting(frame, deferred);
  if (stats_.live_ops > options_.history_ops && !settling_.settle_history(nullptr, deferred))
    need |= DTR_NEED_WORK;
  op_log_.begins(frame.log, frame.inputs, deferred);
  if (frame.log.open && !(need & DTR_NEED_WORK)) op_log_.runs(&frame.log);
  const bool kept = frame.recomputable && !frame.loses;
  if ((flags & DTR_OP_RECOMPUTABLE) && !kept) need |= DTR_NO_CLOSURE;
  return need;
}

// What concerns hundreds of arguments is not near the processor: it is fetched some arguments
// ahead, first the tensors, then what is known of their storages.
void Engine::describe_inputs(Frame& frame) {
  frame.signature = Signature(frame.op_key);
  frame.geometry.clear();
  const size_t count = frame.inputs.size();
  for (size_t i = 0; i < count; ++i) {
    Input& input = frame.inputs[i];
    const int64_t entry = frame.buffer[i];
    input.tensor = reinterpret_cast<const void*>(entry & ~int64_t{7});
    input.use = static_cast<Use>(entry & 3);
    input.constant = entry & DTR_USE_CONSTANT;
    input.opaque = input.shared = input.part = input.begins = false;
    input.copy = nullptr;
    if (i + kAhead < count) fetch(reinterpret_cast<const void*>(frame.buffer[i + kAhead]), 3);
    dtr_tensor_desc& desc = input.desc;
    framework_->describe(input.tensor, &desc);
    graph_.by_handle.fetch(desc.handle);
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
    input.storage = graph_.by_handle.find(input.desc.handle);
    if (input.storage && count > kAhead) fetch(input.storage, 4);
  }
}

// Of an op that overwrites arguments, or touches some while a graph is captured. DTR_NEED_WORK
// if what depends on one must be computed first.
int32_t Engine::begin_overwriting(Frame& frame, Deferred& deferred) {
  int32_t need = 0;
  for (Input& input : frame.inputs) {
    Storage* storage = input.storage;
    if (!storage || !overwrites(input.use)) continue;
    // What is also read, or not covered, is an input after all.
    if (input.use == Use::write_only && (input.shared || !input.desc.full)) {
      input.part = !input.desc.full;
      input.begins = input.part && !input.shared && may_begin(storage, input.desc);
      if (!input.begins) input.use = Use::mutate;
    }
    if (input.use == Use::scratch && input.shared) frame.recomputable = false;
    if (input.use == Use::mutate && !storage->parent) {
      if (frame.keeps_old) input.copy = copy_of(storage);
      if (input.copy) continue;
      frame.loses = true;  // what it reads and overwrites must exist again at a replay
    }
    ++storage->overwriters;
  }
  for (const Input& input : frame.inputs)
    if (input.storage && !input.copy && (overwrites(input.use) || capture_.is_under_way()) &&
        !input.storage->parent && input.storage->children &&
        !settling_.settle(input.storage, nullptr, Settling::kAnyBytes, deferred))
      need |= DTR_NEED_WORK;
  return need;
}

int32_t Engine::op_prepare(Frame& frame) {
  Deferred deferred(environment_, dead_, mutex_);
  std::unique_lock<EngineMutex> lock(mutex_);
  if (!frame.requested) waiting_.begin_request();
  frame.requested = true;
  waiting_.begin_round();
  std::vector<Storage*> wanted;
  for (const Input& input : frame.inputs)
    if (input.storage && input.storage->state != State::resident) wanted.push_back(input.storage);
  waiting_.order_by_peak(wanted);
  // The last one pushed is brought back first.
  for (size_t i = wanted.size(); i-- > 0;) Rematerializer::want(frame.remat, wanted[i], false);
  WaitingInputs::set_waiting(frame, !frame.remat.stack.empty());
  if (!frame.remat.stack.empty()) return 1;
  std::vector<Storage*> targets;
  for (const Input& input : frame.inputs)
    if (input.storage && input.constant) lifecycle_.forget_parent(input.storage, deferred);
  for (const Input& input : frame.inputs)
    if (input.storage && (overwrites(input.use) || capture_.is_under_way()) &&
        !input.storage->parent)
      settling_.settle(input.storage, &targets, Settling::kAnyBytes, deferred);
  if (targets.empty()) settling_.settle_history(&targets, deferred);
  for (Storage* target : targets) Rematerializer::want(frame.remat, target, true);
  WaitingInputs::set_waiting(frame, !frame.remat.stack.empty());
  if (!frame.remat.stack.empty()) return 1;
  if (frame.log.open) op_log_.runs(&frame.log);
  about_to_run(frame);
  lock.unlock();
  prefetch(frame);
  CallTimer::start(frame.timing);
  return 0;
}

// The record of the op that just ran, without outputs yet.
Op* Engine::build_op(Frame& frame, int64_t cost_ns, uint64_t signature) {
  Op* op = graph_.new_op();
  op->op_key = frame.op_key;
  op->cost_ns = cost_ns;
  op->signature = signature;
  op->geometry.swap(frame.geometry);  // which the inputs' descriptions still point into
  // A storage's first edge marks it: its number is what the mark is above `before`.
  const uint64_t before = graph_.last_walk();
  const auto edge_of = [&](const Storage* storage) {
    return static_cast<int32_t>(storage->mark - before) - 1;
  };
  for (const Input& input : frame.inputs) {
    if (!input.storage || (input.use != Use::read && input.use != Use::mutate)) continue;
    if (input.storage->mark > before) continue;
    input.storage->mark = graph_.next_walk();
    op->edges.emplace_back();
    op->edges.back().input = input.storage;
  }
  op->tensors.reserve(frame.inputs.size());
  for (const Input& input : frame.inputs) {
    TensorSpec spec;
    spec.use = input.use;
    spec.scalar_type = input.desc.scalar_type;
    spec.flags = input.desc.flags;
    spec.offset = input.desc.offset;
    spec.ndim = input.desc.ndim;
    spec.geometry = input.geometry;
    if (input.storage && (input.use == Use::read || input.use == Use::mutate))
      spec.edge = edge_of(input.storage);
    if (input.begins) spec.part_of = input.storage->size_bytes;
    op->tensors.push_back(spec);
  }
  // Linked only now: the vector no longer grows.
  for (Edge& edge : op->edges) Graph::link(edge, op, edge.input);
  op->chain = 1;
  for (const Edge& edge : op->edges)
    if (edge.input->parent) op->chain = std::max(op->chain, edge.input->chain + 1);
  graph_.append(op);
  ++stats_.live_ops;
  ++stats_.recorded_ops;
  return op;
}

// The content of a small storage at another address; null if there is no room for it.
void* Engine::copy_of(const Storage* storage) const {
  if (!storage->managed || storage->external || storage->state != State::resident ||
      storage->size_bytes > kMostCopied || capture_.is_under_way())
    return nullptr;
  dtr_pool* pool = device_of(storage).pool;
  const uint64_t on = streams_.for_copy(storage);
  void* copy = nullptr;
  if (dtr_pool_try_allocate(pool, storage->size_bytes, on, &copy) != DTR_OK || !copy)
    return nullptr;
  if (dtr_pool_copy(pool, copy, storage->address, storage->size_bytes, on, nullptr) != DTR_OK) {
    dtr_pool_free(pool, copy);
    return nullptr;
  }
  return copy;
}

// The buffer went to the record of what the op has made of it; that of the old content gets the
// copy, as memory of its own.
void Engine::keep_in_copy(Input& input) {
  Storage* old = input.storage;
  old->address = std::exchange(input.copy, nullptr);
  graph_.by_address.insert(old->address, old);
  old->remade_on = kNoStream;
  lifecycle_.update_candidate(old);
  dead_.keep(old);
}

// Whether a tensor that covered its storage, or a part of it, when the op began does so after it.
bool Engine::still_covers(const Input& input) const {
  const dtr_tensor_desc& desc = input.desc;
  dtr_tensor_desc now;
  framework_->describe(input.tensor, &now);
  if (now.handle != desc.handle) return true;
  if (!input.part) return now.full;
  return now.offset == desc.offset && now.ndim == desc.ndim &&
         std::equal(now.sizes, now.sizes + now.ndim, desc.sizes) &&
         std::equal(now.strides, now.strides + now.ndim, desc.strides);
}

// Whether the buffer of a constant, of which the op will overwrite a part, may be filled so (R16).
bool Engine::may_begin(const Storage* storage, const dtr_tensor_desc& part) const {
  return !storage->parent && storage->managed && !storage->constant_for_good &&
         storage->size_bytes > kTinyBytes && Unwritten().begin(part);
}

// Ends the version that the op overwrote and begins the next (R1).
void Engine::new_version(Frame& frame, Input& input, Op* op, int32_t position, Deferred& deferred) {
  Storage* old = input.storage;
  // Another argument is the same storage and was dealt with; or the op gave the buffer other
  // memory (out=), so that freed() ended the old version, and what is there now is a result.
  if (!old->handle) {
    if (input.copy) deferred.free_block(*old, std::exchange(input.copy, nullptr));
    return;
  }
  Unwritten unwritten;
  const bool in_parts = input.begins || (old->unwritten && input.use == Use::mutate);
  const bool constant = !op || old->constant_for_good || input.copy || input.use == Use::scratch ||
                        old->size_bytes <= kTinyBytes ||
                        (in_parts && !unwritten_.write(frame, input, &unwritten));
  if (constant && !old->parent && !input.copy) {
    contents_.note(old);
    return;  // it was settled before the op ran: the record may serve the new content
  }
  dtr_tensor_desc desc;
  framework_->describe(input.tensor, &desc);
  Storage* fresh = lifecycle_.hand_over(old, desc);
  contents_.note(fresh);
  if (!constant) {
    fresh->parent = op;
    fresh->chain = op->chain;
    fresh->output = static_cast<uint32_t>(op->outputs.size());
    op->outputs.push_back({fresh, position, true});
    ++op->recorded_outputs;
    if (!unwritten.empty()) unwritten_.begin(fresh, std::move(unwritten));
  }
  if (input.copy) {
    keep_in_copy(input);
  } else {
    old->lost = !old->parent;
    lifecycle_.become_evicted(old, EvictionCause::gone);
  }
  lifecycle_.update_candidate(fresh);
}

// Reads the result tensors, whose sizes complete the signature.
void Engine::describe_results(Frame& frame, uint32_t results) {
  frame.results.assign(results, dtr_tensor_desc{});
  for (uint32_t i = 0; i < results; ++i) {
    const auto* tensor = reinterpret_cast<const void*>(frame.buffer[i]);
    if (tensor) framework_->describe(tensor, &frame.results[i]);
    frame.signature.add(frame.results[i].storage_bytes);
  }
}

// What a call is reckoned to cost: on the CPU a mean with its reading in it; where work is
// queued, what was read of such calls before, as its own reading comes later.
int64_t Engine::cost_of_call(Frame& frame, int64_t reading_ns) {
  const uint64_t signature = frame.signature.value();
  uint64_t bytes = 0;
  bool queued = frame.timing.queued_in != nullptr;
  for (const dtr_tensor_desc& result : frame.results) {
    bytes += result.storage_bytes;
    queued |= streams_.has_streams(result.device_type);
  }
  if (!queued) return costs_.add(signature, frame.op_key, reading_ns);
  for (const Input& input : frame.inputs)
    if (input.storage) bytes += input.storage->size_bytes;
  return costs_.estimate(signature, bytes, 1);
}

int64_t Engine::op_end(Frame& frame, uint32_t results, uint32_t flags, int64_t cost_ns,
                       void* closure) {
  if (!frame.open) throw StateError("dtr_op_end: no op was begun");
  *frame.running_op = 0;
  hints_.op_ends();
  const int64_t reading_ns = now_ns() - frame.begin_ns - (*frame.room_ns - frame.room_ns_at_begin);
  CallTimer::stop(frame.timing, cost_ns < 0);
  Deferred deferred(environment_, dead_, mutex_);
  std::lock_guard<EngineMutex> lock(mutex_);
  describe_results(frame, results);
  const uint64_t signature = cost_ns < 0 ? frame.signature.value() : 0;
  timer_.learn(frame.timing, signature, frame.op_key, costs_,
               [this](const dtr_pool* pool, uint64_t timer, int64_t ns) {
                 return Mover::copy_took(devices_.with(pool), timer, ns);
               });
  if (cost_ns < 0) cost_ns = cost_of_call(frame, reading_ns);
  hints_.op_cost(frame.call, cost_ns);
  clock_ns_ += cost_ns;
  stats_.total_cost_ns += static_cast<uint64_t>(cost_ns);
  bool recomputable = frame.recomputable && (flags & DTR_OP_RECOMPUTABLE);
  const bool pure = recomputable;
  if (frame.log.open) op_log_.runs(nullptr);
  bool overwritten = false;
  if (frame.overwrites)
    for (Input& input : frame.inputs) {
      if (!input.storage || !overwrites(input.use)) continue;
      if (input.copy) {
        overwritten = true;
        continue;
      }
      --input.storage->overwriters;
      overwritten |= input.use != Use::scratch;
      // Made smaller within its storage (out=), it left a part of that as it was.
      if ((input.use == Use::write_only || input.part) && input.storage->handle &&
          !still_covers(input)) {
        input.use = Use::mutate;
        input.begins = input.part = false;
      }
      // What it reads and overwrites must exist again at a replay.
      if (input.use == Use::mutate && !input.storage->parent) recomputable = false;
    }
  int64_t id = 0;
  Op* op = nullptr;
  const auto record_op = [&]() {
    if (!op) op = build_op(frame, cost_ns, signature);
    id = static_cast<int64_t>(op->id);
    return op;
  };
  if (overwritten && recomputable) record_op();
  for (size_t i = 0; frame.overwrites && i < frame.inputs.size(); ++i) {
    Input& input = frame.inputs[i];
    if (input.storage && overwrites(input.use))
      new_version(frame, input, recomputable ? op : nullptr, static_cast<int32_t>(i), deferred);
  }
  // Results whose storage is new; the rest are views of arguments or known already.
  for (uint32_t i = 0; i < results; ++i) {
    const dtr_tensor_desc& desc = frame.results[i];
    if (!desc.handle || !desc.data || (desc.flags & DTR_TENSOR_OPAQUE)) continue;
    if (!desc.owned || !is_managed_device(desc)) continue;
    if (Storage* known = graph_.by_handle.find(desc.handle)) {
      if (known->address == desc.data) continue;
      lifecycle_.content_replaced(known, deferred);
    }
    Storage* storage = lifecycle_.new_live(desc);
    storage->used_on = streams_.current(desc.device_type, desc.device_index);
    OpLogRecorder::made(frame.log, storage, desc);
    if (recomputable && desc.storage_bytes > kTinyBytes) {
      storage->parent = record_op();
      storage->chain = op->chain;
      storage->output = static_cast<uint32_t>(op->outputs.size());
      op->outputs.push_back({storage, static_cast<int32_t>(i), false});
      ++op->recorded_outputs;
      lifecycle_.update_candidate(storage);
    } else if (swap_costs_.is_on()) {
      lifecycle_.update_candidate(storage);
    }
  }
  if (op && op->recorded_outputs == 0) {
    // Everything it overwrote stays constant: no closure is wanted.
    op->id = 0;  // nobody was told of it
    lifecycle_.discard_op(op, deferred);
    id = 0;
  }
  if (id) op->closure = closure;
  const int64_t log_index = op_log_.ended(frame.log, frame.inputs, pure, cost_ns);
  if (id) op->log_index = log_index;
  for (const Input& input : frame.inputs)
    if (input.storage) lifecycle_.unlock(input.storage, deferred);
  frame.inputs.clear();
  frame.open = false;
  return id;
}

void Engine::op_abort(Frame& frame, bool started) {
  if (!frame.open) return;
  CallTimer::stop(frame.timing, false);
  Deferred deferred(environment_, dead_, mutex_);
  std::lock_guard<EngineMutex> lock(mutex_);
  abandon(frame, started, deferred);
}

void Engine::abandon(Frame& frame, bool started, Deferred& deferred) {
  if (frame.running_op) *frame.running_op = 0;
  hints_.op_ends();
  frame.timing.is_due = false;
  WaitingInputs::set_waiting(frame, false);
  if (frame.log.open) op_log_.runs(nullptr);
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    Input& input = frame.inputs[i];
    if (input.storage && overwrites(input.use) && !input.copy) --input.storage->overwriters;
    if (input.copy && !started)
      deferred.free_block(*input.storage, std::exchange(input.copy, nullptr));
    // It may have been overwritten in part: a constant of unknown content. One that
    // is not resident cannot have been touched.
    if (started && input.storage && overwrites(input.use) &&
        input.storage->state == State::resident)
      new_version(frame, input, nullptr, static_cast<int32_t>(i), deferred);
  }
  op_log_.aborted(frame.log);
  for (const Input& input : frame.inputs)
    if (input.storage) lifecycle_.unlock(input.storage, deferred);
  frame.inputs.clear();
  frame.open = false;
}

// ---- bringing content back ----

bool Engine::remat_want(Frame& frame, void* handle) {
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* storage = graph_.by_handle.find(handle);
  if (!storage || storage->state == State::resident) return false;
  waiting_.begin_request();
  Rematerializer::want(frame.remat, storage, false);
  return true;
}

bool Engine::remat_want_any(Frame& frame) {
  std::lock_guard<EngineMutex> lock(mutex_);
  Storage* found = nullptr;
  graph_.by_handle.for_each([&](const void*, Storage* storage) {
    if (storage->live && storage->state != State::resident) found = storage;
  });
  keep(frame, found != nullptr);
  if (found) {
    waiting_.begin_request();
    Rematerializer::want(frame.remat, found, false);
  }
  return found != nullptr;
}

int64_t Engine::remat_next(Frame& frame) {
  Deferred deferred(environment_, dead_, mutex_);
  std::unique_lock<EngineMutex> lock(mutex_);
  const auto swap_in_for_step = [&](Storage* storage) {
    if (!swap_in(storage, deferred, lock)) return false;
    swap_space_.note_return(storage, &frame.returned);
    return true;
  };
  return rematerializer_.next(frame.remat, std::cref(swap_in_for_step), deferred);
}

// SwapSpace::swap_in(), and says where the memory went if there is none.
bool Engine::swap_in(Storage* storage, Deferred& deferred, std::unique_lock<EngineMutex>& lock) {
  try {
    return swap_space_.swap_in(storage, deferred, lock);
  } catch (const OutOfMemory& error) {
    const uint64_t size_bytes = storage->size_bytes;
    lock.unlock();
    std::string text = error.what();
    out_of_memory_text(&text, size_bytes, device_of(storage).pool);
    throw OutOfMemory(text);
  }
}

void Engine::remat_commit(Frame& frame, uint32_t tensors, uint32_t results) {
  if (!frame.remat.step_open) throw StateError("dtr_remat_commit: no step is in progress");
  hints_.step_ends();
  const int64_t reading_ns =
      now_ns() - frame.remat.step_begin_ns - (room_ns_of_thread() - frame.remat.room_ns_at_step);
  Deferred deferred(environment_, dead_, mutex_);
  std::unique_lock<EngineMutex> lock(mutex_);
  std::vector<Rematerializer::Held> held = rematerializer_.hold(frame.remat);
  lock.unlock();
  rematerializer_.retain(held, deferred);
  lock.lock();
  rematerializer_.commit(frame.remat, held, tensors, results, reading_ns, deferred);
}

void Engine::remat_abort(Frame& frame) {
  hints_.step_ends();
  Deferred deferred(environment_, dead_, mutex_);
  std::lock_guard<EngineMutex> lock(mutex_);
  rematerializer_.abort(frame.remat, deferred);
  keep(frame, false);
}

}  // namespace dtr
