/* dtr/framework.h: the two tables of functions through which the engine and a
 * tensor framework know each other. Plain C, because the two sides are built by
 * different compilers at different times: the core once, the bridge on the
 * user's machine for the torch that is installed there.
 *
 * Words: a *handle* is the framework's storage object (PyTorch: c10::StorageImpl *).
 * It carries two reference counts. A strong reference keeps the storage alive; a
 * weak one only keeps the object's memory, so that the engine may ask whether the
 * storage still lives.
 */
#ifndef DTR_FRAMEWORK_H
#define DTR_FRAMEWORK_H

#include <stdint.h>

#include "dtr/engine.h"
#include "dtr/ops.h"
#include "dtr/status.h"

DTR_C_BEGIN

#define DTR_BRIDGE_ABI_VERSION 17

/* CFFI BEGIN */

/* What a tensor is, as the engine wants to know it. Pointers stay valid while
 * the tensor lives and is not resized. */
typedef struct dtr_tensor_desc {
  void* handle;           /* its storage; NULL: it has none (opaque to us) */
  void* data;             /* start of the storage's memory, NULL if evicted or empty */
  uint64_t storage_bytes; /* size of the whole storage */
  const int64_t* sizes;   /* ndim elements */
  const int64_t* strides; /* ndim elements, in units of the dtype */
  int64_t offset;         /* storage offset, in units of the dtype */
  int32_t ndim;
  int32_t scalar_type; /* c10::ScalarType */
  uint32_t flags;      /* DTR_TENSOR_... */
  uint8_t device_type; /* c10::DeviceType */
  int8_t device_index; /* -1 on CPU */
  uint8_t item_bytes;
  uint8_t full;      /* 1: the tensor is dense and covers its whole storage */
  uint8_t owned;     /* 1: the storage's memory is from dtr_core.allocate */
  uint8_t exclusive; /* 1: not owned, but of the framework's own allocator, and the address was not
                        given away as far as the storage tells: only operators write to it */
} dtr_tensor_desc;

enum {
  DTR_TENSOR_CONJ = 1,  /* lazily conjugated view */
  DTR_TENSOR_NEG = 2,   /* lazily negated view */
  DTR_TENSOR_OPAQUE = 4 /* sparse, quantized, nested, wrapped number: not rebuilt from its storage;
                           or memory of an arena, whose content may change unseen */
};

/* What the framework does for the engine. Functions marked (L) are called with
 * the engine lock held: they must not run code of others (no deleter, no GIL). */
typedef struct dtr_framework {
  uint32_t abi_version;
  /* (L) Reads a tensor (PyTorch: a c10::TensorImpl *). */
  void (*describe)(const void* tensor, dtr_tensor_desc* out);
  /* (L) Number of strong references; 0: the storage is dead or dying. */
  uint64_t (*strong_count)(const void* handle);
  /* (L) Adds a weak reference. */
  void (*retain_weak)(void* handle);
  /* Drops a weak reference; frees the object's memory if it was the last. */
  void (*release_weak)(void* handle);
  /* (L) Adds a strong reference unless the storage is dead: 1 or 0. May also
   * refuse where it would have to wait for the GIL. */
  int32_t (*retain_strong)(void* handle);
  /* As retain_strong, but refuses only the dead; may take the GIL. */
  int32_t (*retain_strong_with_gil)(void* handle);
  /* Drops a strong reference: runs the storage's deleter if it was the last. */
  void (*release_strong)(void* handle);
  /* (L) The storage's address without any check. */
  void* (*data)(const void* handle);
  /* (L) Takes the memory out of a storage whose deleter is ours and leaves it
   * evicted: nbytes kept, every data access throws (unless observers read addresses), and its
   * death calls dtr_core.evicted_died(evicted_context). Returns the address, now owned by
   * the caller; NULL (and nothing changed) if the memory is not ours to take. */
  void* (*detach)(void* handle, void* evicted_context);
  /* (L) Gives memory to an evicted storage; the context of detach is dropped
   * without a call. The storage owns the address from now on. */
  void (*attach)(void* handle, void* address);
  /* (L) An evicted storage throws from now on at the accesses at which detach would make it throw. */
  void (*guard)(void* handle);
  /* (L) Nothing will give an evicted storage its memory back: from now on every access throws and
   * says so. */
  void (*lose)(void* handle);
  /* (L) Gives a storage whose deleter is ours another address, where its content is by now, in
   * one step: nobody who reads the storage meets it without memory. Returns the old one, now owned
   * by the caller; NULL (and nothing changed) if the memory is not ours to take. */
  void* (*replace)(void* handle, void* address);
  /* (L) As detach, but leaves the storage plainly empty: for results of a
   * recomputation, whose storage nobody keeps. */
  void* (*take)(void* handle);
  /* A new storage that owns address, for dtr_core.engine; returns a strong reference. */
  void* (*make)(void* engine, void* address, uint64_t size_bytes, uint8_t device_type,
                int8_t device_index);
  /* (L) The stream on which this thread's work for a device is queued. NULL: there are no
   * streams, all work is done when its call returns. */
  uint64_t (*current_stream)(uint8_t device_type, int8_t device_index);
  /* The record of an op is gone, and with it the need for its closure (dtr_core.op_end). */
  void (*drop_closure)(void* closure);
} dtr_framework;

