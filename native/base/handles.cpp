#include "handles.h"

namespace dtr {

namespace {

constexpr uint64_t kClaimed = 1;  // a slot's object is being made or destroyed

struct Name {
  const char* type;
  const char* from;  // the functions that give one
};
constexpr Name kNames[] = {{"nothing", ""},
                           {"dtr_pool", "dtr_pool_create"},
                           {"dtr_event_log", "dtr_event_log_create"},
                           {"dtr_engine", "dtr_engine_create"},
                           {"dtr_fragment_events", "dtr_fragment_load"},
                           {"dtr_fragment_run", "dtr_fragment_run_model"},
                           {"dtr_fragment_walk", "dtr_fragment_walk_run"}};
constexpr uint64_t kKinds = sizeof kNames / sizeof kNames[0];

const Name& name_of(Kind kind) { return kNames[static_cast<size_t>(kind)]; }

uint64_t serial_of(uint64_t handle) { return handle >> 20 & ((uint64_t{1} << 36) - 1); }

std::atomic<uint64_t> next_slot{0};

}  // namespace

HandleSlot handle_slots[kHandleSlots];

void refuse_handle(uint64_t handle, Kind kind) {
  const Name& wanted = name_of(kind);
  std::string is = handle == 0 ? "NULL" : address_text(handle) + ", which is no handle";
  const uint64_t given = handle >> 56;
  if (given > 0 && given < kKinds && (handle & 15) == 0) {
    const HandleSlot& slot = slot_of(handle);
    const std::string type = kNames[given].type;
    if (slot.handle.load() == handle)
      is = "a " + type;
    else if (serial_of(handle) > 0 && serial_of(handle) <= slot.serial)
      is = "a " + type + " that was destroyed";
  }
  throw InvalidArgument("the " + std::string(wanted.type) + " is " + is + "; allowed: one of " +
                        wanted.from + " that was not destroyed");
}

// From where the last one was found, so that a slot rests for as long as can be.
uint64_t give_handle(void* object, Kind kind) {
  for (uint64_t tries = 0; tries < kHandleSlots; ++tries) {
    const uint64_t index = next_slot.fetch_add(1, std::memory_order_relaxed) % kHandleSlots;
    HandleSlot& slot = handle_slots[index];
    uint64_t none = 0;
    if (!slot.handle.compare_exchange_strong(none, kClaimed)) continue;
    slot.object = object;
    slot.users.store(0);
    ++slot.serial;
    const uint64_t handle = static_cast<uint64_t>(kind) << 56 | slot.serial << 20 | index << 4;
    slot.handle.store(handle, std::memory_order_release);
    return handle;
  }
  throw OutOfMemory("no handle is left for a " + std::string(name_of(kind).type) +
                    "; allowed: " + std::to_string(kHandleSlots) + " objects at a time");
}

void take_handle(uint64_t handle, Kind kind) {
  HandleSlot& slot = slot_of(handle);
  uint64_t expected = handle;
  if (!slot.handle.compare_exchange_strong(expected, kClaimed)) refuse_handle(handle, kind);
  if (const uint32_t users = slot.users.load()) {
    revive(handle);
    throw StateError("the " + std::string(name_of(kind).type) + " is in use by " +
                     std::to_string(users) +
                     " others (captures, engines); end or destroy them first");
  }
}

void revive(uint64_t handle) { slot_of(handle).handle.store(handle, std::memory_order_release); }

void free_slot(uint64_t handle) { slot_of(handle).handle.store(0, std::memory_order_release); }

}  // namespace dtr
