/* Quantises rows into a cache. attune/expert/problem.h lists the formats, docs/numerics.md has the formulas. A row is a
 * list of runs, the columns that share a scale:
 *
 *     for each run      measure its range  ->  scale, minimum  ->  quantised values
 *
 * Arithmetic is in c->elem. A scale is rounded to the cache's type (f32, or f16 inline) before anything is divided by
 * it, so that the quantised values match the stored scale. */
#include "attend/around/append.h"
#include "nest/quantised.h"

#include <math.h>

enum { COLUMNS = MHA_BLOCK_COLUMNS, HALF = COLUMNS / 2, NIBBLE_BITS = 4, ZERO_QUANTISED = 8 };

/* A run of a row: columns that share a scale. */
typedef struct run {
    const mha_quantising *row;
    mha_row source; /* from their first column on */
    const ir_expr *first;
    int64_t columns;
    const ir_expr *scale, *usable; /* scalars; NULL: there is none, or each column has one */
    const ir_expr *least;          /* NULL: quantised values are signed */
} run;

static bool by_group(const mha_quantising *row) {
    return mha_scales_runs(row->format.scales) || mha_is_inline(row->format.scales);
}

/* Whether differences to a minimum are quantised, which are not negative. */
static bool is_from_least(const mha_quantising *row) { return mha_has_least(row->format.scales); }

/* ---- Scales ---- */

static double largest_quantised(const mha_quantising *row) {
    if (is_from_least(row)) return 15;
    return row->format.dtype == ATTUNE_I8 ? 127 : row->format.dtype == ATTUNE_F8 ? 448 : 7;
}

/* Whether all of -8 … 7 are used, as in groups of int4: the scale then has the sign with which the extreme x becomes
 * -8. */
static bool is_signed(const mha_quantising *row) {
    return row->format.dtype == ATTUNE_I4 && by_group(row) && !is_from_least(row);
}

static double smallest_quantised(const mha_quantising *row) {
    if (is_from_least(row)) return 0;
    return is_signed(row) ? -ZERO_QUANTISED : -largest_quantised(row);
}

static const ir_expr *measured(const mha_context *c, const run *r) {
    if (is_signed(r->row))
        return ir_div(c->b, mha_row_extreme(c, &r->source, r->columns), mha_number(c, smallest_quantised(r->row), 1));
    return ir_div(c->b, mha_row_range(c, &r->source, r->columns), mha_number(c, largest_quantised(r->row), 1));
}

/* Stores x as an f16 among the quantised values, and returns it as rounded. */
static const ir_expr *store_inline(const mha_context *c, const run *r, const ir_expr *exact, int64_t from) {
    ir_builder *b = c->b;
    const mha_format *f = &r->row->format;
    const ir_expr *nan = mha_number(c, NAN, 1);
    exact = ir_select(b, ir_eq(b, exact, exact), exact, nan); /* the bytes of a NaN must always be the same */
    const ir_expr *half = ir_let(b, "half_scale", ir_cast(b, IR_F16, mha_narrowed(c, exact)));
    const ir_expr *block =
        ir_let_index(b, "block", ir_idx(b, f->columns / COLUMNS), ir_div(b, r->first, ir_idx(b, COLUMNS)));
    ir_store(b, mha_block_bytes(c, f, r->row->target, block, from, MHA_INLINE_BYTES), ir_bitcast(b, IR_I8, half));
    return mha_widened(c, ir_cast(b, IR_F32, half));
}

/* Stores a scale or minimum of the run in the cache's type, and returns it as rounded. */
static const ir_expr *stored(const mha_context *c, const ir_access *at, const ir_expr *x) {
    mha_store(c, at, x);
    return mha_load(c, at);
}

