// spare_memory.h: memory kept back for the engine's records, so that none of its calls fails half
// way where the system refuses more.
//
// Where operator new finds no memory, on whatever thread, the spare memory goes back to the C
// library, and it tries again (std::set_new_handler). The next operator takes it anew before it
// changes anything, or fails.
#pragma once

#include <cstdint>

namespace dtr {

// From now on at least so many bytes are kept back. Throws OutOfMemory.
void keep_spare_memory(uint64_t size_bytes);

}  // namespace dtr
