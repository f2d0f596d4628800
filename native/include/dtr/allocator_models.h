/* dtr/allocator_models.h: models of allocators, run over traces, and what a trace did to its own
 * heap (native/fragment/). */
#ifndef DTR_ALLOCATOR_MODELS_H
#define DTR_ALLOCATOR_MODELS_H

#include <stdint.h>

#include "dtr/status.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* The allocations of one device in a trace (docs/reference/trace-format.md). Immutable: any thread. */
typedef struct dtr_fragment_events dtr_fragment_events;

/* Allocation i begins at row start[i] and ends at row end[i], -1 if it does not. A block that moved is
 * one allocation.
 * Fails iff: DTR_INVALID, naming the allocation, if it does not begin behind the one before it, or ends
 * where it begins or before. */
int32_t dtr_fragment_load(const int64_t* start, const int64_t* end, const uint64_t* size_bytes,
                          const uint64_t* stream, uint64_t count, dtr_fragment_events** out);

/* Frees the events. Runs over them stay. */
int32_t dtr_fragment_unload(dtr_fragment_events* events);

/* Writes how many allocations and frees there are (steps), how many allocations, and the most bytes
 * that live. */
int32_t dtr_fragment_counts(const dtr_fragment_events* events, uint64_t* steps,
                            uint64_t* allocations, uint64_t* peak_live_bytes);

enum {
  DTR_FRAGMENT_OURS = 0,         /* our pool over simulated memory */
  DTR_FRAGMENT_PYTORCH = 1,      /* PyTorch's caching allocator (fragment/caching.cpp) */
  DTR_FRAGMENT_POWER_OF_TWO = 2, /* bins of powers of two, never split or merged */
  DTR_FRAGMENT_FIRST_FIT = 3,    /* one arena, the lowest hole that fits */
  DTR_FRAGMENT_PAGING = 4,       /* whole pages for each request, wherever they are */
  DTR_FRAGMENT_EXACT = 5         /* bytes, wherever they are: the bound below all */
};

typedef struct dtr_fragment_options {
  int32_t model;         /* DTR_FRAGMENT_... */
  uint64_t budget_bytes; /* of the device; UINT64_MAX: no limit */
  uint64_t samples;      /* about how many rows to look at closely; 0: none but for places */
  uint64_t start_rows;   /* these first rows are what was there when the recording began: the state
                            after the last of them is one moment, and those before it are none */
  int32_t places;        /* 1: keep the address of each allocation */
  /* ours: as in dtr_pool_options */
  uint64_t chunk_bytes;
  uint64_t small_bytes;
  int32_t fixed;
  int32_t placement; /* no request has a hint */
  /* paging */
  uint64_t page_bytes;
  /* pytorch; the zeros: PyTorch's defaults */
  int32_t expandable;         /* 1: expandable_segments */
  int32_t budget_is_fraction; /* 1: the budget is set_per_process_memory_fraction's, and not what
                                 the device has */
  uint64_t max_split_bytes;   /* max_split_size_mb, in bytes */
  uint64_t max_unsplit_rounding_bytes; /* max_non_split_rounding_mb, in bytes */
  uint64_t roundup_power2_divisions;
  double collect_threshold; /* garbage_collection_threshold; of use with budget_is_fraction */
  int32_t ties_by_address;  /* 1: of free blocks of one size the lowest serves, as up to 2.12; 0:
                               that of the oldest segment, as from 2.13 on */
  const uint64_t* segment_addresses; /* of the segments that the device gives, in order, if known
                                        (not expandable); NULL */
  uint64_t segment_address_count;
} dtr_fragment_options;

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

