// A stand-in for libcuda over host memory, for tests without a GPU.
//
// It implements the driver functions of allocator/cuda_api.h, keeps the books that a real driver
// keeps silently, and records every broken precondition as a violation: double maps, unmaps of
// what unfinished work uses, access before access rights, calls without the context, work that
// overlaps unfinished work of another stream without an event in between.
//
// Time: while fake_cuda_hold(1) is on, work on a stream is done only by fake_cuda_step(), in the
// order of its stream but in any order between streams; fills and copies have their effect then.
// Otherwise it is done at once. Work on a range takes fake_cuda_set_work_ns() of a virtual time,
// which timed events read.
//
// Captures: from fake_cuda_capture(stream, 1) to (stream, 0) work on a stream is not run, and what
// would break a capture is a violation: a call in a mode that is not relaxed, a wait for an event
// from outside of it or from the host, and waiting for the stream or the device.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Address = unsigned long long;

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kInvalidDevice = 101;
constexpr int kInvalidContext = 201, kNotReady = 600, kUnknown = 999;
constexpr int kCaptureUnsupported = 900, kCapturedEvent = 907, kRelaxed = 2;

struct Location {
  int type, id;
};
struct AllocationProp {
  int type, handle_types;
  Location location;
  void* meta;
  unsigned char flags[8];
};
struct AccessDesc {
  Location location;
  int flags;
};

using Clock = std::map<uint64_t, uint64_t>;  // stream -> the last of its operations that is ordered

struct Event;

struct Range {
  Address begin = 0, end = 0;
  bool writes = true;
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
  // Two that only read do not disturb each other.
  bool disturbs(const Range& other) const { return overlaps(other) && (writes || other.writes); }
};

struct Operation {
  uint64_t sequence;
  Range uses[2];  // by a kernel, fill or copy
  std::function<void()> effect;
  Event* event = nullptr;                       // that this records
  uint64_t wait_stream = 0, wait_sequence = 0;  // of a wait: it ends when that operation has
  bool is_wait = false;
};

struct Stream {
  uint64_t last = 0, done = 0;
  std::deque<Operation> queue;
  Clock clock;
  uint64_t now_ns = 0;  // when the work that is done was done
  bool capturing = false;
};

struct Event {
  uint64_t stream = 0, sequence = 0;
  bool recorded = false;
  Clock clock;
  bool timed = false;
  uint64_t at_ns = 0;
  bool captured = false;
};

struct Mapping {
  uint64_t size;
  Address handle;
  bool access;
  int device;
  std::set<int> peers;
};

struct State {
  uint64_t total = uint64_t{1} << 30, granularity = 2 << 20;
  int devices = 1, vmm = 1;
  bool hold = false, effects_at_once = false;
  int retained = 0;
  uint64_t calls = 0, fail_at = 0;
  int fail_with = kUnknown;
  std::string failed_call;
  uint64_t next_handle = 1, physical = 0, waits = 0;
  uint64_t next_stream = 0x10000, work_ns = 1000;
  std::set<uint64_t> created_streams;
  std::map<Address, uint64_t> host;  // pinned
  std::map<Address, uint64_t> reservations;
  std::map<Address, uint64_t> handles;
  std::map<Address, int> handle_devices;
  std::map<Address, Mapping> mappings;
  std::map<uint64_t, Stream> streams;
  std::set<Event*> events;
  std::vector<std::string> violations;
};

std::mutex mutex;
State* state = new State;
int primary;  // its address is the context
thread_local void* current = nullptr;
thread_local int capture_mode = 0;

int violation(const std::string& text, int code = kInvalidValue) {
  state->violations.push_back(text);
  return code;
}

// Counts a call; true if this is the one that shall fail.
bool fails(const std::string& name) {
  ++state->calls;
  if (state->fail_at == 0 || --state->fail_at != 0) return false;
  state->failed_call = name.substr(0, name.rfind("_v2"));
  return true;
}

bool runnable(const Operation& operation) {
  return !operation.is_wait ||
         state->streams[operation.wait_stream].done >= operation.wait_sequence;
}

bool step(Stream& stream) {
  if (stream.queue.empty() || !runnable(stream.queue.front())) return false;
  const Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.done = operation.sequence;
  if (operation.is_wait)
    stream.now_ns = std::max(stream.now_ns, state->streams[operation.wait_stream].now_ns);
  if (operation.uses[0].end != 0) stream.now_ns += state->work_ns;
  if (operation.effect) operation.effect();
  if (operation.event != nullptr && state->events.count(operation.event) != 0 &&
      operation.event->sequence == operation.sequence) {
    operation.event->at_ns = stream.now_ns;
  }
  return true;
}

