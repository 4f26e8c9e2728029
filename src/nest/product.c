#include "nest/product.h"

void mha_product_begin(mha_product *p) {
    const ir_type type = ir_type_of(p->c->elem, p->lanes);
    p->acc = ir_alloc(p->c->b, "acc", IR_REG, type, 2, (int64_t[]){p->rows, p->vectors});
}

const ir_access *mha_product_at(const mha_product *p, int64_t row, int64_t vector) {
    return ir_at(p->c->b, p->acc, p->lanes, 2, mha_i(p->c, row), mha_i(p->c, vector));
}

const ir_expr *mha_product_sum(const mha_product *p, int64_t row, int64_t vector) {
    return ir_load(p->c->b, mha_product_at(p, row, vector));
}

void mha_product_clear(const mha_product *p) {
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t v = 0; v < p->vectors; v++)
            ir_store(p->c->b, mha_product_at(p, r, v), mha_number(p->c, 0, p->lanes));
}

static const ir_expr *named(const mha_product *p, const char *name, const ir_expr *x) {
    return name ? ir_let(p->c->b, name, x) : x;
}

static const ir_expr *in_register(const mha_product *p, const ir_buffer *registers, int64_t v, const ir_expr *x) {
    const ir_access *at = ir_at(p->c->b, registers, p->lanes * (int)p->kind, 1, mha_i(p->c, v));
    ir_store(p->c->b, at, x);
    return ir_load(p->c->b, at);
}

void mha_product_load(const mha_product *p, const ir_expr *k, const ir_expr **vectors) {
    const ir_buffer *registers = NULL;
    const ir_type type = ir_type_of(mha_factor_elem(p->c, p->kind), p->lanes * (int)p->kind);
    if (p->open) p->open(p, k);
    if (p->in_registers) registers = ir_alloc(p->c->b, p->vector_name, IR_REG, type, 1, &p->vectors);
    for (int64_t v = 0; v < p->vectors; v++) {
        const ir_expr *x = p->vector(p, k, v);
        vectors[v] = p->in_registers ? in_register(p, registers, v, x) : named(p, p->vector_name, x);
    }
}

void mha_product_add(const mha_product *p, const ir_expr *k, const ir_expr *const *vectors) {
    for (int64_t r = 0; r < p->rows; r++) {
        const ir_expr *row = named(p, p->row_name, p->row(p, k, r));
        for (int64_t v = 0; v < p->vectors; v++) {
            const ir_expr *x = p->part ? p->part(p, k, v, row) : row, *y = vectors[v], *acc = mha_product_sum(p, r, v);
            ir_store(p->c->b, mha_product_at(p, r, v),
                     mha_accumulate(p->c, p->kind, p->vectors_first ? y : x, p->vectors_first ? x : y, acc));
        }
    }
}

void mha_product_step(const mha_product *p, const ir_expr *k) {
    const ir_expr *vectors[MHA_MAX_VECTORS];
    mha_product_load(p, k, vectors);
    mha_product_add(p, k, vectors);
}

void mha_product_steps(const mha_product *p, const char *name, const ir_expr *from, const ir_expr *to, int64_t unroll) {
    ir_builder *b = p->c->b;
    const ir_expr *k = ir_for_begin(b, name, from, to, unroll, false);
    if (unroll > 1) k = ir_add(b, k, ir_for_begin(b, "step", mha_i(p->c, 0), mha_i(p->c, unroll), 1, true));
    mha_product_step(p, k);
    if (unroll > 1) ir_for_end(b);
    ir_for_end(b);
}
