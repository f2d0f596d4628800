/* dtr_lab.h: the semantics of simrd, the simulator of the DTR paper, a search for schedules, and a
 * framework for tests.
 *
 * They are a library of their own, dtr_alloc._lab, which only a checkout builds: tests and studies
 * load it, and no wheel has it. It shares types with the core, and no state. A function returns a
 * status; dtr_lab_error() has the message. Any thread may call.
 */
#ifndef DTR_LAB_H
#define DTR_LAB_H

#include <stdint.h>

#include "dtr/framework.h"
#include "dtr_alloc.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* Among how many of the candidates a search looks for the least score: DTR's prototype draws a
 * sample of them. */
enum { DTR_SAMPLING_NONE = 0, DTR_SAMPLING_SQRT = 1 };

typedef struct dtr_lab_options {
  dtr_simulation_options common;
  int32_t newest_staleness; /* 1: staleness of the newest access in S and e*(S), under banish */
  int32_t sampling;         /* DTR_SAMPLING_..., by the heuristic's seed */
  double least_size_share;  /* 0 to 1: storages below this share of the candidates' mean size are no
                               candidates, as in DTR's prototype (0.01) */
} dtr_lab_options;

typedef struct dtr_lab_search_options {
  uint64_t budget_bytes;
  uint64_t seed;
  uint64_t steps; /* of local search, after the sweep over scores */
  double seconds; /* no further step of local search begins after these; 0: no limit */
} dtr_lab_search_options;

typedef struct dtr_lab_search_result {
  int32_t found;      /* 0: no schedule was found */
  int32_t dealloc;    /* what the evictions are for: DTR_DEALLOC_EAGER or DTR_DEALLOC_IGNORE */
  int64_t remat_cost; /* of the schedule */
  uint64_t steps;     /* of local search that were made */
  uint64_t evictions; /* how many pairs there are */
} dtr_lab_search_result;

/* Runs a program (dtr/simulate.h) with the semantics of simrd. How the run ends is its status in the
 * result, and no failure. *decisions is text as that of dtr_simulate_runtime.
 * Owner: the library owns the decisions, until this thread's next run.
 * Fails iff: DTR_INVALID if the program is malformed, or the options ask for what simrd has not: a
 * callback, or components under banishing. */
int32_t dtr_lab_simrd(const dtr_lab_options* options, const int64_t* program, uint64_t numbers,
                      dtr_simulation_result* result, const char** decisions);

/* The same, but evicts for room what a schedule says: count pairs of numbers, ascending by the
 * first: after how many executions (first and repeated ones), and which storage, named by its first
 * tensor as in the decisions. What the program releases is evicted at once under DTR_DEALLOC_EAGER,
 * and stays until the schedule says so under DTR_DEALLOC_IGNORE.
 * Fails iff: DTR_INVALID if the program is malformed, dealloc is another one, or an eviction cannot
 * be done, or leaves too little room. */
int32_t dtr_lab_given(int32_t dealloc, uint64_t budget_bytes, const int64_t* program,
                      uint64_t numbers, const int64_t* evictions, uint64_t count,
                      dtr_simulation_result* result, const char** decisions);

/* Looks for evictions for dtr_lab_given that cost little recomputing. The same options with seconds
 * 0 give the same. That there are none is no failure: the result says so.
 * Owner: the library owns *evictions, as many pairs as the result says, until this thread's next
 * search.
 * Fails iff: DTR_INVALID if the program is malformed. */
int32_t dtr_lab_search(const dtr_lab_search_options* options, const int64_t* program,
                       uint64_t numbers, dtr_lab_search_result* result, const int64_t** evictions);

/* The message of the last failed call of this library on this thread. */
const char* dtr_lab_error(void);

/* A tensor framework for tests and benches, over the simulated one (simulate/simulated_framework.h): a
 * storage has one block of memory, and tensors look at ranges of it. Nothing of its arguments is
 * checked. Connect its table to an engine (dtr_engine_connect), then make it with the core's. At the
 * end release all tensors, let the engine forget the rest (dtr_engine_reset), destroy the framework,
 * then the engine. Functions that allocate return a status, and *message is that of
 * dtr_core.allocate. scalar_type: 4, int64; anything else: bytes. Offsets and sizes are in elements.
 * Owner: the caller owns each tensor, which holds one strong reference to its storage. The last one
 * gives the memory back to the core, as PyTorch's would.
 * Threads: any, but one at a time releases or changes the same tensor. */
typedef struct dtr_toy dtr_toy;
typedef struct dtr_toy_tensor dtr_toy_tensor;

const dtr_framework* dtr_toy_table(void);
dtr_toy* dtr_toy_create(const dtr_core* core);

/* Frees the framework if it has neither tensors nor storages that the engine refers to; returns how
 * many it has. */
uint64_t dtr_toy_destroy(dtr_toy* toy);

/* Sets the stream of this thread's work on all devices but the CPU; 0 at first. */
void dtr_toy_use_stream(uint64_t stream);

/* Makes a tensor over new memory of undefined content, for work on stream; may evict. */
int32_t dtr_toy_make(dtr_toy* toy, int32_t device_type, int32_t device_index, uint64_t stream,
                     int32_t scalar_type, int64_t elements, dtr_toy_tensor** out,
                     const char** message);

/* Makes a further tensor over a storage, evicted or not. NULL: it is dead. */
dtr_toy_tensor* dtr_toy_over(void* handle, int32_t scalar_type, int64_t offset, int64_t elements);

/* Makes a tensor over memory of the caller, which outlives the storage. */
dtr_toy_tensor* dtr_toy_from(dtr_toy* toy, int32_t device_type, int32_t device_index, void* address,
                             int32_t scalar_type, int64_t elements);

/* Gives the tensor's storage new memory of undefined content and frees the old, past the recorder
 * (as PyTorch's set_data, or resize_ to nothing and back). */
int32_t dtr_toy_replace_memory(dtr_toy_tensor* tensor, uint64_t stream, const char** message);

void dtr_toy_release(dtr_toy_tensor* tensor);

/* The tensor's storage; the address of its first element, NULL if it is evicted or empty; and the
 * size of a handle's storage. */
void* dtr_toy_handle(const dtr_toy_tensor* tensor);
void* dtr_toy_data(const dtr_toy_tensor* tensor);
uint64_t dtr_toy_storage_bytes(const void* handle);

/* Moves out up to capacity closures that nothing needs any more, of all engines that are connected to
 * the table, and returns how many. */
uint64_t dtr_toy_dropped(void** closures, uint64_t capacity);

/* CFFI END */

DTR_C_END

#endif
