/* dtr_alloc.h: the C interface of the allocator and the rematerialization engine.
 *
 * This header is the manual, and it is what cffi reads: everything between the
 * two CFFI marks is plain C declarations without preprocessor lines.
 *
 * Conventions
 *   - Every function and type begins with dtr_. Units stand last in names: size_bytes, cost_ns.
 *   - The opaque types (dtr_pool, dtr_engine, ...) are handles: numbers, not addresses, and none is
 *     given twice. The caller owns what a function writes to its last argument, and destroys it
 *     once. A dtr_sim_tensor alone is an address, which another one may have later. The other
 *     void * are addresses of memory, or objects of the framework.
 *   - A function that can fail returns a dtr_status (int32_t), DTR_OK being 0, or, where its
 * results are 0 and more, -status. One that returns something else answers NULL, 0 or (types of
 * devices and scalars, frames' devices) -1 if the call is wrong. Either way dtr_last_error() gives
 * the message of the last failure on the calling thread.
 *   - Every function looks at its arguments before it does anything. It fails with DTR_INVALID if a
 *     handle is NULL, was destroyed, or is of another kind or none; if a pointer is NULL that must
 *     not be; and if a number is out of range. It fails with DTR_STATE if it is called out of
 * order, or would destroy what something else still needs. "Fails iff" below names what else makes
 * it fail. What it cannot tell: whether memory that a pointer leads to is there, and as long as the
 * numbers beside it say; and whether another thread destroys an object that a call uses.
 *   - A failed call leaves its objects as they were, unless it says otherwise.
 *   - "Any thread" means that the function takes the locks it needs
 *     (allocator/locks.h lists them). No function may be called while holding one.
 *   - No function takes the Python GIL, but for what a dtr_score_fn does. Callers that
 *     hold it may keep it.
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
  DTR_INVALID = 2, /* an argument is wrong; the message names it, its value and what is allowed */
  DTR_DRIVER = 3,  /* the driver (mmap, libcuda) refused a call; the message names the call */
  DTR_STATE = 4    /* the object is not in a state that allows this call */
};

/* The version of this interface. The extension, the bridge and the Python
 * package each compare it before they use anything else. */
int32_t dtr_abi_version(void);

/* The message of the last failed call on this thread; never NULL, "" if none.
 * Valid until the next call on this thread. */
const char* dtr_last_error(void);

/* ---- Pool: a budgeted heap on one device (allocator/) ------------------- */

/* One pool is one device's memory: an address range reserved once, into which
 * physical memory is mapped by chunks, never more of it than the budget. (Segments, where the
 * device cannot map: several ranges, each mapped whole.) */
typedef struct dtr_pool dtr_pool;

typedef struct dtr_pool_options {
  const char* driver;     /* "host", "cuda", "simulated", or "counted": bytes only, no heap; then
                             what follows the budget counts for nothing. "cuda-segments": as "cuda"
                             is on a device without virtual memory management: memory comes in
                             segments (cuMemAlloc), and nothing moves between them */
  int32_t device;         /* device ordinal; 0 for host and simulated */
  uint64_t budget_bytes;  /* limit of mapped bytes; UINT64_MAX: no limit */
  uint64_t reserve_bytes; /* address space to reserve; 0: the driver's default. Segments: 0 */
  uint64_t chunk_bytes;   /* unit of mapping, a multiple of the driver's granularity; 0: default.
                             The least size of a segment, a multiple of 2 MiB; 0: 20 MiB */
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
                        the new end to go. Not with segments */
  int32_t placement; /* which hole a large block goes into: DTR_PLACE_* */
} dtr_pool_options;

enum {
  DTR_PLACE_BEST_FIT = 0,    /* the smallest that fits, of these the lowest */
  DTR_PLACE_FIRST_FIT = 1,   /* the lowest that fits */
  DTR_PLACE_TWO_ENDED = 2,   /* best fit, and at the end of the hole that is wished for */
  DTR_PLACE_SIZE_CLASSES = 3 /* best fit of sizes rounded to 8 classes for each power of two; up to
                                an eighth of a chunk (where the pool has slabs, is not of segments,
                                and small_bytes is 0) from slabs */
};

enum {
  DTR_END_ANY = 0,
  DTR_END_LOW = 1, /* dear to recompute, or pinned */
  DTR_END_HIGH = 2 /* cheap to recompute */
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
  uint64_t host_waits; /* calls of the pool's that made the host wait for the device, since
                          creation. Unmapping may wait inside the driver: see unmapped_chunks */
  uint64_t peak_live_blocks;
  uint64_t peak_unused_bytes; /* mapped, and in no block in use */
} dtr_pool_stats;

/* One block of a snapshot, in address order. */
typedef struct dtr_block {
  uint64_t address;
  uint64_t size_bytes;
  uint64_t requested_bytes; /* 0 if free */
  uint64_t stream;
  int32_t state;    /* 0 free, 1 in use, 2 free but waiting for an event of another stream */
  int32_t is_small; /* 1: an object of a slab */
} dtr_block;

/* What it answers who is asked for room. */
enum {
  DTR_ROOM_IS_NONE = 0,  /* nothing is left to give */
  DTR_ROOM_IS_FREED = 1, /* something was freed: the allocation is tried again */
  DTR_ROOM_BY_REMAP = 2  /* tried again, too: memory that is under no block may be taken from its
                            addresses to where others are free. A pool does not do that before it
                            has this answer, or DTR_ROOM_IS_NONE, or where nobody is asked */
};

/* Asked for room by an allocation that does not fit. Runs on the allocating thread with no lock
 * held, and may free blocks of the pool. Returns one of the above. */
typedef int32_t (*dtr_room_fn)(void* context, uint64_t size_bytes, uint64_t stream);

/* Creates a pool; *out is NULL on failure. The caller owns it. Any thread. */
int32_t dtr_pool_create(const dtr_pool_options* options, dtr_pool** out);

/* Unmaps everything and frees the pool. Fails iff blocks or host memory are in use, or an engine
 * has the pool (DTR_STATE), or the driver does (DTR_DRIVER): then call it again. Any thread. */
int32_t dtr_pool_destroy(dtr_pool* pool);

/* Sets who is asked for room; NULL for nobody. Not while allocations run. An engine's pool asks
 * its engine: leave that. */
int32_t dtr_pool_set_room(dtr_pool* pool, dtr_room_fn room, void* context);

/* Allocates at least size_bytes (0 gives NULL and DTR_OK), aligned to 64 bytes
 * on the host and 256 on CUDA, for work on stream. DTR_OUT_OF_MEMORY after the
 * room callback gave up; DTR_DRIVER if the driver failed; DTR_STATE if it was the engine
 * that was asked for room, and its callback heuristic failed. Any thread. */
int32_t dtr_pool_allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out);

/* The same with a wish for an end of the heap, DTR_END_*: heeded by two-ended placement in pools
 * that map chunks. DTR_INVALID if end is none of these. Any thread. */
int32_t dtr_pool_allocate_at(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, int32_t end,
                             void** out);

/* 1 if the pool heeds the wish of a request of size_bytes, else 0. Any thread; no lock. */
int32_t dtr_pool_heeds_ends(const dtr_pool* pool, uint64_t size_bytes);

/* The same as dtr_pool_allocate without asking for room and without waiting: *out is NULL and the
 * status DTR_OK where that would be needed, and always from pools of segments and counted ones. Any
 * thread. */
int32_t dtr_pool_try_allocate(dtr_pool* pool, uint64_t size_bytes, uint64_t stream, void** out);