void run_all() {
  for (bool any = true; any;) {
    any = false;
    for (auto& [id, stream] : state->streams)
      while (step(stream)) any = true;
  }
}

Operation& enqueue(Stream& stream) {
  stream.queue.push_back({});
  stream.queue.back().sequence = ++stream.last;
  return stream.queue.back();
}

bool complete(const Event& event) {
  return !event.recorded || state->streams[event.stream].done >= event.sequence;
}

bool is_pinned(const Range& range) {
  auto next = state->host.upper_bound(range.begin);
  return next != state->host.begin() &&
         range.end <= std::prev(next)->first + std::prev(next)->second;
}

// Whether a range is mapped, and so that each mapping in it holds what is asked.
template <typename Ask>
bool mapped(Range range, const Ask& ask) {
  while (range.begin < range.end) {
    auto next = state->mappings.upper_bound(range.begin);
    if (next == state->mappings.begin()) return false;
    auto& [address, mapping] = *--next;
    if (range.begin >= address + mapping.size || !ask(mapping)) return false;
    range.begin = address + mapping.size;
  }
  return true;
}
bool accessible(Range range) {
  return mapped(range, [](const Mapping& mapping) { return mapping.access; });
}
bool touches_a_mapping(Range range) {
  auto next = state->mappings.lower_bound(range.end);
  if (next == state->mappings.begin()) return false;
  --next;
  return next->first + next->second.size > range.begin;
}

// The mappings that make up a range; none where it is no whole number of them.
std::vector<std::map<Address, Mapping>::iterator> mappings_of(Range range) {
  std::vector<std::map<Address, Mapping>::iterator> found;
  while (range.begin < range.end) {
    found.push_back(state->mappings.find(range.begin));
    if (found.back() == state->mappings.end()) return {};
    range.begin += found.back()->second.size;
  }
  if (range.begin != range.end) return {};
  return found;
}

// New pages of the process, or null.
void* pages(size_t size, int protection) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* base = mmap(nullptr, size, protection, flags, -1, 0);
  return base == MAP_FAILED ? nullptr : base;
}

// Queues work on ranges and checks that nothing unfinished elsewhere may run beside it.
void launch(uint64_t id, Range first, Range second = {}, std::function<void()> effect = {}) {
  Stream& stream = state->streams[id];
  for (const Range& range : {first, second})
    if (!is_pinned(range) && !accessible(range))
      violation("work uses memory that is neither pinned nor mapped with access");
  for (auto& [other, others] : state->streams) {
    if (other == id) continue;
    for (const Operation& operation : others.queue) {
      bool overlaps = false;
      for (const Range& used : operation.uses)
        overlaps = overlaps || used.disturbs(first) || used.disturbs(second);
      if (overlaps && stream.clock[other] < operation.sequence) {
        violation("work on stream " + std::to_string(id) + " overlaps unfinished work of stream " +
                  std::to_string(other));
      }
    }
  }
  if (stream.capturing) return;
  Operation& operation = enqueue(stream);
  operation.uses[0] = first;
  operation.uses[1] = second;
  if (state->effects_at_once && effect)
    effect();
  else
    operation.effect = std::move(effect);
  if (!state->hold) run_all();
}

Range range_of(Address begin, uint64_t size) { return {begin, begin + size}; }
Range range_of(const void* begin, uint64_t size) {
  return range_of(reinterpret_cast<Address>(begin), size);
}
uint64_t number_of(void* stream) { return reinterpret_cast<uint64_t>(stream); }

// A copy in stream order.
void launch_copy(void* stream, Range to, Range from) {
  from.writes = false;
  launch(number_of(stream), to, from, [to, from] {
    memcpy(reinterpret_cast<void*>(to.begin), reinterpret_cast<void*>(from.begin),
           to.end - to.begin);
  });
}

// Whether unfinished work of any stream uses a range; says so as a violation.
bool busy(const char* call, Range range) {
  for (const auto& [id, stream] : state->streams) {
    for (const Operation& operation : stream.queue) {
      if (operation.uses[0].overlaps(range) || operation.uses[1].overlaps(range)) {
        violation(std::string(call) + " of memory that unfinished work of stream " +
                  std::to_string(id) + " uses");
        return true;
      }
    }
  }
  return false;
}

