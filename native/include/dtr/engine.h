/* dtr/engine.h: the engine: its options, counters and costs. */
#ifndef DTR_ENGINE_H
#define DTR_ENGINE_H

#include <stdint.h>

#include "dtr/pool.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* One engine serves all pools of a process. */
typedef struct dtr_engine dtr_engine;

/* What a storage's score is made of: c * r^recomputes / (m * s^a); the smallest is
 * evicted (DTR paper, section 4.1). dtr_alloc/heuristics.py explains each. */
enum {
  DTR_COST_NONE = 0,
  DTR_COST_LOCAL = 1,
  DTR_COST_ANCESTORS = 2,    /* own + evicted ancestors */
  DTR_COST_NEIGHBORHOOD = 3, /* own + evicted ancestors and descendants (e*), exact */
  DTR_COST_COMPONENT = 4,    /* own + neighboring evicted components */
  DTR_COST_MARGINAL = 5      /* what evicting it adds to what is to be recomputed (score.h) */
};
enum { DTR_SIZE_NONE = 0, DTR_SIZE_BYTES = 1, DTR_SIZE_BYTES_AND_FREE = 2 };
enum { DTR_SELECT_SCORE = 0, DTR_SELECT_RANDOM = 1, DTR_SELECT_CALLBACK = 2 };

typedef struct dtr_heuristic {
  int32_t select;            /* DTR_SELECT_... */
  int32_t cost;              /* DTR_COST_... */
  int32_t size;              /* DTR_SIZE_... */
  double staleness_exponent; /* a: 0 to 1 */
  double recompute_factor;   /* r: 1 and more; r^recomputes counts as 1e15 at most */
  uint64_t seed;             /* of DTR_SELECT_RANDOM */
  int32_t foresight;         /* 1: s is the time until a repeated use (policy/foresight.h) */
} dtr_heuristic;

/* What a heuristic of select DTR_SELECT_CALLBACK is told of a storage that can be evicted. */
typedef struct dtr_candidate {
  uint64_t id; /* of the storage; unique in the engine */
  uint64_t size_bytes;
  uint64_t free_bytes;    /* directly before and behind it; see dtr_pool_free_beside */
  int64_t staleness_ns;   /* since it was last used */
  int64_t cost_ns;        /* of its own op */
  int64_t ancestors_ns;   /* of its evicted ancestors: a part of e* */
  int64_t descendants_ns; /* of its evicted descendants: the rest of e* */
  int64_t component_ns;   /* of the evicted components next to it */
  uint64_t recomputes;    /* how often it was recomputed */
  int32_t live;           /* 1: the framework still refers to it */
} dtr_candidate;

/* Writes a score for each candidate: the smallest is evicted, infinity is allowed. Returns
 * 0; anything else, or a NaN, makes the allocation that needs room fail with DTR_STATE and
 * the message, of less than capacity bytes. Runs on the allocating thread with no lock of
 * ours held, and may take the GIL; memory that it allocates itself must fit as it is. */
typedef int32_t (*dtr_score_fn)(void* context, const dtr_candidate* candidates, uint64_t count,
                                double* scores, char* message, uint64_t capacity);

/* A cost, size or staleness below 1 counts as 1. Of equal scores the oldest storage's is the
 * smallest. Only what the heuristic needs is kept up to date. */

/* How an allocation that does not fit gets room (eviction/room.h). */
enum {
  DTR_ROOM_AUTO = 0,   /* the storage of the least score goes if that makes the place alone; else a
                          window or a remap, whichever costs less (policy/window_search.h) */
  DTR_ROOM_SINGLE = 1, /* the least scores go, until it fits or a remap can do it (DTR) */
  DTR_ROOM_WINDOW = 2  /* the cheapest window goes (Coop) */
};
/* Windows need scores: with any other select than DTR_SELECT_SCORE all is single. */

/* How contents that the host can read are compared with their last known state (graph/contents.h):
 * not, by a few words, or by every byte. Those whose address was given away always are, and whole. */
enum { DTR_CONTENTS_TRUSTED = 0, DTR_CONTENTS_SAMPLED = 1, DTR_CONTENTS_WHOLE = 2 };

/* What is learned of a job while it runs (native/learn/). The op log is used for that: switching it
 * (dtr_op_log_set) ends the learning. */
enum {
  DTR_LEARN_NOTHING = 0,
  DTR_LEARN_STEP = 1,   /* which operators repeat, for what thrash has to say */
  DTR_LEARN_POLICY = 2, /* and the policy that costs least for them, which is followed from then on
                            instead of heuristic, room and dealloc */
  DTR_LEARN_AT_ONCE = 3 /* likewise; the job waits until it is found, so that all runs of a job
                            whose costs are given decide alike */
};

