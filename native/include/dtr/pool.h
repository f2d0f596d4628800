/* dtr/pool.h: a pool: a budgeted heap on one device (allocator/). */
#ifndef DTR_POOL_H
#define DTR_POOL_H

#include <stdint.h>

#include "dtr/status.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* One pool is one device's memory: an address range reserved once, into which
 * physical memory is mapped by chunks, never more of it than the budget. */
typedef struct dtr_pool dtr_pool;

typedef struct dtr_pool_options {
  const char* driver;     /* "host", "cuda", "simulated"; or one without a heap, for which nothing
                             counts that follows the budget: "counted" only counts bytes; "guarded"
                             is host memory in pages of each block's own, which nobody can touch
                             once it is freed, for debugging */
  int32_t device;         /* device ordinal; 0 for all but cuda */
  uint64_t budget_bytes;  /* limit of mapped bytes; UINT64_MAX: no limit */
  uint64_t reserve_bytes; /* address space to reserve; 0: the driver's default */
  uint64_t chunk_bytes;   /* unit of mapping, a multiple of the driver's granularity; 0: default */
  uint64_t small_bytes;   /* requests up to this many bytes come from slabs; 0: default */
  uint64_t keep_bytes;    /* mapped bytes under no block that stay mapped when blocks are freed;
                             what is above goes back to the driver once the work on it is done.
                             0 and UINT64_MAX: all stay, until they are trimmed or needed
                             elsewhere; 1: none */
  int32_t poison;         /* 1: the bytes of freed blocks become 0xFF (NaN), in stream order; not
                             in arenas. For debugging, on drivers whose memory has contents */
  int32_t fixed;     /* 1: as many addresses as the budget has bytes (whole chunks), in one heap
                        without slabs: remapping cannot help against fragmentation. A changed
                        budget moves the end of the addresses: lowering it needs all above
                        the new end to go */
  int32_t placement; /* which hole a large block goes into: DTR_PLACE_* */
} dtr_pool_options;

enum {
  DTR_PLACE_BEST_FIT = 0,    /* the smallest that fits, of these the lowest */
  DTR_PLACE_FIRST_FIT = 1,   /* the lowest that fits */
  DTR_PLACE_TWO_ENDED = 2,   /* best fit, and from the end of the hole that the hint says */
  DTR_PLACE_SIZE_CLASSES = 3 /* best fit of sizes rounded to 8 classes for each power of two; up to
                                an eighth of a chunk (where the pool has slabs and small_bytes is 0)
                                from slabs */
};

enum {
  DTR_HINT_NONE = 0,
  DTR_HINT_EXPENSIVE = 1, /* to recompute; or pinned */
  DTR_HINT_CHEAP = 2,     /* to recompute */
  DTR_HINT_WORKSPACE = 3 /* not a tensor's: a refusal does not count as an error, as others serve it
                             (dtr_pool_allocate_beyond) */
};

typedef struct dtr_pool_stats {
  uint64_t budget_bytes;
  uint64_t allocated_bytes;      /* rounded sizes of the blocks in use */
  uint64_t peak_allocated_bytes; /* since creation or the last dtr_pool_reset_peak */
  uint64_t reserved_bytes;       /* mapped: never above budget_bytes */
  uint64_t peak_reserved_bytes;
  uint64_t requested_bytes;    /* sizes as asked for, of the blocks in use */
  uint64_t largest_free_bytes; /* the largest request that fits now: no eviction, no remapping */
  uint64_t live_blocks;
  uint64_t allocations; /* calls that succeeded, since creation */
  uint64_t frees;
  uint64_t mapped_chunks; /* map calls to the driver, since creation */
  uint64_t unmapped_chunks;
  uint64_t remaps; /* allocations that had to give chunks back to the driver first */
  uint64_t out_of_memory_errors;
  uint64_t total_bytes; /* the device's physical memory; of the machine's, what the process may have
                           (control groups, ulimit); 0 if unknown */
  uint64_t peak_requested_bytes;
  uint64_t ever_allocated_bytes; /* rounded sizes of all blocks ever given, since creation */
  uint64_t ever_requested_bytes; /* the same, as asked for */
  uint64_t chunk_bytes;          /* the unit of mapping */
  uint64_t host_waits;   /* calls of the pool's that made the host wait for the device, since
                          creation. Unmapping may wait inside the driver: see unmapped_chunks */
  uint64_t host_wait_ns; /* their time */
  uint64_t peak_live_blocks;
  uint64_t peak_unused_bytes; /* mapped, and in no block in use */
  uint64_t beyond_bytes;      /* beyond the budget: in use, of dtr_pool_allocate_beyond */
  uint64_t peak_beyond_bytes;
  uint64_t beyond_requests; /* that succeeded, since creation */
  uint64_t beyond_ns;       /* the host's time from these requests until they were freed */
} dtr_pool_stats;

