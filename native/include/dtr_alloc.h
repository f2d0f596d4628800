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

#include "dtr/allocator_models.h"
#include "dtr/device.h"
#include "dtr/engine.h"
#include "dtr/event_log.h"
#include "dtr/op_log.h"
#include "dtr/ops.h"
#include "dtr/pool.h"
#include "dtr/schedule.h"
#include "dtr/simulate.h"
#include "dtr/status.h"
#include "dtr/storage.h"
#include "dtr/toy.h"

#endif
