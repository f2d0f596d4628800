// Exceptions inside, codes outside: every C function runs its body in guard().
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "dtr_alloc.h"
#include "errors.h"

// Marks a function of the C interface; everything else in the library is hidden.
#define DTR_EXPORT extern "C" __attribute__((visibility("default")))

namespace dtr {

// What dtr_last_error() gives on this thread. A fixed buffer, so that keeping a message can never
// fail; a longer message is cut.
inline thread_local char last_error_of_thread[4096];
__attribute__((noinline)) inline void set_last_error(const char* message) noexcept {
  std::snprintf(last_error_of_thread, sizeof last_error_of_thread, "%s", message);
}
inline const char* last_error() noexcept { return last_error_of_thread; }

inline int32_t status_of(const std::exception& error) noexcept {
  if (dynamic_cast<const OutOfMemory*>(&error)) return DTR_OUT_OF_MEMORY;
  if (dynamic_cast<const DriverError*>(&error)) return DTR_DRIVER;
  if (dynamic_cast<const InvalidArgument*>(&error)) return DTR_INVALID;
  return DTR_STATE;  // StateError, and what nobody foresaw
}

// Runs body() and returns DTR_OK, or keeps the exception's message and returns its code.
template <typename Body>
int32_t guard(Body&& body) noexcept {
  try {
    body();
    return DTR_OK;
  } catch (const std::bad_alloc&) {
    set_last_error("out of host memory for the allocator's own records");
    return DTR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return status_of(error);
  } catch (...) {
    set_last_error("a callback threw what is no std::exception");
    return DTR_STATE;
  }
}

// For functions that return a value: what body() returns, or, with its message kept, neutral.
template <typename T, typename Body>
T answer(T neutral, Body&& body) noexcept {
  guard([&] { neutral = body(); });
  return neutral;
}

// For those whose results are 0 and more: what body() returns, or -status.
template <typename Body>
int64_t result_or_status(Body&& body) noexcept {
  int64_t result = 0;
  const int32_t status = guard([&] { result = body(); });
  return status == DTR_OK ? result : -status;
}

// Throw InvalidArgument for an argument that is not what it must be.
inline void require(const void* argument, const char* name) {
  if (!argument) invalid(name, "NULL", "a valid pointer");
}
// An array of so many may be NULL only if there are none.
inline void require_array(const void* array, uint64_t count, const char* name) {
  if (count > 0) require(array, name);
}
inline void require_between(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    invalid(name, std::to_string(value), std::to_string(least) + " to " + std::to_string(most));
}

// A range of addresses that is none: it ends before it begins.
inline void require_range(const char* name, const void* begin, const void* end) {
  if (begin > end) invalid(name, "a range that ends before it begins", "begin <= end");
}

// For functions that give a value through a pointer, which is zero where they fail.
template <typename T, typename Make>
int32_t give(T* to, const char* name, Make&& make) noexcept {
  return guard([&] {
    require(to, name);
    *to = T{};
    *to = make();
  });
}

// The reverse: the exception that a status other than DTR_OK stands for.
[[noreturn]] inline void throw_status(int32_t status, const std::string& message) {
  if (status == DTR_OUT_OF_MEMORY) throw OutOfMemory(message);
  if (status == DTR_DRIVER) throw DriverError(message);
  if (status == DTR_STATE) throw StateError(message);
  throw InvalidArgument(message);
}

// For what the engine asks of pools.
inline void check_status(int32_t status) {
  if (status != DTR_OK) throw_status(status, last_error());
}

}  // namespace dtr