/* A place to move a block of size_bytes to: as dtr_pool_try_allocate, but outside of the addresses
 * [begin, end) (both NULL: anywhere), and only where memory is there for the stream or may be
 * mapped: nothing is remapped, and the stream waits for no other. packed, not 0: only in chunks
 * that other blocks touch already, so that the place costs no chunk. *out is NULL and the status
 * DTR_OK where there is none, and always for small requests and from counted pools. Any thread. */
int32_t dtr_pool_try_outside(dtr_pool* pool, uint64_t size_bytes, uint64_t stream,
                             const void* begin, const void* end, int32_t packed, void** out);

/* Returns a block (NULL is allowed). DTR_INVALID for an address that is not the
 * start of a block in use, twice-freed ones included. Any thread. */
int32_t dtr_pool_free(dtr_pool* pool, void* address);

/* Declares that work on stream uses the block: once freed, it is not reused
 * before that work is done. Any thread. */
int32_t dtr_pool_record_stream(dtr_pool* pool, void* address, uint64_t stream);

/* Arenas: memory whose addresses stay its own (CUDA graphs, torch.cuda.MemPool). What is freed
 * in an arena serves only that arena, on the same stream, until the arena is closed; a block that
 * other streams were recorded to use serves nobody until then. No event is recorded and no
 * other stream's memory is taken, so the stream may be being captured. An arena takes nothing
 * until something is allocated in it. Open it before the capture begins: it may wait for work
 * of the device (DTR_STATE if the only stream so far is captured already). Any thread. */
int32_t dtr_pool_arena_open(dtr_pool* pool, uint64_t* arena);
/* As dtr_pool_allocate; DTR_INVALID for an arena that is not open. */
int32_t dtr_pool_arena_allocate(dtr_pool* pool, uint64_t arena, uint64_t size_bytes,
                                uint64_t stream, void** out);
/* The arena's free blocks are everybody's once all work of the device is done, which is waited
 * for when memory is short and by dtr_pool_trim, if no stream is being captured then. Blocks in
 * use go on, and are plain blocks once freed. */
int32_t dtr_pool_arena_close(dtr_pool* pool, uint64_t arena);

/* Changes the budget. Lowering asks for room and gives chunks back until the
 * mapped bytes fit; DTR_OUT_OF_MEMORY, and the old budget stays, if they do not. */
int32_t dtr_pool_set_budget(dtr_pool* pool, uint64_t budget_bytes);

/* Gives every free chunk back to the driver; *returned_bytes may be NULL. */
int32_t dtr_pool_trim(dtr_pool* pool, uint64_t* returned_bytes);

/* The bytes of the block that starts at address, as rounded; 0 if there is none. */
uint64_t dtr_pool_block_bytes(dtr_pool* pool, const void* address);

/* The start of the block in use that contains address, or NULL. O(log blocks). */
void* dtr_pool_block_start(dtr_pool* pool, const void* address);

/* The bytes of free address space, mapped or not, directly before and directly behind the block in
 * use that starts at address (an object of a slab has none); 0 if there is no such block. O(1 +
 * free blocks there). */
uint64_t dtr_pool_free_beside(dtr_pool* pool, const void* address);

/* The bytes of the budget that no block in use takes. */
uint64_t dtr_pool_unused_bytes(dtr_pool* pool);

/* What a request for new memory lacks. A pool has as many addresses as its budget has bytes; others
 * are absent. A remap brings memory that no block touches, by chunks, to absent addresses, beside
 * free ones, so that a place for the request is there. */
typedef struct dtr_pool_room {
  uint64_t base;           /* chunks begin here */
  uint64_t chunk_bytes;    /* 0: the pool is one of segments, or counted, and cannot tell */
  uint64_t lacking_chunks; /* with so many more under no block a remap would make the place;
                              UINT64_MAX: none would, as in a fixed pool */
  int32_t fixed;           /* 1: a fixed pool */
  int32_t in_one_piece;    /* 0: the budget is being lowered, which needs no place */
  int32_t has_hole;        /* 1: there is one as large as the request */
  int32_t unused;
} dtr_pool_room;
int32_t dtr_pool_get_room(dtr_pool* pool, uint64_t size_bytes, dtr_pool_room* out);

/* One of the large blocks, in the order of addresses. */
typedef struct dtr_run_block {
  uint64_t address;
  uint64_t size_bytes;
  int32_t state; /* 0 free, 1 in use, 2 neither: waiting for other streams, or free and serving only
                    some (arenas, captured streams); 3 free, and the work of the stream that freed
                    it may be running */
  int32_t unused;
} dtr_run_block;

/* Writes up to capacity of them, and how many to *count: from the block in use that begins at
 * address, with the free ones directly before it (none, if no such block begins there); address
 * NULL: from the lowest. O(written). None of segments and counted pools. */
int32_t dtr_pool_run(dtr_pool* pool, const void* address, dtr_run_block* blocks, uint64_t capacity,
                     uint64_t* count);

/* 1 if address lies in the pool's reservation (in one of its segments). Any thread; no lock but,
 * for segments, the pool's. */
int32_t dtr_pool_contains(const dtr_pool* pool, const void* address);

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

/* Neither fails otherwise. Any thread. */
int32_t dtr_pool_get_stats(dtr_pool* pool, dtr_pool_stats* out);
int32_t dtr_pool_reset_peak(dtr_pool* pool);

/* Writes up to capacity blocks in address order and the number there is to
 * *count: call again with more room if *count > capacity. */
int32_t dtr_pool_snapshot(dtr_pool* pool, dtr_block* blocks, uint64_t capacity, uint64_t* count);

/* DTR_OK, or DTR_STATE and a message that names the broken rule (allocator/heap.h). */
int32_t dtr_pool_check_invariants(dtr_pool* pool);

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

/* ---- Event log: what pools do, for traces (allocator/event_log.h, docs/trace-format.md) ------ */

enum {
  DTR_EVENT_ALLOCATE = 0,
  DTR_EVENT_FREE = 1,
  DTR_EVENT_EVICT = 2,
  DTR_EVENT_REMATERIALIZE = 3,
  DTR_EVENT_MOVE_FROM = 4,
  DTR_EVENT_MOVE_TO = 5,
  DTR_EVENT_ROOM = 6,
  DTR_EVENT_OUT_OF_MEMORY = 7,
  DTR_EVENT_SEGMENT_ALLOCATE = 8,
  DTR_EVENT_SEGMENT_FREE = 9,
  DTR_EVENT_BUDGET = 10,
  DTR_EVENT_STEP = 11,
  DTR_EVENT_MARK = 12,
  DTR_EVENT_KINDS = 13 /* how many there are */
};

/* What several pools do, in one order. */
typedef struct dtr_event_log dtr_event_log;

/* Where drained events go: arrays of the same length, one entry an event. */
typedef struct dtr_event_columns {
  uint8_t* kind;    /* DTR_EVENT_... */
  int64_t* time_ns; /* since the first event of the log */
  uint64_t* address;
  uint64_t* size_bytes;
  uint64_t* stream;
  uint16_t* device;
  uint64_t* op; /* the op_key of the operator that ran on the thread, 0 if none did */
} dtr_event_columns;

/* The caller owns it. */
int32_t dtr_event_log_create(dtr_event_log** out);
/* NULL is allowed. Fails iff a pool writes to it (dtr_pool_set_log). */
int32_t dtr_event_log_destroy(dtr_event_log* log);
/* Moves up to capacity events out, oldest first, and returns how many: fewer than there are if
 * less than 4096 would fit. No pool waits for it. One thread at a time. */
uint64_t dtr_event_log_drain(dtr_event_log* log, const dtr_event_columns* columns,
                             uint64_t capacity);
/* How many events came when 2^22 were waiting: from the first one on, all are lost. */
uint64_t dtr_event_log_lost(const dtr_event_log* log);

