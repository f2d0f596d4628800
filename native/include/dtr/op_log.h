/* dtr/op_log.h: what the job does, and what the engine decides meanwhile. */
#ifndef DTR_OP_LOG_H
#define DTR_OP_LOG_H

#include <stdint.h>

#include "dtr/engine.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* The op log is numbers, one record after another. A name is two of them: the number of a storage,
 * and 0 or which view of it. A storage is numbered when an op first meets it after the log was
 * switched on. dtr_alloc/oplog says what a log means, native/oplog/op_log_recorder.h what gets a
 * name. */
enum {
  DTR_OP_LOG_CONSTANT = 0, /* number, size_bytes (0: memory that is not ours) */
  DTR_OP_LOG_CALL = 1,     /* operator, cost_ns, names, names[2], results, then each:
                            *   name[2], size_bytes, index of the name it is a view of or -1 */
  DTR_OP_LOG_MUTATE = 2,   /* operator, cost_ns, names, names[2], indices, indices[]:
                            *   -1 - i for the name i, if its old content was not read */
  DTR_OP_LOG_RELEASE = 5,  /* name[2] */
  DTR_OP_LOG_MEMORY = 6,   /* of the next operator: pairs, pairs[2] of DTR_MEMORY_... */
  DTR_OP_LOG_EFFECT = 7,   /* operator, cost_ns, names, names[2], constants: it is not recomputed,
                            *   and made the constants that follow, as many as that */
  DTR_OP_LOG_PLACE = 8     /* of the operators from here on, 0 at first: as told by dtr_place */
};

/* What an operator did while it ran. */
enum {
  DTR_MEMORY_ALLOCATE = 0, /* a temporary; its size_bytes */
  DTR_MEMORY_FREE = 1,     /* the temporary of this index */
  DTR_MEMORY_RESULT = 2    /* allocated result k */
};

enum {
  DTR_OP_LOG_OFF = 0,       /* at first, and after dtr_engine_reset */
  DTR_OP_LOG_FOLLOWING = 1, /* no records, but names are those that writing would give */
  DTR_OP_LOG_WRITING = 2    /* begins with what is known, as constants */
};

/* Switches the op log. What was not drained stays; DTR_OP_LOG_OFF forgets all names. */
int32_t dtr_op_log_set(dtr_engine* engine, int32_t mode);

/* Moves all records out, and returns how many numbers they are: if that is more than capacity,
 * nothing was moved. */
uint64_t dtr_op_log_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity);

/* A decision is three numbers. The first is one of these. For an eviction the others are the
 * storage's number in the op log, and how often it had been overwritten. For a recomputation they
 * are the operator's index among those of the log (-1 if it is not there), and 0. */
enum {
  DTR_DECISION_ROOM = 0,      /* evicted to make room */
  DTR_DECISION_BY_USER = 1,   /* evicted by dtr_evict */
  DTR_DECISION_GONE = 2,      /* content gone: it died, or was overwritten */
  DTR_DECISION_RECOMPUTED = 3 /* an operator ran again */
};

/* Has the engine list its decisions (1), or no more (0, as at first), which forgets those that were
 * not drained. Decisions have the op log's numbers: without it they are 0. */
int32_t dtr_decisions_set(dtr_engine* engine, int32_t on);

/* Moves all decisions out, as dtr_op_log_drain. */
uint64_t dtr_decisions_drain(dtr_engine* engine, int64_t* numbers, uint64_t capacity);

/* CFFI END */

DTR_C_END

#endif
