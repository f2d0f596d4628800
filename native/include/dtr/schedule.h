/* dtr/schedule.h: what to evict, with the whole op log known (native/schedule/). */
#ifndef DTR_SCHEDULE_H
#define DTR_SCHEDULE_H

#include <stdint.h>

#include "dtr/simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* What a search found: evictions for dtr_simulate_given. Immutable: any thread. */
typedef struct dtr_schedule dtr_schedule;

typedef struct dtr_search_options {
  uint64_t budget_bytes;
  uint64_t seed;
  uint64_t steps; /* of local search, after the sweep over scores */
  double seconds; /* no further step of local search begins after these; 0: no limit */
} dtr_search_options;

typedef struct dtr_schedule_result {
  int32_t found;      /* 0: no schedule was found; then swept_cost means nothing */
  int32_t dealloc;    /* what the evictions are for: DTR_DEALLOC_EAGER or DTR_DEALLOC_IGNORE */
  int64_t remat_cost; /* of the schedule */
  int64_t swept_cost; /* of the best of the sweep */
  uint64_t steps;     /* of local search that were made */
  uint64_t evictions; /* how many pairs there are */
} dtr_schedule_result;

/* Looks for evictions that cost little recomputing. The same options with seconds 0 give the same
 * schedule. That there is none is no failure: the result says so.
 * Fails iff: DTR_INVALID if the program is malformed (dtr/simulate.h). */
int32_t dtr_schedule_search(const dtr_search_options* options, const int64_t* program,
                            uint64_t numbers, dtr_schedule** out);

/* Frees the schedule. */
int32_t dtr_schedule_destroy(dtr_schedule* schedule);

/* Writes the result. */
int32_t dtr_schedule_get_result(const dtr_schedule* schedule, dtr_schedule_result* out);

/* Returns the evictions, as many pairs as the result says; NULL also if there are none.
 * Owner: the schedule. */
const int64_t* dtr_schedule_evictions(const dtr_schedule* schedule);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
