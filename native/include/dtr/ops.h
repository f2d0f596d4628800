/* dtr/ops.h: ops and rematerializations, which a recorder reports and runs. */
#ifndef DTR_OPS_H
#define DTR_OPS_H

#include <stdint.h>

#include "dtr/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* What one thread's recorder has in flight: at most one op. */
typedef struct dtr_frame dtr_frame;

/* Creates a frame, which belongs to one thread at a time.
 * Owner: the caller owns the frame. Every function below takes one, and none owns the tensors and
 * handles that it is given: they live until dtr_op_end or dtr_op_abort.
 * Threads: one at a time for each frame.
 * Fails iff, here and below: DTR_STATE if another call uses the frame. */
int32_t dtr_frame_create(dtr_engine* engine, dtr_frame** out);

/* Frees the frame.
 * Fails iff: DTR_STATE if its op has not ended, or its stack is not empty. */
int32_t dtr_frame_destroy(dtr_frame* frame);

/* Returns the numbers that dtr_op_begin and dtr_op_end read: at least capacity of them, up to 2^24.
 * Owner: the frame, until a larger capacity is asked for. */
int64_t* dtr_frame_buffer(dtr_frame* frame, uint64_t capacity);

/* Returns the numbers that dtr_remat_next writes and dtr_remat_commit reads.
 * Owner: the frame, until a larger capacity is asked for or the next step is described. */
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
  DTR_OP_RECOMPUTABLE = 1, /* running it again on the same inputs gives the same bits */
  DTR_OP_KEEPS_OLD = 2, /* what it overwrites and cannot be computed again is kept in a copy, if it
                            is small: the op gives more than what it overwrites */
  DTR_OP_COPIES = 4     /* all it does is to copy its second tensor to its first, element by
                            element */
};

/* What dtr_op_begin answers: 0 means run the op at once. */
enum {
  DTR_NEED_WORK = 1,         /* call dtr_op_prepare before the op runs */
  DTR_HAS_FOREIGN = 2,       /* inputs on devices that are not managed: keep them by value */
  DTR_HAS_DROPPED = 4,       /* many closures can go: call dtr_engine_drain_dropped */
  DTR_NO_CLOSURE = 8,        /* of an op that is recomputable: it will not be recorded after all */
  DTR_GRAPH_IS_CAPTURED = 16 /* the op's work is done when the graph is launched */
};

/* Begins an op whose tensor arguments stand in buffer[0..tensors): locks their storages and stamps
 * their access time. op_key says which operator it is, by the same number in every process. Returns
 * DTR_NEED bits, or -status; then nothing is locked.
 * Fails iff: DTR_STATE if the frame's last op has not ended, its stack is not empty, or no
 * framework is connected; DTR_INVALID if the buffer has fewer numbers, or an entry is no tensor.
 * (The simulated framework tells; of other frameworks' tensors only a wrong address is found.) */
int32_t dtr_op_begin(dtr_frame* frame, uint32_t tensors, uint32_t flags, uint64_t op_key);

/* Puts on the frame's stack the storages that must be rematerialized before the op may run: evicted
 * inputs; then dependents of a constant that it overwrites; then dependents of history that is too
 * old. Returns 1 if there are any (run the stack with dtr_remat_next and call again), 0 if the op
 * may run, or -status.
 * Fails iff: DTR_STATE if no op was begun, or the stack is not empty. */
int32_t dtr_op_prepare(dtr_frame* frame);

/* Ends an op whose result tensors stand in buffer[0..results): records them and unlocks the inputs.
 * flags: those of dtr_op_begin; DTR_OP_RECOMPUTABLE counts only if it is given here too. cost_ns:
 * what the op cost, at most 2^40; negative: as measured by the clock, averaged over the calls of
 * its signature. The engine's clock moves on by it. Returns the id of the op record that needs a
 * closure, 0 if none does, or -status; then the op has not ended.
 * Fails iff: DTR_STATE if no op was begun, it is not prepared, or the stack is not empty;
 * DTR_INVALID as dtr_op_begin, for the results. */
int64_t dtr_op_end(dtr_frame* frame, uint32_t results, uint32_t flags, int64_t cost_ns);

/* Ends an op that failed or will not run: unlocks its inputs. started 1: it may have overwritten
 * some of its storages, which become constants of unknown content; 0: it was never called.
 * Without an op nothing is done. */
int32_t dtr_op_abort(dtr_frame* frame, int32_t started);

/* Whether an op that may be repeated runs without all this, since the recorder rests: nothing is
 * recorded, and all contents are constants (graph/rest.h). 1: call dtr_op_ended_at_rest once it has
 * ended or failed; 0, or -status: begin it by dtr_op_begin. */
int32_t dtr_op_begins_at_rest(dtr_engine* engine);

/* Ends such an op. */
int32_t dtr_op_ended_at_rest(dtr_engine* engine);

/* Describes the next op to run again in dtr_frame_step, and returns its id; 0 if the stack is
 * empty; -status on failure: call dtr_remat_abort then. The description:
 *   edges, then for each: handle, copy (1: run on a copy of this storage)
 *   tensors, then for each: use, edge (-1: none), scalar type, flags, offset, ndim, sizes[ndim],
 *     strides[ndim]
 * use is 0 read, 1 mutate, 2 write only, 3 scratch, 4 empty, 5 by value. A tensor without an edge
 * is made afresh from its shape. An edge below -1 is a number of bytes, negated: the tensor is a
 * part, at its offset, of as much memory, made afresh.
 * Owner: the engine holds the handles until the step is committed or aborted.
 * Fails iff: DTR_STATE if the last step was neither committed nor aborted, or an input is lost;
 * DTR_OUT_OF_MEMORY if memory is short. */
int64_t dtr_remat_next(dtr_frame* frame);

/* Commits a step whose closure ran: step[0..tensors) are its rebuilt argument tensors (0 for those
 * by value), then come its result tensors. Their memory moves into the storages that were evicted.
 * On failure call dtr_remat_abort.
 * Fails iff: DTR_STATE if no step is in progress, or the results are not what the first run
 * gave; DTR_INVALID if the step has fewer numbers, or an entry is no tensor. */
int32_t dtr_remat_commit(dtr_frame* frame, uint32_t tensors, uint32_t results);

/* Gives up the stack and unlocks what it locked. Contents that a failed step may have
 * overwritten are dropped, and can be computed again. */
int32_t dtr_remat_abort(dtr_frame* frame);

/* Puts one storage on the stack. Returns 1 if it is evicted, 0 if there is nothing to do, -status.
 * Owner: the caller keeps the handle alive.
 * Fails iff: DTR_STATE if a step is in progress. */
int32_t dtr_remat_want(dtr_frame* frame, void* handle);

/* Puts some live evicted storage on the stack. Returns 1, 0 if there is none, or -status. Between a
 * 1 and the 0, or dtr_remat_abort, nothing live is evicted.
 * Fails iff: DTR_STATE if the stack is not empty. */
int32_t dtr_remat_want_any(dtr_frame* frame);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
