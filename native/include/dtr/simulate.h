/* dtr/simulate.h: runs of op logs without their job (native/simulate/). */
#ifndef DTR_SIMULATE_H
#define DTR_SIMULATE_H

#include <stdint.h>

#include "dtr/engine.h"

DTR_C_BEGIN

/* CFFI BEGIN */

/* An op log as numbers (dtr_alloc/oplog makes them), one instruction after the other:
 *   0, name, size_bytes                                               CONSTANT
 *   1, time, args, arg..., results, (name, size_bytes, alias)...      CALL
 *   2, time, args, arg..., mutated, index...                          MUTATE: -1 - i for
 *                                               argument i if it is overwritten without being read
 *   3, dst, src                                                       COPY
 *   4, dst, src                                                       COPY_FROM
 *   5, name                                                           RELEASE
 *   6, time, args, arg..., results, (name, size_bytes, -1)...         EFFECT: never recomputed;
 *                                                                     its results are constants
 * A name is a number from 0 on, in the order in which the names first stand in the log. An
 * alias is the index of the argument that the result is a view of, -1 for new memory. Times and
 * sizes are 0 to 2^62. */

enum {
  DTR_DEALLOC_EAGER = 0,
  DTR_DEALLOC_BANISH = 1,
  DTR_DEALLOC_IGNORE = 2,
  DTR_DEALLOC_LAZY = 3, /* in simrd's semantics the same as ignore: it pins all constants */
  DTR_DEALLOC_AUTO = 4  /* likewise */
};

typedef struct dtr_simulation_options {
  dtr_heuristic heuristic;
  int32_t dealloc;       /* DTR_DEALLOC_... */
  uint64_t budget_bytes; /* UINT64_MAX: no limit */
  int64_t max_recompute; /* more cost than this spent on recomputing: thrash; -1: no limit */
} dtr_simulation_options;

enum {
  DTR_SIMULATION_OK = 0,
  DTR_SIMULATION_OUT_OF_MEMORY = 1,
  DTR_SIMULATION_THRASH = 2,
  DTR_SIMULATION_CONTRADICTION = 3 /* simrd's cached regions contradict themselves: it stops, too */
};

typedef struct dtr_simulation_result {
  int32_t status;      /* DTR_SIMULATION_...; the counters are those of the moment it ended */
  int64_t clock;       /* 1 + all cost spent */
  int64_t model_cost;  /* of first executions, EFFECTs included on the engine */
  int64_t remat_cost;  /* of repeated ones */
  uint64_t model_ops;  /* first executions */
  uint64_t remat_ops;  /* repeated ones */
  uint64_t collateral; /* other outputs that came back with a rematerialized one */
  uint64_t forced;     /* evictions for room */
  uint64_t other;      /* evictions at a release or inside a banish */
  uint64_t banished;
  uint64_t peak_bytes;
  uint64_t end_bytes;
  uint64_t evaluations; /* scores computed */
  uint64_t accesses;    /* storages visited for scores and their metadata (simrd, 5.5) */
  uint64_t chain_depth; /* the most rematerializations that waited for one another */
  uint64_t search_ns;   /* of the processor, spent choosing */
  /* On the engine: */
  uint64_t preemptions;    /* as in dtr_engine_stats */
  uint64_t constant_bytes; /* resident when it ended: what cannot be evicted, */
  uint64_t running_bytes;  /* what the op or step in flight reads, */
  uint64_t waiting_bytes;  /* and what only waits */
  /* On the engine, if it was to be measured, what fragmentation costs (fragmentation.h in
   * native/simulate/ says what is lost); of requests that found their place. Counted pools lose
   * nothing: */
  uint64_t forced_requests;  /* requests for which something was evicted */
  uint64_t forced_times;     /* how often something was evicted for them (by windows: several) */
  uint64_t lost_bytes;       /* summed over these times; */
  uint64_t most_lost_bytes;  /* the most at one of them */
  uint64_t left_bytes;       /* free once the request has its place, summed over the requests */
  uint64_t scattered;        /* evictions while as much was free as was asked for; */
  uint64_t scattered_times;  /* of how many times */
  uint64_t remaps;           /* as in dtr_pool_stats */
  uint64_t mapped_chunks;    /* likewise */
  uint64_t searches;         /* as in dtr_engine_stats */
  uint64_t window_evictions; /* of what is forced, those by windows */
  uint64_t moves;            /* contents moved within the pool, */
  uint64_t moved_bytes;      /* their bytes, */
  int64_t move_cost;         /* and time; part of neither clock nor remat_cost, but if both together
                                are above max_recompute, the run is one that thrashed */
  uint64_t swapped_out_bytes; /* as in dtr_engine_stats, */
  uint64_t swapped_in_bytes;
  int64_t swap_cost; /* and the time of these copies, which counts as move_cost does */
} dtr_simulation_result;