/* From now on the pool's events go to the log, as those of a device with this number; first, what
 * is there: the budget, memory, blocks in use. NULL: to no log. Any thread. */
int32_t dtr_pool_set_log(dtr_pool* pool, dtr_event_log* log, uint16_t device);
/* Adds an event (DTR_EVENT_...) that the pool cannot know, if it has a log. Any thread. */
int32_t dtr_pool_note(dtr_pool* pool, int32_t kind, const void* address, uint64_t size_bytes);
/* DTR_EVENT_MOVE_FROM and DTR_EVENT_MOVE_TO, one directly behind the other: after the content was
 * moved, and before its old block is freed. */
int32_t dtr_pool_note_move(dtr_pool* pool, const void* from, const void* to, uint64_t size_bytes);
/* Which operator this thread runs from now on, for its events; 0: none. dtr_op_begin and dtr_op_end
 * say it by themselves. */
void dtr_running_op(uint64_t op_key);

/* ---- Engine: storages, ops, eviction, rematerialization () ------- */

/* One engine serves all pools of a process. */
typedef struct dtr_engine dtr_engine;

/* What one thread's recorder has in flight: at most one op. */
typedef struct dtr_frame dtr_frame;

/* What a storage's score is made of: c * r^recomputes / (m * s^a); the smallest is
 * evicted (DTR paper, section 4.1). dtr_alloc/heuristics.py explains each. */
enum {
  DTR_COST_NONE = 0,
  DTR_COST_LOCAL = 1,
  DTR_COST_ANCESTORS = 2,    /* own + evicted ancestors */
  DTR_COST_NEIGHBORHOOD = 3, /* own + evicted ancestors and descendants (e*), exact */
  DTR_COST_COMPONENT = 4,    /* own + neighboring evicted components */
  DTR_COST_MARGINAL = 5      /* what evicting it adds to what is to be recomputed (score.h) */
};
enum { DTR_SIZE_NONE = 0, DTR_SIZE_BYTES = 1, DTR_SIZE_BYTES_AND_FREE = 2 };
enum { DTR_SELECT_SCORE = 0, DTR_SELECT_RANDOM = 1, DTR_SELECT_CALLBACK = 2 };

typedef struct dtr_heuristic {
  int32_t select;            /* DTR_SELECT_... */
  int32_t cost;              /* DTR_COST_... */
  int32_t size;              /* DTR_SIZE_... */
  double staleness_exponent; /* a: 0 to 1 */
  double recompute_factor;   /* r: 1 and more; r^recomputes counts as 1e15 at most */
  uint64_t seed;             /* of DTR_SELECT_RANDOM, and of sampling */
} dtr_heuristic;

/* Among how many candidates the one of the least score is looked for. */
enum {
  DTR_SAMPLING_OFF = 0, /* all: the least score there is */
  DTR_SAMPLING_SQRT = 1 /* a random sample of sqrt(n); all if none of it can be evicted */
};

/* What a heuristic of select DTR_SELECT_CALLBACK is told of a storage that can be evicted. */
typedef struct dtr_candidate {
  uint64_t id; /* of the storage; unique in the engine */
  uint64_t size_bytes;
  uint64_t free_bytes;    /* directly before and behind it; see dtr_pool_free_beside */
  int64_t staleness_ns;   /* since it was last used */
  int64_t cost_ns;        /* of its own op */
  int64_t ancestors_ns;   /* of its evicted ancestors: a part of e* */
  int64_t descendants_ns; /* of its evicted descendants: the rest of e* */
  int64_t component_ns;   /* of the evicted components next to it */
  uint64_t recomputes;    /* how often it was recomputed */
  int32_t live;           /* 1: the framework still refers to it */
} dtr_candidate;

/* Writes a score for each candidate: the smallest is evicted, infinity is allowed. Returns
 * 0; anything else, or a NaN, makes the allocation that needs room fail with DTR_STATE and
 * the message, of less than capacity bytes. Runs on the allocating thread with no lock of
 * ours held, and may take the GIL; memory that it allocates itself must fit as it is. */
typedef int32_t (*dtr_score_fn)(void* context, const dtr_candidate* candidates, uint64_t count,
                                double* scores, char* message, uint64_t capacity);

/* A cost, size or staleness below 1 counts as 1. Of equal scores the oldest storage's is the
 * smallest. Dead storages that are resident again (ghosts): DTR_GHOSTS_... Only what the
 * heuristic needs is kept up to date. */

/* A dead storage that is resident because a rematerialization needed it (a ghost), and that
 * nothing evicted and still needed would be recomputed from (graph/ghosts.cpp), */
enum {
  DTR_GHOSTS_FIRST = 0,     /* is evicted before all else; others are scored as what is live */
  DTR_GHOSTS_AT_ONCE = 1,   /* is evicted as soon as nothing in flight uses it; likewise */
  DTR_GHOSTS_DISCOUNTED = 2 /* is nothing special: the score of every ghost is a hundredth */
};

/* What waits for a rematerialization to go on (run/waiting.cpp), */
enum {
  DTR_WAITING_YIELDS = 0, /* is evicted where an allocation would fail otherwise, and comes back;
                             what needs most memory is brought back first */
  DTR_WAITING_HOLDS = 1   /* keeps its memory; inputs are brought back in their order */
};

/* How an allocation that does not fit gets room (eviction/room.cpp), */
enum {
  DTR_ROOM_AUTO = 0,   /* the storage of the least score if it makes the place alone, else a window,
                          or a remap, whatever costs less (policy/window.cpp) */
  DTR_ROOM_SINGLE = 1, /* evicting the storage of the least score until it fits, which a remap may
                          see to (DTR) */
  DTR_ROOM_WINDOW = 2  /* evicting the cheapest run of neighbors that makes a place (Coop) */
};
/* Windows need scores: with any other select than DTR_SELECT_SCORE all is single. */
/* Whether contents on the CPU are compared with their last known state (graph/contents.cpp), in
 * memory that the host can read. Those whose address was given away always are, and whole. */
enum {
  DTR_CONTENTS_TRUSTED = 0,
  DTR_CONTENTS_SAMPLED = 1, /* a few words of each */
  DTR_CONTENTS_WHOLE = 2    /* every byte: to find who writes unseen */
};

typedef struct dtr_engine_options {
  dtr_heuristic heuristic;
  uint64_t min_evict_bytes; /* smaller storages are never chosen */
  double min_evict_share;   /* nor those below this share of the candidates' mean size; 0 to 1 */
  int32_t sampling;         /* DTR_SAMPLING_... */
  uint64_t history_ops;     /* with more op records than this the oldest settle; >= 1 */
  /* What becomes of a storage that dies while others depend on it: "eager" (or NULL)
   * evicts it at once, "lazy" and "ignore" leave it until it is chosen, "banish" removes it
   * for good once no dependent is evicted, and makes constants of these (graph/dealloc.cpp). */
  const char* dealloc;
  dtr_score_fn score;       /* of DTR_SELECT_CALLBACK, else unused; lives with the engine */
  void* score_context;      /* its first argument */
  int32_t time_bookkeeping; /* 1: bookkeeping_ns counts. It costs two looks at the clock a call */
  int32_t ghosts;           /* DTR_GHOSTS_... */
  int32_t waiting;          /* DTR_WAITING_... */
  /* The most bytes of host memory that contents may be swapped to (eviction/swap.cpp); 0: off.
   * With it, what cannot be recomputed may be evicted, too, and what can goes the cheaper way. */
  uint64_t swap_bytes;
  double swap_out_bytes_per_s; /* how fast copies to host memory are; 0: as measured */
  double swap_in_bytes_per_s;  /* and back */
  /* Each verify-th eviction of a live content keeps a copy of it, and the bytes are compared when
   * they come back: a difference fails the rematerialization with DTR_STATE. 0: none does. */
  uint64_t verify;
  int32_t room;   /* DTR_ROOM_... */
  int32_t moving; /* 1: contents may be moved to other addresses of the pool, to make room in one
                     piece (eviction/moving.cpp) */
  double move_bytes_per_s; /* how fast such a copy is, for its price; 0: as measured */
  int32_t contents;        /* DTR_CONTENTS_... */
} dtr_engine_options;

