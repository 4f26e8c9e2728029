/* Quantising a row to integers, or to fp8, with one scale for the row. */
#ifndef ATTUNE_NEST_QUANTISED_H
#define ATTUNE_NEST_QUANTISED_H

#include "nest/rows.h"

/* The largest |x| of a row; NaN if some x is NaN or infinite. */
const ir_expr *mha_row_range(const mha_context *c, const mha_row *row, int64_t columns);

/* The x with the largest |x|, the positive one if there are both; NaN as above. */
const ir_expr *mha_row_extreme(const mha_context *c, const mha_row *row, int64_t columns);

/* The smallest x, and the difference of the largest x to it; NaN as above. */
void mha_row_span(const mha_context *c, const mha_row *row, int64_t columns, const ir_expr *span[2]);

/* Whether a scale is neither 0 nor infinite nor NaN. Otherwise all quantised values are 0. */
const ir_expr *mha_is_usable_scale(const mha_context *c, const ir_expr *scale);
/* x / scale, or 0 unless `usable`, the result of mha_is_usable_scale. scale and usable are scalars, or vectors like x.
 */
const ir_expr *mha_over_scale(const mha_context *c, const ir_expr *x, const ir_expr *scale, const ir_expr *usable);

#endif
