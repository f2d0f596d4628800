// bridge.h: what the parts of the bridge share. One library holds torch_bridge.cpp
// and, for CUDA, cuda_bridge.cpp.
//
// All memory that the core gives to PyTorch has one deleter, free_block, whatever
// the device: by it the engine tells a storage of ours from others.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "bridge_table.h"

#define DTR_EXPORT extern "C" __attribute__((visibility("default")))

namespace dtr_bridge {

// Set once by dtr_bridge_connect, before anything else is called.
extern const dtr_core* core;

// The deleter of memory from allocate_block. Null is allowed.
void free_block(void* address);

// Memory for work on a stream; null for zero bytes. Throws c10::OutOfMemoryError, which
// Python sees as torch.OutOfMemoryError, or c10::Error for every other refusal. It never
// returns null for a request: PyTorch would take that for memory.
void* allocate_block(c10::Device device, size_t size_bytes, uint64_t stream);

}  // namespace dtr_bridge
