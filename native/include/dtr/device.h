/* dtr/device.h: work on a pool's device, and what is known of CUDA. */
#ifndef DTR_DEVICE_H
#define DTR_DEVICE_H

#include <stdint.h>

#include "dtr/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* ---- Work on a pool's device. On a driver without streams (host, simulated, counted) all work
 * is done at once, in the order of calls, whatever the stream. Any thread. */

/* Work queued on stream from now on starts after all that is now queued on after. The caller
 * does not wait. */
int32_t dtr_pool_order(dtr_pool* pool, uint64_t stream, uint64_t after);

/* Timers: event pairs around work on a stream. *timer is 0 where the driver has no streams, and
 * while hundreds of timers are open: time that work by the clock. Not on a stream that is being
 * captured. */
int32_t dtr_pool_time_begin(dtr_pool* pool, uint64_t stream, uint64_t* timer);
/* The work ends here, on the same stream. Timer 0 is allowed. */
int32_t dtr_pool_time_end(dtr_pool* pool, uint64_t timer);
/* For a timer that was begun and will not be ended. Others are let be. */
int32_t dtr_pool_time_drop(dtr_pool* pool, uint64_t timer);
/* Writes up to capacity timers that ended and whose work is done, with what it took (-1: the
 * driver would not say). Each is written once. Never waits. Returns how many it wrote. */
uint64_t dtr_pool_times(dtr_pool* pool, uint64_t* timers, int64_t* ns, uint64_t capacity);

/* Host memory that the device can copy from and to while the host goes on (pinned on CUDA). It
 * counts for no budget. DTR_STATE from dtr_pool_destroy while any is in use. Simulated and
 * counted pools give addresses without memory, and copy nothing. */
int32_t dtr_pool_host_allocate(dtr_pool* pool, uint64_t size_bytes, void** out);
/* Copies that use it must be done (dtr_pool_synchronize). NULL is allowed. */
int32_t dtr_pool_host_free(dtr_pool* pool, void* host);

/* Copies a block's bytes in stream order. The caller does not wait: host, and on the way back
 * the block too, may be used by others only behind the stream. DTR_INVALID for a range that is
 * not in a block in use, or not in one piece of its host memory. */
int32_t dtr_pool_copy_out(dtr_pool* pool, void* host, const void* address, uint64_t size_bytes,
                          uint64_t stream);
int32_t dtr_pool_copy_in(dtr_pool* pool, void* address, const void* host, uint64_t size_bytes,
                         uint64_t stream);

/* Copies the content of the block that starts at from to the one that starts at to, in stream
 * order, behind all work that was recorded to use the first (dtr_pool_record_stream). The caller
 * does not wait, and orders what uses the second. Where memory has no contents nothing is done.
 * *timer is a timer of the copy, as dtr_pool_time_end leaves it; timer may be NULL. DTR_INVALID
 * for ranges that are not in blocks in use, DTR_STATE if a stream concerned is being captured. */
int32_t dtr_pool_copy(dtr_pool* pool, void* to, const void* from, uint64_t size_bytes,
                      uint64_t stream, uint64_t* timer);

/* Waits on the host for the stream's work so far, without a lock. */
int32_t dtr_pool_synchronize(dtr_pool* pool, uint64_t stream);

/* A stream of the pool's own, for copies beside the job's work: it waits for no other stream
 * unless told to (dtr_pool_order). 0 where there are no streams. Always the same. */
int32_t dtr_pool_side_stream(dtr_pool* pool, uint64_t* stream);

/* DTR_OK if libcuda can be loaded and has a device, else DTR_DRIVER and why.
 * library_path NULL: libcuda.so.1. Used by `dtr-alloc info`. */
int32_t dtr_cuda_probe(const char* library_path, int32_t* device_count);

/* For benchmarks: what the driver's calls cost that a chunk of memory takes to come (create, map,
 * set access) and to go (unmap, release): medians over rounds (1 to 2^20), by the host's clock,
 * outside of every pool. DTR_INVALID for a chunk_bytes that is no multiple of the granularity.
 * No pointer may be NULL. */
int32_t dtr_cuda_map_times(int32_t device, uint64_t chunk_bytes, uint64_t rounds,
                           int64_t* create_ns, int64_t* map_ns, int64_t* access_ns,
                           int64_t* unmap_ns, int64_t* release_ns);

/* Which library the CUDA driver table is looked up in from now on; NULL: libcuda.so.1.
 * For tests with a stand-in. DTR_STATE while a CUDA pool exists. */
int32_t dtr_cuda_set_library(const char* library_path);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
