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

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