/* How far that is. */
enum {
  DTR_LEARNING_NOTHING = 0, /* no policy is learned: none was asked for, or there are several pools,
                                or no memory or thread for it */
  DTR_LEARNING_RECORDS = 1, /* no step has been repeated often enough */
  DTR_LEARNING_RESTS = 2,   /* next to nothing is computed again */
  DTR_LEARNING_SEARCHES = 3,       /* it is played in other ways */
  DTR_LEARNING_FOLLOWS_POLICY = 4, /* one was found, and is followed, */
  DTR_LEARNING_FOLLOWS_PLAN = 5,   /* or a plan */
  DTR_LEARNING_NO_BETTER = 6       /* none that was found costs less than the options' policy */
};

/* What dtr_engine_options.tiny_bytes is for jobs. */
enum { DTR_TINY_BYTES = 64 };

typedef struct dtr_engine_options {
  dtr_heuristic heuristic;
  uint64_t history_ops; /* with more op records than this the oldest settle; >= 1 */
  /* What becomes of a storage that dies while others depend on it: "eager" (or NULL)
   * evicts it at once, "lazy" and "ignore" leave it until it is chosen, "banish" removes it
   * for good once no dependent is evicted, and makes constants of these (graph/dead_storages.h). */
  const char* dealloc;
  dtr_score_fn score;  /* of DTR_SELECT_CALLBACK, else unused; lives with the engine */
  void* score_context; /* its first argument */
  /* The most bytes of host memory that contents may be swapped to (eviction/swap_space.h); 0: off.
   * With it, what cannot be recomputed may be evicted, too, and what can goes the cheaper way. */
  uint64_t swap_bytes;
  double swap_out_bytes_per_s; /* how fast copies to host memory are; 0: as measured */
  double swap_in_bytes_per_s;  /* and back */
  /* Each verify-th eviction of a live content keeps a copy of it, and the bytes are compared when
   * they come back: a difference fails the rematerialization with DTR_STATE. 0: none does. */
  uint64_t verify;
  int32_t room;   /* DTR_ROOM_... */
  int32_t moving; /* 1: contents may be moved to other addresses of the pool, to make room in one
                     piece (eviction/move.h) */
  double move_bytes_per_s; /* how fast such a copy is, for its price; 0: as measured */
  int32_t contents;        /* DTR_CONTENTS_... */
  int32_t learn;           /* DTR_LEARN_... */
  double thrash; /* more than 1: how many times a step may compute its own operators. At half of
                    what is beyond, one line on stderr says so, and which budget would do; above,
                    allocations that need room fail with DTR_OUT_OF_MEMORY and the same. 0: no limit */
  /* Storages up to this size are neither evicted nor moved: it would free next to nothing, and
   * chains of scalars (running averages, counters) would be remembered for it. So an operator that
   * only looks at such storages need not be announced by op_begin. Changed while there are no
   * records. */
  uint64_t tiny_bytes;
  /* 1: though swap_bytes is 0, a content that was evicted when what it was computed from was to be
   * overwritten may be swapped where an allocation would fail otherwise, since it cannot be
   * recomputed from then on: up to the budgets of all pools. */
  int32_t settles_to_host;
  /* The recorder rests (graph/rest.h) after twice so many operators in a row that show that nothing
   * has to be evicted; 0: never. */
  uint64_t rest_after_ops;
  /* What scores add to the cost of an op, for what the host takes to run it again, beside what they add
   * for the device of a pool (policy/room_price.h). */
  int64_t replay_ns;
} dtr_engine_options;