typedef struct dtr_engine_stats {
  uint64_t evictions; /* storages evicted, to make room or by hand */
  uint64_t evicted_bytes;
  uint64_t rematerializations; /* ops run again */
  uint64_t recompute_ns;       /* what that took; where work is queued, what it should take */
  uint64_t search_ns;          /* choosing what to evict, without evicting it */
  uint64_t searches;
  uint64_t live_storages; /* records */
  uint64_t live_ops;
  uint64_t evicted_storages;    /* records whose content is gone */
  uint64_t kept_constant_bytes; /* dead constants kept because something may need them */
  uint64_t settled;             /* storages that became constants before a loss */
  uint64_t moved_bytes;         /* of contents that were moved within a pool */
  uint64_t recorded_ops;        /* since creation */
  uint64_t banished;            /* dead storages that were removed for good */
  uint64_t yields;              /* evictions of what only waited: there was no other way */
  uint64_t clock_ns;            /* the engine's clock: 1 + total_cost_ns + recompute_cost_ns */
  uint64_t total_cost_ns;       /* of first executions, recorded or not */
  uint64_t recompute_cost_ns;   /* of rematerializations, each as of its op's recording */
  uint64_t evaluations;         /* exact scores computed, random draws included */
  uint64_t storage_accesses;    /* one per evaluation, and one per storage (or node of a
                                   component) visited to gather or maintain what scores
                                   need (DTR paper, appendix D.3) */
  uint64_t bookkeeping_ns;      /* inside the engine, if time_bookkeeping: dtr_op_begin to
                                   dtr_op_end, dtr_remat_..., room, deaths; not waiting for locks */
  uint64_t swaps;               /* contents swapped out; no evictions, which give contents up */
  uint64_t swapped_out_bytes;
  uint64_t swapped_in_bytes;
  uint64_t host_bytes;           /* of contents that are in host memory now */
  uint64_t verified;             /* rematerialized contents that were compared */
  uint64_t prefetches;           /* contents that were swapped in before they were needed */
  uint64_t prefetch_hits;        /* of these, that were needed before they went again */
  uint64_t contiguity_evictions; /* for room, while the bytes that no block took sufficed */
  uint64_t window_searches;
  uint64_t window_evictions; /* of members of windows */
  uint64_t moves;            /* contents moved within a pool */
  uint64_t move_ns;          /* what the host spent on them; copies that a device makes later not */
  uint64_t unseen_writes;    /* contents found changed that no op had overwritten */
} dtr_engine_stats;

/* What calls of one signature cost: the operator, the shapes, strides, dtypes and devices
 * of its tensor arguments, the sizes of its results (policy/costs.h). */
typedef struct dtr_cost {
  uint64_t signature; /* never 0 */
  uint64_t op_key;    /* of the operator, as given to dtr_op_begin */
  int64_t cost_ns;    /* the mean; 1 to 2^40 */
  uint64_t readings;  /* from how many */
} dtr_cost;

/* The caller owns it. Fails iff an option is out of its range. */
int32_t dtr_engine_create(const dtr_engine_options* options, dtr_engine** out);
/* Fails iff records exist (dtr_engine_reset), or frames or a simulated framework of it do. */
int32_t dtr_engine_destroy(dtr_engine* engine);
/* Takes new options; the records stay. Fails as dtr_engine_create. Any thread. */
int32_t dtr_engine_configure(dtr_engine* engine, const dtr_engine_options* options);

/* Connects a framework: a const dtr_framework * of bridge_table.h, which outlives the engine. Fails
 * iff another one is connected, or it speaks another version of the table. */
int32_t dtr_engine_connect(dtr_engine* engine, const void* framework);
/* The core's table for that framework: a const dtr_core *. Lives with the engine. */
const void* dtr_engine_core(dtr_engine* engine);

/* Makes the engine the one who gives room in pool, for tensors of this device
 * (c10::DeviceType and index, -1 for the only one). The pool cannot be destroyed before the engine.
 * Fails iff the device has a pool already, or the pool an engine. Before the first op. */
int32_t dtr_engine_add_pool(dtr_engine* engine, int32_t device_type, int32_t device_index,
                            dtr_pool* pool);

/* A graph is being captured from now on (1), or no more (0; as often): no live storage is
 * evicted, and what ops touch meanwhile stays where it is for good, a constant of which
 * nothing is computed again (run/freeze.cpp). After the 1 and before the capture, bring
 * back what is evicted (dtr_remat_want_any), then wait for all streams. DTR_STATE for a 0
 * too many. Any thread. */
int32_t dtr_engine_freeze(dtr_engine* engine, int32_t on);

/* Forgets all records and returns the memory that only the engine holds.
 * DTR_STATE while a live storage is evicted: rematerialize it first. */
int32_t dtr_engine_reset(dtr_engine* engine);

/* Replaces what was learned of costs by these, which stay as they are: with them a
 * deterministic job is evicted in the same way each time. Other signatures are measured
 * and averaged, as many as there is room for (65,536 in all; beyond that each call costs
 * what it took). Any thread; while no records exist, or old ones keep other costs.
 * DTR_INVALID, and nothing is known, for a wrong entry. */
int32_t dtr_engine_set_costs(dtr_engine* engine, const dtr_cost* costs, uint64_t count);
/* What is known, in no order: writes up to capacity; returns how many there are. Any thread. */
uint64_t dtr_engine_get_costs(dtr_engine* engine, dtr_cost* costs, uint64_t capacity);

int32_t dtr_engine_get_stats(dtr_engine* engine, dtr_engine_stats* out); /* Any thread. */
/* DTR_OK, or DTR_STATE and a message that names the broken rule (graph/records.h). Any thread. */
int32_t dtr_engine_check_invariants(dtr_engine* engine);

/* What a search for room in the pool would choose now, without evicting it: its score in
 * *chosen, and in *least the smallest score of all that can be evicted, found by looking at
 * each. Both 0 if nothing can be. For measurements: the counters stay, a random number may
 * be drawn. DTR_INVALID for a pool that is not the engine's, DTR_STATE unless the
 * heuristic selects by score. Any thread. */
int32_t dtr_engine_rate_choice(dtr_engine* engine, dtr_pool* pool, double* chosen, double* least);

/* Which operators' results fill the memory: for each resident storage that can be evicted,
 * the op_key of the operator that computes it (0: none does) and the storage's bytes. Writes
 * up to capacity of them; returns how many there are. Any thread. */
uint64_t dtr_engine_holders(dtr_engine* engine, uint64_t* op_keys, uint64_t* size_bytes,
                            uint64_t capacity);

/* Ids of ops whose records are gone, so that their closures may go too: of those that ended by
 * dtr_op_end (a bridge gives its closures to the records, see bridge_table.h). Returns how many
 * it wrote; call until it returns 0. Any thread. */
uint64_t dtr_engine_drain_dropped(dtr_engine* engine, int64_t* op_ids, uint64_t capacity);

/* A frame belongs to one thread at a time: a call with a frame that another call uses fails with
 * DTR_STATE. The caller owns it. */
int32_t dtr_frame_create(dtr_engine* engine, dtr_frame** out);
/* Fails iff its op has not ended, or its stack is not empty. */
int32_t dtr_frame_destroy(dtr_frame* frame);
/* The numbers that dtr_op_begin and dtr_op_end read: at least capacity (up to 2^24) of them.
 * Valid until a larger capacity is asked for. */
