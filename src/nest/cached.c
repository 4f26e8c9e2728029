/* Dequantises columns of K and V: x = value * scale + minimum, a vector of columns at a time. Only formats that
 * mha_load cannot convert by itself.
 *
 *     int4      bytes of a block    ->    lower or upper halves    ->    value - 8, or above a minimum
 *     scales    of a group of columns: loaded once, broadcast;  of channels: a vector */
#include "nest/cached.h"
#include "nest/panel_rows.h"
#include "nest/transpose.h"

enum { COLUMNS = MHA_BLOCK_COLUMNS, HALF = COLUMNS / 2, NIBBLE_BITS = 4, NIBBLE = 15, ZERO_POINT = 8 };

/* ---- Formats ---- */

bool mha_needs_row_reader(const mha_context *c, const ir_buffer *buffer) {
    const attune_problem *p = c->p;
    const bool is_k = buffer && buffer == c->params.tensor[MHA_K], is_v = buffer && buffer == c->params.tensor[MHA_V];
    return (is_k && (mha_is_packed(p->k_dtype, p->k_scales) || mha_scales_elements(p->k_scales))) ||
           (is_v && !is_k && (mha_is_packed(p->v_dtype, p->v_scales) || mha_scales_elements(p->v_scales)));
}

mha_format mha_format_of(const mha_context *c, const ir_buffer *buffer) {
    const attune_problem *p = c->p;
    if (buffer == c->params.tensor[MHA_K])
        return (mha_format){p->k_dtype, p->k_scales, p->k_group, p->head_dim, c->params.tensor[MHA_K_SCALES]};
    return (mha_format){p->v_dtype, p->v_scales, p->v_group, p->head_dim_v, c->params.tensor[MHA_V_SCALES]};
}

int64_t mha_row_elements(const mha_context *c, const ir_buffer *buffer, int64_t columns) {
    if (!mha_needs_row_reader(c, buffer)) return columns;
    const mha_format format = mha_format_of(c, buffer);
    return mha_row_bytes(format.dtype, format.scales, columns); /* a code is a byte, or less */
}

/* ---- Places ---- */

static int64_t block_bytes(const mha_format *f) { return mha_row_bytes(f->dtype, f->scales, COLUMNS); }

/* column / columns, of which the prover learns only that it is below all / columns. */
static const ir_expr *part_of(const mha_context *c, const char *name, const ir_expr *column, int64_t columns,
                              int64_t all) {
    return ir_let_index(c->b, name, ir_idx(c->b, all / columns), ir_div(c->b, column, ir_idx(c->b, columns)));
}

/* `count` bytes of a row from byte `at` on. */
static const ir_access *bytes_at(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *at,
                                 int count) {
    const int64_t all = f->columns / COLUMNS * block_bytes(f);
    at = ir_let_in(c->b, "byte", ir_idx(c->b, 0), ir_idx(c->b, all - count + 1), at);
    return mha_row_access(c, row, at, count);
}

const ir_access *mha_block_bytes(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *block,
                                 int64_t from, int bytes) {
    return bytes_at(c, f, row, ir_plus(c->b, ir_times(c->b, block, block_bytes(f)), from), bytes);
}

/* The access of a scale, or of the minimum `after` the scales of a row. */
static const ir_access *scale_at(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                                 int lanes, int64_t after) {
    ir_builder *b = c->b;
    const ir_expr *const *at = row->index;
    const int64_t scales = mha_row_scales(f->scales, f->group, f->columns);
    if (mha_is_by_channel(f->scales)) return ir_at(b, f->scaled, lanes, 2, at[1], ir_plus(b, column, after * scales));
    /* A single scale is loaded outside the loop over columns. */
    const ir_expr *group = scales == 1 ? ir_idx(b, 0) : part_of(c, "group", column, f->group, f->columns);
    return ir_at(b, f->scaled, 1, 4, at[0], at[1], at[2], ir_plus(b, group, after * scales));
}

const ir_access *mha_element_scale(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                                   int lanes) {
    return scale_at(c, f, row, column, lanes, 0);
}

