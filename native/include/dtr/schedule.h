/* dtr/schedule.h: what to evict, with the whole log known (schedule/). */
#ifndef DTR_SCHEDULE_H
#define DTR_SCHEDULE_H

#include <stdint.h>

#include "dtr/simulate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* What a search found: a list of evictions for dtr_simulate_given. */
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

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
