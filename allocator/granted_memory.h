// How much memory this process may have of the machine's: what its control groups (containers,
// batch systems, systemd) and its own limits allow.
#pragma once

#include <cstdint>
#include <string>

namespace dtr {

// In bytes; UINT64_MAX: no limit is known. The least of memory.max (version 2) or
// memory.limit_in_bytes (version 1) of the process's control group and all above it, RLIMIT_AS and
// RLIMIT_DATA.
//
// root: before the paths of all files that are read, for tests.
uint64_t granted_memory(const std::string& root);

}  // namespace dtr
