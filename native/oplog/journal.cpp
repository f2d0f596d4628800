// journal.cpp: the journal, and where the engine feeds it.
#include "journal.h"

#include <algorithm>

#include "run/engine.h"

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

void MemoryTrace::put(const std::vector<const void*>& results,
                      const std::vector<const void*>& ignored, std::vector<int64_t>* out) const {
  const size_t begin = out->size();
  std::vector<int64_t> temporary(pieces_.size(), -1);
  int64_t temporaries = 0, next_result = 0;
  bool plain = true;
  // What was there before the op, which only fills it.
  for (size_t i = 0; i < results.size(); ++i)
    if (std::none_of(pieces_.begin(), pieces_.end(),
                     [&](const Piece& piece) { return piece.address == results[i]; })) {
      const auto which = static_cast<int64_t>(i);
      plain &= which == next_result++;
      out->insert(out->end(), {DTR_MEMORY_RESULT, which});
    }
  for (const Event& event : events_) {
    const Piece& piece = pieces_[event.piece];
    int64_t& index = temporary[event.piece];
    if (event.freed) {
      out->insert(out->end(), {DTR_MEMORY_FREE, index});
      continue;
    }
    const auto has = [&](const std::vector<const void*>& some) {
      return piece.address ? std::find(some.begin(), some.end(), piece.address) : some.end();
    };
    if (has(ignored) != ignored.end()) continue;
    const auto result = has(results);
    if (result != results.end()) {
      const int64_t which = result - results.begin();
      plain &= which == next_result++;
      out->insert(out->end(), {DTR_MEMORY_RESULT, which});
    } else {
      plain = false;
      index = temporaries++;
      out->insert(out->end(), {DTR_MEMORY_ALLOCATE, static_cast<int64_t>(piece.size_bytes)});
    }
  }
  if (plain) out->resize(begin);
}

// ---- names ----

uint64_t Journal::look(const dtr_tensor_desc& desc) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a, a number at a time
  const auto add = [&](int64_t number) {
    hash = (hash ^ static_cast<uint64_t>(number)) * 1099511628211u;
    hash ^= hash >> 29;
  };
  add(desc.ndim);
  for (int32_t d = 0; d < desc.ndim; ++d) {
    add(desc.sizes[d]);
    add(desc.strides[d]);
  }
  add(desc.offset);
  add(desc.scalar_type);
  add(desc.flags);
  return hash;
}

void Journal::set_mode(Mode mode) {
  if (mode == Mode::writing && mode_ != Mode::writing) {
    operators_ = 0;
    std::vector<uint64_t> numbers;
    for (const auto& entry : names_) numbers.push_back(entry.first);
    std::sort(numbers.begin(), numbers.end());
    mode_ = mode;
    for (const uint64_t number : numbers) {
      Known& known = names_.at(number);
      known.views.clear();
      put_constant(number, known);
    }
  }
  mode_ = mode;
  on_ = mode != Mode::off;
  if (mode == Mode::off) names_.clear();
}

void Journal::reset() {
  set_mode(Mode::off);
  last_number_ = 0;
}

void Journal::put(LogName name) {
  put(static_cast<int64_t>(name.number));
  put(name.view);
}

void Journal::put_constant(uint64_t number, const Known& known) {
  put(DTR_JOURNAL_CONSTANT);
  put(static_cast<int64_t>(number));
  put(static_cast<int64_t>(known.size_bytes));
}

void Journal::put_view_releases(uint64_t number, Known& known) {
  if (writing())
    for (const View& view : known.views) {
      put(DTR_JOURNAL_RELEASE);
      put(LogName{number, view.view});
    }
  known.views.clear();
}

void Journal::put_releases(uint64_t number, Known& known) {
  put_view_releases(number, known);
  if (!writing()) return;
  put(DTR_JOURNAL_RELEASE);
  put(LogName{number, 0});
}

uint64_t Journal::define(Storage* storage, uint64_t look) {
  storage->log_number = ++last_number_;
  storage->log_version = 0;
  Known& known = names_[storage->log_number];
  known = Known{};
  known.size_bytes = storage->managed ? storage->size_bytes : 0;
  known.root = look;
  return storage->log_number;
}

void Journal::constant(Storage* storage, uint64_t look) {
  const uint64_t number = define(storage, look);
  Known& known = names_.at(number);
  known.constant = true;
  if (writing()) put_constant(number, known);
}