int64_t* dtr_frame_buffer(dtr_frame* frame, uint64_t capacity);
/* The numbers that dtr_remat_next writes and dtr_remat_commit reads. Valid until a
 * larger capacity is asked for or the next step is described. */
int64_t* dtr_frame_step(dtr_frame* frame, uint64_t capacity);

/* How an op uses a tensor argument: the low three bits of its entry in the
 * buffer, whose other bits are the tensor's address. */
enum {
  DTR_USE_READ = 0,
  DTR_USE_MUTATE = 1,     /* reads and overwrites */
  DTR_USE_WRITE_ONLY = 2, /* overwrites every element and reads none */
  DTR_USE_SCRATCH = 3,    /* hidden state: overwritten, and no input of the results */
  DTR_USE_CONSTANT = 4    /* added: a parameter; forgets its parent, stays a constant */
};

/* Flags of an op. */
enum {
  DTR_OP_REPLAYABLE = 1, /* running it again on the same inputs gives the same bits */
  DTR_OP_KEEPS_OLD = 2,  /* what it overwrites and cannot be computed again is kept in a copy, if it
                            is small: the op gives more than what it overwrites */
  DTR_OP_COPIES = 4      /* all it does is to copy its second tensor to its first, element by
                            element */
};

/* What dtr_op_begin answers: 0 means run the op at once. */
enum {
  DTR_NEED_WORK = 1,   /* call dtr_op_prepare before the op runs */
  DTR_HAS_FOREIGN = 2, /* inputs on devices that are not managed: keep them by value */
  DTR_HAS_DROPPED = 4, /* many closures can go: call dtr_engine_drain_dropped */
  DTR_NO_CLOSURE = 8   /* of an op that is replayable: it will not be recorded after all */
};

/* Begins an op whose tensor arguments stand in buffer[0..tensors): locks their
 * storages, stamps their access time. op_key says which operator it is, the same number
 * in every process. Returns DTR_NEED bits, or -status on failure (then nothing is locked). Fails
 * iff the frame's last op has not ended or its stack is not empty, the buffer has fewer numbers, no
 * framework is connected, or an entry is told to be no tensor of it (the simulated framework tells;
 * of others only what is no address). The tensors must live until dtr_op_end or _abort. */
int32_t dtr_op_begin(dtr_frame* frame, uint32_t tensors, uint32_t flags, uint64_t op_key);

/* Puts on the frame's stack what must be rematerialized before the op may run:
 * evicted inputs; then what depends on a constant that it overwrites; then what
 * depends on history that is too old. Returns 1 if there is something (run the
 * stack with dtr_remat_next and call again), 0 if the op may run, -status. Fails iff no op was
 * begun, or the stack is not empty. */
int32_t dtr_op_prepare(dtr_frame* frame);

/* Ends an op whose result tensors stand in buffer[0..results): records them,
 * unlocks the inputs. Returns the id of the op record that needs a closure, 0 if
 * none does, -status on failure. flags: 0, or 0 without DTR_OP_REPLAYABLE given at
 * the beginning takes that back. cost_ns: what the op cost; negative: as measured by the
 * clock, averaged over the calls of its signature; at most 2^40. The engine's clock moves on by it.
 * Fails iff no op was begun, it is not prepared, the stack is not empty, or as dtr_op_begin for the
 * results; then the op has not ended. */
int64_t dtr_op_end(dtr_frame* frame, uint32_t results, uint32_t flags, int64_t cost_ns);

/* The op failed, or will not run: unlocks. started 1: it may have overwritten some of its
 * storages, which become constants of unknown content; 0: it was never called. Without an op it
 * does nothing. */
int32_t dtr_op_abort(dtr_frame* frame, int32_t started);

/* The next op to run again: its id, with the step described in dtr_frame_step; 0 if
 * the stack is empty; -status on failure (call dtr_remat_abort). Fails iff the last step was
 * neither committed nor aborted, memory is short, or what is to be computed from is lost. The
 * description: edges, then per edge:   handle, copy (1: run on a copy of this storage) tensors,
 * then each:     use, edge (-1: none), scalar type, flags, offset, ndim, sizes[ndim], strides[ndim]
 * where use is 0 read, 1 mutate, 2 write only, 3 scratch, 4 empty, 5 by value; a
 * tensor without an edge is made afresh from its shape. An edge below -1 is a number of bytes,
 * negated: the tensor is a part, at its offset, of as much memory, made afresh. */
int64_t dtr_remat_next(dtr_frame* frame);

/* The device index of what the step that was described last makes, -1 for the only one:
 * where a tensor without an edge belongs if no argument has one. */
int32_t dtr_frame_device(dtr_frame* frame);

/* The step's closure ran: step[0..tensors) are its arguments' tensors as rebuilt
 * (0 for those by value), then come its result tensors. Their memory moves into the
 * storages that were evicted. Returns -status on failure; then call dtr_remat_abort. Fails iff no
 * step is in progress, the step has fewer numbers, or the tensors are not what the first run gave.
 */
int32_t dtr_remat_commit(dtr_frame* frame, uint32_t tensors, uint32_t results);

/* Gives up the stack and unlocks what it locked. What a failed step may have
 * overwritten is dropped and can be computed again. */
int32_t dtr_remat_abort(dtr_frame* frame);

/* Puts one storage (a handle) on the stack: 1 if it is evicted, 0 if there is nothing
 * to do, -status. The caller keeps the handle alive. Fails iff a step is in progress. */
int32_t dtr_remat_want(dtr_frame* frame, void* handle);
/* Puts some live evicted storage on the stack: 1, or 0 if there is none, or -status. Fails iff the
 * stack is not empty. Between a 1 and the 0, or dtr_remat_abort, nothing live is evicted. */
int32_t dtr_remat_want_any(dtr_frame* frame);

/* By hand, on a live handle. The storage of a handle that the engine has never
 * seen counts as a resident constant. */
int32_t dtr_evict(dtr_engine* engine, void* handle);       /* 1 done, 0 not possible, -status */
int32_t dtr_is_resident(dtr_engine* engine, void* handle); /* 1, 0, or -status */
/* Moves a handle's content to another address of its pool, outside of [avoid_begin, avoid_end)
 * (both NULL: to any other): 1 done, 0 if it may not be moved or there is no place, -status if the
 * copy fails; then it is where it was. Whatever the option moving says. Addresses that were given
 * away (dtr_pin with escaped) and pinned ones stay. Any thread. */
int32_t dtr_engine_relocate(dtr_engine* engine, void* handle, const void* avoid_begin,
                            const void* avoid_end);
/* Moves what can be moved, from the highest address down, into free places below. It slides
 * nothing into memory of its own. *moved_bytes (may be NULL): how much. Any thread. */
int32_t dtr_engine_compact(dtr_engine* engine, dtr_pool* pool, uint64_t* moved_bytes);
/* For tests: moves up to count storages, drawn by the seed, to any other place. *moved (may be
 * NULL): how many. */
int32_t dtr_engine_move_some(dtr_engine* engine, dtr_pool* pool, uint64_t seed, uint64_t count,
                             uint64_t* moved);
/* escaped 0: one more pin of the tensor's handle, whatever its memory is and will be: not evicted
 * until unpinned as often. What is evicted already stays so until it is materialized. escaped 1:
 * no pin, but the address was given away: the storage becomes a constant for good and is watched
 * for changes, if it is on the CPU. 2: to others that may write to it (DLPack); where changes
 * cannot be watched, what is computed from it from now on is not computed again. */
int32_t dtr_pin(dtr_engine* engine, const void* tensor, int32_t escaped);
/* 1, 0 if it was not pinned, or -status. A handle that is gone has no pins. */
int32_t dtr_unpin(dtr_engine* engine, void* handle);

