/* A plan: one handle for calls whose sizes vary. It chooses among kernels that attune_compile gives, and runs them by
 * at_run_kernel.
 *
 * plan.c makes and ends plans, kernels.c has the kernels of a plan and the choice among them, specialise.c those for
 * lengths that come back, ragged.c cuts ragged batches, plan_run.c is the call. */
#ifndef ATTUNE_PLAN_PLAN_H
#define ATTUNE_PLAN_PLAN_H

#include "api/api_run.h"
#include "engine/kernel.h"
#include "threads/background.h"

#include <stdatomic.h>

/* Kernels by the number of queries. One; few, by d-lanes; some and more, with fewer rows in a register tile than many.
 * Kinds that a plan does not need are not used: one query if it gains nothing from a kernel of its own, and all but one
 * if the plan has one kernel. */
typedef enum pl_kind { PL_ONE, PL_FEW, PL_SOME, PL_MORE, PL_MANY, PL_NUM_KINDS } pl_kind;

/* The key of a specialised kernel: lengths that recur. The kernel depends on plan and key only. Calls of one key may
 * differ in everything else: batch, heads, masks, strides. */
enum { PL_SEQ_Q, PL_SEQ_KV, PL_SEQ_NEW, PL_NUM_ROWS, PL_NUM_LENGTHS };
typedef struct pl_key {
    int64_t lengths[PL_NUM_LENGTHS]; /* those that the problem leaves open; -1: it fixes this one */
    int64_t batch;                   /* of a block; -1: no block */
} pl_key;

enum { PL_MOST_SPECIALISED = 8 };
typedef struct pl_special {
    pl_key key;
    attune_kernel *kernel;
    at_layout layout; /* of the call that brought the kernel, which many others repeat */
} pl_special;

/* Threads read a plan without locks while others add kernels to it. A kernel, once added, stays until the plan ends. */
struct attune_plan {
    attune_context *context;
    attune_plan_options options;
    int64_t deadline_us;        /* longest wait of a call for a compile; -1: no limit */
    bool is_background;         /* the context's background thread compiles if there is a fallback meanwhile */
    at_signature signature;     /* of the problem with its open lengths */
    int64_t few_rows;           /* as in attune_plan_info */
    int64_t most[PL_NUM_KINDS]; /* most queries of each kind; 0: the kind is not used; -1: those of the problem */
    bool may_cut;               /* sequences of a ragged batch may have different kernels */
    bool is_open[PL_NUM_LENGTHS];
    _Atomic(attune_kernel *) kernels[PL_NUM_KINDS];
    _Atomic(attune_kernel *) stopgaps[PL_NUM_KINDS]; /* fallbacks: with a deadline the kernels that existed at once */
    pl_special *special[PL_MOST_SPECIALISED];        /* those below num_special are complete */
    _Atomic uint32_t num_special;
    _Atomic uint64_t streak;                /* the key of the last calls, hashed, and how many calls they were */
    _Atomic int32_t promoter;               /* the process of the thread that adds to `special`; 0: none */
    _Atomic bool is_complete;               /* stops specialising */
    _Atomic int64_t next_try[PL_NUM_KINDS]; /* at_nanoseconds() from which a kernel that failed is tried again */
    at_background_job job;                  /* the rest is the promoter's, and then the job's */
    pl_kind job_kind;
    bool job_is_special;     /* a kernel for lengths, those of job_key; otherwise that of a kind */
    _Atomic int32_t awaited; /* the kind whose kernel the job makes, plus 1; 0: the job is for something else */
    pl_key job_key;
    attune_arguments job_arguments;
    _Alignas(64) _Atomic uint64_t few_calls;
    _Atomic uint64_t many_calls, special_calls, cut_calls, stopgap_calls, compiled_calls, tier0_calls, vm_calls;
};

/* ---- Kernels ---- */

/* Settles few_rows, most, may_cut and is_open. */
void pl_settle_kinds(attune_plan *plan);

pl_kind pl_kind_of(const attune_plan *plan, int64_t queries);

/* Gives the kernel for a call of this kind. While the background compiles it, that is the kernel of another kind, or a
 * fallback; *kind becomes the kind of the kernel given. */
attune_status pl_kernel_for(attune_plan *plan, pl_kind *kind, attune_kernel **kernel, at_error *err);

/* Gives the kernel of a kind; the first call compiles it. If that failed, it gives the fallback until it is time to try
 * again. */
attune_status pl_kernel(attune_plan *plan, pl_kind kind, attune_kernel **kernel, at_error *err);