/* The states of a block. Only dtr_pool_run tells the last one from the first. */
enum {
  DTR_BLOCK_FREE = 0,
  DTR_BLOCK_IN_USE = 1,
  DTR_BLOCK_WITHHELD = 2, /* waits for other streams; of a run also: free, and serves only some
                             (arenas, captured streams) */
  DTR_BLOCK_SETTLING = 3  /* free, and the work of the stream that freed it may be running */
};

/* One block of a snapshot, in address order. */
typedef struct dtr_block {
  uint64_t address;
  uint64_t size_bytes;
  uint64_t requested_bytes; /* 0 if free */
  uint64_t stream;
  int32_t state;    /* DTR_BLOCK_... */
  int32_t is_small; /* 1: where slabs lie: an object of one, or no place for a large block */
  /* The open arena that has it, in use or free; 0: none; UINT64_MAX: if free, it serves nobody until
   * the device is done (closed arenas, captured streams). */
  uint64_t arena;
} dtr_block;

/* The answers of a dtr_room_fn. */
enum {
  DTR_ROOM_IS_NONE = 0,  /* nothing is left to give */
  DTR_ROOM_IS_FREED = 1, /* something was freed: the allocation is tried again */
  DTR_ROOM_BY_REMAP = 2  /* the allocation is tried again, and may remap: take memory that is under
                            no block from its addresses to others. With a dtr_room_fn a pool does so
                            only after this answer or DTR_ROOM_IS_NONE, without one always */
};

/* Makes room for an allocation that does not fit, and returns one of the above. Runs on the
 * allocating thread with no lock held, and may free blocks of the pool. */
typedef int32_t (*dtr_room_fn)(void* context, uint64_t size_bytes, uint64_t stream);

/* Creates a pool.
 * Fails iff: DTR_INVALID if an option is out of its range; DTR_DRIVER if the driver refuses,
 * libcuda is missing, or the CUDA device has no virtual memory management. */
int32_t dtr_pool_create(const dtr_pool_options* options, dtr_pool** out);

/* Unmaps everything and frees the pool.
 * Fails iff: DTR_STATE if blocks, memory beyond the budget or host memory are in use, a stream of the
 * device is being captured, or an engine has the pool; DTR_DRIVER if the driver refuses. It may be
 * called again then. */
int32_t dtr_pool_destroy(dtr_pool* pool);

/* Sets the function that is asked for room; NULL for none. An engine sets its pools' functions:
 * leave those.
 * Owner: the caller keeps what context points to as long as it is set.
 * Threads: any, while no allocation runs. */
int32_t dtr_pool_set_room(dtr_pool* pool, dtr_room_fn room, void* context);

/* Allocates at least size_bytes for work on stream, aligned to 64 bytes on the host and 256 on
 * CUDA. 0 bytes give NULL.
 * Owner: the caller owns the block until dtr_pool_free.
 * Fails iff: DTR_OUT_OF_MEMORY if it does not fit and the dtr_room_fn gave up; DTR_DRIVER if the
 * driver fails otherwise; DTR_STATE if the engine was asked for room and its dtr_score_fn
 * failed. */
int32_t dtr_pool_allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out);

/* The same with a hint, DTR_HINT_*, which two-ended placement uses. Owner and Fails iff: as
 * dtr_pool_allocate. */
int32_t dtr_pool_allocate_hinted(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, int32_t hint,
                                 void** out);

/* Returns 1 if the pool uses the hint of a request of size_bytes, else 0. Takes no lock. */
int32_t dtr_pool_uses_hints(const dtr_pool* pool, uint64_t size_bytes);

/* Allocates as dtr_pool_allocate if nobody need be asked for room and nothing waited for;
 * otherwise, and always in counted pools, *out is NULL and the status DTR_OK.
 * Fails iff: DTR_DRIVER if the driver fails. */
int32_t dtr_pool_try_allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out);

/* Allocates a place to move a block of size_bytes to: as dtr_pool_try_allocate, but outside of the
 * addresses [begin, end) (both NULL: anywhere), and only where memory is there for the stream or
 * may be mapped. Nothing is remapped, and the stream waits for no other. packed 1: only in chunks
 * that other blocks touch already, so that the place costs no chunk. *out is NULL and the status
 * DTR_OK if there is no such place, and always for small requests and in counted pools.
 * Fails iff: DTR_INVALID if the range ends before it begins; DTR_DRIVER if the driver fails. */
