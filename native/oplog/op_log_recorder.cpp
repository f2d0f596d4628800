#include "op_log_recorder.h"

#include "event_log.h"
#include "policy/costs.h"

namespace dtr {

// ---- memory of one op ----

void MemoryTrace::allocated(const void* address, uint64_t size_bytes) {
  events_.push_back({static_cast<uint32_t>(pieces_.size()), false});
  pieces_.push_back({address, size_bytes});
}

void MemoryTrace::freed(const void* address) {
  for (size_t i = pieces_.size(); i-- > 0;)
    if (pieces_[i].address == address) {
      pieces_[i].address = nullptr;
      events_.push_back({static_cast<uint32_t>(i), true});
      return;
    }
}

std::vector<uint64_t> MemoryTrace::sizes() const {
  std::vector<uint64_t> sizes;
  for (const Piece& piece : pieces_)
    if (piece.address) sizes.push_back(piece.size_bytes);
  return sizes;
}

void MemoryTrace::put(const std::vector<const void*>& results,
                      const std::vector<const void*>& ignored, std::vector<int64_t>* out) const {
  const size_t begin = out->size();
  temporary_.assign(pieces_.size(), -1);
  int64_t temporaries = 0, next_result = 0;
  bool plain = true;
  const auto put_result = [&](int64_t which) {
    plain &= which == next_result++;
    out->insert(out->end(), {DTR_MEMORY_RESULT, which});
  };
  // What was there before the op, which only fills it.
  for (size_t i = 0; i < results.size(); ++i)
    if (std::ranges::find(pieces_, results[i], &Piece::address) == pieces_.end())
      put_result(static_cast<int64_t>(i));
  for (const Event& event : events_) {
    const Piece& piece = pieces_[event.piece];
    int64_t& index = temporary_[event.piece];
    if (event.freed) {
      out->insert(out->end(), {DTR_MEMORY_FREE, index});
      continue;
    }
    const auto has = [&](const std::vector<const void*>& some) {
      return piece.address ? std::ranges::find(some, piece.address) : some.end();
    };
    if (has(ignored) != ignored.end()) continue;
    const auto result = has(results);
    if (result != results.end()) {
      put_result(result - results.begin());
    } else {
      plain = false;
      index = temporaries++;
      out->insert(out->end(), {DTR_MEMORY_ALLOCATE, static_cast<int64_t>(piece.size_bytes)});
    }
  }
  if (plain) out->resize(begin);
}

// ---- names ----

namespace {

uint64_t hash_of_geometry(const dtr_tensor_desc& desc) {
  Signature hash(static_cast<uint64_t>(desc.ndim));
  for (int32_t d = 0; d < desc.ndim; ++d) {
    hash.add(static_cast<uint64_t>(desc.sizes[d]));
    hash.add(static_cast<uint64_t>(desc.strides[d]));
  }
  hash.add(static_cast<uint64_t>(desc.offset));
  hash.add(static_cast<uint64_t>(desc.scalar_type));
  hash.add(static_cast<uint64_t>(desc.flags));
  return hash.value();
}

// The op that this thread runs just now, if it is recorded. The frame may end on another thread, so
// nothing here points to what is the frame's.
struct Running {
  ~Running() { by = nullptr; }  // other destructors of the thread may still free memory