bool any_capture() {
  for (const auto& [id, stream] : state->streams)
    if (stream.capturing) return true;
  return false;
}

// Of a call with an event: 0, or why it must not be.
int unknown(Event* event, const std::string& call) {
  if (state->events.count(event) != 0) return 0;
  return violation(call + " of an event that does not exist");
}

// The same of what asks for its completion.
int not_askable(Event* event, const std::string& call) {
  if (const int error = unknown(event, call)) return error;
  if (!event->captured) return 0;
  return violation(call + " of an event that a capture recorded", kCapturedEvent);
}

}  // namespace

#define CALL                               \
  std::lock_guard<std::mutex> lock(mutex); \
  if (fails(__func__)) return state->fail_with;
#define CALL_WITH_CONTEXT                                                            \
  CALL;                                                                              \
  if (current != &primary || state->retained == 0)                                   \
    return violation(std::string(__func__) + " without a context", kInvalidContext); \
  if (capture_mode != kRelaxed && any_capture())                                     \
    return violation(std::string(__func__) + " breaks a capture", kCaptureUnsupported);
// Functions that always succeed.
#define DOES(function, parameters, statement) \
  EXPORT int function parameters {            \
    CALL;                                     \
    statement;                                \
    return 0;                                 \
  }
#define DOES_WITH_CONTEXT(function, parameters, statement) \
  EXPORT int function parameters {                         \
    CALL_WITH_CONTEXT;                                     \
    statement;                                             \
    return 0;                                              \
  }

DOES(cuInit, (unsigned), )
DOES(cuDeviceGetCount, (int* count), *count = state->devices)
DOES(cuDeviceGetAttribute, (int* value, int attribute, int),
     *value = attribute == 102 ? state->vmm : 0)
DOES(cuDeviceTotalMem_v2, (size_t* bytes, int), *bytes = state->total)
DOES(cuDevicePrimaryCtxRetain, (void** context, int), ++state->retained; *context = &primary)
DOES(cuCtxGetCurrent, (void** context), *context = current)
DOES(cuCtxSetCurrent, (void* context), current = context)
DOES(cuMemGetAllocationGranularity, (size_t* granularity, const AllocationProp*, int),
     *granularity = state->granularity)
DOES(cuThreadExchangeStreamCaptureMode, (int* mode), std::swap(*mode, capture_mode))
DOES_WITH_CONTEXT(cuStreamIsCapturing, (void* stream, int* status),
                  *status = state->streams[number_of(stream)].capturing ? 1 : 0)
DOES_WITH_CONTEXT(cuMemcpyDtoHAsync_v2, (void* to, Address from, size_t size, void* stream),
                  launch_copy(stream, range_of(to, size), range_of(from, size)))
DOES_WITH_CONTEXT(cuMemcpyHtoDAsync_v2, (Address to, const void* from, size_t size, void* stream),
                  launch_copy(stream, range_of(to, size), range_of(from, size)))
DOES_WITH_CONTEXT(cuMemcpyDtoDAsync_v2, (Address to, Address from, size_t size, void* stream),
                  launch_copy(stream, range_of(to, size), range_of(from, size)))
DOES_WITH_CONTEXT(cuMemsetD8Async, (Address to, unsigned char value, size_t size, void* stream),
                  launch(number_of(stream), range_of(to, size), {},
                         [=] { memset(reinterpret_cast<void*>(to), value, size); }))

