/* dtr/toy.h: a simulated framework: the engine without PyTorch. */
#ifndef DTR_TOY_H
#define DTR_TOY_H

#include <stdint.h>

#include "dtr/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* A tensor framework of our own behind the table of dtr/framework.h: for tests, and to
 * replay op logs. A storage has one block of memory; tensors look at it. A tensor is
 * what the op functions above take as a tensor's address, and its storage is a handle.
 *
 * Who owns what: the caller owns each dtr_sim_tensor, which holds one strong reference
 * to its storage. The last one gives the memory back, as PyTorch's would: to the core,
 * which may keep or forget the content. Handles are borrowed, from a tensor or from a
 * step of a rematerialization. Release all tensors, let the engine forget the rest
 * (dtr_engine_reset), then destroy the framework, then the engine. Any thread; two
 * threads may not release or change the same tensor at once. */
typedef struct dtr_sim dtr_sim;
typedef struct dtr_sim_tensor dtr_sim_tensor;

/* Connects a new framework to the engine, which must have none. The caller owns it. */
int32_t dtr_sim_create(dtr_engine* engine, dtr_sim** out);
/* DTR_STATE while tensors exist, or storages that the engine refers to. */
int32_t dtr_sim_destroy(dtr_sim* sim);
/* The stream of this thread's work from now on, on all devices but the CPU; 0 at first. */
void dtr_sim_use_stream(uint64_t stream);

/* A tensor over new memory of undefined content, for work on stream; may evict. strides
 * NULL: contiguous; else a dense order of the dimensions. scalar_type is a number of
 * c10::ScalarType. DTR_INVALID for a device without a pool; fails as the pool does. */
int32_t dtr_sim_make_tensor(dtr_sim* sim, int32_t device_type, int32_t device_index,
                            uint64_t stream, int32_t scalar_type, int32_t ndim,
                            const int64_t* sizes, const int64_t* strides, dtr_sim_tensor** out);
/* A further tensor over base's storage, evicted or not; offset counts from the storage's
 * start, in elements. DTR_INVALID if it would reach beyond the storage. */
int32_t dtr_sim_make_view(const dtr_sim_tensor* base, int32_t ndim, const int64_t* sizes,
                          const int64_t* strides, int64_t offset, dtr_sim_tensor** out);
/* The same over a handle, of a step of a rematerialization. DTR_STATE if it is dead. */
int32_t dtr_sim_tensor_over(void* handle, int32_t scalar_type, int32_t ndim, const int64_t* sizes,
                            const int64_t* strides, int64_t offset, dtr_sim_tensor** out);
/* A tensor over memory of the caller, which must outlive the storage. Any device. */
int32_t dtr_sim_tensor_from(dtr_sim* sim, int32_t device_type, int32_t device_index, void* address,
                            int32_t scalar_type, int64_t elements, dtr_sim_tensor** out);
/* Gives the tensor's storage new memory of undefined content and lets the old go, past
 * the recorder (PyTorch: resize_ to nothing and back, set_data). */
int32_t dtr_sim_replace_memory(dtr_sim_tensor* tensor, uint64_t stream);
/* Fails iff the tensor is an argument of an op that has not ended. */
int32_t dtr_sim_release_tensor(dtr_sim_tensor* tensor);

/* The tensor's storage; valid while a tensor over it exists. */
void* dtr_sim_handle(const dtr_sim_tensor* tensor);
/* The address of the tensor's first element; NULL if it is evicted or empty. */
void* dtr_sim_data(const dtr_sim_tensor* tensor);
/* The size of a handle's storage. */
uint64_t dtr_sim_storage_bytes(const void* handle);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
