/* Expert tier: most programs need attune/attention.h alone.
 *
 * Plans: one handle for calls whose sizes vary, with a kernel for each kind of call. */
#ifndef ATTUNE_PLAN_H
#define ATTUNE_PLAN_H

#include "call.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Plans ---- */

/* One handle for calls whose sizes vary. A kernel is made for many queries or for few: its strategy is chosen when it
 * is compiled. A plan has kernels for both, and runs each call by the one that suits it:
 *
 *     attune_problem_parse(&problem,
 *                          "num_heads=9,num_kv_heads=3,seq_q=dynamic,seq_kv=dynamic,head_dim=64,is_causal=1");
 *     attune_plan_create(context, &problem, NULL, &plan);
 *     attune_plan_arguments_init(plan, &arguments);
 *     arguments.seq_q = 1; arguments.seq_kv = 700; arguments.q.data = q; ...
 *     attune_plan_run(plan, &arguments, NULL);
 *
 * Few rows: calls of one query, and of up to attune_plan_info.few_rows queries, have kernels of their own; so have
 * calls of up to 16 where sequences are ragged or have a length each (kv_lens). A kernel is compiled when the first
 * call needs it.
 *
 * Each sequence of a ragged batch is computed by the kernel for its number of queries, in any order of the sequences,
 * and all of them in one list of work (docs/plans.md). A ragged block, and a batch whose problem has functions, is
 * computed by one kernel.
 *
 * Repeated lengths: after `repeats` calls in a row with the same lengths the plan compiles a kernel for them,
 * before the last of these calls returns, and uses it from the next call on. Only calls without such a kernel count.
 * With `background` no call waits for that: a thread of the context compiles, one kernel at a time. Its priority is
 * that of the thread whose call starts it, unless attune_context_options.background_niceness lowers it. It also
 * compiles the kernels for few queries, while the one for many, which takes any number, computes their calls. So calls
 * wait only for the first kernel of a plan, and after attune_plan_prepare for none. attune_plan_destroy abandons a
 * running compile for its plan. Two things wait for such a compile: calls of other plans that need the kernel, and
 * fork(), as for all compiles in this process. With `least_gain` lengths get a kernel only if the cost model expects it
 * to be that many percent faster.
 *
 * With `deadline_us` no call waits for a compile longer than deadline_us, not even the first. Until its own kernel has
 * been compiled, a plan uses a fallback: of a bundle, the cache, another tuning class, tier 0, or the virtual machine.
 * attune_plan_create looks for it, so a first call with deadline_us 0 takes little longer than others. The thread of
 * `background` compiles the plan's own kernels, and after them those for lengths, by default only if 10 percent are to
 * be gained (least_gain 0). A compile that fails is reported by ATTUNE_EVENT_COMPILE_END, and tried again later if it
 * may succeed then. With ATTUNE_STRICT=1 a missing kernel fails the call. Plans without a deadline use that of the
 * environment variable ATTUNE_DEADLINE_US, if it is set.
 *
 * The first max_specialised lengths get a kernel of their own and keep it, so a plan compiles at most
 * max_specialised + 5 kernels in its life. Calls of few queries with another number of keys get none, because decoding
 * has new lengths at every step. Nor do ragged batches, calls in which a dynamic length is ATTUNE_NOT_SET or 0, and
 * problems with short_masks. The batch of a block with few tokens counts as a length, because it is compiled in. If
 * such a kernel cannot be compiled (ATTUNE_STRICT=1, for example), calls go on with the others.
 *
 * With reproducible=1 the bits of a result do not depend on which kernel ran. Otherwise they may, as they may for
 * attune_compile of different problems. */
typedef struct attune_plan attune_plan;

typedef struct attune_plan_options {
    size_t struct_size;
    uint32_t max_specialised; /* kernels for repeated lengths: 0 (none) to 8 */
    uint32_t repeats;         /* calls in a row with the same lengths before such a kernel is compiled: 1 to 1000 */
    int background;           /* 1: calls do not wait for kernels for which there is a fallback */
    uint32_t least_gain;      /* percent by which a kernel for lengths is expected to be faster: 0 to 1000 */
    int64_t deadline_us;      /* microseconds that a call may wait for a compile, up to 60,000,000; 0: it never waits;
                               * -1: ATTUNE_DEADLINE_US, else as long as it takes. docs/plans.md */
} attune_plan_options;

#ifdef __cplusplus
#define ATTUNE_PLAN_OPTIONS_INIT attune_initial(attune_plan_options_init)
#else
#define ATTUNE_PLAN_OPTIONS_INIT { .struct_size = sizeof(attune_plan_options), .max_specialised = 8, .repeats = 3, \
      .deadline_us = -1 }
#endif

ATTUNE_API attune_status attune_plan_options_init(attune_plan_options *options, size_t struct_size);

