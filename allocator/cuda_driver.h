// What the CUDA driver offers beyond the table of verbs of driver.h.
#pragma once

#include <cstdint>

namespace dtr {

// The number of devices, after loading a library (nullptr: the one that is set). Throws
// DriverError if it cannot be loaded, lacks a function, or has no device.
int32_t cuda_probe(const char* library_path);

// Where the driver's functions are looked up from now on; nullptr: libcuda.so.1. Throws
// StateError while a CUDA driver object exists.
void cuda_set_library(const char* library_path);

}  // namespace dtr
