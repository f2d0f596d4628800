// draws.h: random numbers of operators, drawn again without touching the job's generators.
//
// Rules
//  D1  What an operator drew is repeated from where its generator stood then. The repetition draws from a
//      generator of this thread, so the job's never move, and nobody sees them elsewhere.
//  D2  The first run, too, draws from a generator of this thread, which begins where the job's
//      stands; afterwards the job's is put where that one ended. So both runs begin with the very
//      state that is kept. The job's is locked (mutex()) only while it is read and written, as
//      kernels do it. If the job put it elsewhere meanwhile (manual_seed, set_state on another
//      thread), it stays there: the draw came first.
//  D3  Operators that draw from one generator do so one after the other, as in PyTorch, whose
//      kernels lock it. So no draw is repeated and none is lost.
//  D4  An operator that cannot be given a generator draws by others that can, inside of it; these
//      come by while it runs and are noted on its tape. That holds for all of the CPU's.
//  D5  On CUDA some draw from the device's generator by themselves (native_dropout, attention).
//      For them that generator is put where it stood, and back afterwards. While one runs, the
//      first time or again, the GIL is held: no Python code can seed or read the generator
//      between. What draws from it in C++, past operators, is not seen.
//  D6  Putting a generator of CUDA is no seeding. PyTorch's own functions for it also have cuDNN's
//      RNNs begin anew with their dropout, which the job would see; put_philox() does not.
//  D7  An operator of others may put generators elsewhere itself (manual_seed). While it runs again,
//      the default generators are lent to it, and so is each other one whose method it calls in
//      Python; afterwards they stand where they stood. What other threads draw meanwhile begins and
//      ends at the state that is put back, not at the operator's.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <array>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "python.h"

namespace dtr_bridge {

// Where a generator of the CPU stands, as a Mersenne twister...
struct TwisterState {
  at::mt19937_data_pod engine;
  std::optional<float> next_float;
  std::optional<double> next_double;
};

// ...or one of CUDA, as a counter.
struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  bool operator==(const PhiloxState&) const = default;
};

inline bool operator==(const TwisterState& a, const TwisterState& b) {
  const at::mt19937_data_pod &x = a.engine, &y = b.engine;
  return x.seed_ == y.seed_ && x.left_ == y.left_ && x.seeded_ == y.seeded_ && x.next_ == y.next_ &&
         x.state_ == y.state_ && a.next_float == b.next_float && a.next_double == b.next_double;
}

// One draw: where the generator stood before it.
struct Drawn {
  c10::Device device = c10::kCPU;
  std::shared_ptr<const TwisterState> twister;  // of the CPU
  PhiloxState philox;                           // of other devices
};

// Puts a generator of CUDA (D6); cuda_bridge.cpp sets it, and nothing else is known there.
inline void (*put_philox)(const at::Generator& generator, const PhiloxState& at) = nullptr;

// Whether we know how generators of a device are read and put.
inline bool knows_generators_of(c10::Device device) {
  return device.is_cpu() || (device.is_cuda() && put_philox);
}

inline void read_generator(const at::Generator& generator, Drawn* out) {
  out->device = generator.device();
  if (out->device.is_cpu()) {
    auto* cpu = generator.get<at::CPUGeneratorImpl>();
    out->twister = std::make_shared<const TwisterState>(TwisterState{
        cpu->engine().data(), cpu->next_float_normal_sample(), cpu->next_double_normal_sample()});
  } else {
    out->philox = {generator.current_seed(), generator.get_offset()};
  }
}

inline void put_generator(at::Generator& generator, const Drawn& at) {
  if (at.device.is_cpu()) {
    auto* cpu = generator.get<at::CPUGeneratorImpl>();
    at::mt19937 engine = cpu->engine();
    engine.set_data(at.twister->engine);
    cpu->set_engine(engine);
    cpu->set_next_float_normal_sample(at.twister->next_float);
    cpu->set_next_double_normal_sample(at.twister->next_double);
  } else {
    put_philox(generator, at.philox);
  }
}

inline bool same_state(const Drawn& a, const Drawn& b) {
  return a.device.is_cpu() ? *a.twister == *b.twister : a.philox == b.philox;
}