/* Makes a plan for the problem, whose seq_q, seq_kv, seq_new and num_rows may be ATTUNE_DYNAMIC. Compiles nothing; with
 * a deadline it looks for kernels that are there already. options may be NULL. A failure sets *plan to NULL. A plan may
 * also be that of a block: the caller then sets arguments->packed_weights (attune_pack_weights of the same problem). */
ATTUNE_CHECKED attune_status attune_plan_create(attune_context *context, const attune_problem *problem,
                                                const attune_plan_options *options, attune_plan **plan);

/* Makes the kernels for few and for many queries now, for a program that must not wait for them later. */
ATTUNE_CHECKED attune_status attune_plan_prepare(attune_plan *plan);

/* attune_arguments_init for the plan's problem, without the time to check the problem again. */
ATTUNE_API attune_status attune_plan_arguments_init_sized(const attune_plan *plan, attune_arguments *arguments,
                                                          size_t struct_size);
static inline attune_status attune_plan_arguments_init(const attune_plan *plan, attune_arguments *arguments) {
    return attune_plan_arguments_init_sized(plan, arguments, sizeof *arguments);
}

/* attune_bind_dlpack for a plan. */
ATTUNE_CHECKED attune_status attune_plan_bind(const attune_plan *plan, attune_arguments *arguments, const char *name,
                                              const attune_dltensor *tensor);

/* Sets a size of the call by the name of its member in attune_arguments: batch, num_heads, num_kv_heads, seq_q, seq_kv,
 * seq_new, num_rows, total_q, total_kv, num_pages, max_pages, mask_seq_kv, bias_seq_kv or rotary_positions. The call
 * checks the value. ATTUNE_INVALID_ARGUMENT: there is no such size. */
ATTUNE_CHECKED attune_status attune_plan_set_size(const attune_plan *plan, attune_arguments *arguments,
                                                  const char *name, int64_t value);

/* Bytes of workspace that attune_plan_run needs for these arguments with the kernels that the plan has now; compiles
 * those that are missing. Pointers are not read. Of a ragged batch: enough for any lengths. A kernel that is
 * specialised later and needs more is not used in that workspace. */
ATTUNE_CHECKED attune_status attune_plan_workspace_size(attune_plan *plan, const attune_arguments *arguments,
                                                        const attune_run_options *options, size_t *bytes);

/* Sets a number of the call by name: softmax_scale. ATTUNE_INVALID_ARGUMENT: there is no such number, or the problem
 * does not leave it to the call. */
ATTUNE_CHECKED attune_status attune_plan_set_number(const attune_plan *plan, attune_arguments *arguments,
                                                    const char *name, double value);

/* Computes the outputs as attune_run_with does; options may be NULL.
 * Thread-safe: any number of threads may run a plan at once, and no call waits for another one, unless both need a
 * kernel that is being compiled. Of a ragged batch that is cut, everything is checked before anything is computed. */
ATTUNE_CHECKED attune_status attune_plan_run(attune_plan *plan, const attune_arguments *arguments,
                                             const attune_run_options *options);

typedef struct attune_plan_info {
    size_t struct_size;
    int64_t few_rows;            /* calls with up to so many queries are of the few kind; 0: there is one kind */
    uint32_t few_kernels;        /* compiled (or found in a cache) so far: 0 to 2 */
    uint32_t many_kernels;       /* 0 to 3: for any number, and with lower tiles for up to 16 queries */
    uint32_t specialised_kernels;/* 0 to max_specialised */
    int is_ready;                /* 1: no call waits for a compile before it computes: each has a kernel or fallback */
    uint64_t few_calls, many_calls, specialised_calls; /* by the kind of kernel; each kernel of a cut batch counts */
    uint64_t cut_calls;          /* ragged batches that were cut */
    uint64_t stopgap_calls;      /* among few and many: with a deadline, those by a fallback */
    uint64_t compiled_calls;     /* among all: by machine code for this problem */
    uint64_t tier0_calls;        /* among all: by tier 0, the built-in machine code */
    uint64_t vm_calls;           /* among all: by the virtual machine, or by the interpreter (allow_interpreter) */
} attune_plan_info;

#define ATTUNE_PLAN_INFO_INIT ATTUNE_RESULT_INIT(attune_plan_info)

/* What the plan has done so far. Thread-safe. */
ATTUNE_CHECKED attune_status attune_plan_get_info(const attune_plan *plan, attune_plan_info *info);

/* Destroys a plan, which must not be running, before its context. NULL is fine. A compile for it in the background is
 * abandoned: LLVM in this process finishes on a thread of its own, and the next compile in the background takes the
 * result if it needs the same one; a worker process is killed. The event of its end has the status ATTUNE_CANCELLED. */
ATTUNE_API void attune_plan_destroy(attune_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