/* A pin that ends with its owner: zeroed before the first use. So a caller whose language can be
 * interrupted anywhere has the owner first, and what destroys it ends the pin. */
typedef struct dtr_pin_owner {
  dtr_engine* engine;
  void* handle; /* NULL: it has none */
} dtr_pin_owner;

/* One more pin, for an owner that has none. The storage may die before it. Fails iff the owner has
 * a pin. */
int32_t dtr_pin_for(dtr_engine* engine, const void* tensor, dtr_pin_owner* owner);
/* Fails iff the owner has a pin of an engine that was destroyed. */
int32_t dtr_end_pin(dtr_pin_owner* owner);
/* The storage of a tensor (a handle), or NULL if it has none of ours to manage. */
void* dtr_handle_of(dtr_engine* engine, const void* tensor);
/* The scalar type and device type of a tensor, for tables in Python. */
int32_t dtr_scalar_type_of(dtr_engine* engine, const void* tensor);
int32_t dtr_device_type_of(dtr_engine* engine, const void* tensor);

/* ---- Journal: what the job does, for op logs (oplog/journal.h) --------- */

/* A journal is numbers, one record after another. A name is two of them: the number of a
 * storage, and 0 or which view of it (dtr_alloc/oplog.py says what a log means). */
enum {
  DTR_JOURNAL_CONSTANT = 0, /* number, size_bytes (0: memory that is not ours) */
  DTR_JOURNAL_CALL = 1,     /* operator, cost_ns, names, names[2], results, then each:
                             *   name[2], size_bytes, index of the name it is a view of or -1 */
  DTR_JOURNAL_MUTATE = 2,   /* operator, cost_ns, names, names[2], indices, indices[]:
                             *   -1 - i for the name i, if its old content was not read */
  DTR_JOURNAL_RELEASE = 5,  /* name[2] */
  DTR_JOURNAL_MEMORY = 6,   /* of the next operator: pairs, pairs[2] of DTR_MEMORY_... */
  DTR_JOURNAL_EFFECT = 7    /* operator, cost_ns, names, names[2], constants: it is not repeated,
                             *   and made the constants that follow, as many as that */
};

/* What an operator did while it ran. */
enum {
  DTR_MEMORY_ALLOCATE = 0, /* a temporary; its size_bytes */
  DTR_MEMORY_FREE = 1,     /* the temporary of this index */
  DTR_MEMORY_RESULT = 2    /* allocated result k */
};

enum {
  DTR_JOURNAL_OFF = 0,
  DTR_JOURNAL_FOLLOWING = 1, /* no records, but names are those that writing would give */
  DTR_JOURNAL_WRITING = 2    /* begins with what is known, as constants */
};

/* Set before the first op: what an op has not met since the journal is on has no name.
 * dtr_engine_reset turns it off. Any thread. */
int32_t dtr_journal_set(dtr_engine* engine, int32_t mode);
/* The operator of the ops that begin on this frame from now on: a number of the caller's
 * choice, not below 0, which stands in the records (-1 there: a view nobody recorded). */
int32_t dtr_journal_name(dtr_frame* frame, int32_t name);
/* A view operator ran: buffer[0..tensors) are its arguments' tensors, then come its
 * results'. Only views of storages that have a name count. */
int32_t dtr_journal_view(dtr_frame* frame, uint32_t tensors, uint32_t results, int32_t name,
                         int64_t cost_ns);
/* Moves all records out. Returns how many numbers they are: if that is more than capacity,
 * nothing was moved. Any thread. */
uint64_t dtr_journal_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity);

/* What the engine decides, three numbers each: one of these, then a storage's number in the
 * journal and how often it had been overwritten; or the operator's index among those of the
 * journal (-1 if it is not there) and 0. */
enum {
  DTR_DECISION_ROOM = 0,     /* evicted to make room */
  DTR_DECISION_BY_HAND = 1,  /* evicted by hand */
  DTR_DECISION_GONE = 2,     /* content gone: it died, or was overwritten */
  DTR_DECISION_RAN_AGAIN = 3 /* an operator was run again */
};
/* Off at first; turning it off forgets what was not drained. Any thread. */
int32_t dtr_decisions_set(dtr_engine* engine, int32_t on);
/* As dtr_journal_drain. */
uint64_t dtr_decisions_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity);

/* ---- Simulated framework: the engine without PyTorch () ---------- */

/* A tensor framework of our own behind the table of bridge_table.h: for tests, and to
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

/* ---- Replay of op logs (simulate/) ---------------------------------- */

/* A log as numbers (dtr_alloc/oplog.py makes them), one instruction after the other:
 *   0, name, size_bytes                                               CONSTANT
 *   1, time, args, arg..., results, (name, size_bytes, alias)...      CALL
 *   2, time, args, arg..., mutated, index...                          MUTATE: -1 - i for
 *                                               argument i if it is overwritten without being read
 *   3, dst, src                                                       COPY
 *   4, dst, src                                                       COPY_FROM
 *   5, name                                                           RELEASE
 *   6, time, args, arg..., results, (name, size_bytes, -1)...         EFFECT: never repeated;
 *                                                                     its results are constants
 * A name is a number from 0 on, in the order in which the names first stand in the log. An
 * alias is the index of the argument that the result looks at, -1 for new memory. */
typedef struct dtr_replay dtr_replay;

enum {
  DTR_DEALLOC_EAGER = 0,
  DTR_DEALLOC_BANISH = 1,
  DTR_DEALLOC_IGNORE = 2,
  DTR_DEALLOC_LAZY = 3 /* in simrd's semantics the same as ignore: it pins all constants */
};

typedef struct dtr_replay_options {
  dtr_heuristic heuristic;
  int32_t dealloc;          /* DTR_DEALLOC_... */
  int32_t newest_staleness; /* 1: staleness of the newest access in S and e*(S), under banish */
  uint64_t budget_bytes;    /* UINT64_MAX: no limit */
  int64_t max_recompute;    /* more cost than this spent on recomputing: thrash; -1: no limit */
} dtr_replay_options;

enum {
  DTR_REPLAY_OK = 0,
  DTR_REPLAY_OUT_OF_MEMORY = 1,
  DTR_REPLAY_THRASH = 2,
  DTR_REPLAY_CONTRADICTION = 3 /* simrd's cached regions contradict themselves: it stops, too */
};

typedef struct dtr_replay_result {
  int32_t status;      /* DTR_REPLAY_...; else the counters are those of the moment it ended */
  int64_t clock;       /* 1 + all cost spent */
  int64_t model_cost;  /* of first executions, EFFECTs included on the engine */
  int64_t remat_cost;  /* of repeated ones */
  uint64_t model_ops;  /* first executions */
  uint64_t remat_ops;  /* repeated ones */
  uint64_t collateral; /* other outputs that came back with a rematerialized one */
  uint64_t forced;     /* evictions for room */
  uint64_t other;      /* evictions at a release or inside a banish */
  uint64_t banished;
  uint64_t peak_bytes;
  uint64_t end_bytes;
  uint64_t evaluations; /* scores computed */
  uint64_t accesses;    /* storages visited for scores and their metadata (simrd, 5.5) */
  uint64_t chain_depth; /* the most rematerializations that waited for one another */
  uint64_t search_ns;   /* real time spent choosing */
  /* On the engine: */
  uint64_t yields;         /* as in dtr_engine_stats */
  uint64_t constant_bytes; /* resident when it ended: what cannot be evicted, */
  uint64_t running_bytes;  /* what the op or step in flight reads, */
  uint64_t waiting_bytes;  /* and what only waits */
  /* On the engine, if it was to be measured, what fragmentation costs (fragmentation.h in
   * native/simulate/ says what is lost); of requests that found their place. Counted pools lose
   * nothing: */
  uint64_t forced_requests;  /* requests for which something was evicted */
  uint64_t forced_times;     /* how often something was evicted for them (by windows: several) */
  uint64_t lost_bytes;       /* summed over these times; */
  uint64_t most_lost_bytes;  /* the most at one of them */
  uint64_t left_bytes;       /* free once the request has its place, summed over the requests */
  uint64_t scattered;        /* evictions while as much was free as was asked for; */
  uint64_t scattered_times;  /* of how many times */
  uint64_t remaps;           /* as in dtr_pool_stats */
  uint64_t windows;          /* searched for, as in dtr_engine_stats */
  uint64_t window_evictions; /* of those that are forced */
  uint64_t moves;            /* contents moved within the pool, */
  uint64_t moved_bytes;      /* their bytes, */
  int64_t move_cost;         /* and time; part of neither clock nor remat_cost, but if both together
                                are above max_recompute, the run is one that thrashed */
} dtr_replay_result;

