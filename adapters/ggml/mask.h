/* Reads what a mask says. Most masks are a number of keys, causality or a window, for which attune's kernels are faster
 * than for a tensor that is added to the scores. */
#ifndef ATTUNE_GGML_MASK_H
#define ATTUNE_GGML_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the mask of a stream says. Keys are numbered from `begin`. A number other than 0 and -infinity is a bias. */
typedef enum mask_class {
    MASK_EMPTY,  /* no key is visible to any row */
    MASK_NONE,   /* all rows attend to keys 0 to keys - 1 */
    MASK_CAUSAL, /* the last row attends to all keys, each row before it to one less */
    MASK_WINDOW, /* the same, but only to the last `longest` of them */
    MASK_RANGES, /* row r attends to keys lo[r] to hi[r] - 1 */
    MASK_HOLES,  /* the same, but not to keys mid[r] to next[r] - 1 */
    MASK_LISTS,  /* few keys are visible, perhaps with biases: a list for each row */
    MASK_GROUPS, /* few keys are visible: a list for each group of rows, which are of one sequence */
    MASK_DENSE   /* anything else */
} mask_class;

typedef struct mask_rows {
    mask_class class;
    int64_t begin, keys; /* all visible keys are in begin to begin + keys - 1 */
    int64_t longest;     /* the most visible keys of a row */
    bool has_bias;
    /* For each row its number of visible keys, and its range and hole, which are numbered from `begin`. A row without
     * visible keys has 0 everywhere, one without a hole mid = next = hi, and one with several holes mid = -1. */
    int32_t *lo, *mid, *next, *hi, *count;
    /* MASK_GROUPS: group g has rows starts[g] to starts[g + 1] - 1 and a list of lens[g] keys. Its last row attends to
     * all of them, the row before it to all but the last, and so on. With a window each row attends only to the last
     * `window` of its keys. */
    int64_t groups;
    int64_t listed; /* the length of the longest list */
    int64_t window; /* 0: none; else longest */
    int32_t *starts, *lens;
    /* For each row the key that it attends to and the row before it does not, and the other way round; -1: none. */
    int32_t *added, *dropped;
} mask_rows;

/* mask_place lays the arrays of `m` out in `room`, which has MASK_ROOM * rows elements. */
enum { MASK_ROOM = 10 };
void mask_place(mask_rows *m, int32_t *room, int64_t rows);

/* Reads `rows` rows of `keys` f16 numbers each into `m`, whose arrays are placed. Rows are `stride` elements apart. */
void mask_read(const uint16_t *mask, int64_t rows, int64_t keys, int64_t stride, mask_rows *m);

/* Divides the rows of a mask without biases, which was read, into groups, whatever its class is. false: there are too
 * many groups for it to pay. */
bool mask_group(const uint16_t *mask, int64_t rows, int64_t stride, mask_rows *m);

/* Writes the list of each row (MASK_LISTS) or group (MASK_GROUPS) into a table of mask_columns(m) columns. Keys are
 * numbered from `begin`; shorter lists are padded with 0. With MASK_LISTS `bias` may be another such table, for the
 * biases of these keys, or NULL. */
int64_t mask_columns(const mask_rows *m);
void mask_list(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m, int32_t *table, uint16_t *bias);

/* Whether the bias of each visible key is ALiBi's: -|position of the row - key|, rounded to f16, with the last row at
 * the last key, and either causality or all keys visible. `distances_end` is that of mask_distances for at least
 * m->keys numbers. */
typedef enum mask_alibi { MASK_NO_ALIBI, MASK_CAUSAL_ALIBI, MASK_WHOLE_ALIBI } mask_alibi;
mask_alibi mask_alibi_of(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m,
                         const uint16_t *distances_end);

/* Writes -0, -1, -2 … in f16 to end[-1], end[-2], end[-3] …, `count` numbers. */
void mask_distances(uint16_t *end, int64_t count);

#endif