  const OpLogRecorder* by = nullptr;
  const OpenLog* log = nullptr;  // which op it is, until that ends; not followed
  MemoryTrace memory;
};

thread_local Running running;

}  // namespace

void OpLogRecorder::set_mode(Mode mode, Deferred& deferred, bool for_tuner) {
  sweep(deferred);  // under the old mode: deaths belong to it
  for_tuner_ = for_tuner;
  turn(mode, deferred);
  if (!for_tuner || mode != Mode::writing) return;
  graph_.by_handle.for_each([this](const void*, Storage* storage) {
    if (storage->live && storage->managed && !knows(storage)) define_constant(storage, 0);
  });
}

void OpLogRecorder::turn(Mode mode, Deferred& deferred) {
  if (mode == Mode::writing && mode_ != Mode::writing) {
    operators_ = 0;
    place_ = 0;
    std::vector<uint64_t> numbers;
    for (const auto& entry : names_) numbers.push_back(entry.first);
    std::ranges::sort(numbers);
    for (const uint64_t number : numbers) {
      Known& known = names_.at(number);
      known.views.clear();
      put_constant(number, known);
    }
  }
  mode_ = mode;
  on_ = mode != Mode::off;
  if (mode != Mode::off) return;
  names_.clear();
  sweep(deferred);
}

void OpLogRecorder::reset(Deferred& deferred) {
  turn(Mode::off, deferred);
  last_number_ = 0;
}

uint64_t OpLogRecorder::geometry_of(const dtr_tensor_desc& desc) const {
  return for_tuner_ ? 0 : hash_of_geometry(desc);
}

void OpLogRecorder::put_place() {
  if (for_tuner_ || place_ == place_of_thread()) return;
  place_ = place_of_thread();
  put(DTR_OP_LOG_PLACE, place_);
}

void OpLogRecorder::put_constant(uint64_t number, const Known& known) {
  put(DTR_OP_LOG_CONSTANT, number, known.size_bytes);
}

void OpLogRecorder::put_view_releases(uint64_t number, Known& known) {
  if (is_writing())
    for (const View& view : known.views) put(DTR_OP_LOG_RELEASE, LogName{number, view.view});
  known.views.clear();
}

void OpLogRecorder::put_releases(uint64_t number, Known& known) {
  put_view_releases(number, known);
  if (is_writing()) put(DTR_OP_LOG_RELEASE, LogName{number, 0});
}

OpLogRecorder::Known& OpLogRecorder::define(Storage* storage, uint64_t geometry) {
  storage->log_number = for_tuner_ ? ++last_for_tuner_ : ++last_number_;
  storage->log_version = 0;
  Known& known = names_[storage->log_number];
  known = Known{};
  known.size_bytes = storage->managed ? storage->size_bytes : 0;
  known.root = geometry;
  return known;
}

OpLogRecorder::Known& OpLogRecorder::define_constant(Storage* storage, uint64_t geometry) {
  Known& known = define(storage, geometry);
  known.constant = true;
  if (is_writing()) put_constant(storage->log_number, known);
  return known;
}

LogName OpLogRecorder::name_of(const Storage* storage, uint64_t geometry) {
  const uint64_t number = storage->log_number;
  const Known& known = names_.at(number);
  const int64_t view = is_writing() ? known.view_of(geometry) : 0;
  if (view >= 0) return {number, static_cast<uint32_t>(view)};
  put_views(storage, {number, 0}, {geometry}, -1, 0);
  return {number, known.last_view};
}

void OpLogRecorder::put_views(const Storage* storage, LogName base,
                              const std::vector<uint64_t>& geometries, int32_t operator_name,
                              int64_t cost_ns) {
  const uint64_t number = storage->log_number;
  Known& known = names_.at(number);
  put_place();
  put(DTR_OP_LOG_CALL, operator_name, cost_ns, 1, base, geometries.size());
  for (const uint64_t geometry : geometries) {
    known.views.push_back({geometry, ++known.last_view});
    put(LogName{number, known.last_view}, known.size_bytes, 0);
  }
  ++operators_;
}

void OpLogRecorder::forget(uint64_t number) {
  const auto found = names_.find(number);
  if (found == names_.end()) return;
  put_releases(number, found->second);
  names_.erase(found);
}

void OpLogRecorder::released(const Storage* storage) {
  if (!is_on()) return;
  const auto found = names_.find(storage->log_number);
  if (found != names_.end() && found->second.held > 0)
    found->second.released = true;  // J3
  else
    forget(storage->log_number);
}

OpLogRecorder::Known& OpLogRecorder::turn_constant(Storage* storage, Known& known,
                                                   bool overwritten) {
  // To the step tuner a constant is a buffer, whatever its content.
  if (known.constant && (!overwritten || for_tuner_)) return known;
  const uint64_t geometry = known.root;
  released(storage);
  return define_constant(storage, geometry);
}

OpLogRecorder::Known& OpLogRecorder::meet(Storage* storage, const dtr_tensor_desc& desc,
                                          Deferred& deferred) {
  if (storage->managed) return define_constant(storage, geometry_of(desc));
  const auto found = others_.find(desc.handle);
  if (found != others_.end()) {
    storage->log_number = found->second;
    return names_.at(found->second);
  }
  sweep(deferred);
  environment_.framework->retain_weak(desc.handle);
  Known& known = define_constant(storage, geometry_of(desc));
  others_.emplace(desc.handle, storage->log_number);
  return known;
}

void OpLogRecorder::sweep(Deferred& deferred) {
  for (auto entry = others_.begin(); entry != others_.end();) {
    const uint64_t ours = graph_.by_handle.find(entry->first) ? 1 : 0;  // our own record holds it
    if (is_on() && environment_.framework->strong_count(entry->first) > ours) {
      ++entry;
      continue;
    }
    forget(entry->second);
    deferred.release_weak(entry->first);
    entry = others_.erase(entry);
  }
}

// ---- operators ----

void OpLogRecorder::allocated(const void* address, uint64_t size_bytes) const {
  if (is_on() && running.by == this && address) running.memory.allocated(address, size_bytes);
}

void OpLogRecorder::freed(const void* address) const {
  if (is_on() && running.by == this) running.memory.freed(address);
}

void OpLogRecorder::runs(const OpenLog& log) const {
  running.by = this;
  running.log = &log;
  running.memory.clear();
}

void OpLogRecorder::stops() { running.by = nullptr; }

std::vector<uint64_t> OpLogRecorder::running_sizes() const {
  return running.by == this ? running.memory.sizes() : std::vector<uint64_t>();
}

void OpLogRecorder::begins(OpenLog& log, const Scratch<Input>& inputs, Deferred& deferred) {
  if (!is_on()) return;
  log.open = true;
  log.arguments.clear();
  log.results.clear();
  for (const Input& input : inputs) {
    OpenLog::Argument argument;
    Storage* storage = input.storage;
    Known* known = storage ? known_of(storage) : nullptr;
    if (storage && is_whole(input) && storage->managed && !known) {
      argument.made_here = true;
    } else if (storage && input.use != Use::scratch) {
      if (!known) known = &meet(storage, input.desc, deferred);
      if (input.constant) known = &turn_constant(storage, *known, false);
      argument.name.number = storage->log_number;
      if (input.use == Use::read) argument.name = name_of(storage, geometry_of(input.desc));
      ++known->held;
    }
    log.arguments.push_back(argument);
  }
}

void OpLogRecorder::made(OpenLog& log, Storage* storage, const dtr_tensor_desc& desc) const {
  if (log.open) log.results.push_back({storage, geometry_of(desc), false});
}

int64_t OpLogRecorder::ended(OpenLog& log, const Scratch<Input>& inputs, bool pure,
                             int64_t cost_ns) {
  if (!log.open) return -1;
  log.open = false;
  if (!is_on()) return -1;
  std::vector<Argument>& arguments = ended_.arguments;
  std::vector<Storage*>& overwritten = ended_.overwritten;
  std::vector<OpenLog::Result>&called = ended_.called, &constants = ended_.constants;
  arguments.clear();
  overwritten.clear();
  called.clear();
  constants.clear();
  const auto add_result = [&](const OpenLog::Result& result) {
    (pure && !result.constant ? called : constants).push_back(result);
  };
  log.made_ahead = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& input = inputs[i];
    Storage* now = graph_.by_handle.find(input.desc.handle);
    if (log.arguments[i].made_here) {
      if (!now || knows(now)) continue;
      ++log.made_ahead;
      add_result({now, geometry_of(input.desc), input.constant});
      continue;
    }
    const uint64_t number = log.arguments[i].name.number;
    if (number == 0) continue;
    // Once if it is there several times; not if its memory was exchanged.
    const bool writes = (input.use == Use::mutate || input.use == Use::write_only) && now &&
                        now->log_number == number && knows(now) &&
                        std::ranges::find(overwritten, now) == overwritten.end();
    // What stays a constant whatever overwrites it does not come back by that, as if it had been read.
    const bool reads = input.use != Use::write_only || (writes && now->constant_for_good);
    const bool is_partly = for_tuner_ && writes && now->unwritten;
    arguments.push_back({log.arguments[i].name, writes, reads, is_partly});
    if (writes) overwritten.push_back(now);
  }
  for (const OpenLog::Result& result : log.results) add_result(result);
  const int64_t index = put_operator(log, pure, cost_ns);
  for (Storage* storage : overwritten) {
    Known& known = *known_of(storage);
    if (pure) {
      put_view_releases(storage->log_number, known);
      storage->log_version = ++known.version;
    } else if (storage->managed) {
      turn_constant(storage, known, true);
    }
  }
  unhold(log);
  return index;
}