// Generators that are lent to an operator while this exists (D7).
class Lending : NotCopied {
 public:
  // of_thread: the last one on this thread. type: the kind of device that is managed.
  Lending(Lending*& of_thread, c10::DeviceType type) : of_thread_(of_thread), outer_(of_thread) {
    of_thread = this;
    at::Context& context = at::globalContext();
    lend(context.defaultGenerator(c10::kCPU));
    if (type != c10::kCUDA) return;
    const auto count =
        static_cast<c10::DeviceIndex>(context.getAcceleratorHooksInterface(type).deviceCount());
    for (c10::DeviceIndex i = 0; i < count; ++i)
      lend(context.defaultGenerator(c10::Device(type, i)));
  }
  ~Lending() {
    of_thread_ = outer_;
    const std::lock_guard<std::mutex> lock(mutex());
    for (auto lent : lent_) {
      const std::lock_guard<std::mutex> locked(lent->generator.mutex());
      Drawn now;
      read_generator(lent->generator, &now);
      if (!same_state(now, lent->stands)) put_generator(lent->generator, lent->stands);
      all().erase(lent);
    }
  }

  void lend(const at::Generator& generator) {
    if (!knows_generators_of(generator.device())) return;
    const std::lock_guard<std::mutex> lock(mutex());
    for (auto lent : lent_)
      if (lent->generator == generator) return;
    Lent lent{generator, std::this_thread::get_id(), {}};
    read_unlent(generator, &lent.stands);
    lent_.push_back(all().insert(all().end(), std::move(lent)));
  }

  // Where a generator stands for this thread.
  static void read(const at::Generator& generator, Drawn* out) {
    const std::lock_guard<std::mutex> lock(mutex());
    read_unlent(generator, out);
  }

  // This thread has drawn: the generator goes on at `after`, unless the job has put it elsewhere
  // since it stood at `before`.
  static void commit(at::Generator& generator, const Drawn& before, const Drawn& after) {
    const std::lock_guard<std::mutex> lock(mutex());
    bool is_lent = false;
    for (Lent& lent : all()) {
      if (lent.generator != generator || lent.to == std::this_thread::get_id()) continue;
      is_lent = true;
      if (same_state(before, lent.stands)) lent.stands = after;
    }
    if (is_lent) return;
    const std::lock_guard<std::mutex> locked(generator.mutex());
    Drawn now;
    read_generator(generator, &now);
    if (same_state(before, now)) put_generator(generator, after);
  }

  // In a forked child, where those that had some are not.
  static void renew() {
    new (&mutex()) std::mutex();
    all().clear();
  }

 private:
  struct Lent {
    at::Generator generator;
    std::thread::id to;
    Drawn stands;  // for all but the operator
  };

  static std::mutex& mutex() { return only<std::mutex, Lending>(); }
  static std::list<Lent>& all() { return only<std::list<Lent>>(); }

  static void read_unlent(const at::Generator& generator, Drawn* out) {
    for (const Lent& lent : all())
      if (lent.generator == generator && lent.to != std::this_thread::get_id()) {
        *out = lent.stands;
        return;
      }
    at::Generator same = generator;
    const std::lock_guard<std::mutex> locked(same.mutex());
    read_generator(same, out);
  }

  Lending*& of_thread_;
  Lending* outer_;
  std::vector<std::list<Lent>::iterator> lent_;
};

// This thread's own generator for a device.
inline at::Generator& own_generator(at::Generator& like) {
  thread_local at::Generator cpu;
  thread_local std::vector<at::Generator> others;
  if (like.device().is_cpu()) {
    if (!cpu.defined()) cpu = at::detail::createCPUGenerator();
    return cpu;
  }
  // torch.Generator("cuda") is of no device in particular: -1.
  const auto place = static_cast<size_t>(like.device().index() + 1);
  if (others.size() <= place) others.resize(place + 1);
  if (!others[place].defined()) {
    const std::lock_guard<std::mutex> lock(like.mutex());
    others[place] = like.clone();
  }
  return others[place];
}

