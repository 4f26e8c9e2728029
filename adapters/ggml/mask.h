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
    MASK_RANGES, /* row r sees keys lo[r] to hi[r] - 1 */
    MASK_LISTS,  /* few keys are seen, row r count[r] of them */
    MASK_DENSE   /* anything else */
} mask_class;

typedef struct mask_rows {
    mask_class class;
    int64_t begin, keys; /* keys before and after are seen by nobody */
    int64_t longest;     /* the most keys that a row sees */
    bool has_bias;
    int32_t *lo, *hi, *count; /* by row; lo and hi count from `begin`, and are 0 where a row sees nothing */
} mask_rows;

/* Reads `rows` rows of `keys` f16 numbers, `stride` numbers apart. lo, hi and count of `m` have room for the rows. */
void mask_read(const uint16_t *mask, int64_t rows, int64_t keys, int64_t stride, mask_rows *m);

/* The keys that each row sees, counted from `begin`, as a table of `columns` columns, of which the row's first
 * count[r] are written, the others 0. */
void mask_list(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m, int32_t *table, int64_t columns);

/* Whether each key that a row sees has the bias -|position of the row - key|, rounded to f16, the last row being at
 * the last key: then attune's ALiBi computes it. `distances` has at least as many numbers as there are keys:
 * -0, -1, -2 … in f16, backwards from its end. */
bool mask_is_alibi(const uint16_t *mask, int64_t rows, int64_t stride, const mask_rows *m,
                   const uint16_t *distances_end);

/* -0, -1, -2 … as f16 into end[-1], end[-2] …; `count` of them. */
void mask_distances(uint16_t *end, int64_t count);

#endif