int32_t dtr_pool_try_outside(dtr_pool* pool, uint64_t size_bytes, uint64_t stream,
                             const void* begin, const void* end, int32_t packed, void** out);

/* Allocates a block that begins at address, where nothing lies in the way: *out. Memory may be
 * remapped for it. Otherwise *out is NULL, the status DTR_OK, and up to capacity addresses of the
 * blocks in use that lie in the way are written, and how many there are to *count: 0 if no block can
 * begin there. So it is always for small requests and in counted pools.
 * Fails iff: DTR_DRIVER if the driver fails. */
int32_t dtr_pool_try_at(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, const void* address,
                        void** in_the_way, uint64_t capacity, uint64_t* count, void** out);

/* Frees a block; NULL is allowed.
 * Fails iff: DTR_INVALID if address is not the start of a block in use (freed twice, for
 * example). */
int32_t dtr_pool_free(dtr_pool* pool, void* address);

/* Says that work on stream uses the block: once freed, it is not reused before that work is done.
 * Fails iff: DTR_INVALID if address is not the start of a block in use. */
int32_t dtr_pool_record_stream(dtr_pool* pool, void* address, uint64_t stream);

/* Opens an arena: memory whose addresses stay its own, for CUDA graphs and torch.cuda.MemPool. A
 * block that is freed in an arena serves only that arena on the same stream until the arena is
 * closed; a block that other streams were recorded to use serves nobody until then. No event is
 * recorded and no other stream's memory is taken, so that the stream may be being captured. Opening
 * takes no memory, but may wait for the device: open the arena before the capture begins.
 * Fails iff: DTR_STATE if the only stream so far is being captured. */
int32_t dtr_pool_arena_open(dtr_pool* pool, uint64_t* arena);

/* Allocates in an arena. Owner and Fails iff: as dtr_pool_allocate; and DTR_INVALID if the arena is
 * not open. */
int32_t dtr_pool_arena_allocate(dtr_pool* pool, uint64_t arena, uint64_t size_bytes,
                                uint64_t stream, void** out);

/* Allocates the block that begins at address, where the arena has free memory of this stream: as an
 * earlier snapshot had it (dtr_block.arena). Owner: as dtr_pool_allocate.
 * Fails iff: DTR_INVALID if the arena is not open or has not as much free memory there, as in counted
 * pools. */
int32_t dtr_pool_arena_allocate_at(dtr_pool* pool, uint64_t arena, void* address,
                                   uint64_t size_bytes, uint64_t stream);

/* Closes an arena. Its free blocks serve everybody once all work of the device is done: the pool
 * waits for that when memory is short and in dtr_pool_trim, unless a stream is being captured. Its
 * blocks in use become plain blocks when they are freed.
 * Fails iff: DTR_INVALID if the arena is not open. */
int32_t dtr_pool_arena_close(dtr_pool* pool, uint64_t arena);

/* Changes the budget. Lowering it asks for room and gives chunks back until the mapped bytes fit.
 * Fails iff: DTR_INVALID if the budget is below one chunk; DTR_OUT_OF_MEMORY if the mapped bytes
 * cannot be brought below it, and the old budget stays; DTR_DRIVER if the driver fails. */
int32_t dtr_pool_set_budget(dtr_pool* pool, uint64_t budget_bytes);

/* Allocates memory beyond the budget, from the device itself and outside of the pool's addresses, for
 * a workspace of an operator: what is no tensor, and freed while the operator runs. 0 bytes give NULL.
 * Owner: the caller owns it until dtr_pool_free_beyond; no other function takes its address.
 * Fails iff: DTR_OUT_OF_MEMORY if the device has no such memory; DTR_STATE if the pool is not of driver
 * "cuda", or the stream is being captured; DTR_DRIVER if the driver fails otherwise. */
int32_t dtr_pool_allocate_beyond(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out);

/* Frees such memory; NULL is allowed. The device has it back once the work is done that is on its
 * stream now.
 * Fails iff: DTR_INVALID if address is not one from dtr_pool_allocate_beyond (freed twice, for example);
 * DTR_DRIVER if the driver fails. */
int32_t dtr_pool_free_beyond(dtr_pool* pool, void* address);

/* Lets work of another device of this process use the pool's memory: what is mapped now, and what will
 * be. For good; a device that may already is no change. Mapping takes longer for each such device.
 * Fails iff: DTR_INVALID if device is negative; DTR_STATE if the pool is not of driver "cuda"; DTR_DRIVER
 * if there is no such device, or the driver refuses, as where the devices are not connected. */
