/* dtr/storage.h: what a user asks for one storage: to evict it, to move it, to pin it. */
#ifndef DTR_STORAGE_H
#define DTR_STORAGE_H

#include <stdint.h>

#include "dtr/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI BEGIN */

/* By hand, on a live handle. The storage of a handle that the engine has never
 * seen counts as a resident constant. */
int32_t dtr_evict(dtr_engine* engine, void* handle);       /* 1 done, 0 not possible, -status */
int32_t dtr_is_resident(dtr_engine* engine, void* handle); /* 1, 0, or -status */
/* Moves a handle's content to another address of its pool, outside of [avoid_begin, avoid_end)
 * (both NULL: to any other): 1 done, 0 if it may not be moved or there is no place, -status if the
 * copy fails; then it is where it was. Whatever the option moving says. Addresses that were given
 * away (dtr_pin with escaped) and pinned ones stay. Any thread. */
int32_t dtr_engine_relocate(dtr_engine* engine, void* handle, const void* avoid_begin,
                            const void* avoid_end);
/* Moves what can be moved, from the highest address down, into free places below. It slides
 * nothing into memory of its own. *moved_bytes (may be NULL): how much. Any thread. */
int32_t dtr_engine_compact(dtr_engine* engine, dtr_pool* pool, uint64_t* moved_bytes);
/* For tests: moves up to count storages, drawn by the seed, to any other place. *moved (may be
 * NULL): how many. */
int32_t dtr_engine_move_some(dtr_engine* engine, dtr_pool* pool, uint64_t seed, uint64_t count,
                             uint64_t* moved);
/* escaped 0: one more pin of the tensor's handle, whatever its memory is and will be: not evicted
 * until unpinned as often. What is evicted already stays so until it is materialized. escaped 1:
 * no pin, but the address was given away: the storage becomes a constant for good and is watched
 * for changes, if it is on the CPU. 2: to others that may write to it (DLPack); where changes
 * cannot be watched, what is computed from it from now on is not computed again. */
int32_t dtr_pin(dtr_engine* engine, const void* tensor, int32_t escaped);
/* 1, 0 if it was not pinned, or -status. A handle that is gone has no pins. */
int32_t dtr_unpin(dtr_engine* engine, void* handle);

/* A pin that ends with its owner: zeroed before the first use. So a caller whose language can be
 * interrupted anywhere has the owner first, and what destroys it ends the pin. */
typedef struct dtr_pin_owner {
  dtr_engine* engine;
  void* handle; /* NULL: it has none */
} dtr_pin_owner;

/* One more pin, for an owner that has none. The storage may die before it. Fails iff the owner has
 * a pin. */
int32_t dtr_pin_for(dtr_engine* engine, const void* tensor, dtr_pin_owner* owner);
/* Fails iff the owner has a pin of an engine that was destroyed. */
int32_t dtr_end_pin(dtr_pin_owner* owner);
/* The storage of a tensor (a handle), or NULL if it has none of ours to manage. */
void* dtr_handle_of(dtr_engine* engine, const void* tensor);
/* The scalar type and device type of a tensor, for tables in Python. */
int32_t dtr_scalar_type_of(dtr_engine* engine, const void* tensor);
int32_t dtr_device_type_of(dtr_engine* engine, const void* tensor);

/* CFFI END */

#ifdef __cplusplus
}
#endif

#endif
