#include "error.h"

#include <cstdio>

namespace dtr {

namespace {

// A fixed buffer, so that keeping a message can never fail; a longer message is cut.
thread_local char message_of_this_thread[4096];

}  // namespace

void set_last_error(const char* message) noexcept {
  std::snprintf(message_of_this_thread, sizeof message_of_this_thread, "%s", message);
}

const char* last_error() noexcept { return message_of_this_thread; }

}  // namespace dtr
