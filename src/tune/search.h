/* The search for a faster schedule.
 *
 * Candidates come in batches: neighbours of the best schedule so far, and the next ones of tune_space. A batch is
 * compiled on all CPUs; then nothing compiles, and each of its kernels is timed in pairs with the best so far until it
 * is clear which is faster (paired_times.h). A winner is checked against the interpreter before it takes the place;
 * where that would take too much of the time, only the last one is. At the end the best is timed against the schedule
 * that the search began with, and only adopted if it is faster beyond doubt and was checked. Where nothing won, the
 * schedule that the search began with is timed against itself: the result tells its time in any case.
 */
#ifndef ATTUNE_TUNE_SEARCH_H
#define ATTUNE_TUNE_SEARCH_H

#include "tune/candidates.h"
#include "tune/paired_times.h"
#include "tune/space.h"

typedef struct tune_trial {
    mha_schedule schedule;
    double seconds; /* of a sample, median */
    double ratio;   /* to the schedule that the search began with */
    uint32_t pairs;
} tune_trial;

typedef struct tune_search {
    tune_runner runner;
    mha_machine machine;
    const attune_tune_options *options;
    double began;
    attune_tune_result *result;
    tune_candidate *space; /* proposed by the model, best first */
    size_t space_count, space_next;
    tune_trial *trials; /* all that were timed, in order */
    size_t num_trials, capacity;
    mha_schedule *seen;
    size_t num_seen;
    attune_kernel *first, *best;                        /* first: of the schedule that the search began with */
    mha_schedule best_schedule, first_schedule, winner; /* winner: when the search has ended */
    double best_ratio;                                  /* to `first` */
    double pair_seconds;                                /* that the longest pair so far took */
    tune_noise noise;
    double late_check; /* seconds that checking `best` is going to take, which is left to the end; 0: it was checked */
    bool checks_all;   /* before they are timed, as that takes little */
    bool is_stopped;
} tune_search;

/* Searches from `begin` on and fills in the result; *search holds the trials until tune_search_free. */
attune_status tune_search_run(tune_search *search, attune_context *context, const tune_task *task,
                              const mha_schedule *begin, const attune_tune_options *options, attune_tune_result *result,
                              at_error *err);
/* Time of the best by that of the schedule which attune's rules choose, as far as it was measured. */
double tune_search_ratio_to_usual(const tune_search *search);
void tune_search_free(tune_search *search);

#endif