typedef struct dtr_engine_stats {
  uint64_t evictions; /* storages evicted, to make room or by dtr_evict */
  uint64_t evicted_bytes;
  uint64_t rematerializations; /* ops run again */
  uint64_t recompute_ns;       /* what that took; where work is queued, what it should take */
  uint64_t search_ns;          /* of the processor, choosing what to evict, without evicting it */
  uint64_t searches;
  uint64_t live_storages; /* records */
  uint64_t live_ops;
  uint64_t evicted_storages;    /* records whose content is gone */
  uint64_t kept_constant_bytes; /* dead constants kept because something may need them */
  uint64_t settled;             /* storages that became constants before a loss */
  uint64_t moved_bytes;         /* of contents that were moved within a pool */
  uint64_t recorded_ops;        /* since creation */
  uint64_t banished;            /* dead storages that were removed for good */
  uint64_t preemptions;         /* evictions of a waiting op's inputs */
  uint64_t clock_ns;            /* the engine's clock: 1 + total_cost_ns + recompute_cost_ns */
  uint64_t total_cost_ns;       /* of first executions, recorded or not */
  uint64_t recompute_cost_ns;   /* of rematerializations, each as of its op's recording */
  uint64_t evaluations;         /* exact scores computed, random draws included */
  uint64_t storage_accesses;    /* one per evaluation, and one per storage (or node of a
                                   component) visited to gather or maintain what scores
                                   need (DTR paper, appendix D.3) */
  uint64_t swaps;               /* contents swapped out; no evictions, which give contents up */
  uint64_t swapped_out_bytes;
  uint64_t swapped_in_bytes;
  uint64_t swap_ns;              /* what these copies should take */
  uint64_t host_bytes;           /* of contents that are in host memory now */
  uint64_t verified;             /* rematerialized contents that were compared */
  uint64_t prefetches;           /* contents that were swapped in before they were needed */
  uint64_t prefetch_hits;        /* of these, that were needed before they went again */
  uint64_t contiguity_evictions; /* for room, while the bytes that no block took sufficed */
  uint64_t window_searches;
  uint64_t window_evictions; /* of members of windows */
  uint64_t moves;            /* contents moved within a pool */
  uint64_t move_ns;          /* what the host spent on them; copies that a device makes later not */
  uint64_t unseen_writes;    /* contents found changed that no op had overwritten */
  uint64_t planned;          /* blocks that were allocated where a plan of the step has them */
  uint64_t plan_misses;      /* and that could not be */
  uint64_t learned;          /* policies that were learned and followed (DTR_LEARN_POLICY) */
  uint64_t peak_kept_bytes;  /* that could not be evicted, at most (dtr_engine_holders) */
  uint64_t evictable_bytes;  /* of contents that may be evicted, those in use by an operator too */
  uint64_t twice_cost_ns;    /* of recompute_cost_ns, what was computed again before */
  uint64_t rests;            /* times that the recorder went to rest, */
  uint64_t unrecorded_ops;   /* and operators that it did not record then */
  int32_t learning;          /* DTR_LEARNING_... */
  uint64_t policies_tried;   /* while it searches, */
  uint64_t policies;         /* and how many there are */
  uint64_t followed_since_step; /* while it follows; 1 and more */
  double followed_repeats;      /* and what a step computes again then, as promised, in terms of its
                                   own compute */
} dtr_engine_stats;

/* What calls of one signature cost: the operator, the shapes, strides, dtypes and devices
 * of its tensor arguments, the sizes of its results (policy/costs.h). */
typedef struct dtr_cost {
  uint64_t signature; /* never 0 */
  uint64_t op_key;    /* of the operator, as given to op_begin */
  int64_t cost_ns;    /* the mean; 1 to 2^40 */
  uint64_t readings;  /* from how many */
} dtr_cost;

/* Creates an engine.
 * Owner: the caller keeps score_context as long as the engine may call score.
 * Fails iff: DTR_INVALID if an option is out of its range. */
int32_t dtr_engine_create(const dtr_engine_options* options, dtr_engine** out);

/* Frees the engine.
 * Fails iff: DTR_STATE if it has records (dtr_engine_reset) or captures. */
int32_t dtr_engine_destroy(dtr_engine* engine);

/* Takes new options; the records stay. Owner and Fails iff: as dtr_engine_create. */
int32_t dtr_engine_configure(dtr_engine* engine, const dtr_engine_options* options);

/* Connects a framework: a const dtr_framework * of dtr/framework.h.
 * Owner: the caller keeps the table until the engine is destroyed.
 * Fails iff: DTR_STATE if another framework is connected; DTR_INVALID if it speaks another
 * version of the table. */
int32_t dtr_engine_connect(dtr_engine* engine, const void* framework);

/* Returns the core's table for that framework: a const dtr_core *.
 * Owner: the engine. */
const void* dtr_engine_core(dtr_engine* engine);

/* Has the engine make room in pool, for tensors of this device (c10::DeviceType and index, -1 for
 * the only one). Before the first op.
 * Owner: the pool stays the caller's, who destroys it after the engine.
 * Fails iff: DTR_STATE if the device has a pool, or the pool an engine. */
int32_t dtr_engine_add_pool(dtr_engine* engine, int32_t device_type, int32_t device_index,
                            dtr_pool* pool);

/* The capture of a graph, which ends with its owner: zeroed before the first use. So a caller whose
 * language can be interrupted anywhere has the owner first, and the owner's destructor ends it. */
typedef struct dtr_capture_owner {
  dtr_engine* engine; /* NULL: none is under way */
} dtr_capture_owner;

