// handles.h: what callers hold of the core's objects.
//
// A handle is no address. It is a number that says of what kind the object is, which slot of a
// table leads to it, and which of the slot's objects it is. No handle is given twice. So one that
// is NULL, destroyed, of another kind or made up is told apart without a look at memory that may
// be gone, and finding the object of a good one costs a comparison and no lock.
//
//   bits 56 to 63  the kind, from 1 on: no address of a process has such bits
//   bits 20 to 55  which of the slot's objects
//   bits 4 to 19   the slot
//   bits 0 to 3    0
//
// What cannot be told apart: a call that uses an object while another thread destroys it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "dtr_alloc.h"
#include "errors.h"

namespace dtr {

class AnyPool;
class Engine;
class EventLog;
namespace fragment {
class Events;
class Walk;
struct ModelRun;
}  // namespace fragment

enum class Kind : uint8_t {
  none,
  pool,
  event_log,
  engine,
  fragment_events,
  fragment_run,
  fragment_walk
};

template <Kind which, typename T>
struct Handled {
  static constexpr Kind kind = which;
  using Object = T;
};

// The kind and the class of what is behind each opaque type of the C interface.
template <typename Handle>
struct HandleOf;
template <>
struct HandleOf<dtr_pool> : Handled<Kind::pool, AnyPool> {};
template <>
struct HandleOf<dtr_event_log> : Handled<Kind::event_log, EventLog> {};
template <>
struct HandleOf<dtr_engine> : Handled<Kind::engine, Engine> {};
template <>
struct HandleOf<dtr_fragment_events> : Handled<Kind::fragment_events, fragment::Events> {};
template <>
struct HandleOf<dtr_fragment_run> : Handled<Kind::fragment_run, fragment::ModelRun> {};
template <>
struct HandleOf<dtr_fragment_walk> : Handled<Kind::fragment_walk, fragment::Walk> {};

// Where a handle leads. All zero: free.
struct HandleSlot {
  std::atomic<uint64_t> handle{0};  // of the object; 1: it is being made or destroyed
  void* object = nullptr;
  uint64_t serial = 0;             // of the slot's last object
  std::atomic<uint32_t> users{0};  // who needs this one
};

constexpr uint64_t kHandleSlots = 1 << 16;
extern HandleSlot handle_slots[kHandleSlots];

inline HandleSlot& slot_of(uint64_t handle) {
  return handle_slots[(handle >> 4) & (kHandleSlots - 1)];
}

// Throws InvalidArgument: the handle is none of an object of that kind.
[[noreturn]] void refuse_handle(uint64_t handle, Kind kind);

// The object behind a handle. Throws InvalidArgument if there is none of that kind.
template <typename Handle>
auto& of(Handle* handle) {
  using Of = HandleOf<std::remove_const_t<Handle>>;
  const auto number = reinterpret_cast<uint64_t>(handle);
  const HandleSlot& slot = slot_of(number);
  if (slot.handle.load(std::memory_order_acquire) != number ||
      number >> 56 != static_cast<uint64_t>(Of::kind))
    refuse_handle(number, Of::kind);
  return *static_cast<typename Of::Object*>(slot.object);
}

// A handle for an object; OutOfMemory if 65,536 objects have one.
uint64_t give_handle(void* object, Kind kind);

// Takes the handle back: from now on it is one that was destroyed. StateError while others use the
// object. Before free_slot(), revive() undoes it.
void take_handle(uint64_t handle, Kind kind);
void revive(uint64_t handle);
void free_slot(uint64_t handle);

template <typename Handle>
Handle* make_handle(std::unique_ptr<typename HandleOf<Handle>::Object> object) {
  auto* handle = reinterpret_cast<Handle*>(give_handle(object.get(), HandleOf<Handle>::kind));
  object.release();
  return handle;
}

// Destroys the object of a handle after close(object), which may throw: then all is as it was.
template <typename Handle, typename Close>
void destroy(Handle* handle, Close&& close) {
  auto& object = of(handle);
  const auto number = reinterpret_cast<uint64_t>(handle);
  take_handle(number, HandleOf<Handle>::kind);
  try {
    close(object);
  } catch (...) {
    revive(number);
    throw;
  }
  delete &object;
  free_slot(number);
}

template <typename Handle>
void destroy(Handle* handle) {
  destroy(handle, [](const auto&) {});
}

// Who needs an object says so until it ends: that object cannot be destroyed meanwhile. alone:
// StateError if there is another user.
template <typename Handle>
void use(Handle* handle, bool alone = false) {
  of(handle);
  HandleSlot& slot = slot_of(reinterpret_cast<uint64_t>(handle));
  if (slot.users.fetch_add(1) > 0 && alone) {
    slot.users.fetch_sub(1);
    throw StateError("the object is in use by another one already");
  }
  try {
    of(handle);
  } catch (...) {
    slot.users.fetch_sub(1);
    throw;
  }
}

template <typename Handle>
void unuse(Handle* handle) {
  slot_of(reinterpret_cast<uint64_t>(handle)).users.fetch_sub(1);
}

}  // namespace dtr