const ir_access *mha_element_least(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                                   int lanes) {
    return scale_at(c, f, row, column, lanes, 1);
}

/* ---- Quantised values ---- */

static const ir_expr *int_lanes(const mha_context *c, int32_t value, int lanes) {
    return ir_splat(c->b, ir_int(c->b, IR_I32, value), lanes);
}

static const ir_expr *shifted(const mha_context *c, const ir_expr *x, const ir_expr *bits) {
    return ir_apply(c->b, IR_SHR, x, ir_splat(c->b, bits, x ? x->type.lanes : 1), NULL);
}

/* Byte `at` of a row's quantised values, which come after inline scales. */
static const ir_expr *byte_of(const mha_context *c, const mha_format *f, const ir_expr *column, int64_t columns) {
    const ir_expr *block = ir_div(c->b, column, ir_idx(c->b, COLUMNS)),
                  *within = ir_mod(c->b, column, ir_idx(c->b, columns));
    const ir_expr *first = ir_times(c->b, block, block_bytes(f));
    return ir_add(c->b, ir_plus(c->b, first, mha_inline_bytes(f->scales)), within);
}

/* Columns of one half of a block; their bytes also hold those of the other half. */
static const ir_expr *load_nibbles(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                                   int lanes) {
    ir_builder *b = c->b;
    const ir_expr *byte = byte_of(c, f, column, HALF);
    const ir_expr *bytes = mha_is_paneled(c, row->buffer)
                               ? mha_load_panel_bytes(c, row, byte, lanes)
                               : ir_cast(b, IR_I32, ir_load(b, bytes_at(c, f, row, byte, lanes)));
    const ir_expr *half = ir_div(b, ir_mod(b, column, ir_idx(b, COLUMNS)), ir_idx(b, HALF));
    if (!ir_is(half, 0)) bytes = shifted(c, bytes, ir_cast(b, IR_I32, ir_times(b, half, NIBBLE_BITS)));
    bytes = ir_apply(b, IR_AND, bytes, int_lanes(c, NIBBLE, lanes), NULL);
    if (!mha_has_least(f->scales)) bytes = ir_sub(b, bytes, int_lanes(c, ZERO_POINT, lanes));
    return ir_cast(b, c->elem, bytes);
}

static const ir_expr *load_quantised(const mha_context *c, const mha_format *f, const mha_row *row,
                                     const ir_expr *column, int lanes) {
    if (f->dtype == ATTUNE_I4) return load_nibbles(c, f, row, column, lanes);
    if (mha_is_inline(f->scales)) return mha_load(c, bytes_at(c, f, row, byte_of(c, f, column, COLUMNS), lanes));
    return mha_load(c, mha_row_access(c, row, column, lanes));
}

/* An f16 of the block, from its byte `from` on, in all lanes. */
static const ir_expr *load_inline(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                                  int64_t from, int lanes) {
    ir_builder *b = c->b;
    const ir_expr *block = part_of(c, "block", column, COLUMNS, f->columns);
    const ir_expr *bytes = ir_load(b, mha_block_bytes(c, f, row, block, from, MHA_INLINE_BYTES));
    return mha_in_lanes(c, mha_widened(c, ir_cast(b, IR_F32, ir_bitcast(b, IR_F16, bytes))), lanes);
}

/* The minimum in all lanes; NULL: there is none. */
static const ir_expr *load_scale(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                                 int lanes) {
    if (!mha_scales_elements(f->scales)) return NULL;
    if (mha_is_inline(f->scales)) return load_inline(c, f, row, column, 0, lanes);
    return mha_in_lanes(c, mha_load(c, mha_element_scale(c, f, row, column, lanes)), lanes);
}

/* Dequantises: value * scale + minimum. With an f16 scale the product is exact, so the sum is rounded once, fused or
 * not. With an f32 scale the product is rounded first, on every target. */
