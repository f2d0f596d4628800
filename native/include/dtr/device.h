/* dtr/device.h: work on a pool's device, and what is known of CUDA. */
#ifndef DTR_DEVICE_H
#define DTR_DEVICE_H

#include <stdint.h>

#include "dtr/pool.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* A driver without streams (host, simulated, counted) does all work at once, in the order of calls,
 * whatever the stream. Below, DTR_DRIVER if the driver refuses goes without saying. */

/* Orders work: what is queued on stream from now on starts after all that is now queued on after.
 * The caller does not wait. */
int32_t dtr_pool_order(dtr_pool* pool, uint64_t stream, uint64_t after);

/* The same after all work that the pool knows to use the block in use that starts at address: of the
 * stream for which it was allocated, and of those that were recorded (dtr_pool_record_stream).
 * DTR_INVALID if there is no such block, DTR_STATE if one of these streams is being captured into a
 * graph. */
int32_t dtr_pool_order_uses(dtr_pool* pool, void* address, uint64_t stream);

/* Begins a timer: a pair of events around work on a stream that is not being captured. *timer is 0
 * where the driver has no streams, and while hundreds of timers are open: such work is timed by the
 * clock. */
int32_t dtr_pool_time_begin(dtr_pool* pool, uint64_t stream, uint64_t* timer);

/* Ends the timer's work, on the same stream. Timer 0 is allowed. */
int32_t dtr_pool_time_end(dtr_pool* pool, uint64_t timer);

/* Drops a timer that was begun and will not be ended. Any other number is ignored. */
int32_t dtr_pool_time_drop(dtr_pool* pool, uint64_t timer);

/* Writes up to capacity timers that ended and whose work is done, with the time that it took (-1:
 * the driver would not say). Returns how many. Each timer is written once. Never waits. */
uint64_t dtr_pool_times(dtr_pool* pool, uint64_t* timers, int64_t* ns, uint64_t capacity);

/* Allocates host memory that the device can copy from and to while the host goes on (pinned on
 * CUDA). It counts for no budget. Simulated and counted pools give addresses without memory, and
 * copy nothing.
 * Owner: the caller owns the memory until dtr_pool_host_free. */
int32_t dtr_pool_host_allocate(dtr_pool* pool, uint64_t size_bytes, void** out);

/* Frees host memory, of which no copy may be in flight (dtr_pool_synchronize); NULL is allowed.
 * What the driver refuses to take back is offered again later, at the latest by dtr_pool_destroy.
 * Fails iff: DTR_INVALID if it is not of this pool. */
int32_t dtr_pool_host_free(dtr_pool* pool, void* host);

/* Copies a block's bytes to host memory, and back, in stream order. The caller does not wait: other
 * work may use host, and on the way back the block, only behind the stream.
 * Fails iff: DTR_INVALID if a range is not in a block in use, or not in one piece of the pool's
 * host memory. */
int32_t dtr_pool_copy_out(dtr_pool* pool, void* host, const void* address, uint64_t size_bytes,
                          uint64_t stream);
int32_t dtr_pool_copy_in(dtr_pool* pool, void* address, const void* host, uint64_t size_bytes,
                         uint64_t stream);

/* Copies the content of the block that starts at from to the block that starts at to, in stream
 * order, behind all work that was recorded to use the first (dtr_pool_record_stream). The caller
 * does not wait, and orders the uses of the second. Where memory has no contents nothing is done.
 * *timer (may be NULL) is a timer of the copy that has ended.
 * Fails iff: DTR_INVALID if a range is not in a block in use; DTR_STATE if stream, or another
 * stream that uses the block, is being captured. */
int32_t dtr_pool_copy(dtr_pool* pool, void* to, const void* from, uint64_t size_bytes,
                      uint64_t stream, uint64_t* timer);

/* Waits on the host for the stream's work so far. Holds no lock meanwhile. */
int32_t dtr_pool_synchronize(dtr_pool* pool, uint64_t stream);

/* Writes the pool's own stream, for copies beside the job's work; 0 where there are no streams.
 * It is always the same, and waits for no other stream unless told to (dtr_pool_order). */
int32_t dtr_pool_side_stream(dtr_pool* pool, uint64_t* stream);

/* Looks for libcuda and writes how many devices it has. library_path NULL: libcuda.so.1.
 * Fails iff: DTR_DRIVER if it cannot be loaded, lacks a function, or has no device. */
int32_t dtr_cuda_probe(const char* library_path, int32_t* device_count);

/* Sets the library in which CUDA's functions are looked up; NULL: libcuda.so.1. For tests.
 * Fails iff: DTR_STATE if a CUDA pool exists. */
int32_t dtr_cuda_set_library(const char* library_path);

/* CFFI END */

DTR_C_END

#endif
