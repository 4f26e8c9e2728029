/* Addresses in panels, and conversion of units to vectors. For products, four bytes of a lane are loaded as they are; a
 * single token's row is gathered from the units of all columns. */
#include "nest/panel_rows.h"
#include "base/integers.h"
#include "nest/cached.h"
#include "nest/columns.h"
#include "nest/pairs.h"
#include "nest/transpose.h"

enum { TOKENS = ATTUNE_PANEL_TOKENS, HALF_BITS = 16, UNIT_BYTES = 4, BYTE_BITS = 8 };

/* ---- Formats ---- */

static bool is_k(const mha_context *c, const ir_buffer *buffer) { return buffer == c->params.tensor[MHA_K]; }

bool mha_is_paneled(const mha_context *c, const ir_buffer *buffer) {
    if (!buffer) return false;
    if (is_k(c, buffer)) return c->p->k_layout == ATTUNE_LAYOUT_PANELS;
    return buffer == c->params.tensor[MHA_V] && c->p->v_layout == ATTUNE_LAYOUT_PANELS;
}

int64_t mha_unit_of(const ir_buffer *buffer) { return UNIT_BYTES / ir_elem_get(buffer->type.elem)->bytes; }

int64_t mha_panel_columns(const mha_context *c, const ir_buffer *buffer) {
    return mha_row_elements(c, buffer, is_k(c, buffer) ? c->p->head_dim : c->p->head_dim_v);
}

mha_row mha_panel_row(const mha_context *c, const ir_buffer *buffer, const ir_expr *const outer[2],
                      const ir_expr *token) {
    ir_builder *b = c->b;
    const ir_expr *const tokens = ir_idx(b, TOKENS);
    const ir_expr *panel = ir_let_index(b, "panel", buffer->dims[2], ir_div(b, token, tokens));
    const ir_expr *place = ir_let_index(b, "place", tokens, ir_mod(b, token, tokens));
    return (mha_row){buffer, {outer[0], outer[1], panel}, place};
}

/* ---- Places ---- */

/* `count` elements of the row's panel from element `at` on; the bounds are assumed. */
static const ir_access *elements_at(const mha_context *c, const mha_row *row, const ir_expr *at, int64_t count) {
    const int64_t all = TOKENS * mha_panel_columns(c, row->buffer);
    at = ir_let_in(c->b, "element", ir_idx(c->b, 0), ir_idx(c->b, all - count + 1), at);
    return ir_at(c->b, row->buffer, (int)count, 4, row->index[0], row->index[1], row->index[2], at);
}

static const ir_expr *key_at(const mha_context *c, const mha_row *row, const ir_expr *unit) {
    const int64_t elements = mha_unit_of(row->buffer);
    return ir_add(c->b, ir_times(c->b, unit, TOKENS * elements), ir_times(c->b, row->first, elements));
}

const ir_access *mha_panel_keys(const mha_context *c, const mha_row *row, const ir_expr *unit, int tokens) {
    return elements_at(c, row, key_at(c, row, unit), tokens * mha_unit_of(row->buffer));
}

/* Elements of a unit of tokens of V. */
static int64_t elements_of_unit(const mha_context *c, const ir_buffer *buffer) {
    return mha_unit_of(buffer) * mha_panel_columns(c, buffer);
}

static const ir_expr *unit_at(const mha_context *c, const mha_row *row) {
    const ir_expr *units = ir_div(c->b, row->first, ir_idx(c->b, mha_unit_of(row->buffer)));
    return ir_times(c->b, units, elements_of_unit(c, row->buffer));
}

mha_panel_unit mha_panel_unit_of(const mha_context *c, const mha_row *row) {
    return (mha_panel_unit){*row, ir_let(c->b, "unit_at", unit_at(c, row))};
}

mha_panel_unit mha_panel_unit_after(const mha_context *c, const mha_panel_unit *first, int64_t units) {
    return (mha_panel_unit){first->row, ir_plus(c->b, first->at, units * elements_of_unit(c, first->row.buffer))};
}

