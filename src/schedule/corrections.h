/* Where timings overrule the cost: the table is corrections.def. */
#ifndef ATTUNE_SCHEDULE_CORRECTIONS_H
#define ATTUNE_SCHEDULE_CORRECTIONS_H

#include "schedule/cost.h"
#include "schedule/variant.h"

/* What is priced. USUAL_: the schedule that a search begins with; another one has to be cheaper by a margin. */
typedef enum mha_priced {
    MHA_DECODING,      /* the best of decoding, compared with the best of prefill */
    MHA_PREFILL,       /* a schedule of prefill */
    MHA_WIDER_STRIPE,  /* the best with more vectors of rows in a stripe, compared with one that has fewer */
    MHA_SCORE_KEYS,    /* prefill: keys of a register tile of scores, another number than the usual one */
    MHA_LONG_TILE,     /* prefill: as many keys between two rescalings as there may be */
    MHA_SHORT_TASK,    /* prefill: one stripe in a task, or a few */
    MHA_CHEAPER_TILES, /* decoding: any other register tiles than the usual ones, as far as they are not quantised */
    MHA_USUAL_TILE,    /* register tiles of scores and values; HELD: sums stay in registers */
    MHA_SCORE_TILE,
    MHA_VALUE_TILE,
    MHA_HELD_TILE,
    MHA_MEMORY_ROWS, /* the same from memory: K for four rows at once, and whole rows of V */
    MHA_MEMORY_KEYS, /* four keys of two rows, and the third row by itself */
    MHA_MEMORY_HELD, /* sums stay in registers */
    MHA_NARROW,      /* heads of a few vectors: no loop over their columns */
    MHA_QUANTISED_SCORES,
    MHA_QUANTISED_VALUES,
    MHA_USUAL_PRODUCT, /* register tiles of a block's products */
    MHA_PRODUCT,
    MHA_TILES /* all of them by hardware tiles */
} mha_priced;

/* The factor of the cost: the product of all rows that hold. INFINITY: the schedule is never chosen. 0: it is chosen
 * whatever it costs. `schedule` may be NULL if no row reads it, and so may `variant`, which is the schedule's. */
double mha_correction(mha_priced of, const mha_cost_context *context, const mha_schedule *schedule,
                      const mha_variant *variant);

/* A row of the table, for those who ask why a schedule was chosen. */
typedef struct mha_correction_row {
    const char *of, *when, *factor, *evidence; /* as the table has them */
    int line;                                  /* of corrections.def */
} mha_correction_row;

/* Rows have numbers from 1 on. NULL: there is no such row. */
const mha_correction_row *mha_correction_row_of(int row);

/* Whether a row says so without asking the cost. */
bool mha_is_chosen(mha_priced of, const mha_cost_context *context, const mha_schedule *schedule,
                   const mha_variant *variant);

/* Register tiles of a block's products: vectors of columns that read whole lines of weights, as far as registers have
 * room for them. */
int64_t mha_vectors_of_line(const mha_cost_context *context, const mha_schedule *schedule);

/* A schedule that a search has looked at. */
typedef struct mha_candidate {
    mha_schedule s;
    mha_variant v;       /* prefill: its variant */
    double cost, scores; /* corrected; of its scores with their softmax, if the price parts them */
} mha_candidate;

/* A search for the schedule that costs least. The part of a schedule that it changes says what belongs to the space,
 * and what a schedule of it costs. Of the two candidates they look at `tried` only, and
 * may fill in more of it. */
typedef struct mha_search {
    const mha_cost_context *c;
    mha_priced of;
    bool (*fits)(struct mha_search *search);
    double (*price)(struct mha_search *search);
    void *more; /* of fits and price */
    mha_candidate tried, best;
} mha_search;

/* What varies together, a number or two: which rows of the table count, what belongs to the space (NULL: all), and a
 * function that tries what they may be, beginning with the best so far. */
typedef struct mha_step {
    mha_priced of;
    bool (*fits)(mha_search *search);
    void (*vary)(mha_search *search);
} mha_step;

/* Begins with a usual schedule, priced as `usual`. If it is no part of the space, or never chosen, its cost is
 * INFINITY. */
void mha_search_begin(mha_search *search, mha_priced usual, const mha_schedule *schedule);
/* Takes the steps one after the other; after the last comes {0}. Returns the best. */
mha_schedule mha_search_steps(mha_search *search, const mha_step *steps);
/* Takes the schedule if it is part of the space and costs less. */
void mha_search_try(mha_search *search, const mha_schedule *schedule);
/* Tries the best so far with each pair of usual values (schedule.def) of two numbers of decoding, by MHA_SCHEDULE_ID.
 */
void mha_search_pairs(mha_search *search, int a, int b);

#endif