/* Replays a program with the semantics of simrd, the simulator of the DTR paper. Returns
 * DTR_INVALID for a program or options that are malformed, else the run's outcome is in the
 * result. *out belongs to the caller; NULL on failure. */
int32_t dtr_replay_simrd(const dtr_replay_options* options, const int64_t* program,
                         uint64_t numbers, dtr_replay** out);

/* Where a replay on the engine has its memory: counted (the pool "counted"), or on the heap over
 * simulated addresses, mapped by chunks, or in a fixed pool (dtr_pool_options). */
enum { DTR_SPACE_BYTES = 0, DTR_SPACE_HEAP = 1, DTR_SPACE_FIXED = 2 };

/* Replays a program with the semantics of simrd, evicting for room what a list says
 * (simulate/given.h): count pairs of numbers, after how many executions (first and repeated
 * ones) and which storage, by its first tensor as in the decisions. What the program releases is
 * evicted at once under DTR_DEALLOC_EAGER, and stays until the list says so under
 * DTR_DEALLOC_IGNORE. Fails and returns as dtr_replay_simrd; DTR_INVALID also if the list has
 * what cannot be evicted, or leaves too little room. */
int32_t dtr_replay_given(int32_t dealloc, uint64_t budget_bytes, const int64_t* program,
                         uint64_t numbers, const int64_t* evictions, uint64_t count,
                         dtr_replay** out);

typedef struct dtr_runtime_options {
  dtr_replay_options replay; /* newest_staleness must be 0 */
  int32_t space;             /* DTR_SPACE_... */
  int32_t outputs;           /* 1: at the end all that has a name is made resident, as in simrd */
  uint64_t min_evict_bytes;  /* as in dtr_engine_options */
  uint64_t history_ops;      /* likewise */
  int32_t ghosts;            /* likewise */
  int32_t waiting;           /* likewise */
  int32_t room;              /* likewise */
  dtr_score_fn score;        /* likewise */
  void* score_context;
  uint64_t chunk_bytes; /* the unit of mapping, a multiple of 4 KiB; 0: the host driver's */
  int32_t measure;      /* 1: what fragmentation costs; takes up to as long as the replay itself */
  double move_bytes_per_s; /* what moving costs, in the program's time as nanoseconds; 0: nothing is
                           moved. Each move takes 5000 ns besides, as dtr_engine_options has it */
  int32_t placement;       /* of the heap, as in dtr_pool_options; for bytes alone 0 */
} dtr_runtime_options;

/* Replays a program on the engine above, with costs and sizes of the program and no contents
 * (simulate/runtime.h says what differs from simrd). workspace: what operators allocate
 * while they run, as pairs: 0, bytes of a temporary; 1, index of the operator's temporary that
 * is freed; 2, index of the result that is allocated here. Operator k, the k-th CALL, MUTATE or
 * EFFECT, has workspace[workspace_at[k]] up to workspace[workspace_at[k + 1]]. Both NULL: no
 * operator has any. peak_bytes and end_bytes are those of the pool, rounded as it rounds. Fails and
 * returns as dtr_replay_simrd. */
int32_t dtr_replay_runtime(const dtr_runtime_options* options, const int64_t* program,
                           uint64_t numbers, const int64_t* workspace, const int64_t* workspace_at,
                           uint64_t operators, dtr_replay** out);

/* Of these none fails otherwise. */
int32_t dtr_replay_destroy(dtr_replay* replay);
int32_t dtr_replay_get_result(const dtr_replay* replay, dtr_replay_result* out);
/* The run's decisions, joined by newlines: M<t> first execution of the op of tensor t, R<t>
 * executed again to get t, E<s> evicted for room, D<s> evicted by a release or a banish, B<s>
 * banished. Tensors are numbered in the order of creation, a storage as its first tensor. */
const char* dtr_replay_decisions(const dtr_replay* replay, uint64_t* length);

/* ---- Schedules: what to evict, with the whole log known (schedule/) ----- */

/* What a search found: a list of evictions for dtr_replay_given. */
typedef struct dtr_schedule dtr_schedule;

typedef struct dtr_search_options {
  uint64_t budget_bytes;
  uint64_t seed;
  uint64_t steps; /* of local search, after the sweep over scores */
  double seconds; /* no further step of local search begins after these; 0: no limit */
} dtr_search_options;

typedef struct dtr_schedule_result {
  int32_t found;      /* 0: no list was found that keeps the program within the budget */
  int32_t dealloc;    /* what the list is for: DTR_DEALLOC_EAGER or DTR_DEALLOC_IGNORE */
  int64_t remat_cost; /* of the schedule */
  int64_t swept_cost; /* of the best of the sweep */
  uint64_t steps;     /* of local search that were made */
  uint64_t evictions; /* how many pairs the list has */
} dtr_schedule_result;

/* Looks for evictions that cost little recomputing. The same options with seconds 0 give the same
 * list. Returns DTR_INVALID for a program that is malformed. *out belongs to the caller; NULL on
 * failure. */
int32_t dtr_schedule_search(const dtr_search_options* options, const int64_t* program,
                            uint64_t numbers, dtr_schedule** out);
/* Of these none fails otherwise. */
int32_t dtr_schedule_destroy(dtr_schedule* schedule);
int32_t dtr_schedule_get_result(const dtr_schedule* schedule, dtr_schedule_result* out);
/* The list, as many pairs as the result says. Lives as long as the schedule. */
const int64_t* dtr_schedule_evictions(const dtr_schedule* schedule);

/* ---- Replay of allocation traces (fragment/) ----------------------- */

/* The rows of a trace are DTR_EVENT_... (dtr_alloc/fragment/trace.py says what each means). A
 * replay heeds the first two and moves; the others count for nothing there. */

/* The allocations of one device in a trace, paired. Immutable: any thread. */
typedef struct dtr_fragment_events dtr_fragment_events;
/* Reads count rows, those of device `which`. DTR_INVALID names the row: a FREE where nothing is
 * allocated, an ALLOCATE where something is, a move without its other half, an unknown kind.
 * *out belongs to the caller; NULL on failure. */
int32_t dtr_fragment_load(const uint8_t* kind, const uint64_t* address, const uint64_t* size_bytes,
                          const uint64_t* stream, const uint16_t* device, uint64_t count,
                          uint16_t which, dtr_fragment_events** out);
int32_t dtr_fragment_unload(dtr_fragment_events* events);
int32_t dtr_fragment_counts(const dtr_fragment_events* events, uint64_t* steps,
                            uint64_t* allocations, uint64_t* peak_live_bytes);

