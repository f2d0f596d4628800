// Exceptions inside, codes outside: every C function runs its body in guard().
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "dtr_alloc.h"
#include "errors.h"

// Marks a function of the C interface; everything else in the library is hidden.
#define DTR_EXPORT extern "C" __attribute__((visibility("default")))

namespace dtr {

// What dtr_last_error() gives on this thread.
void set_last_error(const char* message) noexcept;
const char* last_error() noexcept;

// Runs body() and returns DTR_OK, or keeps the exception's message and returns its code.
template <typename Body>
int32_t guard(Body&& body) noexcept {
  try {
    body();
    return DTR_OK;
  } catch (const OutOfMemory& error) {
    set_last_error(error.what());
    return DTR_OUT_OF_MEMORY;
  } catch (const DriverError& error) {
    set_last_error(error.what());
    return DTR_DRIVER;
  } catch (const InvalidArgument& error) {
    set_last_error(error.what());
    return DTR_INVALID;
  } catch (const std::bad_alloc&) {
    set_last_error("out of host memory for the allocator's own records");
    return DTR_OUT_OF_MEMORY;
  } catch (const std::exception& error) {  // StateError, and what nobody foresaw
    set_last_error(error.what());
    return DTR_STATE;
  }
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