// Held while an operator draws from a generator (D3). Nobody waits for it with the GIL.
class DrawsOf : NotCopied {
 public:
  explicit DrawsOf(const at::Generator& generator) : mutex_(mutex_of(generator)) {
    lock_without_gil(mutex_);
  }
  ~DrawsOf() { mutex_.unlock(); }

  // In a forked child, where those who had them are not.
  static void renew() { new (&mutexes()) Mutexes(); }

 private:
  using Mutexes = std::array<std::recursive_mutex, 16>;

  static Mutexes& mutexes() { return only<Mutexes>(); }

  // Generators that share one wait for each other in vain, which does no harm.
  static std::recursive_mutex& mutex_of(const at::Generator& generator) {
    const auto address = reinterpret_cast<uintptr_t>(generator.unsafeGetGeneratorImpl());
    return mutexes()[(address >> 6) % mutexes().size()];
  }

  std::recursive_mutex& mutex_;
};

// The draws of one operator's run, in order: noted the first time, read when it runs again. It is
// off, without draws, while a graph is captured: where generators then stand cannot be read.
class Tape {
 public:
  Tape(std::vector<Drawn>* draws, bool again) : draws_(draws), again_(again) {}
  bool is_off() const { return !draws_; }
  bool again() const { return again_; }
  void note(Drawn&& drawn) { draws_->push_back(std::move(drawn)); }
  void note(std::vector<Drawn>&& draws) {
    std::move(draws.begin(), draws.end(), std::back_inserter(*draws_));
  }
  // Work of an operator inside goes on after it (Rule::lasts).
  void note_lasting() { lasts_ = true; }
  bool lasts() const { return lasts_; }
  // Whether the operators inside are asked if they can be repeated, and whether all that ran can.
  void set_judging(bool on) { judges_ = on; }
  bool judges() const { return judges_; }
  void note_unrepeatable() { repeats_ = false; }
  bool repeats() const { return repeats_; }
  const Drawn& next() {
    TORCH_CHECK(next_ < draws_->size(),
                "dtr_alloc: an operator that runs again draws random numbers more often than it "
                "did the first time");
    return (*draws_)[next_++];
  }

 private:
  std::vector<Drawn>* draws_;
  bool again_;
  bool lasts_ = false;
  bool judges_ = false;
  bool repeats_ = true;
  size_t next_ = 0;
};

// An operator that can be given a generator, in `slot` of its arguments; none there: the default
// one of the device. Construct, run the operator, commit().
class Draw {
 public:
  Draw(Tape& tape, c10::IValue& slot, c10::Device device) : tape_(tape) {
    if (slot.isGenerator()) job_ = slot.toGenerator();
    if (!job_.defined()) job_ = at::globalContext().defaultGenerator(device);
    at::Generator& own = own_generator(job_);
    if (tape.again()) {
      put_generator(own, tape.next());
    } else {
      lock_.emplace(job_);
      Lending::read(job_, &before_);
      put_generator(own, before_);
    }
    slot = own;
  }

  void commit() {
    if (tape_.again()) return;
    Drawn after;
    read_generator(own_generator(job_), &after);
    Lending::commit(job_, before_, after);
    tape_.note(std::move(before_));
  }

 private:
  Tape& tape_;
  at::Generator job_;
  std::optional<DrawsOf> lock_;
  Drawn before_;
};

// An operator that cannot be given a generator and may draw from the device's default one (D5). It
// runs while this exists.
class DirectDraw : NotCopied {
 public:
  DirectDraw(Tape& tape, c10::Device device)
      : job_(at::globalContext().defaultGenerator(device)), lock_(job_) {
    {
      const std::lock_guard<std::mutex> lock(job_.mutex());
      read_generator(job_, &before_);
    }
    if (tape.again()) {
      put_locked(tape.next());
      restores_ = true;
    } else {
      tape.note(Drawn(before_));
    }
  }
  ~DirectDraw() {
    if (restores_) put_locked(before_);
  }

 private:
  void put_locked(const Drawn& at) {
    const std::lock_guard<std::mutex> lock(job_.mutex());
    put_generator(job_, at);
  }

  HoldsGil gil_;
  at::Generator job_;
  DrawsOf lock_;
  Drawn before_;
  bool restores_ = false;
};

}  // namespace dtr_bridge
