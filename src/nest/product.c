/* The accumulators of a register tile, acc[rows][vectors], and their multiply-adds (product.h). */
#include "nest/product.h"

void mha_product_begin(mha_product *p) {
    const ir_type type = ir_type_of(mha_sum_elem(p->c, p->kind), p->lanes);
    p->acc = ir_alloc(p->c->b, "acc", IR_REG, type, 2, (int64_t[]){p->rows, p->vectors});
}

const ir_access *mha_product_at(const mha_product *p, int64_t row, int64_t vector) {
    return ir_at(p->c->b, p->acc, p->lanes, 2, ir_idx(p->c->b, row), ir_idx(p->c->b, vector));
}

const ir_expr *mha_product_sum(const mha_product *p, int64_t row, int64_t vector) {
    return ir_load(p->c->b, mha_product_at(p, row, vector));
}

void mha_product_clear(mha_product *p) {
    mha_product_begin(p);
    const ir_expr *zero =
        p->kind == MHA_DOT4 ? ir_splat(p->c->b, ir_int(p->c->b, IR_I32, 0), p->lanes) : mha_number(p->c, 0, p->lanes);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t v = 0; v < p->vectors; v++) ir_store(p->c->b, mha_product_at(p, r, v), zero);
}

void mha_product_hold(mha_product *p, const char *name) {
    const ir_type type = ir_type_of(mha_factor_elem(p->c, p->kind), p->lanes * (int)p->kind);
    p->held = ir_alloc(p->c->b, name, IR_REG, type, 1, &p->vectors);
}

void mha_product_vector(mha_product *p, const char *name, int64_t vector, const ir_expr *x) {
    if (!p->held) {
        p->vector[vector] = name ? ir_let(p->c->b, name, x) : x;
        return;
    }
    const ir_access *at = ir_at(p->c->b, p->held, p->lanes * (int)p->kind, 1, ir_idx(p->c->b, vector));
    ir_store(p->c->b, at, x);
    p->vector[vector] = ir_load(p->c->b, at);
}

void mha_product_add(const mha_product *p, int64_t row, int64_t vector, const ir_expr *x) {
    const ir_expr *y = p->vector[vector], *acc = mha_product_sum(p, row, vector);
    ir_store(p->c->b, mha_product_at(p, row, vector),
             mha_accumulate(p->c, p->kind, p->vectors_first ? y : x, p->vectors_first ? x : y, acc));
}

void mha_product_row(const mha_product *p, const char *name, int64_t row, const ir_expr *x) {
    if (name) x = ir_let(p->c->b, name, x);
    for (int64_t v = 0; v < p->vectors; v++) mha_product_add(p, row, v, x);
}

void mha_product_repeat(const mha_product *p, const char *name, int64_t row, const ir_access *access) {
    mha_product_row(p, name, row, mha_load_repeated(p->c, p->kind, access, p->lanes));
}

const ir_expr *mha_steps_begin(const mha_context *c, const char *name, const ir_expr *from, const ir_expr *to,
                               int64_t unroll) {
    const ir_expr *turn = ir_for_begin(c->b, name, from, to, unroll, false);
    return ir_add(c->b, turn, ir_for_begin(c->b, "step", ir_idx(c->b, 0), ir_idx(c->b, unroll), 1, true));
}

void mha_steps_end(const mha_context *c) {
    ir_for_end(c->b);
    ir_for_end(c->b);
}