bool Journal::knows(const Storage* storage, uint64_t look) const {
  const auto found = names_.find(storage->log_number);
  if (found == names_.end()) return false;
  if (found->second.root == look) return true;
  for (const View& view : found->second.views)
    if (view.look == look) return true;
  return false;
}

LogName Journal::name(const Storage* storage, uint64_t look) {
  const uint64_t number = storage->log_number;
  const Known& known = names_.at(number);
  if (known.root == look || !writing()) return {number, 0};
  for (const View& view : known.views)
    if (view.look == look) return {number, view.view};
  views(storage, {number, 0}, {look}, -1, 0);
  return {number, known.last_view};
}

void Journal::views(const Storage* storage, LogName base, const std::vector<uint64_t>& looks,
                    int32_t operator_name, int64_t cost_ns) {
  const uint64_t number = storage->log_number;
  Known& known = names_.at(number);
  put(DTR_JOURNAL_CALL);
  put(operator_name);
  put(cost_ns);
  put(1);
  put(base);
  put(static_cast<int64_t>(looks.size()));
  for (const uint64_t look : looks) {
    known.views.push_back({look, ++known.last_view});
    put(LogName{number, known.last_view});
    put(static_cast<int64_t>(known.size_bytes));
    put(0);
  }
  ++operators_;
}

void Journal::released(const Storage* storage) {
  const auto found = names_.find(storage->log_number);
  if (found == names_.end()) return;
  if (found->second.held > 0) {
    found->second.released = true;  // J3
    return;
  }
  put_releases(found->first, found->second);
  names_.erase(found);
}

void Journal::hold(uint64_t number) { ++names_.at(number).held; }

void Journal::unhold(uint64_t number) {
  const auto found = names_.find(number);
  if (found == names_.end() || found->second.held == 0) return;  // the mode was off in between
  if (--found->second.held > 0 || !found->second.released) return;
  put_releases(number, found->second);
  names_.erase(found);
}

void Journal::other_died(uint64_t number) {
  const auto found = names_.find(number);
  if (found == names_.end()) return;
  put_releases(number, found->second);
  names_.erase(found);
}

// ---- operators ----

int64_t Journal::operator_ended(const OpenLog& log, const std::vector<Argument>& arguments,
                                const std::vector<OpenLog::Result>& results, bool pure,
                                int64_t cost_ns) {
  std::vector<OpenLog::Result> called, constants;
  for (const OpenLog::Result& result : results)
    (pure && !result.constant ? called : constants).push_back(result);
  const auto mutated = std::count_if(arguments.begin(), arguments.end(),
                                     [](const Argument& a) { return a.overwritten; });
  const bool repeatable = pure && (!called.empty() || mutated > 0);
  const int64_t index = writing() ? operators_ : -1;
  if (writing()) {
    const auto addresses = [](const std::vector<OpenLog::Result>& some) {
      std::vector<const void*> found;
      for (const OpenLog::Result& result : some) found.push_back(result.storage->address);
      return found;
    };
    const size_t begin = records_.size();
    records_.insert(records_.end(), {DTR_JOURNAL_MEMORY, 0});
    log.memory.put(addresses(repeatable ? called : constants),
                   addresses(repeatable ? constants : called), &records_);
    if (const size_t length = records_.size() - begin - 2; length > 0)
      records_[begin + 1] = static_cast<int64_t>(length / 2);
    else
      records_.resize(begin);
  }
  const auto put_head = [&](int64_t kind, int64_t time) {
    put(kind);
    put(log.operator_name);
    put(time);
    put(static_cast<int64_t>(arguments.size()));
    for (const Argument& argument : arguments) put(argument.name);
    ++operators_;
  };
  if (!called.empty()) {
    if (writing()) {
      put_head(DTR_JOURNAL_CALL, cost_ns);
      put(static_cast<int64_t>(called.size()));
    }
    for (const OpenLog::Result& result : called) {
      const uint64_t number = define(result.storage, result.look);
      if (!writing()) continue;
      put(LogName{number, 0});
      put(static_cast<int64_t>(result.storage->size_bytes));
      put(-1);
    }
  }
  if (mutated > 0 && pure && writing()) {
    // The cost is that of both lines together.
    put_head(DTR_JOURNAL_MUTATE, called.empty() ? cost_ns : 0);
    put(mutated);
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].overwritten)
        put(arguments[i].read ? static_cast<int64_t>(i) : -1 - static_cast<int64_t>(i));
  }
  if (!repeatable && writing()) {
    put_head(DTR_JOURNAL_EFFECT, cost_ns);
    put(static_cast<int64_t>(constants.size()));
  }
  for (const OpenLog::Result& result : constants) constant(result.storage, result.look);
  return index;
}