EXPORT int cuGetErrorName(int code, const char** name) {
  static const std::map<int, const char*> names{
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
      {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
  };
  const auto found = names.find(code);
  *name = found == names.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
  return 0;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  CALL;
  if (ordinal >= state->devices) return kInvalidDevice;
  *device = ordinal;
  return 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  CALL;
  if (state->retained == 0) return violation("the primary context is released too often");
  --state->retained;
  return 0;
}

EXPORT int cuMemAddressReserve(Address* address, size_t size, size_t, Address, unsigned long long) {
  CALL_WITH_CONTEXT;
  if (size % state->granularity != 0)
    return violation("a reservation of no multiple of granularity");
  void* base = pages(size, PROT_NONE);
  if (base == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<Address>(base);
  state->reservations[*address] = size;
  return 0;
}

EXPORT int cuMemAddressFree(Address address, size_t size) {
  CALL_WITH_CONTEXT;
  auto found = state->reservations.find(address);
  if (found == state->reservations.end() || found->second != size)
    return violation("an unknown reservation is freed");
  if (touches_a_mapping(range_of(address, size)))
    return violation("a reservation is freed with memory mapped in it");
  munmap(reinterpret_cast<void*>(address), size);
  state->reservations.erase(found);
  return 0;
}

EXPORT int cuMemCreate(Address* handle, size_t size, const AllocationProp* prop,
                       unsigned long long) {
  CALL_WITH_CONTEXT;
  if (prop->type != 1 || prop->location.type != 1 || size == 0 || size % state->granularity != 0)
    return violation("cuMemCreate with wrong arguments");
  if (state->physical + size > state->total) return kOutOfMemory;
  state->physical += size;
  *handle = state->next_handle++;
  state->handles[*handle] = size;
  state->handle_devices[*handle] = prop->location.id;
  return 0;
}

EXPORT int cuMemRelease(Address handle) {
  CALL_WITH_CONTEXT;
  auto found = state->handles.find(handle);
  if (found == state->handles.end()) return violation("an unknown handle is released");
  for (const auto& [address, mapping] : state->mappings)
    if (mapping.handle == handle) return violation("a handle is released while it is mapped");
  state->physical -= found->second;
  state->handles.erase(found);
  state->handle_devices.erase(handle);
  return 0;
}

EXPORT int cuMemMap(Address address, size_t size, size_t offset, Address handle,
                    unsigned long long) {
  CALL_WITH_CONTEXT;
  auto found = state->handles.find(handle);
  if (found == state->handles.end() || found->second != size || offset != 0)
    return violation("cuMemMap of an unknown handle or a wrong size");
  auto home = state->reservations.upper_bound(address);
  if (home == state->reservations.begin() || (--home)->first + home->second < address + size)
    return violation("cuMemMap outside a reservation");
  if (touches_a_mapping(range_of(address, size))) return violation("cuMemMap over a mapping");
  state->mappings[address] = {size, handle, false, state->handle_devices[handle], {}};
  return 0;
}

EXPORT int cuMemSetAccess(Address address, size_t size, const AccessDesc* access, size_t count) {
  CALL_WITH_CONTEXT;
  std::set<int> peers;
  for (size_t i = 0; i < count; ++i) {
    if (access[i].flags != 3 || access[i].location.type != 1)
      return violation("cuMemSetAccess with wrong rights");
    if (access[i].location.id >= state->devices) return kInvalidDevice;
    peers.insert(access[i].location.id);
  }
  const auto mappings = mappings_of(range_of(address, size));
  if (mappings.empty()) return violation("cuMemSetAccess of no whole mappings");
  for (const auto& found : mappings) {
    found->second.access = peers.count(found->second.device) != 0;
    found->second.peers.insert(peers.begin(), peers.end());
  }
  mprotect(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE);
  return 0;
}

EXPORT int cuMemUnmap(Address address, size_t size) {
  CALL_WITH_CONTEXT;
  const auto mappings = mappings_of(range_of(address, size));
  if (mappings.empty()) return violation("cuMemUnmap of no whole mappings");
  if (busy("cuMemUnmap", range_of(address, size))) return kInvalidValue;
  for (const auto& found : mappings) state->mappings.erase(found);
  mprotect(reinterpret_cast<void*>(address), size, PROT_NONE);
  madvise(reinterpret_cast<void*>(address), size, MADV_DONTNEED);
  return 0;
}

// Where mapped memory is, there may be such memory; it has no handle.
EXPORT int cuMemAllocAsync(Address* address, size_t size, void* stream) {
  CALL_WITH_CONTEXT;
  if (state->streams[number_of(stream)].capturing) return violation("cuMemAllocAsync in a capture");
  const uint64_t whole = (size + state->granularity - 1) / state->granularity * state->granularity;
  if (size == 0) return kInvalidValue;
  if (state->physical + whole > state->total) return kOutOfMemory;
  void* base = pages(whole, PROT_READ | PROT_WRITE);
  if (base == nullptr) return kOutOfMemory;
  *address = reinterpret_cast<Address>(base);
  state->physical += whole;
  state->mappings[*address] = {whole, 0, true, 0, {0}};
  return 0;
}

// In the order of the stream.
EXPORT int cuMemFreeAsync(Address address, void* id) {
  CALL_WITH_CONTEXT;
  auto found = state->mappings.find(address);
  if (found == state->mappings.end() || found->second.handle != 0)
    return violation("cuMemFreeAsync of unknown memory");
  const uint64_t size = found->second.size;
  launch(number_of(id), range_of(address, size));
  enqueue(state->streams[number_of(id)]).effect = [address, size] {
    state->physical -= size;
    state->mappings.erase(address);
    munmap(reinterpret_cast<void*>(address), size);
  };
  if (!state->hold) run_all();
  return 0;
}

EXPORT int cuEventCreate(Event** event, unsigned flags) {
  CALL_WITH_CONTEXT;
  *event = new Event;
  (*event)->timed = (flags & 2) == 0;
  state->events.insert(*event);
  return 0;
}

EXPORT int cuEventDestroy_v2(Event* event) {
  CALL_WITH_CONTEXT;
  if (const int error = unknown(event, __func__)) return error;
  state->events.erase(event);
  delete event;
  return 0;
}

EXPORT int cuEventRecord(Event* event, void* id) {
  CALL_WITH_CONTEXT;
  if (const int error = unknown(event, __func__)) return error;
  const uint64_t number = number_of(id);
  Stream& stream = state->streams[number];
  if (stream.capturing) {
    event->captured = true;
    return 0;
  }
  Operation& operation = enqueue(stream);
  operation.event = event;
  stream.clock[number] = operation.sequence;
  *event = {number, operation.sequence, true, stream.clock, event->timed, 0, false};
  if (!state->hold) run_all();
  return 0;
}

EXPORT int cuEventQuery(Event* event) {
  CALL_WITH_CONTEXT;
  if (const int error = not_askable(event, __func__)) return error;
  return complete(*event) ? 0 : kNotReady;
}

EXPORT int cuEventSynchronize(Event* event) {
  CALL_WITH_CONTEXT;
  if (const int error = not_askable(event, __func__)) return error;
  if (!complete(*event)) run_all();
  return 0;
}

EXPORT int cuStreamWaitEvent(void* id, Event* event, unsigned) {
  CALL_WITH_CONTEXT;
  if (const int error = unknown(event, __func__)) return error;
  ++state->waits;
  Stream& stream = state->streams[number_of(id)];
  if (event->captured) {
    stream.capturing = true;  // the stream joins the capture
    return 0;
  }
  if (stream.capturing)
    return violation("a captured stream waits for an event from outside", kCaptureUnsupported);
  Operation& operation = enqueue(stream);
  operation.is_wait = true;
  operation.wait_stream = event->stream;
  operation.wait_sequence = event->sequence;
  for (const auto& [other, sequence] : event->clock)
    stream.clock[other] = std::max(stream.clock[other], sequence);
  if (!state->hold) run_all();
  return 0;
}

EXPORT int cuEventElapsedTime(float* milliseconds, Event* begin, Event* end) {
  CALL_WITH_CONTEXT;
  if (unknown(begin, __func__) || unknown(end, __func__)) return kInvalidValue;
  if (!begin->timed || !end->timed || !begin->recorded || !end->recorded)
    return violation("cuEventElapsedTime of events that are not timed or not recorded");
  if (!complete(*begin) || !complete(*end)) return kNotReady;
  *milliseconds = static_cast<float>(end->at_ns - begin->at_ns) / 1e6F;
  return 0;
}

EXPORT int cuStreamCreate(void** stream, unsigned) {
  CALL_WITH_CONTEXT;
  *stream = reinterpret_cast<void*>(state->next_stream);
  state->created_streams.insert(state->next_stream);
  state->next_stream += 16;
  return 0;
}

EXPORT int cuStreamDestroy_v2(void* stream) {
  CALL_WITH_CONTEXT;
  if (state->created_streams.erase(number_of(stream)) == 0)
    return violation("cuStreamDestroy of a stream that was not created");
  return 0;
}

EXPORT int cuStreamSynchronize(void* stream) {
  CALL_WITH_CONTEXT;
  if (state->streams[number_of(stream)].capturing)
    return violation("cuStreamSynchronize of a captured stream", kCaptureUnsupported);
  if (!state->streams[number_of(stream)].queue.empty()) run_all();
  return 0;
}

EXPORT int cuCtxSynchronize() {
  CALL_WITH_CONTEXT;
  if (any_capture()) return kCaptureUnsupported;
  run_all();
  return 0;
}

EXPORT int cuMemHostAlloc(void** host, size_t size, unsigned) {
  CALL_WITH_CONTEXT;
  *host = pages(size, PROT_READ | PROT_WRITE);
  if (*host == nullptr) return kOutOfMemory;
  state->host[reinterpret_cast<Address>(*host)] = size;
  return 0;
}

EXPORT int cuMemFreeHost(void* host) {
  CALL_WITH_CONTEXT;
  auto found = state->host.find(reinterpret_cast<Address>(host));
  if (found == state->host.end()) return violation("cuMemFreeHost of unknown memory");
  if (busy("cuMemFreeHost", range_of(found->first, found->second))) return kInvalidValue;
  munmap(host, found->second);
  state->host.erase(found);
  return 0;
}

// ---- For tests.

// Forgets everything; what was leaked stays leaked.
EXPORT void fake_cuda_reset() {
  std::lock_guard<std::mutex> lock(mutex);
  *state = State();
  current = nullptr;
}

EXPORT void fake_cuda_set_memory(uint64_t total) { state->total = total; }
EXPORT void fake_cuda_set_granularity(uint64_t bytes) { state->granularity = bytes; }
EXPORT void fake_cuda_set_devices(int devices) { state->devices = devices; }
EXPORT void fake_cuda_set_vmm(int supported) { state->vmm = supported; }

// The n-th call from now (1: the next) fails with that error; 0: none.
EXPORT void fake_cuda_fail_call(uint64_t n, int error) {
  state->fail_at = n;
  state->fail_with = error;
  if (n != 0) state->failed_call.clear();
}
EXPORT const char* fake_cuda_failed_call() { return state->failed_call.c_str(); }
EXPORT uint64_t fake_cuda_calls() { return state->calls; }

// 2: what fills and copies do is done at once, and only counts as unfinished. For kernels that run
// when they are launched.
EXPORT void fake_cuda_hold(int on) {
  std::lock_guard<std::mutex> lock(mutex);
  state->hold = on != 0;
  state->effects_at_once = on == 2;
  if (!state->hold) run_all();
}
// Queues work on a stream that uses a range.
EXPORT void fake_cuda_launch(uint64_t stream, Address address, uint64_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  launch(stream, range_of(address, size));
}
EXPORT void fake_cuda_capture(uint64_t stream, int on) {
  std::lock_guard<std::mutex> lock(mutex);
  state->streams[stream].capturing = on != 0;
}
// The same, for work that only reads the range.
EXPORT void fake_cuda_read(uint64_t stream, Address address, uint64_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  Range range = range_of(address, size);
  range.writes = false;
  launch(stream, range);
}
// The device whose memory is mapped at an address, or -1.
EXPORT int fake_cuda_device_of(Address address) {
  std::lock_guard<std::mutex> lock(mutex);
  int device = -1;
  mapped(range_of(address, 1), [&](const Mapping& mapping) {
    device = mapping.device;
    return true;
  });
  return device;
}
// Whether all memory of a range may be used by work of a device.
EXPORT int fake_cuda_is_shown(Address address, uint64_t size, int device) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto is_shown = [&](const Mapping& mapping) { return mapping.peers.count(device) != 0; };
  return mapped(range_of(address, size), is_shown) ? 1 : 0;
}
// Work of a device uses a range that it may not use.
EXPORT void fake_cuda_note_hidden(int device) {
  std::lock_guard<std::mutex> lock(mutex);
  violation("work of device " + std::to_string(device) +
            " uses memory of another device, which is not shown to it");
}
EXPORT void fake_cuda_set_work_ns(uint64_t ns) { state->work_ns = ns; }
// Finishes the next operation of a stream; 0 if there is none or it waits for another stream.
EXPORT int fake_cuda_step(uint64_t stream) {
  std::lock_guard<std::mutex> lock(mutex);
  return step(state->streams[stream]);
}
EXPORT uint64_t fake_cuda_unfinished(uint64_t stream) {
  return state->streams[stream].queue.size();
}
EXPORT uint64_t fake_cuda_waits() { return state->waits; }
EXPORT uint64_t fake_cuda_physical_bytes() { return state->physical; }
// The i-th violation since the last reset, or NULL.
EXPORT const char* fake_cuda_violation(uint64_t i) {
  return i < state->violations.size() ? state->violations[i].c_str() : nullptr;
}
// How many reservations, handles, mappings, events, streams, pinned blocks and contexts have not
// been given back.
EXPORT uint64_t fake_cuda_leaks() {
  return state->reservations.size() + state->handles.size() + state->mappings.size() +
         state->events.size() + state->created_streams.size() + state->host.size() +
         static_cast<uint64_t>(state->retained);
}
