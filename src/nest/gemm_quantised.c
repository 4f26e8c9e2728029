/* Quantises rows of A for integer products, one group of columns after the other: range, scale, values and the start of
 * the sums (gemm_quantised.h). Lanes run along the columns of A. */
#include "nest/gemm_quantised.h"
#include "nest/quantised.h"
#include "nest/pairs.h"

enum {
    LARGEST = 127,
    SIGNS_I8 = (int)0x80808080,
    SIGNS_I4 = (int)0x88888888,
    LOWER_HALVES = 0x0f0f0f0f,
    HALF_BITS = 4
};

static const ir_expr *int_lanes(const mha_context *c, int32_t value, int lanes) {
    return ir_splat(c->b, ir_int(c->b, IR_I32, value), lanes);
}

mha_quantised_left mha_quantised_left_of(const mha_context *c, const ir_expr *rows, int64_t steps, int64_t inputs,
                                         int values) {
    enum { WORD_BITS = 32 };
    ir_builder *b = c->b;
    const ir_expr *const by_step[] = {rows, ir_idx(b, steps)}, *const by_input[] = {rows, ir_idx(b, steps * inputs)};
    return (mha_quantised_left){.values = ir_shared(b, "quantised_left", IR_I8, 2, by_input),
                                .scales = ir_shared(b, "left_scales", c->elem, 2, by_step),
                                .starts = ir_shared(b, "left_starts", IR_I32, 2, by_step),
                                .steps = steps,
                                .inputs = inputs,
                                .turned = 1 << (WORD_BITS / values - 1)};
}

mha_quantised_left mha_left_scratch(const mha_context *c, const mha_quantised_left *all, int64_t rows) {
    mha_quantised_left some = *all;
    some.values = ir_scratch(c->b, "quantised_rows", IR_I8, 2, (int64_t[]){rows, all->steps * all->inputs});
    some.scales = ir_scratch(c->b, "scales_of_rows", c->elem, 2, (int64_t[]){rows, all->steps});
    some.starts = ir_scratch(c->b, "starts_of_rows", IR_I32, 2, (int64_t[]){rows, all->steps});
    return some;
}

static void copy_elements(const mha_context *c, const ir_buffer *from, const ir_expr *row, const ir_buffer *to,
                          const ir_expr *to_row, int64_t count, int lanes) {
    ir_builder *b = c->b;
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, count), lanes) {
        ir_store(b, ir_at(b, to, lanes, 2, to_row, at), ir_load(b, ir_at(b, from, lanes, 2, row, at)));
    }
}

void mha_copy_left(const mha_context *c, const mha_quantised_left *from, const ir_expr *row,
                   const mha_quantised_left *to, const ir_expr *to_row) {
    enum { LEAST_GROUP = 32 };
    copy_elements(c, from->values, row, to->values, to_row, from->steps * from->inputs, LEAST_GROUP);
    copy_elements(c, from->scales, row, to->scales, to_row, from->steps, 1);
    copy_elements(c, from->starts, row, to->starts, to_row, from->steps, 1);
}

/* Quantises a group of columns, and returns the sum of the values. A denormal scale is so inaccurate that the quotient
 * may exceed the largest value, so it is clamped. */
static const ir_expr *encode_group(const mha_context *c, const mha_quantised_left *left, const mha_row *from,
                                   const ir_expr *row, const ir_expr *first, const ir_expr *scale) {
    ir_builder *b = c->b;
    const int lanes = mha_column_lanes(left->inputs, c->lanes);
    const ir_expr *usable = ir_let(b, "usable", mha_is_usable_scale(c, scale));
    const ir_access *sum = ir_mutable(b, "code_sum", int_lanes(c, 0, lanes));
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, left->inputs), lanes) {
        const ir_expr *x = mha_over_scale(c, mha_load(c, mha_row_access(c, from, at, lanes)), scale, usable);
        x = ir_min(b, mha_number(c, LARGEST, lanes), ir_max(b, mha_number(c, -LARGEST, lanes), x));
        const ir_expr *code = ir_let(b, "code", ir_cast(b, IR_I32, ir_rint(b, x)));
        ir_store(b, ir_at(b, left->values, lanes, 2, row, ir_add(b, first, at)), ir_cast(b, IR_I8, code));
        ir_store(b, sum, ir_add(b, ir_load(b, sum), code));
    }
    return ir_reduce(b, IR_ADD, ir_let(b, "code_lanes", ir_load(b, sum)));
}

void mha_encode_left(const mha_context *c, const mha_quantised_left *left, const ir_buffer *from, const ir_expr *row) {
    ir_builder *b = c->b;
    IR_FOR(b, step, ir_idx(b, 0), ir_idx(b, left->steps), 1) {
        const ir_expr *first = ir_let(b, "first_column", ir_times(b, step, left->inputs));
        const mha_row group = {from, {ir_idx(b, 0)}, first};
        const ir_expr *range = mha_row_range(c, &group, left->inputs);
        const ir_expr *scale = ir_let(b, "left_scale", ir_div(b, range, mha_number(c, LARGEST, 1)));
        const ir_expr *sum = encode_group(c, left, &group, row, first, scale);
        const ir_expr *start = ir_mul(b, sum, ir_int(b, IR_I32, -left->turned));
        ir_store(b, ir_at(b, left->scales, 1, 2, row, step), scale);
        ir_store(b, ir_at(b, left->starts, 1, 2, row, step), start);
    }
}

const ir_expr *mha_left_start(const mha_context *c, const mha_quantised_left *left, const ir_expr *row,
                              const ir_expr *step) {
    return ir_splat(c->b, ir_load(c->b, ir_at(c->b, left->starts, 1, 2, row, step)), c->lanes);
}

const ir_expr *mha_left_scale(const mha_context *c, const mha_quantised_left *left, const ir_expr *row,
                              const ir_expr *step) {
    return ir_splat(c->b, ir_load(c->b, ir_at(c->b, left->scales, 1, 2, row, step)), c->lanes);
}

const ir_expr *mha_unsigned_values(const mha_context *c, const ir_expr *words, int inputs, int input) {
    ir_builder *b = c->b;
    if (!words) return NULL;
    const int lanes = words->type.lanes;
    const bool is_i4 = inputs > MHA_DOT4;
    if (input) words = ir_apply(b, IR_SHR, words, int_lanes(c, HALF_BITS, lanes), NULL);
    words = ir_apply(b, IR_XOR, words, int_lanes(c, is_i4 ? SIGNS_I4 : SIGNS_I8, lanes), NULL);
    if (is_i4) words = ir_and(b, words, int_lanes(c, LOWER_HALVES, lanes));
    return ir_bitcast(b, IR_I8, words);
}