uint32_t Journal::overwritten(uint64_t number) {
  Known& known = names_.at(number);
  put_view_releases(number, known);
  return ++known.version;
}

void Journal::turned_constant(Storage* storage, bool overwritten) {
  const Known& known = names_.at(storage->log_number);
  if (known.constant && !overwritten) return;
  const uint64_t look = known.root;
  released(storage);
  constant(storage, look);
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

uint64_t Journal::drain(int64_t* numbers, uint64_t capacity) {
  return move_out(records_, numbers, capacity);
}

uint64_t Journal::drain_decisions(int64_t* numbers, uint64_t capacity) {
  return move_out(decisions_, numbers, capacity);
}

void Journal::set_deciding(bool on) {
  deciding_ = on;
  if (!on) decisions_.clear();
}

void Journal::evicted(const Storage* storage, Cause cause) {
  decisions_.insert(decisions_.end(),
                    {static_cast<int64_t>(cause), static_cast<int64_t>(storage->log_number),
                     static_cast<int64_t>(storage->log_version)});
}

void Journal::ran_again(const Op* op) {
  decisions_.insert(decisions_.end(), {DTR_DECISION_RAN_AGAIN, op->log_index, 0});
}

// ---- the engine's side ----

namespace {

// The op that this thread runs just now, if it is journaled.
thread_local Frame* running = nullptr;

}  // namespace

void Engine::journal_allocated(const void* address, uint64_t size_bytes) {
  if (running && &running->engine == this && address)
    running->log.memory.allocated(address, size_bytes);
}

void Engine::journal_freed(const void* address) {
  if (running && &running->engine == this) running->log.memory.freed(address);
}

void Engine::journal_running(Frame* frame) {
  running = frame;
  if (frame) frame->log.memory.clear();
}

// Gives a storage that nothing recorded has made its number.
void Engine::journal_meet(Storage* storage, const dtr_tensor_desc& desc, Deferred& deferred) {
  if (journal_.knows(storage)) return;
  if (storage->managed) {
    journal_.constant(storage, Journal::look(desc));
    return;
  }
  auto& others = journal_.others();
  const auto found = others.find(desc.handle);
  if (found != others.end()) {
    storage->log_number = found->second;
    return;
  }
  journal_sweep(deferred);
  framework_->retain_weak(desc.handle);
  journal_.constant(storage, Journal::look(desc));
  others.emplace(desc.handle, storage->log_number);
}

// Finds memory of others that died. Our own record holds it once.
void Engine::journal_sweep(Deferred& deferred) {
  auto& others = journal_.others();
  for (auto entry = others.begin(); entry != others.end();) {
    const uint64_t ours = graph_.by_handle.find(entry->first) ? 1 : 0;
    if (journal_.on() && framework_->strong_count(entry->first) > ours) {
      ++entry;
      continue;
    }
    journal_.other_died(entry->second);
    deferred.release_weak(entry->first);
    entry = others.erase(entry);
  }
}

void Engine::journal_begin(Frame& frame, bool runs_at_once, Deferred& deferred) {
  OpenLog& log = frame.log;
  log.open = true;
  log.arguments.clear();
  log.results.clear();
  for (const Input& input : frame.inputs) {
    OpenLog::Argument argument;
    Storage* storage = input.storage;
    if (storage && is_whole(input) && storage->managed && !journal_.knows(storage)) {
      argument.made_here = true;
    } else if (storage && input.use != Use::scratch) {
      journal_meet(storage, input.desc, deferred);
      if (input.constant) journal_.turned_constant(storage, false);
      argument.name.number = storage->log_number;
      if (input.use == Use::read) argument.name = journal_.name(storage, Journal::look(input.desc));
      journal_.hold(argument.name.number);
    }
    log.arguments.push_back(argument);
  }
  if (runs_at_once) journal_running(&frame);
}

// After the new versions and results have their records. pure: the op could be repeated.
int64_t Engine::journal_end(Frame& frame, bool pure, int64_t cost_ns) {
  OpenLog& log = frame.log;
  log.open = false;
  if (!journal_.on()) return -1;
  std::vector<Journal::Argument> arguments;
  std::vector<OpenLog::Result> results;
  std::vector<const Input*> overwritten;
  for (size_t i = 0; i < frame.inputs.size(); ++i) {
    const Input& input = frame.inputs[i];
    Storage* now = graph_.by_handle.find(input.desc.handle);
    if (log.arguments[i].made_here) {
      if (now && !journal_.knows(now))
        results.push_back({now, Journal::look(input.desc), input.constant});
      continue;
    }
    const uint64_t number = log.arguments[i].name.number;
    if (number == 0) continue;
    // Once if it is there several times; not if its memory was exchanged.
    const bool writes = (input.use == Use::mutate || input.use == Use::write_only) && now &&
                        now->log_number == number && journal_.knows(now) &&
                        std::none_of(overwritten.begin(), overwritten.end(), [&](const Input* o) {
                          return o->desc.handle == input.desc.handle;
                        });
    arguments.push_back({log.arguments[i].name, writes, input.use != Use::write_only});
    if (writes) overwritten.push_back(&input);
  }
  results.insert(results.end(), log.results.begin(), log.results.end());
  const int64_t index = journal_.operator_ended(log, arguments, results, pure, cost_ns);
  for (const Input* input : overwritten) {
    Storage* now = graph_.by_handle.find(input->desc.handle);
    if (pure)
      now->log_version = journal_.overwritten(now->log_number);
    else if (now->managed)
      journal_.turned_constant(now, true);
  }
  journal_unhold(frame);
  return index;
}

void Engine::journal_unhold(Frame& frame) {
  frame.log.open = false;
  for (const OpenLog::Argument& argument : frame.log.arguments)
    if (argument.name.number) journal_.unhold(argument.name.number);
  frame.log.arguments.clear();
}

void Engine::journal_view(Frame& frame, uint32_t tensors, uint32_t results, int32_t name,
                          int64_t cost_ns) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  if (!journal_.writing()) return;
  const auto tensor = [&](uint32_t i) { return reinterpret_cast<const void*>(frame.buffer[i]); };
  const Storage* storage = nullptr;
  LogName base;
  std::vector<uint64_t> looks;
  for (uint32_t i = 0; i < results; ++i) {
    if (!tensor(tensors + i)) continue;
    dtr_tensor_desc desc;
    framework_->describe(tensor(tensors + i), &desc);
    const Storage* of = desc.handle ? graph_.by_handle.find(desc.handle) : nullptr;
    if (!of || of->address != desc.data || (storage && of != storage) || !journal_.knows(of))
      continue;
    for (uint32_t k = 0; !storage && k < tensors; ++k) {
      dtr_tensor_desc from;
      framework_->describe(tensor(k), &from);
      if (from.handle != desc.handle) continue;
      storage = of;
      base = journal_.name(of, Journal::look(from));
    }
    const uint64_t look = Journal::look(desc);
    if (storage && !journal_.knows(of, look) &&
        std::find(looks.begin(), looks.end(), look) == looks.end())
      looks.push_back(look);
  }
  if (!looks.empty()) journal_.views(storage, base, looks, name, cost_ns);
}

void Engine::journal_set(int32_t mode) {
  Deferred deferred(environment_, *this);
  std::lock_guard<EngineMutex> lock(mutex_);
  journal_sweep(deferred);  // under the old mode: deaths belong to it
  journal_.set_mode(static_cast<Journal::Mode>(mode));
  if (!journal_.on()) journal_sweep(deferred);
}

uint64_t Engine::journal_drain(int64_t* numbers, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  return journal_.drain(numbers, capacity);
}

void Engine::decisions_set(bool on) {
  std::lock_guard<EngineMutex> lock(mutex_);
  journal_.set_deciding(on);
}

uint64_t Engine::decisions_drain(int64_t* numbers, uint64_t capacity) {
  std::lock_guard<EngineMutex> lock(mutex_);
  return journal_.drain_decisions(numbers, capacity);
}

}  // namespace dtr