/* What dtr_core.op_reads answers. */
enum {
  DTR_READS_UNKNOWN = 0,  /* the core does not know its content, as of what the op has made */
  DTR_READS_ARGUMENT = 1, /* one of the op's arguments has the same storage */
  DTR_READS_BESIDE = 2,   /* it is there, and stays */
  DTR_READS_EVICTED = 3   /* it must be brought back (remat_want); then call again */
};

/* What one thread's recorder has in flight. */
typedef struct dtr_frame dtr_frame;

/* What the core does for the framework. Every function may be called on any
 * thread, with or without the GIL, and with no lock of ours held. */
typedef struct dtr_core {
  uint32_t abi_version;
  void* engine;
  /* Memory for a tensor. NULL if it cannot be had: then *message (never NULL)
   * is why, valid until the next call on this thread, and *status a dtr_status.
   * arena: of dtr_pool_arena_open; 0: none. What comes from an arena is no memory of
   * tensors that the engine may manage, but goes back in the same way. */
  void* (*allocate)(void* engine, uint8_t device_type, int8_t device_index, uint64_t size_bytes,
                    uint64_t stream, uint64_t arena, int32_t* status, const char** message);
  /* Memory for a workspace of an operator, within the budget, or beyond it (*beyond is 1 then, and
   * pool_free_beyond its deleter) where evicting would not make room. NULL if neither has it. */
  void* (*allocate_workspace)(void* engine, uint8_t device_type, int8_t device_index,
                              uint64_t size_bytes, uint64_t stream, int32_t* beyond);
  /* The deleter of all memory that allocate gave. */
  void (*freed)(void* engine, void* address);
  /* The deleter of an evicted storage's empty pointer. */
  void (*evicted_died)(void* engine, void* evicted_context);
  /* Calls dtr_framework.guard for every storage that is evicted. */
  void (*guard_evicted)(void* engine);
  /* Work on stream uses the block at address (Tensor.record_stream). */
  void (*record_stream)(void* engine, void* address, uint64_t stream);
  /* The pool of a device, NULL if it has none; and what a pool answers: the functions
   * of dtr/pool.h of the same names, which the bridge cannot link against. */
  dtr_pool* (*pool_of)(void* engine, uint8_t device_type, int8_t device_index);
  void (*pool_get_stats)(dtr_pool* pool, dtr_pool_stats* out);
  void (*pool_reset_peak)(dtr_pool* pool);
  int32_t (*pool_set_budget)(dtr_pool* pool, uint64_t budget_bytes);
  int32_t (*pool_free_beyond)(dtr_pool* pool, void* address);
  int32_t (*pool_add_peer)(dtr_pool* pool, int32_t device);
  int32_t (*pool_trim)(dtr_pool* pool, uint64_t* returned_bytes);
  int32_t (*pool_snapshot)(dtr_pool* pool, dtr_block* blocks, uint64_t capacity, uint64_t* count);
  int32_t (*pool_contains)(const dtr_pool* pool, const void* address);
  void* (*pool_block_start)(dtr_pool* pool, const void* address);
  uint64_t (*pool_block_bytes)(dtr_pool* pool, const void* address);
  int32_t (*pool_arena_open)(dtr_pool* pool, uint64_t* arena);
  int32_t (*pool_arena_allocate_at)(dtr_pool* pool, uint64_t arena, void* address,
                                    uint64_t size_bytes, uint64_t stream);
  int32_t (*pool_arena_close)(dtr_pool* pool, uint64_t arena);
  const char* (*last_error)(void);

  /* ---- Ops and rematerializations: the steps of every operator, of which nothing is checked ----
   *
   * A frame is what one thread's recorder has in flight: at most one op. It is used by one thread at
   * a time, and owns none of the tensors and handles that it is given: they live until op_end or
   * op_abort. engine: dtr_core.engine. Answers below 0 are -status, and last_error has the message. */
  int32_t (*frame_create)(dtr_engine* engine, dtr_frame** out);
  /* Its op has ended, and its stack is empty. */
  void (*frame_destroy)(dtr_frame* frame);
  /* The numbers that op_begin and op_end read: at least capacity of them.
   * Owner: the frame, until a larger capacity is asked for. */
  int64_t* (*frame_buffer)(dtr_frame* frame, uint64_t capacity);
  /* The numbers that remat_next writes and remat_commit reads.
   * Owner: the frame, until a larger capacity is asked for or the next step is described. */
  int64_t* (*frame_step)(dtr_frame* frame, uint64_t capacity);
  /* The c10::DeviceType of the step that remat_next described last. */
  int32_t (*frame_device)(dtr_frame* frame);
  /* Begins an op whose tensor arguments stand in buffer[0..tensors): locks their storages and stamps
   * their access time. op_key says which operator it is, by the same number in every process. Returns
   * DTR_NEED bits, or -status; then nothing is locked.
   * Fails iff: DTR_STATE if the frame's last op has not ended. */
  int32_t (*op_begin)(dtr_frame* frame, uint32_t tensors, uint32_t flags, uint64_t op_key);
  /* Puts on the frame's stack the storages that must be rematerialized before the op may run: evicted
   * inputs; then dependents of a constant that it overwrites; then dependents of history that is too
   * old. Returns 1 if there are any (run the stack with remat_next and call again), 0 if the op may
   * run, or -status. */
  int32_t (*op_prepare)(dtr_frame* frame);
  /* The op that runs reads a tensor. A storage that is none of its arguments becomes an input of its
   * record, and is locked until the op has ended. Returns DTR_READS_..., or -status. */
  int32_t (*op_reads)(dtr_frame* frame, const void* tensor);
  /* Ends an op whose result tensors stand in buffer[0..results): records them and unlocks the inputs.
   * flags: those of op_begin; DTR_OP_RECOMPUTABLE counts only if it is given here too. cost_ns: what
   * the op cost, at most 2^40; negative: as measured by the clock, averaged over the calls of its
   * signature. The engine's clock moves on by it. An answer above 0: the record has the closure (not
   * NULL) from now on, hands it out with each step (step_closure), and gives it to
   * dtr_framework.drop_closure in the end. Otherwise it stays the caller's; below 0 the op has not
   * ended. */
  int64_t (*op_end)(dtr_frame* frame, uint32_t results, uint32_t flags, int64_t cost_ns,
                    void* closure);
  /* Ends an op that failed or will not run: unlocks its inputs. started 1: it may have overwritten
   * some of its storages, which become constants of unknown content; 0: it was never called.
   * Without an op nothing is done. */
  void (*op_abort)(dtr_frame* frame, int32_t started);
  /* Whether an op that may be repeated runs without all this, since the recorder rests: nothing is
   * recorded, and all contents are constants (graph/rest.h). 1: call op_ended_at_rest once it has
   * ended or failed; 0: begin it by op_begin. */
  int32_t (*op_begins_at_rest)(dtr_engine* engine);
  void (*op_ended_at_rest)(dtr_engine* engine);
  /* Describes the next op to run again in frame_step, and returns its id; 0 if the stack is empty;
   * -status on failure: call remat_abort then. The description:
   *   edges, then for each: handle, copy (1: run on a copy of this storage)
   *   tensors, then for each: use, edge (-1: none), scalar type, flags, offset, ndim, sizes[ndim],
   *     strides[ndim]
   * use is 0 read, 1 mutate, 2 write only, 3 scratch, 4 empty, 5 by value. A tensor without an edge
   * is made afresh from its shape. An edge below -1 is a number of bytes, negated: the tensor is a
   * part, at its offset, of as much memory, made afresh.
   * Owner: the engine holds the handles until the step is committed or aborted.
   * Fails iff: DTR_STATE if an input is lost; DTR_OUT_OF_MEMORY if memory is short. */
  int64_t (*remat_next)(dtr_frame* frame);
  /* The closure of the step that remat_next described last. */
  void* (*step_closure)(dtr_frame* frame);
  /* Commits a step whose closure ran: step[0..tensors) are its rebuilt argument tensors (0 for those
   * by value), then come its result tensors. Their memory moves into the storages that were evicted.
   * On failure call remat_abort.
   * Fails iff: DTR_STATE if no step is in progress, or the results are not what the first run gave. */
  int32_t (*remat_commit)(dtr_frame* frame, uint32_t tensors, uint32_t results);
  /* Gives up the stack and unlocks what it locked. Contents that a failed step may have
   * overwritten are dropped, and can be computed again. */
  void (*remat_abort)(dtr_frame* frame);
  /* Puts on the frame's stack what is evicted and depends on the tensors in buffer[0..tensors), as
   * before an op that overwrites them all. Returns 1 (run the stack and call again), 0 if nothing
   * depends on them any more, or -status. */
  int32_t (*settle)(dtr_frame* frame, uint32_t tensors);
  /* Puts one storage on the stack. Returns 1 if it is evicted, 0 if there is nothing to do, -status.
   * Owner: the caller keeps the handle alive. */
  int32_t (*remat_want)(dtr_frame* frame, void* handle);
  /* Puts some live evicted storage on the stack. Returns 1, 0 if there is none, or -status. Between a
   * 1 and the 0, or remat_abort, nothing live is evicted. */
  int32_t (*remat_want_any)(dtr_frame* frame);
  /* The functions of the same names in dtr/storage.h and dtr/engine.h. */
  int32_t (*pin)(dtr_engine* engine, const void* tensor, int32_t escaped);
  int32_t (*unpin)(dtr_engine* engine, void* handle);
  uint64_t (*engine_holders)(dtr_engine* engine, struct dtr_holder* holders, uint64_t capacity);
  /* Names the operator of the ops that begin on this frame from now on: a number of the caller's
   * choice, not below 0, which stands in the op log (dtr/op_log.h). (-1 there: a view that nobody
   * recorded, or no name was given.) */
  void (*op_log_name)(dtr_frame* frame, int32_t name);
  /* Records an operator that only made views: buffer[0..tensors) are its arguments' tensors, then
   * come its results' (0: none). name is the operator's, cost_ns its time, 0 to 2^40. Only views of
   * storages that have a name are recorded, and none while the log is not written. */
  void (*op_log_view)(dtr_frame* frame, uint32_t tensors, uint32_t results, int32_t name,
                      int64_t cost_ns);
  void (*place)(uint32_t place);
} dtr_core;

/* CFFI END */

DTR_C_END

#endif
