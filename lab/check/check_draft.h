/* A problem that is being drawn: shared by the files that draw its parts. */
#ifndef ATTUNE_TOOLS_CHECK_DRAFT_H
#define ATTUNE_TOOLS_CHECK_DRAFT_H

#include "check/check_case.h"

/* Where the keys of a block come from. */
typedef enum block_kind {
    BLOCK_NONE,        /* attention alone */
    BLOCK_SELF,        /* x */
    BLOCK_SELF_CACHE,  /* x, appended to caches */
    BLOCK_CROSS,       /* x_kv */
    BLOCK_CROSS_CACHE, /* x_kv, appended */
    BLOCK_PROJECTED,   /* caches */
    BLOCK_LOW_RANK     /* mixtures of x or x_kv */
} block_kind;

/* rows, keys and fresh are the real lengths (of the longest sequence), known at run time only or when compiling. */
typedef struct draft {
    tool_random *random;
    attune_problem *p;
    call_sizes *sizes;
    int64_t rows, keys, fresh;
    int rate; /* percent, of each feature: few features show which one is broken, many show how they interact */
    bool has_functions; /* for certain */
    block_kind block;
} draft;

static inline bool draft_chance(const draft *d, int percent) { return tool_random_chance(d->random, percent); }
static inline bool draft_feature(const draft *d) { return draft_chance(d, d->rate); }
static inline int64_t draft_between(const draft *d, int64_t low, int64_t high) {
    return tool_random_range(d->random, low, high);
}

/* Small sizes meet most of the edges, large ones meet the loops between them. */
static inline int64_t draft_size(const draft *d, int64_t limit) {
    const int64_t top = draft_chance(d, 40) ? 20 : draft_chance(d, 60) ? 90 : limit;
    return draft_chance(d, 5) ? 1 : draft_between(d, 1, top < limit ? top : limit);
}

/* Whether keys lie in caches. */
static inline bool draft_has_caches(const draft *d) {
    return d->block == BLOCK_SELF_CACHE || d->block == BLOCK_CROSS_CACHE || d->block == BLOCK_PROJECTED;
}

/* check_fields.c: fields that depend on no other, as the list of fields says. `usual` is how often, in percent, a
 * number has its usual value. */
void draft_numbers(draft *d, int usual);
void draft_flags(draft *d);

/* check_functions.c: functions on scores and masks, and the tensors that they read. */
void draft_functions(draft *d);

/* check_block.c: the fields of a block that attention does not have, once its other sizes are drawn; the operations of
 * its products; how lengths that are known or open depend on each other; low rank instead of attention's features; and
 * leaving out defaults. */
void draft_block(draft *d);
double draft_block_work(const draft *d);
void draft_tie_lengths(draft *d);
void draft_low_rank(draft *d);
void draft_leave_out(draft *d);

/* check_strides.c: strides for some of the tensors. false: the problem is not legal. */
bool check_draw_strides(tool_random *random, attune_problem *problem, const call_sizes *sizes);

#endif