/* Where a run on the engine has its memory: counted (the pool "counted"), or on the heap over
 * simulated addresses, mapped by chunks, or in a fixed pool (dtr_pool_options). */
enum { DTR_SPACE_BYTES = 0, DTR_SPACE_HEAP = 1, DTR_SPACE_FIXED = 2 };

typedef struct dtr_runtime_options {
  dtr_simulation_options common;
  int32_t space;        /* DTR_SPACE_... */
  int32_t outputs;      /* 1: at the end all that has a name is made resident, as in simrd */
  uint64_t history_ops; /* as in dtr_engine_options */
  int32_t room;         /* likewise */
  dtr_score_fn score;   /* likewise */
  void* score_context;
  uint64_t chunk_bytes;    /* the unit of mapping, a multiple of 4 KiB; 0: the host driver's */
  int32_t measure;         /* 1: what fragmentation costs; takes up to as long as the run itself */
  double move_bytes_per_s; /* what moving costs, in the program's time as nanoseconds; 0: nothing is
                              moved. Each move takes 5000 ns besides, as dtr_engine_options has it */
  int32_t placement;       /* of the heap, as in dtr_pool_options; for bytes alone 0 */
  uint64_t swap_bytes;     /* as in dtr_engine_options */
  double swap_out_bytes_per_s; /* in the program's time as nanoseconds; 1 and more if anything is
                                  swapped */
  double swap_in_bytes_per_s;
  int64_t replay_ns; /* as in dtr_engine_options; it counts for max_recompute, too */
} dtr_runtime_options;

/* Runs a program on the engine that trains, with costs and sizes of the program and no contents
 * (native/simulate/runtime.h says what differs from simrd). How the run ends is its status.
 * peak_bytes and end_bytes are those of the pool, rounded as it rounds.
 *
 * *decisions (decisions may be NULL) is text, joined by newlines: M<t> first execution of the op of
 * tensor t, R<t> executed again to get t, E<s> evicted for room, D<s> evicted by a release or a
 * banish, B<s> banished. Tensors are numbered in the order of creation; a storage has the number of
 * its first tensor.
 *
 * workspace is what operators allocate while they run, as pairs: 0, bytes of a temporary; 1, index
 * of the operator's temporary that is freed; 2, index of the result that is allocated here. Operator
 * k, the k-th CALL, MUTATE or EFFECT, has workspace[workspace_at[k]] up to
 * workspace[workspace_at[k + 1]]. Both NULL: no operator has any.
 *
 * Owner: the library owns the decisions, until this thread's next run.
 * Threads: score is called on this thread.
 * Fails iff: DTR_INVALID if the program or the workspace is malformed; DTR_STATE if score fails. */
int32_t dtr_simulate_runtime(const dtr_runtime_options* options, const int64_t* program,
                             uint64_t numbers, const int64_t* workspace,
                             const int64_t* workspace_at, uint64_t operators,
                             dtr_simulation_result* result, const char** decisions);

/* What a job whose steps are those of a program would learn (native/learn/what_if.h). */
typedef struct dtr_what_if_options {
  dtr_runtime_options runtime; /* the budget, and what the job begins with. Of a heap or a fixed
                                  pool; max_recompute, outputs, measure, score and placement do not
                                  count */
  int32_t maps_on;             /* on which device memory is mapped and operators run again, by
                                  c10::DeviceType (0: the CPU, 1: CUDA), for what that takes the host;
                                  -1: nothing */
  int32_t learn;               /* 0: only what the job begins with is played, which takes a step or
                                  four; 1: and what it learns, which takes seconds; 2: and a better
                                  plan than its first */
} dtr_what_if_options;

/* Shares are in terms of what the step's operators cost first. -1: it does not work. */
typedef struct dtr_what_if_result {
  uint64_t recorded;     /* operators of the program that make memory or overwrite it */
  uint64_t operators;    /* those of the step that is repeated at its end; 0: there is none, and the
                            end of the program stands for it */
  int64_t step_cost;     /* of these operators */
  double usual_repeated; /* what a step computes again by the policy that it begins with, */
  double usual_cost;     /* and with what is moved and mapped */
  double learned_repeated; /* likewise by what is learned; if that is no better, the same */
  double learned_cost;
  int32_t is_planned;  /* 1: what is learned is a plan with addresses, not a policy */
  uint64_t first_work; /* of the search for the first plan, as Simulation::work counts it */
} dtr_what_if_result;

/* Finds the step that a program repeats, plays it, and writes what it costs. The program's arguments
 * are those of dtr_simulate_runtime.
 * Fails iff: as dtr_simulate_runtime; and DTR_INVALID if space is another one. */
int32_t dtr_what_if(const dtr_what_if_options* options, const int64_t* program, uint64_t numbers,
                    const int64_t* workspace, const int64_t* workspace_at, uint64_t operators,
                    dtr_what_if_result* out);

/* CFFI END */

DTR_C_END

#endif