int32_t dtr_pool_add_peer(dtr_pool* pool, int32_t device);

/* Gives every free chunk back to the driver. *returned_bytes (may be NULL) is how much that was.
 * Fails iff: DTR_DRIVER if the driver fails. */
int32_t dtr_pool_trim(dtr_pool* pool, uint64_t* returned_bytes);

/* Returns the rounded size of the block in use that starts at address; 0 if there is none. */
uint64_t dtr_pool_block_bytes(dtr_pool* pool, const void* address);

/* Returns the start of the block in use that contains address, or NULL. O(log blocks). */
void* dtr_pool_block_start(dtr_pool* pool, const void* address);

/* Returns the bytes of free address space, mapped or not, directly before and directly behind the
 * block in use that starts at address; 0 if there is no such block, or it is an object of a slab.
 * O(1 + free blocks there). */
uint64_t dtr_pool_free_beside(dtr_pool* pool, const void* address);

/* Addresses from begin to end that became free, with what was free beside them. Some of them may be
 * in use again. */
typedef struct dtr_opening {
  uint64_t begin;
  uint64_t end;
} dtr_opening;

/* Writes those among large blocks since the last call to openings, which has room for capacity, and how
 * many there were to count: if more than capacity, none is written. dtr_pool_free_beside has grown since
 * then only for blocks that lie in one or end or begin where it does, with nothing but free blocks
 * between. For one caller: what was written is forgotten. */
int32_t dtr_pool_take_openings(dtr_pool* pool, dtr_opening* openings, uint64_t capacity,
                               uint64_t* count);

/* Returns the address from which on dtr_pool_free_beside is 0: where slabs begin; NULL for counted
 * pools. Takes no lock. */
void* dtr_pool_slabs_begin(const dtr_pool* pool);

/* Returns the bytes of the budget that no block in use takes, and no arena or captured stream. */
uint64_t dtr_pool_unused_bytes(dtr_pool* pool);

/* What a request for new memory finds. */
typedef struct dtr_pool_room {
  uint64_t base;        /* chunks begin here */
  uint64_t chunk_bytes; /* 0: the pool is a counted one and cannot tell */
  int32_t fixed;        /* 1: a fixed pool */
  int32_t in_one_piece; /* 0: the budget is being lowered, which needs no place */
  int32_t has_hole;     /* 1: there is one as large as the request */
  int32_t unused;
} dtr_pool_room;

/* Writes what a request of size_bytes finds. */
int32_t dtr_pool_get_room(dtr_pool* pool, uint64_t size_bytes, dtr_pool_room* out);

/* A pool has as many addresses as its budget has bytes; others are absent. A remap brings memory that
 * no block touches, by chunks, to absent addresses, beside free ones, so that a place for a request is
 * there. Returns with how many more such chunks it would, at least; UINT64_MAX: with none, as in a fixed
 * pool and in a counted one. */
uint64_t dtr_pool_lacking_chunks(dtr_pool* pool, uint64_t size_bytes);

/* One of the large blocks, in the order of addresses. */
typedef struct dtr_run_block {
  uint64_t address;
  uint64_t size_bytes;
  int32_t state; /* DTR_BLOCK_... */
  int32_t unused;
} dtr_run_block;

/* Writes up to capacity large blocks, and how many to *count: from the block in use that begins at
 * address, with the free ones directly before it (none, if no such block begins there); address
 * NULL: from the lowest. Counted pools have none. O(written). */
int32_t dtr_pool_run(dtr_pool* pool, const void* address, dtr_run_block* blocks, uint64_t capacity,
                     uint64_t* count);

/* Returns 1 if address lies in the pool's reservation, else 0. Takes no lock. */
int32_t dtr_pool_contains(const dtr_pool* pool, const void* address);

/* Writes the counters. */
int32_t dtr_pool_get_stats(dtr_pool* pool, dtr_pool_stats* out);

/* Starts the peaks anew from the present values. */
int32_t dtr_pool_reset_peak(dtr_pool* pool);

/* Writes up to capacity blocks in address order, and to *count how many there are: call again with
 * more capacity if *count is above it. */
int32_t dtr_pool_snapshot(dtr_pool* pool, dtr_block* blocks, uint64_t capacity, uint64_t* count);

/* Checks the numbered rules of allocator/.
 * Fails iff: DTR_STATE if a rule is broken, which the message names. */
int32_t dtr_pool_check_invariants(dtr_pool* pool);

/* CFFI END */

DTR_C_END

#endif
