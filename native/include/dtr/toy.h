/* dtr/toy.h: a simulated framework: the engine without PyTorch. */
#ifndef DTR_TOY_H
#define DTR_TOY_H

#include <stdint.h>

#include "dtr/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* A tensor framework of our own behind the table of dtr/framework.h, for tests and to simulate op
 * logs. A storage has one block of memory; tensors look at it. The op functions take a tensor as
 * its address, and its storage is a handle.
 * Owner: the caller owns each dtr_sim_tensor, which holds one strong reference to its storage. The
 * last one gives the memory back to the core, as PyTorch's would: the core may keep or forget the
 * content. Handles are borrowed, from a tensor or from a step of a rematerialization. At the end
 * release all tensors, let the engine forget the rest (dtr_engine_reset), destroy the framework,
 * then the engine.
 * Threads: any, but one at a time releases or changes the same tensor. */
typedef struct dtr_sim dtr_sim;
typedef struct dtr_sim_tensor dtr_sim_tensor;

/* Creates a framework and connects it to the engine.
 * Fails iff: DTR_STATE if the engine has a framework. */
int32_t dtr_sim_create(dtr_engine* engine, dtr_sim** out);

/* Frees the framework.
 * Fails iff: DTR_STATE if it has tensors, or storages that the engine refers to. */
int32_t dtr_sim_destroy(dtr_sim* sim);

/* Sets the stream of this thread's work on all devices but the CPU; 0 at first. Never fails. */
void dtr_sim_use_stream(uint64_t stream);

/* Makes a tensor over new memory of undefined content, for work on stream; may evict. strides NULL:
 * contiguous; else a dense order of the dimensions. scalar_type is a number of c10::ScalarType.
 * Fails iff: DTR_INVALID if the device has no pool; and as dtr_pool_allocate. */
int32_t dtr_sim_make_tensor(dtr_sim* sim, int32_t device_type, int32_t device_index,
                            uint64_t stream, int32_t scalar_type, int32_t ndim,
                            const int64_t* sizes, const int64_t* strides, dtr_sim_tensor** out);

/* Makes a further tensor over base's storage, evicted or not. offset counts from the storage's
 * start, in elements.
 * Fails iff: DTR_INVALID if the view would reach beyond the storage. */
int32_t dtr_sim_make_view(const dtr_sim_tensor* base, int32_t ndim, const int64_t* sizes,
                          const int64_t* strides, int64_t offset, dtr_sim_tensor** out);

/* Makes a tensor over a handle, of a step of a rematerialization.
 * Fails iff: DTR_STATE if the storage is dead; DTR_INVALID if the view would reach beyond it. */
int32_t dtr_sim_tensor_over(void* handle, int32_t scalar_type, int32_t ndim, const int64_t* sizes,
                            const int64_t* strides, int64_t offset, dtr_sim_tensor** out);

/* Makes a tensor over memory of the caller, on any device.
 * Owner: the memory stays the caller's, and outlives the storage. */
int32_t dtr_sim_tensor_from(dtr_sim* sim, int32_t device_type, int32_t device_index, void* address,
                            int32_t scalar_type, int64_t elements, dtr_sim_tensor** out);

/* Gives the tensor's storage new memory of undefined content and frees the old, past the recorder
 * (as PyTorch's set_data, or resize_ to nothing and back).
 * Fails iff: as dtr_pool_allocate. */
int32_t dtr_sim_replace_memory(dtr_sim_tensor* tensor, uint64_t stream);

/* Frees a tensor, and with the last one its storage.
 * Fails iff: DTR_STATE if the tensor is an argument of an op that has not ended. */
int32_t dtr_sim_release_tensor(dtr_sim_tensor* tensor);

/* Returns the tensor's storage.
 * Owner: the tensors over it. */
void* dtr_sim_handle(const dtr_sim_tensor* tensor);

/* Returns the address of the tensor's first element; NULL if it is evicted or empty. */
void* dtr_sim_data(const dtr_sim_tensor* tensor);

/* Returns the size of a handle's storage. */
uint64_t dtr_sim_storage_bytes(const void* handle);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