static const ir_expr *scaled(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                             const ir_expr *quantised, const ir_expr *scale) {
    const int lanes = quantised ? quantised->type.lanes : 1;
    if (!mha_has_least(f->scales)) return ir_mul(c->b, quantised, scale);
    if (mha_is_inline(f->scales))
        return mha_madd(c, quantised, scale, load_inline(c, f, row, column, MHA_INLINE_BYTES, lanes));
    const ir_expr *least = mha_load(c, mha_element_least(c, f, row, column, lanes));
    return ir_add(c->b, ir_mul(c->b, quantised, scale), mha_in_lanes(c, least, lanes));
}

static const ir_expr *load_coded(const mha_context *c, const mha_format *f, const mha_row *row, const ir_expr *column,
                                 int lanes) {
    if (lanes > HALF) {
        const ir_expr *const halves[2] = {
            load_coded(c, f, row, column, lanes / 2),
            load_coded(c, f, row, ir_plus(c->b, column, lanes / 2), lanes / 2),
        };
        return mha_concat(c->b, halves, 2, lanes / 2);
    }
    const ir_expr *quantised = load_quantised(c, f, row, column, lanes), *scale = load_scale(c, f, row, column, lanes);
    return scale ? scaled(c, f, row, column, quantised, scale) : quantised;
}

/* ---- Blocks of int4 by tables ---- */

bool mha_has_nibble_table(const mha_context *c) {
    return c->target->flags & AT_TARGET_LOOKUP && c->lanes == HALF && c->elem == IR_F32;
}

const ir_expr *mha_nibble_table(const mha_context *c) {
    const ir_expr *quantised = ir_ramp(c->b, ir_int(c->b, IR_I32, -ZERO_POINT), ir_int(c->b, IR_I32, 1), HALF);
    return ir_let(c->b, "numbers", ir_cast(c->b, IR_F32, quantised));
}

void mha_load_nibbles(const mha_context *c, const mha_row *row, const ir_expr *column, const ir_expr *table,
                      const ir_expr *out[2]) {
    ir_builder *b = c->b;
    const mha_format f = mha_format_of(c, row->buffer);
    const bool by_column = mha_is_by_channel(f.scales);
    const ir_expr *scale = by_column ? NULL : load_scale(c, &f, row, column, HALF);
    if (mha_has_least(f.scales)) table = ir_add(b, table, mha_number(c, ZERO_POINT, HALF));
    if (scale) table = ir_let(b, "numbers", scaled(c, &f, row, column, table, scale));
    const ir_expr *bytes = ir_load(b, bytes_at(c, &f, row, byte_of(c, &f, column, HALF), HALF));
    bytes = ir_let(b, "nibbles", ir_cast(b, IR_I32, bytes));
    for (int half = 0; half < 2; half++) {
        const ir_expr *index = half ? shifted(c, bytes, ir_int(b, IR_I32, NIBBLE_BITS)) : bytes;
        out[half] = ir_lookup(b, table, table, index);
        if (!by_column) continue;
        const ir_expr *first = ir_plus(b, column, (int64_t)half * HALF);
        out[half] = scaled(c, &f, row, first, out[half], load_scale(c, &f, row, first, HALF));
    }
}

const ir_expr *mha_load_row(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes) {
    if (!mha_needs_row_reader(c, row->buffer))
        return mha_is_paneled(c, row->buffer) ? mha_load_panel_row(c, row, column, lanes, lanes)
                                              : mha_load(c, mha_row_access(c, row, column, lanes));
    const mha_format format = mha_format_of(c, row->buffer);
    return load_coded(c, &format, row, column, lanes);
}

mha_row mha_dequantised_row(const mha_context *c, const mha_row *row) {
    if (!mha_needs_row_reader(c, row->buffer)) return *row;
    const int64_t columns = mha_format_of(c, row->buffer).columns;
    const mha_row copy = {ir_scratch(c->b, "decoded", c->elem, 2, (int64_t[]){1, columns}), {ir_idx(c->b, 0)}, NULL};
    MHA_COLUMNS(c, at, columns, c->lanes) {
        ir_store(c->b, mha_row_access(c, &copy, at.at, at.lanes), mha_load_row(c, row, at.at, at.lanes));
    }
    return copy;
}
