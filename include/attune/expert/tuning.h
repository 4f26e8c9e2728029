/* Expert tier: most programs need attune/attention.h alone.
 *
 * The tuner, which searches for a faster schedule by measuring, its model of schedules, and its results. */
#ifndef ATTUNE_TUNING_H
#define ATTUNE_TUNING_H

#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Tuning ---- */

/* The state of a search. */
typedef struct attune_tune_progress {
    size_t struct_size;
    uint64_t space;    /* schedules that the model proposes */
    uint64_t measured; /* schedules timed so far */
    double best_ratio; /* time of the best so far / time of the first schedule */
    double seconds, budget_seconds;
} attune_tune_progress;

/* Called between measurements, on the thread that called attune_tune. A non-zero return ends the search as if its time
 * were up; its results are kept. */
typedef int attune_tune_progress_fn(void *user, const attune_tune_progress *progress);

typedef struct attune_tune_options {
    size_t struct_size;
    double budget_seconds; /* duration of the search: 0.05 to 1000000 */
    attune_tune_progress_fn *progress; /* may be NULL */
    void *progress_user;
} attune_tune_options;

#ifdef __cplusplus
#define ATTUNE_TUNE_OPTIONS_INIT attune_initial(attune_tune_options_init)
#else
#define ATTUNE_TUNE_OPTIONS_INIT { .struct_size = sizeof(attune_tune_options), .budget_seconds = 5 }
#endif

ATTUNE_API attune_status attune_tune_options_init(attune_tune_options *options, size_t struct_size);

typedef struct attune_tune_result {
    size_t struct_size;
    char schedule[ATTUNE_SCHEDULE_BYTES]; /* the best one: the first one unless is_faster */
    int is_faster;             /* 1: faster than the first one beyond doubt: the whole interval below is less than 1 */
    double ratio;              /* time of the best one found / time of the first one */
    double ratio_low, ratio_high;
    uint64_t space, measured;  /* as in the progress */
    uint64_t failed;           /* schedules that did not compile */
    uint64_t wrong;            /* schedules that gave other bits than the interpreter: a bug in attune, or in an
                                * operator of the user. Never adopted */
    char wrong_schedule[ATTUNE_SCHEDULE_BYTES]; /* the first of these */
    double seconds;            /* that the search took */
    uint32_t threads;          /* that were measured with: the context's workers */
    uint32_t reserved;
    double seconds_before, seconds_after; /* of a call with the schedule that the search began with, and with
                                * `schedule`: medians. 0: there was no time to measure them. A long call is measured
                                * in parts, and this is the sum of them */
    double spread_before, spread_after; /* half of these measurements lie within this part of the median: 0.01 for
                                * 1 % more or less */
    double noise;              /* standard deviation of the ratio of two times that were measured one after the other;
                                * 0: too few were compared to tell */
    double detectable;         /* a gain of this share (0.05 for 5 %) is found nine times in ten, with this
                                * noise and budget; smaller gains are often missed. 1: nothing can be said */
    double interrupted;        /* the part of the measurements during which another program took a CPU away; they were
                                * repeated. More than 0.05: the machine was busy */
} attune_tune_result;

#define ATTUNE_TUNE_RESULT_INIT ATTUNE_RESULT_INIT(attune_tune_result)

/* Searches for a faster schedule by measuring, on this machine, with as many threads as the context has workers, on the
 * caller's tensors. `arguments` are as for attune_run, with representative sizes and tables. All outputs are
 * overwritten with partial results. Candidates are compiled on all CPUs between measurements, never during one. Every
 * winner has the interpreter's bits. The search begins with the best schedule known so far, or with attune's own
 * choice.
 *
 * All timings are kept in tuning.db in the directory of the disk cache. The resulting kernel replaces the cached one,
 * even one that was tuned with another number of threads: a warning then says so. From then on attune_compile without a
 * schedule gives it, in other processes too. A problem that was not tuned is compiled with the winner of a problem of
 * nearly the same lengths, if the model expects a gain from it, otherwise with attune's own choice.
 *
 * Without a disk cache only *result tells. If the results cannot be kept, the call fails with *result filled in.
 * options may be NULL. Other threads may use the context meanwhile, but they disturb the measurements. */
ATTUNE_CHECKED attune_status attune_tune(attune_context *context, const attune_problem *problem,
                                         const attune_arguments *arguments, const attune_tune_options *options,
                                         attune_tune_result *result);

/* The tuner's model of a schedule, for one thread, in cycles. It is rough and meant to compare schedules of one
 * problem. Cycles are those of the context's machine (attune_machine_info). */
typedef struct attune_prediction {
    size_t struct_size;
    char schedule[ATTUNE_SCHEDULE_BYTES]; /* that is predicted */
    double scores, softmax, values; /* of attention */
    double tasks;                   /* beginning tasks, bringing Q in and O out, merging chunks */
    double products;                /* projections of a block */
    double flops_per_cycle;         /* at the peak, with the machine's widest vectors */
    int is_tuned;                   /* with schedule NULL: it comes from tuning, not from attune's rules */
} attune_prediction;

#define ATTUNE_PREDICTION_INIT ATTUNE_RESULT_INIT(attune_prediction)

/* schedule NULL: the one that attune_compile would choose for a kernel that is not cached. */
ATTUNE_CHECKED attune_status attune_schedule_predict(attune_context *context, const attune_problem *problem,
                                                     const char *schedule, attune_prediction *prediction);

/* A rule of attune's choosers that decided: without it another schedule would be chosen. The rules are rows of one
 * table, src/schedule/corrections.def; they say where timings disagree with the model. */
typedef struct attune_reason {
    size_t struct_size;
    int row;                        /* its number, from 1 on; 0: there is none, and all else is 0 */
    int line;                       /* of the table */
    const char *subject;            /* what is priced, such as DECODING. Texts are the library's, and stay valid */
    const char *condition, *factor; /* when it holds, and the factor of the model's cycles, as the table has them */
    const char *evidence;           /* what was measured */
    char schedule[ATTUNE_SCHEDULE_BYTES]; /* that would be chosen without it; empty: none that is legal */
    double cost;                    /* cycles that the model expects of it, divided by the chosen one's */
} attune_reason;

#define ATTUNE_REASON_INIT ATTUNE_RESULT_INIT(attune_reason)

/* Gives the first such rule whose row is above `after`: pass 0 first, then the row of the last result, until that is 0.
 * It concerns attune's own choice, whether the problem was tuned or not. A call takes up to some 50 choices, of 20 to
 * 200 us each. */
ATTUNE_CHECKED attune_status attune_schedule_reason(attune_context *context, const attune_problem *problem, int after,
                                                    attune_reason *reason);

/* Export writes all results to a new file, for other machines of the same kind. Import reads such a file: `taken`
 * counts searches that were new, `of_here` those of this tuning class and ISA; both may be NULL. ATTUNE_BAD_FILE: the
 * file is of another kind or version. */
ATTUNE_CHECKED attune_status attune_tuning_export(attune_context *context, const char *path);
ATTUNE_CHECKED attune_status attune_tuning_import(attune_context *context, const char *path, uint64_t *taken,
                                                  uint64_t *of_here);

#ifdef __cplusplus
}
#endif

#endif