/* Measures and stores the run's minimum, and then its scale. */
static const ir_expr *scale_from_least(const mha_context *c, run *r) {
    const mha_quantising *row = r->row;
    const bool is_inline = mha_is_inline(row->format.scales);
    const ir_expr *span[2];
    mha_row_span(c, &r->source, r->columns, span);
    const ir_expr *least = is_inline ? store_inline(c, r, span[0], MHA_INLINE_BYTES)
                                     : stored(c, mha_element_least(c, &row->format, row->target, r->first, 1), span[0]);
    r->least = ir_let(c->b, "least", least);
    const ir_expr *scale = ir_div(c->b, span[1], mha_number(c, largest_quantised(row), 1));
    if (is_inline) return store_inline(c, r, ir_let(c->b, "exact_scale", scale), 0);
    return stored(c, mha_element_scale(c, &row->format, row->target, r->first, 1), scale);
}

/* The run's scale, measured and stored if it depends on the row. NULL: the run has none, or one for each column. */
static const ir_expr *scale_of_run(const mha_context *c, run *r) {
    const mha_quantising *row = r->row;
    const attune_scales scales = row->format.scales;
    if (by_group(row) && is_from_least(row)) return scale_from_least(c, r);
    if (mha_is_inline(scales)) return store_inline(c, r, ir_let(c->b, "exact_scale", measured(c, r)), 0);
    const ir_access *at =
        scales == ATTUNE_SCALES_GROUP ? mha_element_scale(c, &row->format, row->target, r->first, 1) : row->scale;
    if (scales == ATTUNE_SCALES_TOKEN || scales == ATTUNE_SCALES_GROUP) return stored(c, at, measured(c, r));
    return at ? mha_load(c, at) : NULL;
}

static void open_scale(const mha_context *c, run *r) {
    const ir_expr *scale = scale_of_run(c, r);
    if (!scale) return;
    r->scale = ir_let(c->b, "scale", scale);
    r->usable = ir_let(c->b, "usable", mha_is_usable_scale(c, r->scale));
}

/* ---- Quantised values ---- */

/* Constants are first operands, so that NaN stays NaN. */
static const ir_expr *clamp(const mha_context *c, const mha_quantising *row, const ir_expr *x) {
    const int lanes = x ? x->type.lanes : 1;
    x = ir_max(c->b, mha_number(c, smallest_quantised(row), lanes), x);
    return ir_min(c->b, mha_number(c, largest_quantised(row), lanes), x);
}

/* x divided by its scale, not yet rounded, for `lanes` columns from number `at` of the run on. */
static const ir_expr *quotient(const mha_context *c, const run *r, const ir_expr *at, int lanes) {
    const mha_quantising *row = r->row;
    const ir_expr *x = mha_load(c, mha_row_access(c, &r->source, at, lanes));
    if (r->least) x = ir_sub(c->b, x, mha_in_lanes(c, r->least, lanes));
    if (r->scale) x = mha_over_scale(c, x, r->scale, r->usable);
    if (mha_is_by_channel(row->format.scales)) {
        const ir_expr *column = ir_add(c->b, r->first, at);
        const ir_access *of_columns = mha_element_scale(c, &row->format, row->target, column, lanes);
        if (is_from_least(row))
            x = ir_sub(c->b, x, mha_load(c, mha_element_least(c, &row->format, row->target, column, lanes)));
        const ir_expr *scale = ir_let(c->b, "scale", mha_load(c, of_columns));
        x = mha_over_scale(c, x, scale, ir_let(c->b, "usable", mha_is_usable_scale(c, scale)));
    }
    return ir_let(c->b, "code", clamp(c, row, x));
}

/* Rounded to an integer, as i32; NaN becomes 0. */
static const ir_expr *whole(const mha_context *c, const ir_expr *x) {
    ir_builder *b = c->b;
    const ir_expr *zero = mha_number(c, 0, x ? x->type.lanes : 1);
    return ir_cast(b, IR_I32, ir_rint(b, ir_select(b, ir_eq(b, x, x), x, zero)));
}

