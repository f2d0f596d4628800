/* dtr/storage.h: what a user asks for one storage: to evict it, to move it, to pin it. */
#ifndef DTR_STORAGE_H
#define DTR_STORAGE_H

#include <stdint.h>

#include "dtr/engine.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* A handle is the framework's storage object, and lives as long as the call. A storage that the
 * engine has never seen counts as a resident constant. */

/* Evicts a storage. Returns 1 if it did, 0 if the storage cannot be evicted, or -status. */
int32_t dtr_evict(dtr_engine* engine, void* handle);

/* Returns 1 if the storage has its content, 0 if it is evicted, or -status. */
int32_t dtr_is_resident(dtr_engine* engine, void* handle);

/* Why a storage cannot be evicted. From DTR_KEPT_TINY on it is a constant. */
enum {
  DTR_KEPT_NOT = 0,          /* it can be evicted, or is */
  DTR_KEPT_NOT_MET = 1,      /* the engine has never seen it */
  DTR_KEPT_OF_OTHERS = 2,    /* its memory is not from the engine's pools */
  DTR_KEPT_ESCAPED = 3,      /* its address was given away */
  DTR_KEPT_PINNED = 4,       /* by dtr_pin */
  DTR_KEPT_IN_USE = 5,       /* by an op that runs, or a graph that is captured */
  DTR_KEPT_UNWRITTEN = 6,    /* no op has written a part of it (graph/unwritten.h) */
  DTR_KEPT_TINY = 7,         /* dtr_engine_options.tiny_bytes */
  DTR_KEPT_FOUND = 8,        /* its content was there when the first op used it */
  DTR_KEPT_BY_RULE = 9,      /* its op was not said to be DTR_OP_RECOMPUTABLE when it began */
  DTR_KEPT_BY_CALL = 10,     /* nor when it ended */
  DTR_KEPT_OPAQUE = 11,      /* an argument of its op is not rebuilt from a storage */
  DTR_KEPT_ELSEWHERE = 12,   /* its op overwrites memory on a device that has no pool */
  DTR_KEPT_OVERWRITTEN = 13, /* its op read a constant and overwrote it */
  DTR_KEPT_PARAMETER = 14,   /* DTR_USE_CONSTANT */
  DTR_KEPT_STATE = 15,       /* DTR_USE_SCRATCH */
  DTR_KEPT_IN_PARTS = 16,    /* what its op left of it as it was cannot be told */
  DTR_KEPT_WATCHED = 17,     /* its op reads memory of others, which takes too long to compare */
  DTR_KEPT_CAPTURED = 18,    /* its op was captured in a graph, or reads what one writes */
  DTR_KEPT_SETTLED = 19,     /* it could be computed, until what that needs went, or outgrew it */
  DTR_KEPT_FAILED = 20,      /* its op overwrote it and failed */
  DTR_KEPT_UNRECORDED = 21   /* its op ran while the recorder rested (graph/rest.h) */
};

/* Writes what the storage holds, and why. Of one that the engine has not met it knows the reason
 * alone. */
int32_t dtr_why_kept(dtr_engine* engine, void* handle, dtr_holder* out);

/* Moves the content of a storage, given by its handle or by the content's address, to another address
 * of its pool, outside of [avoid_begin, avoid_end) (both NULL: to any other), whatever the option moving
 * says. For tests. Returns 1 if it did, 0 if the storage
 * may not be moved or there is no place, or -status; then it is where it was. Pinned storages stay,
 * and those whose address was given away (dtr_pin).
 * Fails iff: DTR_INVALID if the range ends before it begins; DTR_DRIVER if the copy fails. */
int32_t dtr_engine_relocate(dtr_engine* engine, void* handle, const void* avoid_begin,
                            const void* avoid_end);

/* Moves the storages that may be moved, from the highest address down, into free places below. It
 * slides nothing into memory of its own. *moved_bytes (may be NULL) is how much it moved.
 * Fails iff: DTR_INVALID if the pool is not the engine's; DTR_DRIVER if a copy fails. */
int32_t dtr_engine_compact(dtr_engine* engine, dtr_pool* pool, uint64_t* moved_bytes);

/* Pins a tensor's storage (escaped 0), or says that its address was given away (1, 2).
 *   0: one more pin of the handle, whatever its memory is and will be. It is not evicted until it
 *      is unpinned as often. If it is evicted now, it stays so until it is materialized.
 *   1: no pin. The storage becomes a constant for good, and is watched for changes if it is on the
 *      CPU.
 *   2: as 1, to others that may write to it (DLPack): where changes cannot be watched, what is
 *      computed from it from now on is not computed again.
 * place: where in the job its address was asked for, a number of the caller's that dtr_holder gives
 * back; 0 if that is not known. */
int32_t dtr_pin(dtr_engine* engine, const void* tensor, int32_t escaped, uint32_t place);

/* Takes a pin back. Returns 1, 0 if the storage was not pinned, or -status. A handle that is
 * gone has no pins. */
int32_t dtr_unpin(dtr_engine* engine, void* handle);

/* A pin that ends with its owner: zeroed before the first use. So a caller whose language can be
 * interrupted anywhere has the owner first, and the owner's destructor ends the pin. */
typedef struct dtr_pin_owner {
  dtr_engine* engine;
  void* handle;    /* NULL: it has none of a tensor */
  uint64_t thread; /* 0: it has none of what a thread makes */
} dtr_pin_owner;

/* Pins a tensor's storage for an owner that has no pin. The storage may die before the pin.
 * Owner: the caller keeps *owner in its place until dtr_end_pin.
 * Fails iff: DTR_STATE if the owner has a pin. */
int32_t dtr_pin_for(dtr_engine* engine, const void* tensor, dtr_pin_owner* owner);

/* Pins what operators of the calling thread make until the owner's pin ends, for an owner that has
 * none: a function that is no operator may call some, and read and write their results by address.
 * Where such pins are nested, all of it stays until the last of them ends.
 * Owner: as of dtr_pin_for. Fails iff: DTR_STATE if the owner has a pin. */
int32_t dtr_pin_made(dtr_engine* engine, dtr_pin_owner* owner);

/* Ends the owner's pin, if it has one.
 * Fails iff: DTR_INVALID if the pin's engine was destroyed. */
int32_t dtr_end_pin(dtr_pin_owner* owner);

/* Returns the storage (a handle) of a tensor; NULL if it has none that the engine can manage. */
void* dtr_handle_of(dtr_engine* engine, const void* tensor);

/* CFFI END */

DTR_C_END

#endif
