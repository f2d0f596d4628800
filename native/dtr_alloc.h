/* dtr_alloc.h: the C interface of the allocator and the rematerialization engine.
 *
 * This header is the manual, and it is what cffi reads: everything between the
 * two CFFI marks is plain C declarations without preprocessor lines.
 *
 * Conventions
 *   - Every function and type begins with dtr_. Handles are opaque.
 *   - Units stand last in names: size_bytes, cost_ns. Addresses are void *.
 *   - A function that can fail returns a dtr_status (int32_t); DTR_OK is 0. The
 *     message of the last failure on the calling thread is dtr_last_error().
 *     A failed call leaves its objects as they were, unless it says otherwise.
 *   - "Any thread" means that the function takes the locks it needs
 *     (allocator/locks.h lists them). No function may be called while holding one.
 *   - No function takes the Python GIL. Callers that hold it may keep it.
 */
#ifndef DTR_ALLOC_H
#define DTR_ALLOC_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* Status codes. */
enum {
  DTR_OK = 0,
  DTR_OUT_OF_MEMORY = 1, /* the budget cannot hold the request, whatever is evicted */
  DTR_INVALID = 2,       /* an argument is wrong; the message names it, its value and what is allowed */
  DTR_DRIVER = 3,        /* the driver (mmap, libcuda) refused a call; the message names the call */
  DTR_STATE = 4          /* the object is not in a state that allows this call */
};

/* The version of this interface. The extension, the bridge and the Python
 * package each compare it before they use anything else. */
int32_t dtr_abi_version(void);

/* The message of the last failed call on this thread; never NULL, "" if none.
 * Valid until the next call on this thread. */
const char *dtr_last_error(void);

/* ---- Pool: a budgeted heap on one device (allocator/) ------------------- */

/* One pool is one device's memory: an address range reserved once, into which
 * physical memory is mapped by chunks, never more of it than the budget. */
typedef struct dtr_pool dtr_pool;

/* "No limit": for dtr_pool_options.budget_bytes and dtr_pool_set_budget. */
/* UINT64_MAX */

typedef struct dtr_pool_options {
  const char *driver;     /* "host", "cuda" or "simulated" */
  int32_t device;         /* device ordinal; 0 for host and simulated */
  uint64_t budget_bytes;  /* limit of mapped bytes; UINT64_MAX: no limit */
  uint64_t reserve_bytes; /* address space to reserve; 0: the driver's default */
  uint64_t chunk_bytes;   /* unit of mapping, a multiple of the driver's granularity; 0: default */
  uint64_t small_bytes;   /* requests up to this many bytes come from slabs; 0: default */
} dtr_pool_options;

typedef struct dtr_pool_stats {
  uint64_t budget_bytes;
  uint64_t allocated_bytes;       /* rounded sizes of the blocks in use */
  uint64_t peak_allocated_bytes;  /* since creation or the last dtr_pool_reset_peak */
  uint64_t reserved_bytes;        /* mapped: never above budget_bytes */
  uint64_t peak_reserved_bytes;
  uint64_t requested_bytes;       /* sizes as asked for, of the blocks in use */
  uint64_t largest_free_bytes;    /* the largest request that fits now: no eviction, no remapping */
  uint64_t live_blocks;
  uint64_t allocations;           /* calls that succeeded, since creation */
  uint64_t frees;
  uint64_t mapped_chunks;         /* map calls to the driver, since creation */
  uint64_t unmapped_chunks;
  uint64_t remaps;                /* allocations that had to give chunks back to the driver first */
  uint64_t out_of_memory_errors;
  uint64_t total_bytes;           /* the device's (or machine's) physical memory; 0 if unknown */
} dtr_pool_stats;

/* One block of a snapshot, in address order. */
typedef struct dtr_block {
  uint64_t address;
  uint64_t size_bytes;
  uint64_t requested_bytes;  /* 0 if free */
  uint64_t stream;
  int32_t state;             /* 0 free, 1 in use, 2 free but waiting for an event of another stream */
  int32_t is_small;          /* 1: an object of a slab */
} dtr_block;

/* Asked for room by an allocation that does not fit. Runs on the allocating
 * thread with no lock held, and may free blocks of the pool. Returns 1 if it
 * freed something (the allocation is tried again), 0 if nothing is left to give. */
typedef int32_t (*dtr_room_fn)(void *context, uint64_t size_bytes, uint64_t stream);

/* Creates a pool; *out is NULL on failure. The caller owns it. Any thread. */
int32_t dtr_pool_create(const dtr_pool_options *options, dtr_pool **out);

/* Unmaps everything and frees the pool. DTR_STATE while blocks are in use. */
int32_t dtr_pool_destroy(dtr_pool *pool);

/* Sets who is asked for room; NULL for nobody. Not while allocations run. */
void dtr_pool_set_room(dtr_pool *pool, dtr_room_fn room, void *context);

/* Allocates at least size_bytes (0 gives NULL and DTR_OK), aligned to 64 bytes
 * on the host and 512 on CUDA, for work on stream. DTR_OUT_OF_MEMORY after the
 * room callback gave up; DTR_DRIVER if the driver failed. Any thread. */
int32_t dtr_pool_allocate(dtr_pool *pool, uint64_t size_bytes, uint64_t stream, void **out);

/* Returns a block (NULL is allowed). DTR_INVALID for an address that is not the
 * start of a block in use, twice-freed ones included. Any thread. */
int32_t dtr_pool_free(dtr_pool *pool, void *address);

/* Declares that work on stream uses the block: once freed, it is not reused
 * before that work is done. Any thread. */
int32_t dtr_pool_record_stream(dtr_pool *pool, void *address, uint64_t stream);

/* Changes the budget. Lowering asks for room and gives chunks back until the
 * mapped bytes fit; DTR_OUT_OF_MEMORY, and the old budget stays, if they do not. */
int32_t dtr_pool_set_budget(dtr_pool *pool, uint64_t budget_bytes);

/* Gives every free chunk back to the driver; *returned_bytes may be NULL. */
int32_t dtr_pool_trim(dtr_pool *pool, uint64_t *returned_bytes);

/* The bytes of the block that starts at address, as rounded; 0 if there is none. */
uint64_t dtr_pool_block_bytes(dtr_pool *pool, const void *address);

/* The start of the block in use that contains address, or NULL. O(log blocks). */
void *dtr_pool_block_start(dtr_pool *pool, const void *address);

/* 1 if address lies in the pool's reservation. Any thread, no lock. */
int32_t dtr_pool_contains(const dtr_pool *pool, const void *address);

void dtr_pool_get_stats(dtr_pool *pool, dtr_pool_stats *out);
void dtr_pool_reset_peak(dtr_pool *pool);

/* Writes up to capacity blocks in address order and the number there is to
 * *count: call again with more room if *count > capacity. */
int32_t dtr_pool_snapshot(dtr_pool *pool, dtr_block *blocks, uint64_t capacity, uint64_t *count);

/* DTR_OK, or DTR_STATE and a message that names the broken rule (allocator/heap.h). */
int32_t dtr_pool_check_invariants(dtr_pool *pool);

/* DTR_OK if libcuda can be loaded and has a device, else DTR_DRIVER and why.
 * library_path NULL: libcuda.so.1. Used by `dtr-alloc info`. */
int32_t dtr_cuda_probe(const char *library_path, int32_t *device_count);

/* Which library the CUDA driver table is looked up in from now on; NULL: libcuda.so.1.
 * For tests with a stand-in. DTR_STATE while a CUDA pool exists. */
int32_t dtr_cuda_set_library(const char *library_path);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