enum {
  DTR_FRAGMENT_OURS = 0,         /* our pool over simulated memory */
  DTR_FRAGMENT_PYTORCH = 1,      /* PyTorch's caching allocator (fragment/caching.h) */
  DTR_FRAGMENT_POWER_OF_TWO = 2, /* bins of powers of two, never split or merged */
  DTR_FRAGMENT_FIRST_FIT = 3,    /* one arena, the lowest hole that fits */
  DTR_FRAGMENT_PAGING = 4,       /* whole pages for each request, wherever they are */
  DTR_FRAGMENT_EXACT = 5         /* bytes, wherever they are: the bound below all */
};

typedef struct dtr_fragment_options {
  int32_t model;         /* DTR_FRAGMENT_... */
  uint64_t budget_bytes; /* of the device; UINT64_MAX: no limit */
  uint64_t samples;      /* about how many rows to look at closely; 0: none */
  int32_t places;        /* 1: keep the address of each allocation */
  /* ours: as in dtr_pool_options */
  uint64_t chunk_bytes;
  uint64_t small_bytes;
  int32_t fixed;
  int32_t placement; /* no request wishes for an end */
  /* paging */
  uint64_t page_bytes;
  /* pytorch; the zeros: PyTorch's defaults */
  int32_t expandable;         /* expandable_segments */
  int32_t budget_is_fraction; /* the budget is set_per_process_memory_fraction's, and not what
                                 the device has */
  uint64_t max_split_bytes;   /* max_split_size_mb, in bytes */
  uint64_t max_unsplit_rounding_bytes; /* max_non_split_rounding_mb, in bytes */
  uint64_t roundup_power2_divisions;
  double collect_threshold; /* garbage_collection_threshold; needs budget_is_fraction */
  int32_t ties_by_address;  /* 1: of free blocks of one size the lowest serves, as up to 2.12; 0:
                               that of the oldest segment, as from 2.13 on */
  const uint64_t* segment_addresses; /* of the segments that the device gives, in order, if known
                                        (not expandable); NULL */
  uint64_t segment_address_count;
} dtr_fragment_options;

typedef struct dtr_fragment_result {
  int32_t completed;        /* 0: out of memory at failed_row; all else is of what came before */
  int64_t failed_row;       /* -1 if completed */
  uint64_t failed_bytes;    /* the request that found no place; 0 if completed */
  uint64_t events;          /* allocations and frees */
  uint64_t replayed_events; /* that went through */
  uint64_t peak_live_bytes; /* as asked for */
  uint64_t peak_used_bytes; /* as rounded */
  uint64_t peak_reserved_bytes; /* held of the device */
  uint64_t max_lost_bytes;      /* reserved and not live, the most after any event */
  double mean_lost_bytes;       /* and the mean over events */
  uint64_t end_live_bytes;
  uint64_t end_reserved_bytes;
  int64_t replay_ns; /* real time of the events, with the counting of the above and no looking */
} dtr_fragment_result;

/* The state after a row. */
typedef struct dtr_fragment_sample {
  uint64_t row;
  uint64_t live_bytes;
  uint64_t used_bytes;
  uint64_t reserved_bytes;
  uint64_t free_bytes; /* of holes: reserved, and in no block */
  uint64_t largest_free_bytes;
  uint64_t free_blocks;
  double sum_free_squares;
} dtr_fragment_sample;

typedef struct dtr_fragment_block {
  uint64_t address;
  uint64_t size_bytes;
  uint64_t stream;
  int32_t used;
  int32_t reserved;
} dtr_fragment_block;

/* Memory that came from the device, or went back, at a row. */
typedef struct dtr_fragment_segment {
  uint64_t row;
  uint64_t address;
  uint64_t size_bytes;
  int32_t taken; /* 0: given back */
  int32_t reserved;
} dtr_fragment_segment;

typedef struct dtr_fragment_replay dtr_fragment_replay;
/* Replays the allocations on a model. Running out of memory is an outcome. DTR_INVALID for options
 * that are none. *out belongs to the caller; NULL on failure. Any thread. */
int32_t dtr_fragment_run(const dtr_fragment_events* events, const dtr_fragment_options* options,
                         dtr_fragment_replay** out);
/* Of these none fails otherwise. */
int32_t dtr_fragment_destroy(dtr_fragment_replay* replay);
int32_t dtr_fragment_get_result(const dtr_fragment_replay* replay, dtr_fragment_result* out);
/* These live as long as the replay. Samples ascend by row: about as many as asked for, evenly, and
 * the peaks. Places are by allocation, UINT64_MAX where it was not reached. Blocks in address
 * order, `worst` when reserved - live was largest, else at the end. */
const dtr_fragment_sample* dtr_fragment_samples(const dtr_fragment_replay* replay, uint64_t* count);
const uint64_t* dtr_fragment_places(const dtr_fragment_replay* replay, uint64_t* count);
const dtr_fragment_block* dtr_fragment_blocks(const dtr_fragment_replay* replay, int32_t worst,
                                              uint64_t* count);
const dtr_fragment_segment* dtr_fragment_segments(const dtr_fragment_replay* replay,
                                                  uint64_t* count);

/* What a trace did to its own heap; dtr_alloc/fragment/walk.py says how it is read. */
typedef struct dtr_fragment_walk_options {
  const uint8_t* kind; /* the rows' columns, of one device; they outlive the walk */
  const uint64_t* address;
  const uint64_t* size_bytes;
  uint64_t count;
  uint64_t chunk_bytes; /* the unit in which free memory can be mapped elsewhere; 0: it cannot */
  int32_t walled;       /* 1: holes of two segments do not merge by themselves */
} dtr_fragment_walk_options;

enum { DTR_BEGAN_ALLOCATED = 0, DTR_BEGAN_REMATERIALIZED = 1, DTR_BEGAN_MOVED = 2 };
enum { DTR_ENDED_FREED = 0, DTR_ENDED_EVICTED = 1, DTR_ENDED_MOVED = 2, DTR_ENDED_NOT = 3 };

typedef struct dtr_fragment_heap {
  /* The heap after each row that changed it. */
  uint64_t moments;
  const int64_t* row;
  const uint64_t* live_bytes; /* as asked for */
  const uint64_t* reserved_bytes;
  const uint64_t* free_bytes; /* reserved, and in no block */
  const uint64_t* largest_free_bytes;
  const double* sum_free_squares;
  /* The blocks, in the order of their beginnings. */
  uint64_t blocks;
  const int64_t* start;
  const int64_t* end; /* the number of rows for those that stay */
  const uint64_t* address;
  const uint64_t* block_bytes;
  const uint8_t* began; /* DTR_BEGAN_... */
  const uint8_t* ended; /* DTR_ENDED_... */
  /* Bytes lost, by the row that asked for room, where something was evicted for it. */
  uint64_t losses;
  const int64_t* lost_row;
  const uint64_t* lost_bytes;
  uint64_t budget_bytes; /* the last; UINT64_MAX: none */
} dtr_fragment_heap;

typedef struct dtr_fragment_walk dtr_fragment_walk;
/* DTR_INVALID names the row: an end of what has not begun, a block that lies in another one. *out
 * belongs to the caller; NULL on failure. Any thread. */
int32_t dtr_fragment_walk_run(const dtr_fragment_walk_options* options, dtr_fragment_walk** out);
int32_t dtr_fragment_walk_destroy(dtr_fragment_walk* walk);
/* Its columns live as long as the walk. */
int32_t dtr_fragment_walk_heap(const dtr_fragment_walk* walk, dtr_fragment_heap* out);
/* The sizes of the holes after that row, ascending: goes through the rows again. They live until
 * the next call, or as long as the walk. */
int32_t dtr_fragment_walk_holes(dtr_fragment_walk* walk, uint64_t row, const uint64_t** sizes,
                                uint64_t* count);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