/* For a plan with a deadline: finds the fallbacks that compute until its own kernels are compiled, so that no call has
 * to. */
void pl_find_stopgaps(attune_plan *plan);

/* Runs a kernel and counts that. A workspace that was sized for the previous kernel may be too small for a better one.
 * Then the previous kernel runs, and *kind becomes its kind. */
attune_status pl_run_kind(attune_plan *plan, pl_kind *kind, attune_kernel *kernel, const attune_arguments *arguments,
                          const attune_run_options *options, at_error *err);

/* A kernel that may have run before the kernel of this kind was compiled, by number; *kind becomes its kind. NULL:
 * there is none. */
enum { PL_NUM_BEFORE = 3 };
attune_kernel *pl_before(const attune_plan *plan, int number, pl_kind *kind);

/* A next_try that never comes. */
#define PL_NEVER INT64_MAX

/* Compiles the kernel of a kind in place of its fallback, which stays if that fails: next_try is set then. */
attune_status pl_replace_stopgap(attune_plan *plan, pl_kind kind);

/* Counts a run of a kernel by the code that it has. */
static inline void pl_count_code(attune_plan *plan, const attune_kernel *kernel) {
    _Atomic uint64_t *const calls = kernel->origin == ATTUNE_FROM_TIER0   ? &plan->tier0_calls
                                    : kernel->engine == ATTUNE_ENGINE_JIT ? &plan->compiled_calls
                                                                          : &plan->vm_calls;
    atomic_fetch_add_explicit(calls, 1, memory_order_relaxed);
}

/* Counts a run of a kernel of a kind. */
static inline void pl_count(attune_plan *plan, pl_kind kind, const attune_kernel *kernel) {
    _Atomic uint64_t *const calls = kind > PL_FEW ? &plan->many_calls : &plan->few_calls;
    atomic_fetch_add_explicit(calls, 1, memory_order_relaxed);
    if (kernel == plan->stopgaps[kind]) atomic_fetch_add_explicit(&plan->stopgap_calls, 1, memory_order_relaxed);
    pl_count_code(plan, kernel);
}

/* ---- Lengths that come back ---- */

/* The key of a call that may be specialised; false: it may not. */
bool pl_key_of(const attune_plan *plan, const attune_arguments *arguments, pl_kind kind, pl_key *key);

/* The kernel of this key, or NULL. */
const pl_special *pl_find_special(const attune_plan *plan, const pl_key *key);

/* After a successful call without such a kernel: counts the key, and compiles a kernel if it has come often enough. */
void pl_count_key(attune_plan *plan, const attune_arguments *arguments, pl_kind kind, const pl_key *key);

/* ---- The background ---- */

/* Makes the caller the promoter: until pl_end only this thread may add kernels for lengths and use the plan's job. */
bool pl_begin(attune_plan *plan);
static inline void pl_end(attune_plan *plan) { atomic_store(&plan->promoter, 0); }

/* Hands the job, which the promoter has filled in, to the background. The promoter's role ends with it. */
void pl_submit(attune_plan *plan);

/* Compiles a kernel for lengths, as the promoter. */
void pl_specialise(attune_plan *plan, const attune_arguments *arguments, pl_kind kind, const pl_key *key);

/* Whether the model expects a kernel for these lengths to be faster than the kernel of a kind by enough to be worth a
 * compile. */
bool pl_is_worth(const attune_plan *plan, pl_kind kind, const attune_problem *exact);

/* Tells the host that calls use a better kernel from now on. */
void pl_tell_swap(const attune_plan *plan, const attune_kernel *kernel, const attune_problem *problem);

/* ---- Ragged batches ---- */

/* Checks sizes and the values of index tensors, and reads no other tensor. If calls bring causal_offsets, which are
 * needed to check positions, only pointers are checked. */
attune_status pl_check_lengths(const attune_plan *plan, const attune_arguments *arguments, at_error *err);

attune_status pl_run_ragged(attune_plan *plan, const attune_arguments *arguments, const attune_run_options *options,
                            at_error *err);

/* The most bytes that any way to cut a batch needs. */
attune_status pl_ragged_workspace(attune_plan *plan, const attune_arguments *arguments,
                                  const attune_run_options *options, size_t *bytes, at_error *err);

/* attune_workspace_size_with, with the message in *err. */
attune_status pl_kernel_workspace(const attune_plan *plan, const attune_kernel *kernel,
                                  const attune_arguments *arguments, const attune_run_options *options, size_t *bytes,
                                  at_error *err);

#endif
