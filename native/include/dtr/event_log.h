/* dtr/event_log.h: what pools do, for traces (allocator/event_log.h,
 * docs/reference/trace-format.md). */
#ifndef DTR_EVENT_LOG_H
#define DTR_EVENT_LOG_H

#include <stdint.h>

#include "dtr/pool.h"

DTR_C_BEGIN

/* CFFI BEGIN */

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
  uint64_t* op;    /* the op_key of the operator that ran on the thread, 0 if none did */
  uint32_t* place; /* dtr_place of the thread */
} dtr_event_columns;

/* Creates a log. */
int32_t dtr_event_log_create(dtr_event_log** out);

/* Frees the log; NULL is allowed.
 * Fails iff: DTR_STATE if a pool writes to it (dtr_pool_set_log). */
int32_t dtr_event_log_destroy(dtr_event_log* log);

/* Moves up to capacity events out, oldest first, and returns how many: fewer than there are if less
 * than 4096 would fit. No pool waits for it.
 * Threads: one at a time. */
uint64_t dtr_event_log_drain(dtr_event_log* log, const dtr_event_columns* columns,
                             uint64_t capacity);

/* Returns how many events came while 2^22 were waiting: from the first of them on, all are lost. */
uint64_t dtr_event_log_lost(const dtr_event_log* log);

/* Sends the pool's events to the log from now on, as those of a device with this number; NULL:
 * to no log. The first events say what is there: the budget, memory, blocks in use. */
int32_t dtr_pool_set_log(dtr_pool* pool, dtr_event_log* log, uint16_t device);

/* Adds an event (DTR_EVENT_...) that the pool cannot know, if it has a log. */
int32_t dtr_pool_note(dtr_pool* pool, int32_t kind, const void* address, uint64_t size_bytes);

/* Adds DTR_EVENT_MOVE_FROM and DTR_EVENT_MOVE_TO, one directly behind the other: after the
 * content was moved, and before its old block is freed. */
int32_t dtr_pool_note_move(dtr_pool* pool, const void* from, const void* to, uint64_t size_bytes);

/* CFFI END */

DTR_C_END

#endif