/* Says that a graph is being captured from now on. Meanwhile no live storage is evicted, ops are
 * constants, and every storage that they touch stays where it is for good, a constant of which
 * nothing is computed again. Before the capture itself, bring back what is evicted
 * (remat_want_any of dtr/framework.h), then wait for all streams.
 * Owner: the caller keeps *owner in its place until dtr_end_capture.
 * Fails iff: DTR_STATE if the owner has a capture under way. */
int32_t dtr_begin_capture(dtr_engine* engine, dtr_capture_owner* owner);

/* Ends the owner's capture, if it has one. Until then the engine cannot be destroyed. */
int32_t dtr_end_capture(dtr_capture_owner* owner);

/* A live storage that is evicted. */
typedef struct dtr_evicted {
  uint64_t id; /* unique among the engine's storages of all time */
  void* handle;
  uint64_t op_key; /* of the operator that made it; 0: none, it is in host memory */
  uint64_t size_bytes;
} dtr_evicted;

/* Writes up to capacity of those that are not lost (dtr_engine_reset), in the order in which they
 * were made, and returns how many there are. */
uint64_t dtr_engine_get_evicted(dtr_engine* engine, dtr_evicted* evicted, uint64_t capacity);

/* Forgets all records and frees the memory that only the engine holds. lost: ids of evicted storages
 * that nothing can bring back. Their records stay until they die: whoever accesses one meets an
 * exception, and an op that needs one fails with DTR_STATE. Other ids are passed over.
 * Fails iff: DTR_STATE if a live storage is evicted and not lost: rematerialize it first. Then
 * nothing has changed. */
int32_t dtr_engine_reset(dtr_engine* engine, const uint64_t* lost, uint64_t count);

/* Replaces the measured costs by these, which stay as they are, so that a deterministic job is
 * evicted in the same way each time. Other signatures are measured and averaged, as many as there
 * is room for (65,536 in all; beyond that each call costs what it took). Call it while no records
 * exist: old ones keep their costs.
 * Fails iff: DTR_INVALID if an entry is wrong; then no cost is known. */
int32_t dtr_engine_set_costs(dtr_engine* engine, const dtr_cost* costs, uint64_t count);

/* Writes up to capacity known costs, in no order, and returns how many there are. */
uint64_t dtr_engine_get_costs(dtr_engine* engine, dtr_cost* costs, uint64_t capacity);

/* Writes the counters, and those of up to capacity pools in the order in which they were added, at one
 * moment: what may be evicted is then part of what is allocated. */
int32_t dtr_engine_get_stats(dtr_engine* engine, dtr_engine_stats* out, dtr_pool_stats* pools,
                             uint64_t capacity);

/* Checks the numbered rules of the engine.
 * Fails iff: DTR_STATE if a rule is broken, which the message names. */
int32_t dtr_engine_check_invariants(dtr_engine* engine);

/* Where in the job this thread's ops stand from now on: a number of the caller's, 0: nowhere that is
 * known. */
void dtr_place(uint32_t place);

/* What fills the memory: resident storages that are alike in all but their sizes. */
typedef struct dtr_holder {
  uint64_t op_key;     /* of the op that made the content; 0: none that was seen */
  uint64_t size_bytes; /* all of them */
  uint32_t place;   /* where they were made (dtr_place) or their address was asked for (dtr_pin) */
  int32_t why_kept; /* DTR_KEPT_... (dtr/storage.h) */
} dtr_holder;

/* Since dtr_engine_reset_peak, as seen at the ends of ops, to a sixteenth. */
enum {
  DTR_HOLDERS_NOW = 0,
  DTR_HOLDERS_KEPT_MOST = 1, /* when most was kept */
  DTR_HOLDERS_FULLEST = 2    /* when most was in use (dtr_engine_keep_account) */
};

/* Writes up to capacity of what fills the memory at that time, the largest first, and returns how
 * many there are. */
uint64_t dtr_engine_holders(dtr_engine* engine, int32_t when, dtr_holder* holders,
                            uint64_t capacity);

/* Forgets both peaks. */
int32_t dtr_engine_reset_peak(dtr_engine* engine);

/* From now on account is kept, anew, of DTR_HOLDERS_FULLEST and of what runs again; or no more. */
int32_t dtr_engine_keep_account(dtr_engine* engine, int32_t on);

/* Ops that ran again, alike in key and place. */
typedef struct dtr_repeats {
  uint64_t op_key;
  uint64_t times;
  uint64_t cost_ns;
  uint32_t place; /* of their last output that is known (dtr_place) */
} dtr_repeats;

/* Writes up to capacity of what ran again while account was kept, what took longest first, and
 * returns how many there are. */
uint64_t dtr_engine_repeats(dtr_engine* engine, dtr_repeats* repeats, uint64_t capacity);

/* CFFI END */

DTR_C_END

#endif