typedef struct dtr_fragment_result {
  int32_t completed;        /* 0: out of memory at failed_row; all else is of what came before */
  int64_t failed_row;       /* -1 if completed */
  uint64_t failed_bytes;    /* the request that found no place; 0 if completed */
  uint64_t events;          /* allocations and frees */
  uint64_t served_events;   /* that went through */
  uint64_t peak_live_bytes; /* as asked for */
  uint64_t peak_used_bytes; /* as rounded */
  uint64_t peak_reserved_bytes; /* held of the device */
  uint64_t max_lost_bytes;      /* reserved and not live, the most at any moment: after the start
                                   and after each event */
  double mean_lost_bytes;       /* and the mean over moments */
  uint64_t end_live_bytes;
  uint64_t end_reserved_bytes;
  int64_t run_ns; /* real time of the events, with the counting of the above and no looking */
  /* Arrays, NULL where there is none. Blocks are in address order; without samples and places there
   * are none. */
  const dtr_fragment_sample* samples; /* ascending by row: about as many as asked for, evenly, and
                                         the peaks */
  uint64_t samples_count;
  const uint64_t* places; /* by allocation, UINT64_MAX where it was not reached; a model without
                             addresses has none */
  uint64_t places_count;
  const dtr_fragment_block* worst; /* when reserved - live was largest */
  uint64_t worst_count;
  const dtr_fragment_block* last; /* at the end */
  uint64_t last_count;
  const dtr_fragment_segment* segments;
  uint64_t segments_count;
} dtr_fragment_result;

/* The outcome of one run of a model. Immutable: any thread. */
typedef struct dtr_fragment_run dtr_fragment_run;

/* Runs a model over the events, and writes the result. That it runs out of memory is an outcome, and
 * no failure.
 * Owner: the run owns the result's arrays.
 * Fails iff: DTR_INVALID, naming the option, if the model does not exist or cannot be so. */
int32_t dtr_fragment_run_model(const dtr_fragment_events* events,
                               const dtr_fragment_options* options, dtr_fragment_result* result,
                               dtr_fragment_run** out);

/* Frees the outcome. */
int32_t dtr_fragment_destroy(dtr_fragment_run* run);

/* What dtr_fragment_walk_run reads; dtr_alloc/fragment/walk.py says how. */
typedef struct dtr_fragment_walk_options {
  const uint8_t* kind; /* the rows' columns, of one device */
  const uint64_t* address;
  const uint64_t* size_bytes;
  uint64_t count;
  uint64_t start_rows;  /* as in dtr_fragment_options */
  uint64_t chunk_bytes; /* the unit in which free memory can be mapped elsewhere; 0: it cannot */
  int32_t walled;       /* 1: holes of two segments do not merge by themselves */
} dtr_fragment_walk_options;

enum { DTR_BEGAN_ALLOCATED = 0, DTR_BEGAN_REMATERIALIZED = 1, DTR_BEGAN_MOVED = 2 };
enum { DTR_ENDED_FREED = 0, DTR_ENDED_EVICTED = 1, DTR_ENDED_MOVED = 2, DTR_ENDED_NOT = 3 };

typedef struct dtr_fragment_heap {
  /* The heap after the start, and after each later row that changed it. */
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

/* A walk through a trace, at the addresses that it has. */
typedef struct dtr_fragment_walk dtr_fragment_walk;

/* Walks through a trace, and writes the heap.
 * Owner: the caller keeps the columns, unchanged, as long as the walk, which owns the heap's.
 * Fails iff: DTR_INVALID, naming the row, if an event ends what has not begun, a block lies in
 * another one, a kind is unknown, or requests for room are too many to be looked at. */
int32_t dtr_fragment_walk_run(const dtr_fragment_walk_options* options, dtr_fragment_heap* heap,
                              dtr_fragment_walk** out);

/* Frees the walk. */
int32_t dtr_fragment_walk_destroy(dtr_fragment_walk* walk);

/* Writes the sizes of the holes after a row (beyond the last: at the end), ascending. It goes
 * through the rows again.
 * Owner: the walk, until the next call.
 * Threads: one at a time for each walk. */
int32_t dtr_fragment_walk_holes(dtr_fragment_walk* walk, uint64_t row, const uint64_t** sizes,
                                uint64_t* count);

/* CFFI END */

DTR_C_END

#endif
