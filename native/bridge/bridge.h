// bridge.h: what the parts of the bridge share. One library holds torch_bridge.cpp (storages and
// the allocator), capture.cpp (operators) and, for CUDA, cuda_bridge.cpp.
//
// All memory that the core gives to PyTorch has one deleter, free_block, whatever
// the device: by it the engine tells a storage of ours from others. Memory of an arena
// (CUDA graphs, torch.cuda.MemPool) has another one, free_of_arena: it must stay where it
// is, and its content may change at any time, so an operator on it is not run again.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <string>

#include "dtr/framework.h"

#define DTR_EXPORT extern "C" __attribute__((visibility("default")))

namespace dtr_bridge {

// Set once by dtr_bridge_connect, before anything else is called.
extern const dtr_core* core;

// The deleters of memory from allocate_block, without and with an arena. Null is allowed.
void free_block(void* address);
void free_of_arena(void* address);

// The stream of this thread's work for a device; null where there are none.
using CurrentStream = uint64_t (*)(uint8_t device_type, int8_t device_index);
void set_current_stream(CurrentStream function);

// Whether the job has used two streams of a device. Then autograd's engine reads the DataPtr of
// gradients that wait for their node, to record their streams (torch/csrc/autograd/
// input_buffer.cpp), and must not meet an exception if one is evicted.
extern std::atomic<bool> several_streams;

// How many observers of operators are on, such as profilers. They run before the operators do and
// read addresses of tensors (torch/csrc/profiler/collection.cpp), on any thread; the profiler of
// Python's frames also reads those of gradients and of optimizers' states
// (torch/csrc/autograd/profiler_python.cpp). An exception would leave what they record broken.
extern std::atomic<int32_t> observers;

// Whether this thread runs operators again. What they give is no memory of an arena, even where that of
// the job comes from one now.
inline thread_local bool repeats = false;

// Memory for work on a stream; null for zero bytes. Throws c10::OutOfMemoryError, which
// Python sees as torch.OutOfMemoryError, or c10::Error for every other refusal. It never
// returns null for a request: PyTorch would take that for memory.
void* allocate_block(c10::Device device, size_t size_bytes, uint64_t stream, uint64_t arena = 0);

// Memory for a workspace of an operator, or null. *beyond: it is beyond the budget, and goes back by
// dtr_core.pool_free_beyond.
void* allocate_workspace(c10::Device device, size_t size_bytes, uint64_t stream, bool* beyond);

// capture.cpp: lets go of what repeats an op; and a sentence on the operators whose results fill
// the memory, or nothing.
void drop_closure(void* closure);
std::string largest_holders();

// capture.cpp: whether the interpreter has not ended yet. C++ destroys tensors after that, too.
// Memory of others then stays allocated, because freeing NumPy's takes the GIL.
bool has_python();

// capture.cpp: has the operators of a thread that allocates come to the capture, whoever began it.
void meet_thread();

}  // namespace dtr_bridge