void OpLogRecorder::aborted(OpenLog& log) {
  if (!log.open) return;
  log.open = false;
  unhold(log);
}

void OpLogRecorder::unhold(OpenLog& log) {
  running.log = nullptr;
  for (const OpenLog::Argument& argument : log.arguments) {
    const auto found = names_.find(argument.name.number);
    if (found == names_.end() || found->second.held == 0) continue;  // it was off in between
    if (--found->second.held == 0 && found->second.released) forget(found->first);
  }
  log.arguments.clear();
}

void OpLogRecorder::viewed(const int64_t* buffer, uint32_t tensors, uint32_t results,
                           int32_t operator_name, int64_t cost_ns) {
  if (!is_writing()) return;
  const auto describe = [&](uint32_t i) {
    dtr_tensor_desc desc;
    environment_.framework->describe(reinterpret_cast<const void*>(buffer[i]), &desc);
    return desc;
  };
  const Storage* storage = nullptr;
  LogName base;
  std::vector<uint64_t> geometries;
  for (uint32_t i = tensors; i < tensors + results; ++i) {
    if (buffer[i] == 0) continue;
    const dtr_tensor_desc desc = describe(i);
    const Storage* of = desc.handle ? graph_.by_handle.find(desc.handle) : nullptr;
    if (!of || of->address != desc.data || (storage && of != storage) || !knows(of)) continue;
    const uint64_t geometry = geometry_of(desc);
    for (uint32_t k = 0; !storage && k < tensors; ++k) {
      const dtr_tensor_desc from = describe(k);
      if (from.handle != of->handle) continue;
      storage = of;
      base = name_of(of, geometry_of(from));
    }
    if (storage && names_.at(of->log_number).view_of(geometry) < 0 &&
        std::ranges::find(geometries, geometry) == geometries.end())
      geometries.push_back(geometry);
  }
  if (!geometries.empty()) put_views(storage, base, geometries, operator_name, cost_ns);
}

