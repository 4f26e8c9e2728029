/* Operations on factors of one, two or four elements in a lane. Pairs and fours are handled as i32 lanes: broadcasting
 * and masking them is broadcasting and masking words. */
#include "nest/pairs.h"

/* The bits of the halves of a pair in a lane of i32. */
enum { FIRST_HALF = 0xffff, SECOND_HALF = -65536 };

ir_elem mha_factor_elem(const mha_context *c, mha_kind kind) {
    return kind == MHA_DOT2 ? IR_BF16 : kind == MHA_DOT4 ? IR_I8 : c->elem;
}

ir_elem mha_sum_elem(const mha_context *c, mha_kind kind) { return kind == MHA_DOT4 ? IR_I32 : c->elem; }

const ir_expr *mha_accumulate(const mha_context *c, mha_kind kind, const ir_expr *x, const ir_expr *y,
                              const ir_expr *acc) {
    if (kind == MHA_DOT4) return ir_dot4(c->b, x, y, acc);
    return kind == MHA_DOT2 ? ir_dot2(c->b, x, y, acc) : mha_madd(c, x, y, acc);
}

const ir_expr *mha_load_factor(const mha_context *c, mha_kind kind, const ir_access *access) {
    return kind == MHA_MADD ? mha_load(c, access) : ir_load(c->b, access);
}

const ir_expr *mha_repeat(const mha_context *c, mha_kind kind, const ir_expr *x, int lanes) {
    if (kind == MHA_MADD) return ir_splat(c->b, x, lanes);
    return ir_bitcast(c->b, mha_factor_elem(c, kind), ir_splat(c->b, ir_bitcast(c->b, IR_I32, x), lanes));
}

const ir_expr *mha_load_repeated(const mha_context *c, mha_kind kind, const ir_access *access, int lanes) {
    return mha_repeat(c, kind, mha_load_factor(c, kind, access), lanes);
}

const ir_expr *mha_where_seen(const mha_context *c, mha_kind kind, const ir_expr *seen, const ir_expr *x) {
    ir_builder *b = c->b;
    if (!x) return NULL;
    if (kind == MHA_MADD) return ir_select(b, seen, x, mha_number(c, 0, x->type.lanes));
    return ir_bitcast(b, IR_BF16, ir_and(b, ir_bitcast(b, IR_I32, x), seen));
}

static const ir_expr *bits(const mha_context *c, const ir_expr *seen, int half) {
    const int lanes = seen ? seen->type.lanes : 1;
    return ir_select(c->b, seen, ir_splat(c->b, ir_int(c->b, IR_I32, half), lanes),
                     ir_splat(c->b, ir_int(c->b, IR_I32, 0), lanes));
}

const ir_expr *mha_seen_bits(const mha_context *c, const ir_expr *first, const ir_expr *second) {
    const ir_expr *seen = bits(c, first, FIRST_HALF);
    return second ? ir_or(c->b, seen, bits(c, second, SECOND_HALF)) : seen;
}

const ir_expr *mha_zero_pairs(const mha_context *c, int lanes) {
    return ir_bitcast(c->b, IR_BF16, ir_splat(c->b, ir_int(c->b, IR_I32, 0), lanes));
}

const ir_expr *mha_half_of_pairs(const mha_context *c, const ir_expr *pairs, int half) {
    ir_builder *b = c->b;
    if (!pairs) return NULL;
    const ir_expr *in_lanes = ir_bitcast(b, IR_I32, pairs);
    const ir_expr *constant = ir_splat(b, ir_int(b, IR_I32, half ? SECOND_HALF : 16), pairs->type.lanes / 2);
    const ir_expr *x = ir_bitcast(b, IR_F32, ir_apply(b, half ? IR_AND : IR_SHL, in_lanes, constant, NULL));
    return c->elem == IR_F32 ? x : ir_cast(b, c->elem, x);
}

const ir_expr *mha_interleave(const mha_context *c, const ir_expr *x, const ir_expr *y, int lanes, int segment,
                              bool upper) {
    uint8_t pick[IR_MAX_LANES];
    if (!x || !y) return NULL;
    const int half = segment / 2;
    for (int l = 0; l < lanes; l++) {
        const int from = l / half * segment + (upper ? half : 0) + l % half;
        pick[2 * l] = (uint8_t)from;
        pick[2 * l + 1] = (uint8_t)(x->type.lanes + from);
    }
    return ir_shuffle(c->b, x, y, 2 * lanes, pick);
}

/* The first `count` lanes of x followed by y. The instruction for pack2 gives this order. */
static const ir_expr *rounded(const mha_context *c, const ir_expr *x, const ir_expr *y, int count) {
    uint8_t pick[IR_MAX_LANES];
    const int lanes = count < x->type.lanes ? count : x->type.lanes;
    for (int l = 0; l < lanes; l++) {
        pick[l] = (uint8_t)(2 * l);
        if (count > lanes) pick[lanes + l] = (uint8_t)(2 * l + 1);
    }
    const ir_expr *pairs = ir_let(c->b, "rounded", ir_pack2(c->b, x, y));
    return ir_shuffle(c->b, pairs, pairs, count, pick);
}

const ir_expr *mha_both_rounded(const mha_context *c, const ir_expr *x, const ir_expr *y) {
    return x && y ? rounded(c, x, y, 2 * x->type.lanes) : NULL;
}

const ir_expr *mha_rounded(const mha_context *c, const ir_expr *x) {
    x = ir_let(c->b, "o", x);
    return x ? rounded(c, x, x, x->type.lanes) : NULL;
}
