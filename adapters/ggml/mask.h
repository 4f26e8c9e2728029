/* What a mask says, read from its data: most masks are a length, causality or a window, for which attune has faster
 * kernels than for a tensor that is added to the scores. */
#ifndef ATTUNE_GGML_MASK_H
#define ATTUNE_GGML_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rows of one stream. Keys count from `begin`; a finite number other than 0 is a bias. */
typedef enum mask_class {
    MASK_EMPTY,  /* nobody sees a key */
    MASK_NONE,   /* all rows see keys 0 to keys - 1 */
    MASK_CAUSAL, /* the last row sees all keys, each row before it one less */
    MASK_WINDOW, /* the same, and no row sees more than its last `longest` keys */
    MASK_RANGES, /* row r sees keys lo[r] to hi[r] - 1 */
    MASK_HOLES,  /* of these row r does not see keys mid[r] to next[r] - 1 */
    MASK_LISTS,  /* few keys are seen, each perhaps with a bias */
    MASK_GROUPS, /* few keys are seen; rows of one sequence are a group */
    MASK_DENSE   /* anything else */
} mask_class;

typedef struct mask_rows {
    mask_class class;
    int64_t begin, keys; /* keys before and after are seen by nobody */
    int64_t longest;     /* the most keys that a row sees */
    bool has_bias;
    /* By row; all but count count from `begin`, and are 0 where a row sees nothing. A row without a hole has mid = next
     * = hi, one with several holes mid = -1. */
    int32_t *lo, *mid, *next, *hi, *count;
    /* MASK_GROUPS: group g has the rows starts[g] to starts[g + 1] - 1, and a list of lens[g] keys, of which its last
     * row sees all, the row before it all but the last, and so on. With a window no row sees more than the last
     * `window` of these. */
    int64_t groups;
    int64_t listed; /* the most keys of a list */
    int64_t window; /* 0: none; else longest */
    int32_t *starts, *lens;
    int32_t *added,
        *dropped; /* by row: what it sees and the row before it does not, and the other way round; -1: none */
} mask_rows;

/* Numbers for each row that the arrays of a mask_rows need in all, and mask_place makes them of. */
enum { MASK_ROOM = 10 };
void mask_place(mask_rows *m, int32_t *room, int64_t rows);

/* Reads `rows` rows of `keys` f16 numbers, `stride` numbers apart, into `m`, whose arrays are placed. */
void mask_read(const uint16_t *mask, int64_t rows, int64_t keys, int64_t stride, mask_rows *m);

/* Divides the rows of a mask that was read, which has no biases, into groups, whatever its class was. false: they are
 * too many for it to pay. */
bool mask_group(const uint16_t *mask, int64_t rows, int64_t stride, mask_rows *m);

/* MASK_LISTS: the keys that each row sees; MASK_GROUPS: the list of each group. They count from `begin`, in a table of
 * mask_columns(m) columns, in which 0 follows the keys of a list. `bias`, if not NULL, has the same columns: the biases
 * of these keys. */
int64_t mask_columns(const mask_rows *m);
void mask_list(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m, int32_t *table, uint16_t *bias);

/* Whether each key that a row sees has the bias -|position of the row - key|, rounded to f16, the last row being at
 * the last key: then attune's ALiBi computes it, by causality or for all keys. `distances` has at least as many numbers
 * as there are keys: -0, -1, -2 … in f16, backwards from its end. */
typedef enum mask_alibi { MASK_NO_ALIBI, MASK_CAUSAL_ALIBI, MASK_WHOLE_ALIBI } mask_alibi;
mask_alibi mask_alibi_of(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m,
                         const uint16_t *distances_end);

/* -0, -1, -2 … as f16 into end[-1], end[-2] …; `count` of them. */
void mask_distances(uint16_t *end, int64_t count);

#endif
