/* How caches hold codes: of K or V, the place and the meaning of each. */
#ifndef ATTUNE_REF_CODES_H
#define ATTUNE_REF_CODES_H

#include "ref_attention.h"

typedef struct ref_format {
    attune_dtype dtype;
    attune_scales scales;
    int64_t group, columns;
    bool is_k;
    int64_t unit;   /* of panels: elements in four bytes; 0: rows */
    bool is_packed; /* rows are bytes */
    bool by_group;  /* runs of columns have a scale: of group columns, of 32 inline, or of all of a key */
    bool by_channel;
    bool is_inline; /* their scales lie among the quantised values */
    bool has_least; /* and so does the minimum of a run, which is added; else it lies after the scales */
} ref_format;

/* The problem has its defaults filled in, or K and V are not quantised. */
ref_format ref_format_of(const attune_problem *p, bool is_k);

/* Columns that share a scale: a run. */
int64_t ref_run(const ref_format *f);
/* Scales of a row, which lie side by side. */
int64_t ref_row_scales(const ref_format *f);
/* Elements of the storage that a row is. */
int64_t ref_row_elements(const ref_format *f);

/* Where column 0 of a token lies, after the first token; `step` is the stride of tokens, or of panels. And a column,
 * after column 0. */
int64_t ref_token_place(const ref_format *f, int64_t token, int64_t step);
int64_t ref_column_place(const ref_format *f, int64_t column, int64_t step);
/* Tokens that a tensor of so many rows, or panels, has. */
int64_t ref_tokens(const ref_format *f, int64_t rows);

/* The code of a column; `row` is the index of the row's first element, `step` the stride of columns that are not
 * packed. */
long double ref_code(const ref_format *f, const void *storage, int64_t row, int64_t step, int64_t column);
/* Puts a quantised value into a row of its own, an array of elements. */
void ref_put_code(const ref_format *f, long double *row, int64_t column, long double code);
/* Inline scales, in the same two places; and minima, 0 where a format has none. */
long double ref_inline_scale(const ref_format *f, const void *storage, int64_t row, int64_t column);
void ref_put_inline_scale(const ref_format *f, long double *row, int64_t column, long double scale);
long double ref_inline_least(const ref_format *f, const void *storage, int64_t row, int64_t column);
void ref_put_inline_least(const ref_format *f, long double *row, int64_t column, long double least);

/* The number at a column of K or V, [a, b, c] being the indices of its row. `scale` NULL: there is none. */
long double ref_cached(const ref_format *f, const attune_tensor *cache, const void *data, const attune_tensor *scale,
                       const void *scales, const int64_t index[3], int64_t column);

#endif
