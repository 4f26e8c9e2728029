/* Quantising a row: whole numbers, or floats of a byte, times a scale of the row. */
#ifndef ATTUNE_NEST_QUANTISED_H
#define ATTUNE_NEST_QUANTISED_H

#include "nest/rows.h"

/* The largest |x| of a row; NaN if some x is NaN or infinite. */
const ir_expr *mha_row_range(const mha_context *c, const mha_row *row, int64_t columns);

/* The x of the largest |x|, a positive one rather than a negative one; NaN as above. */
const ir_expr *mha_row_extreme(const mha_context *c, const mha_row *row, int64_t columns);

/* The smallest x, and how much larger the largest one is; NaN as above. */
void mha_row_span(const mha_context *c, const mha_row *row, int64_t columns, const ir_expr *span[2]);

/* Whether a scale is neither 0 nor infinite nor NaN. Where it is not, all values are 0. */
const ir_expr *mha_is_usable_scale(const mha_context *c, const ir_expr *scale);
/* x / scale, or 0. `usable` is what mha_is_usable_scale has said; both are scalars, or vectors as x. */
const ir_expr *mha_over_scale(const mha_context *c, const ir_expr *x, const ir_expr *scale, const ir_expr *usable);

#endif
