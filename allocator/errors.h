// The four ways in which the core fails; native/base/error.h turns them into status codes.
#pragma once

#include <cinttypes>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

namespace dtr {

// The budget (or the device) cannot hold a request, whatever is given back.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// In the message of an OutOfMemory, before what the driver said, if it had less than the budget.
constexpr const char* kRefusedByDriver = "; the driver refused memory within the budget: ";

// The driver refused a call. The message names the call.
struct DriverError : std::runtime_error {
  explicit DriverError(const std::string& message, bool no_memory = false)
      : std::runtime_error(message), out_of_memory(no_memory) {}
  // The driver had no memory left to give, so that freeing some may help.
  bool out_of_memory;
};

// An argument is wrong. The message names it, its value and what is allowed.
struct InvalidArgument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void invalid(const std::string& name, const std::string& value,
                                 const std::string& allowed) {
  throw InvalidArgument(name + " is " + value + "; allowed: " + allowed);
}
template <std::integral Number>
[[noreturn]] void invalid(const char* name, Number value, const std::string& allowed) {
  invalid(name, std::to_string(value), allowed);
}

// The object is not in a state that allows the call.
struct StateError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Runs body() where nothing may be thrown, as in a destructor: standard error says what was not done.
template <typename Body>
void or_say(const char* not_done, Body&& body) noexcept {
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtr_alloc: %s: %s\n", not_done, error.what());
  }
}

// "12.0 MiB (12582912 bytes)", "no limit" for UINT64_MAX.
inline std::string size_text(uint64_t bytes) {
  if (bytes == UINT64_MAX) return "no limit";
  static const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[64];
  if (unit == 0)
    std::snprintf(text, sizeof text, "%" PRIu64 " bytes", bytes);
  else
    std::snprintf(text, sizeof text, "%.1f %s (%" PRIu64 " bytes)", value, units[unit], bytes);
  return text;
}

// "0x7f0000001000"
inline std::string address_text(uint64_t address) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%" PRIx64, address);
  return text;
}

}  // namespace dtr