void OpLogRecorder::put_memory(const OpenLog& log, const std::vector<OpenLog::Result>& results,
                               const std::vector<OpenLog::Result>& ignored) {
  const auto read_addresses = [](const std::vector<OpenLog::Result>& some,
                                 std::vector<const void*>& addresses) {
    addresses.clear();
    for (const OpenLog::Result& result : some) addresses.push_back(result.storage->address);
  };
  read_addresses(results, ended_.addresses);
  read_addresses(ignored, ended_.ignored);
  const size_t begin = records_.size();
  records_.insert(records_.end(), {DTR_OP_LOG_MEMORY, 0});
  if (running.log == &log) running.memory.put(ended_.addresses, ended_.ignored, &records_);
  if (const size_t length = records_.size() - begin - 2; length > 0)
    records_[begin + 1] = static_cast<int64_t>(length / 2);
  else
    records_.resize(begin);
}

int64_t OpLogRecorder::put_operator(const OpenLog& log, bool pure, int64_t cost_ns) {
  const std::vector<Argument>& arguments = ended_.arguments;
  const std::vector<OpenLog::Result>&called = ended_.called, &constants = ended_.constants;
  const auto mutated = std::ranges::count(arguments, true, &Argument::overwritten);
  const bool repeatable = pure && (!called.empty() || mutated > 0);
  const int64_t index = is_writing() ? operators_ : -1;
  if (is_writing()) {
    put_place();
    put_memory(log, repeatable ? called : constants, repeatable ? constants : called);
  }
  const auto put_head = [&](int64_t kind, int64_t time) {
    // The step tuner needs no name, and recognizes the call.
    const int64_t name = for_tuner_ ? tuner_call(log.signature, log.made_ahead) : log.operator_name;
    put(kind, name, time, arguments.size());
    for (const Argument& argument : arguments) put(argument.name);
    ++operators_;
  };
  if (!called.empty()) {
    if (is_writing()) {
      put_head(DTR_OP_LOG_CALL, cost_ns);
      put(called.size());
    }
    for (const OpenLog::Result& result : called) {
      define(result.storage, result.geometry);
      if (is_writing()) put(LogName{result.storage->log_number, 0}, result.storage->size_bytes, -1);
    }
  }
  if (mutated > 0 && pure && is_writing()) {
    // The cost is that of both lines together.
    put_head(DTR_OP_LOG_MUTATE, called.empty() ? cost_ns : 0);
    put(mutated);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].overwritten) continue;
      const int64_t index = static_cast<int64_t>(i) | (arguments[i].partly ? kPartlyWritten : 0);
      put(arguments[i].read ? index : -1 - index);
    }
  }
  if (!repeatable && is_writing()) {
    put_head(DTR_OP_LOG_EFFECT, cost_ns);
    put(constants.size());
  }
  for (const OpenLog::Result& result : constants) define_constant(result.storage, result.geometry);
  return index;
}

// ---- draining ----

namespace {

uint64_t move_out(std::vector<int64_t>& from, int64_t* numbers, uint64_t capacity) {
  const uint64_t count = from.size();
  if (count > capacity) return count;
  std::copy(from.begin(), from.end(), numbers);
  from.clear();
  return count;
}

}  // namespace

uint64_t OpLogRecorder::drain(int64_t* numbers, uint64_t capacity) {
  return move_out(records_, numbers, capacity);
}

uint64_t OpLogRecorder::drain_decisions(int64_t* numbers, uint64_t capacity) {
  return move_out(decisions_, numbers, capacity);
}

void OpLogRecorder::set_deciding(bool on) {
  deciding_ = on;
  if (!on) decisions_.clear();
}

void OpLogRecorder::lost(const Storage* storage, EvictionCause cause) {
  if (!deciding_) return;
  decisions_.insert(decisions_.end(),
                    {static_cast<int64_t>(cause), static_cast<int64_t>(storage->log_number),
                     static_cast<int64_t>(storage->log_version)});
}

void OpLogRecorder::ran_again(const Op* op) {
  if (deciding_) decisions_.insert(decisions_.end(), {DTR_DECISION_RECOMPUTED, op->log_index, 0});
}

}  // namespace dtr
