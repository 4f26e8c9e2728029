/* Tables for f8 values, and vectors of values by look-up:
 *
 *     f8    [ sign | 7 bits of magnitude ]    ->    low[magnitude], high[magnitude] | sign    ->    the bytes of a bf16
 */
#include "nest/f8.h"

enum { CODES = MHA_F8_CODES, MAGNITUDES = 128, SEGMENT = 16, HALF = SEGMENT / 2, SIGN_BITS = -2139062144 };

bool mha_has_f8_tables(const mha_context *c) {
    enum { LANES = 16 };
    return c->target->flags & AT_TARGET_LOOKUP && c->lanes == LANES && c->elem == IR_F32;
}

static const ir_expr *int_lanes(const mha_context *c, int32_t value) {
    return ir_splat(c->b, ir_int(c->b, IR_I32, value), c->lanes);
}

static const ir_expr *shifted(const mha_context *c, ir_op by, const ir_expr *x, int32_t bits) {
    return ir_apply(c->b, by, x, int_lanes(c, bits), NULL);
}

/* ---- The tables ---- */

/* The bits of an f8 value as bf16. Exponent and fraction are those of f8, with another bias; a denormal is a multiple
 * of 2^-9; the last value is NaN. */
static const ir_expr *bf16_bits(const mha_context *c, const ir_expr *code) {
    enum { BIAS = (127 - 7) << 7, NAN_BITS = 0x7fc0, LEAST_NORMAL = 8 };
    ir_builder *b = c->b;
    const ir_expr *normal = ir_add(b, shifted(c, IR_SHL, code, 4), int_lanes(c, BIAS));
    const ir_expr *small = ir_mul(b, ir_cast(b, IR_F32, code), mha_number(c, 0x1p-9, c->lanes));
    small = shifted(c, IR_SHR, ir_bitcast(b, IR_I32, small), 16);
    const ir_expr *bits = ir_select(b, ir_lt(b, code, int_lanes(c, LEAST_NORMAL)), small, normal);
    return ir_select(b, ir_eq(b, code, int_lanes(c, MAGNITUDES - 1)), int_lanes(c, NAN_BITS), bits);
}

const ir_buffer *mha_f8_tables(const mha_context *c) {
    ir_builder *b = c->b;
    const ir_buffer *tables = ir_scratch(b, "f8_tables", IR_I8, 2, (int64_t[]){2, MAGNITUDES});
    IR_FOR(b, first, ir_idx(b, 0), ir_idx(b, MAGNITUDES), c->lanes) {
        const ir_expr *code = ir_ramp(b, ir_cast(b, IR_I32, first), ir_int(b, IR_I32, 1), c->lanes);
        const ir_expr *bits = ir_let(b, "bits", bf16_bits(c, ir_let(b, "code", code)));
        ir_store(b, ir_at(b, tables, c->lanes, 2, ir_idx(b, 0), first), ir_cast(b, IR_I8, bits));
        ir_store(b, ir_at(b, tables, c->lanes, 2, ir_idx(b, 1), first), ir_cast(b, IR_I8, shifted(c, IR_SHR, bits, 8)));
    }
    return tables;
}

mha_f8_table mha_f8_table_of(const mha_context *c, const ir_buffer *tables) {
    mha_f8_table table;
    for (int i = 0; i < 2; i++) {
        const ir_expr *first = ir_idx(c->b, (int64_t)i * CODES);
        table.low[i] = ir_let(c->b, "low", ir_load(c->b, ir_at(c->b, tables, CODES, 2, ir_idx(c->b, 0), first)));
        table.high[i] = ir_let(c->b, "high", ir_load(c->b, ir_at(c->b, tables, CODES, 2, ir_idx(c->b, 1), first)));
    }
    return table;
}

/* ---- Vectors of values ---- */

/* Bytes of x and y alternately, from the lower or the upper halves of their segments. */
static const ir_expr *unpack(const mha_context *c, const ir_expr *x, const ir_expr *y, int upper) {
    uint8_t pick[CODES];
    for (int l = 0; l < CODES; l++) {
        const int from = l / SEGMENT * SEGMENT + upper * HALF + l % SEGMENT / 2;
        pick[l] = (uint8_t)(l % 2 ? CODES + from : from);
    }
    return ir_let(c->b, "f8", ir_shuffle(c->b, x, y, CODES, pick));
}

/* Words of bf16 as pairs in i32. */
static void as_words(const mha_context *c, const mha_f8_table *table, const ir_expr *quantised, const ir_expr *out[2]) {
    ir_builder *b = c->b;
    const ir_expr *bits = ir_let(b, "quantised", ir_bitcast(b, IR_I32, quantised));
    const ir_expr *index = ir_bitcast(b, IR_I8, bits);
    const ir_expr *low = ir_let(b, "low", ir_lookup(b, table->low[0], table->low[1], index));
    const ir_expr *high = ir_bitcast(b, IR_I32, ir_lookup(b, table->high[0], table->high[1], index));
    high = ir_or(b, high, ir_and(b, bits, int_lanes(c, SIGN_BITS)));
    high = ir_let(b, "high", ir_bitcast(b, IR_I8, high));
    for (int i = 0; i < 2; i++) out[i] = ir_bitcast(b, IR_I32, unpack(c, low, high, i));
}

void mha_f8_as_bf16(const mha_context *c, const mha_f8_table *table, const ir_expr *quantised, const ir_expr *out[2]) {
    as_words(c, table, quantised, out);
    for (int i = 0; i < 2; i++) out[i] = ir_bitcast(c->b, IR_BF16, out[i]);
}

void mha_f8_as_f32(const mha_context *c, const mha_f8_table *table, const ir_expr *quantised, const ir_expr *out[4]) {
    enum { UPPER = -65536 };
    ir_builder *b = c->b;
    const ir_expr *words[2];
    as_words(c, table, quantised, words);
    for (int i = 0; i < 2; i++) {
        const ir_expr *both = ir_let(b, "both", words[i]);
        out[2 * i] = ir_bitcast(b, IR_F32, shifted(c, IR_SHL, both, 16));
        out[2 * i + 1] = ir_bitcast(b, IR_F32, ir_and(b, both, int_lanes(c, UPPER)));
    }
}

void mha_f8_as_pairs(const mha_context *c, const mha_f8_table *table, const ir_expr *x, const ir_expr *y,
                     const ir_expr *out[4]) {
    for (int upper = 0; upper < 2; upper++) mha_f8_as_bf16(c, table, unpack(c, x, y, upper), out + 2 * upper);
}

int mha_f8_place(mha_f8_form form, int code) {
    enum { QUARTER = SEGMENT / 4, VECTOR = 16 };
    const int segment = code / SEGMENT, upper = code % SEGMENT / HALF, at = code % HALF;
    switch (form) {
    case MHA_F8_BF16: return upper * (CODES / 2) + segment * HALF + at;
    case MHA_F8_F32: return (2 * upper + at % 2) * VECTOR + segment * QUARTER + at / 2;
    case MHA_F8_PAIRS: break;
    }
    return (2 * upper + at / QUARTER) * VECTOR + segment * QUARTER + at % QUARTER;
}