const ir_expr *mha_load_panel_values(const mha_context *c, const mha_panel_unit *unit, const ir_expr *column,
                                     int columns, int64_t count) {
    ir_builder *b = c->b;
    const ir_buffer *const buffer = unit->row.buffer;
    const int64_t elements = mha_unit_of(buffer), all = TOKENS * mha_panel_columns(c, buffer);
    const ir_expr *at = ir_add(b, unit->at, ir_times(b, column, elements));
    if (count >= columns) return ir_load(b, elements_at(c, &unit->row, at, columns * elements));
    at = ir_let_in(b, "element", ir_idx(b, 0), ir_idx(b, all - count * elements + 1), at);
    return mha_load_raw_columns(c, buffer, unit->row.index, at, columns * (int)elements, count * elements);
}

const ir_access *mha_panel_access(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes) {
    ir_builder *b = c->b;
    const ir_expr *const unit = ir_idx(b, mha_unit_of(row->buffer));
    if (is_k(c, row->buffer))
        return elements_at(c, row, ir_add(b, key_at(c, row, ir_div(b, column, unit)), ir_mod(b, column, unit)), lanes);
    const ir_expr *at = ir_add(b, unit_at(c, row), ir_mul(b, column, unit));
    return elements_at(c, row, ir_add(b, at, ir_mod(b, row->first, unit)), lanes);
}

const ir_access *mha_panel_line(const mha_context *c, const ir_buffer *buffer, const ir_expr *const index[3],
                                const ir_expr *column) {
    ir_builder *b = c->b;
    const ir_expr *const tokens = ir_idx(b, TOKENS);
    const ir_expr *at = ir_times(b, ir_mod(b, index[2], tokens), mha_panel_columns(c, buffer));
    return ir_at(b, buffer, 1, 4, index[0], index[1], ir_div(b, index[2], tokens), ir_add(b, at, column));
}

const ir_access *mha_panel_ahead(const mha_context *c, const mha_row *row, int64_t panels, const ir_expr *element) {
    return ir_at(c->b, row->buffer, 1, 4, row->index[0], row->index[1], ir_plus(c->b, row->index[2], panels), element);
}

/* ---- Rows ---- */

/* Columns of K are contiguous within a unit only. Quantised values are joined first, and converted together. */
static const ir_expr *gather(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes) {
    const ir_expr *parts[IR_MAX_LANES];
    const bool is_code = row->buffer->type.elem == IR_I8;
    const int unit = (int)min_of(lanes, mha_unit_of(row->buffer));
    for (int i = 0; i < lanes / unit; i++) {
        const ir_access *at = mha_panel_access(c, row, ir_plus(c->b, column, i * unit), unit);
        parts[i] = ir_let(c->b, "k", is_code ? ir_load(c->b, at) : mha_load(c, at));
    }
    const ir_expr *all = mha_concat(c->b, parts, lanes / unit, unit);
    return is_code ? ir_cast(c->b, IR_I32, all) : all;
}

const ir_expr *mha_load_panel_bytes(const mha_context *c, const mha_row *row, const ir_expr *byte, int lanes) {
    ir_builder *b = c->b;
    if (lanes == 1) return ir_cast(b, IR_I32, ir_load(b, mha_panel_access(c, row, byte, 1)));
    if (is_k(c, row->buffer)) return gather(c, row, byte, lanes);
    const mha_panel_unit of = mha_panel_unit_of(c, row);
    const ir_expr *units = ir_let(b, "bytes", mha_load_panel_values(c, &of, byte, lanes, lanes));
    const ir_expr *place = ir_cast(b, IR_I32, ir_mod(b, row->first, ir_idx(b, UNIT_BYTES)));
    const ir_expr *bits = ir_splat(b, ir_mul(b, place, ir_int(b, IR_I32, BYTE_BITS)), lanes);
    return ir_apply(b, IR_SHR, ir_bitcast(b, IR_I32, units), bits, NULL);
}

/* The quantised value in byte `byte` of each unit, as c->elem. */
static const ir_expr *byte_of_units(const mha_context *c, const ir_expr *units, const ir_expr *byte, int lanes) {
    ir_builder *b = c->b;
    const ir_expr *most = ir_int(b, IR_I32, UNIT_BYTES - 1), *bits = ir_int(b, IR_I32, BYTE_BITS);
    const ir_expr *after = ir_splat(b, ir_mul(b, ir_sub(b, most, byte), bits), lanes);
    const ir_expr *top = ir_apply(b, IR_SHL, ir_bitcast(b, IR_I32, units), after, NULL);
    const ir_expr *skipped = ir_splat(b, ir_int(b, IR_I32, (UNIT_BYTES - 1) * BYTE_BITS), lanes);
    return ir_cast(b, c->elem, ir_apply(b, IR_SHR, top, skipped, NULL));
}