static void store_one_quantised(const mha_context *c, const mha_quantising *row, const ir_access *target,
                                const ir_expr *quantised) {
    if (row->format.dtype == ATTUNE_F8)
        mha_store(c, target, quantised);
    else
        ir_store(c->b, target, ir_cast(c->b, IR_I8, whole(c, quantised)));
}

/* The bytes of a block of int4 whose first column is number `at` of the run. */
static void store_nibbles(const mha_context *c, const run *r, const ir_expr *block, const ir_expr *at, int64_t before) {
    ir_builder *b = c->b;
    const int lanes = mha_column_lanes(HALF, c->lanes);
    const ir_expr *zero = ir_splat(b, ir_int(b, IR_I32, is_from_least(r->row) ? 0 : ZERO_QUANTISED), lanes);
    const ir_expr *bits = ir_splat(b, ir_int(b, IR_I32, NIBBLE_BITS), lanes);
    for (int i = 0; i < HALF; i += lanes) {
        const ir_expr *low = ir_add(b, whole(c, quotient(c, r, ir_plus(b, at, i), lanes)), zero);
        const ir_expr *high = ir_add(b, whole(c, quotient(c, r, ir_plus(b, at, HALF + i), lanes)), zero);
        const ir_expr *both = ir_or(b, low, ir_apply(b, IR_SHL, high, bits, NULL));
        const ir_access *to = mha_block_bytes(c, &r->row->format, r->row->target, block, before + i, lanes);
        ir_store(b, to, ir_cast(b, IR_I8, both));
    }
}

/* The quantised values of a packed block. */
static void store_block(const mha_context *c, const run *r, const ir_expr *at) {
    ir_builder *b = c->b;
    const mha_format *f = &r->row->format;
    const int64_t before = mha_inline_bytes(f->scales);
    const ir_expr *number = ir_div(b, ir_add(b, r->first, at), ir_idx(b, COLUMNS));
    const ir_expr *block = ir_let_index(b, "block", ir_idx(b, f->columns / COLUMNS), number);
    const int lanes = mha_column_lanes(COLUMNS, c->lanes);
    if (f->dtype == ATTUNE_I4) {
        store_nibbles(c, r, block, at, before);
        return;
    }
    for (int i = 0; i < COLUMNS; i += lanes) {
        const ir_expr *quantised = quotient(c, r, ir_plus(b, at, i), lanes);
        store_one_quantised(c, r->row, mha_block_bytes(c, f, r->row->target, block, before + i, lanes), quantised);
    }
}

static void store_quantised(const mha_context *c, const run *r) {
    const mha_quantising *row = r->row;
    if (mha_is_packed(row->format.dtype, row->format.scales)) {
        IR_FOR(c->b, at, ir_idx(c->b, 0), ir_idx(c->b, r->columns), COLUMNS) store_block(c, r, at);
        return;
    }
    MHA_COLUMNS(c, at, r->columns, c->lanes) {
        const ir_expr *quantised = quotient(c, r, at.at, at.lanes);
        store_one_quantised(c, row, mha_row_access(c, row->target, ir_add(c->b, r->first, at.at), at.lanes), quantised);
    }
}

static void append_run(const mha_context *c, const mha_quantising *row, const ir_expr *first, int64_t columns) {
    run r = {.row = row, .source = *row->source, .first = first, .columns = columns};
    r.source.first = row->source->first ? ir_add(c->b, row->source->first, first) : first;
    open_scale(c, &r);
    store_quantised(c, &r);
}

void mha_append_quantised(const mha_context *c, const mha_quantising *row) {
    ir_builder *b = c->b;
    const mha_format *f = &row->format;
    if (!by_group(row)) {
        append_run(c, row, ir_idx(b, 0), f->columns);
        return;
    }
    const int64_t scales = mha_row_scales(f->scales, f->group, f->columns);
    const int64_t columns = mha_is_inline(f->scales) ? COLUMNS : f->columns / scales;
    IR_FOR(b, first, ir_idx(b, 0), ir_idx(b, f->columns), columns) append_run(c, row, first, columns);
}
