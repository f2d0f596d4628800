/* dtr_alloc.h: the C interface of the allocator and the rematerialization engine.
 *
 * The headers below are the manual, one for each subject. cffi reads what stands between their two
 * CFFI marks: plain C declarations without preprocessor lines. dtr/framework.h, the tables between
 * the engine and a tensor framework, is not included here; the laboratory reads it.
 *
 * Names
 *   Every function and type begins with dtr_. Units stand last: size_bytes, cost_ns.
 *
 * Contract
 *   The comment of a function says what it does and returns. Three further points follow, as far as
 *   they differ from what holds for every function:
 *
 *   Owner: The caller owns the handle that a function writes to *out, and destroys it once; *out
 *     is NULL if the function failed. The caller owns the memory that it passes, and the function
 *     keeps no pointer to it. The library owns memory to which a function returns a pointer.
 *
 *   Threads: Any thread may call. The function takes the locks that it needs; allocator/locks.h
 *     lists them. No function takes the Python GIL, but a dtr_score_fn may. A caller that holds the
 *     GIL may keep it. Nobody destroys an object that another thread uses.
 *
 *   Fails iff: DTR_INVALID if a handle is NULL, destroyed, of another kind or no handle at all,
 *     if a pointer is NULL that must not be, or if a number is out of range; DTR_STATE if something
 *     still needs an object that would be destroyed; DTR_OUT_OF_MEMORY if the host has no memory
 *     for our own records. A function looks at all arguments first, and a failed call leaves its
 *     objects as they were.
 *
 *   No function can tell whether the memory behind a pointer is there, and as long as the numbers
 *   beside it say.
 *
 * Results
 *   A function that can fail returns a status (dtr/status.h), or, where 0 and more are results, the
 *   status negated. A function that returns a pointer or a count returns NULL or 0 if it failed;
 *   one that returns a type or an index, -1. dtr_last_error() has the message.
 *
 * Handles
 *   The opaque types (dtr_pool, dtr_engine, ...) are handles: numbers, and none is given twice.
 *   Each void * is an address of memory, or an object of the framework.
 */
#ifndef DTR_ALLOC_H
#define DTR_ALLOC_H

#include "dtr/allocator_models.h"
#include "dtr/device.h"
#include "dtr/engine.h"
#include "dtr/event_log.h"
#include "dtr/op_log.h"
#include "dtr/ops.h"
#include "dtr/pool.h"
#include "dtr/simulate.h"
#include "dtr/status.h"
#include "dtr/storage.h"

#endif