const ir_expr *mha_byte_of_units(const mha_context *c, const ir_expr *units, int byte) {
    return byte_of_units(c, units, ir_int(c->b, IR_I32, byte), units ? units->type.lanes / UNIT_BYTES : 1);
}

const ir_expr *mha_nibble_of_units(const mha_context *c, const ir_expr *units, int byte, int half) {
    enum { NIBBLE_BITS = 4, NIBBLE = 15, ZERO_POINT = 8 };
    ir_builder *b = c->b;
    const int lanes = units ? units->type.lanes / UNIT_BYTES : 1, before = byte * BYTE_BITS + half * NIBBLE_BITS;
    const ir_expr *quantised = ir_bitcast(b, IR_I32, units);
    if (before) quantised = ir_apply(b, IR_SHR, quantised, ir_splat(b, ir_int(b, IR_I32, before), lanes), NULL);
    if (mha_has_nibble_table(c) && lanes == c->lanes) {
        const ir_expr *numbers = mha_nibble_table(c);
        return ir_lookup(b, numbers, numbers, quantised);
    }
    quantised = ir_and(b, quantised, ir_splat(b, ir_int(b, IR_I32, NIBBLE), lanes));
    return ir_cast(b, c->elem, ir_sub(b, quantised, ir_splat(b, ir_int(b, IR_I32, ZERO_POINT), lanes)));
}

/* The row's half of pairs of bf16, as f32: a bf16 is the upper half of an f32. */
static const ir_expr *half_of_pairs(const mha_context *c, const mha_row *row, const ir_expr *pairs, int lanes) {
    ir_builder *b = c->b;
    const ir_expr *bits = ir_splat(b, ir_int(b, IR_I32, HALF_BITS), lanes);
    const ir_expr *half = ir_cast(b, IR_I32, ir_mod(b, row->first, ir_idx(b, 2)));
    const ir_expr *skipped = ir_splat(b, ir_mul(b, half, ir_int(b, IR_I32, HALF_BITS)), lanes);
    const ir_expr *x = ir_apply(b, IR_SHR, ir_bitcast(b, IR_I32, pairs), skipped, NULL);
    return mha_widened(c, ir_bitcast(b, IR_F32, ir_apply(b, IR_SHL, x, bits, NULL)));
}

const ir_expr *mha_load_panel_row(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes,
                                  int64_t count) {
    ir_builder *b = c->b;
    if (lanes == 1) return mha_load(c, mha_panel_access(c, row, column, 1));
    if (is_k(c, row->buffer)) {
        const ir_expr *all = gather(c, row, column, lanes);
        return row->buffer->type.elem == IR_I8 ? ir_cast(b, c->elem, all) : all;
    }
    if (mha_unit_of(row->buffer) == 1 && count >= lanes) return mha_load(c, mha_panel_access(c, row, column, lanes));
    const mha_panel_unit of = mha_panel_unit_of(c, row);
    const ir_expr *values = ir_let(b, "values", mha_load_panel_values(c, &of, column, lanes, count));
    switch (mha_unit_of(row->buffer)) {
    case 1: return mha_widened(c, values);
    case 2: return half_of_pairs(c, row, values, lanes);
    default: {
        const ir_expr *byte = ir_cast(b, IR_I32, ir_mod(b, row->first, ir_idx(b, UNIT_BYTES)));
        return byte_of_units(c, values, byte, lanes);
    }
    }
}

void mha_store_panel_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t columns) {
    const bool by_units = is_k(c, target->buffer);
    const int64_t step = by_units ? mha_unit_of(target->buffer) : 1;
    IR_FOR(c->b, column, ir_idx(c->b, 0), ir_idx(c->b, columns), step) {
        ir_store(c->b, mha_panel_access(c, target, column, (int)step),
                 ir_load(c->b, mha_row_access(c, source, column, (int)step)));
    }
}
