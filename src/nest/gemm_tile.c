/* A register tile of a product of matrices. It is initialised with start, or the sums of an earlier pass; it adds its
 * rows of A times its columns of B; and it is stored to scratch:
 *
 *                 columns 0 … L-1   columns L … 2L-1
 *     row 0     [ a a a a a a a ] [ a a a a a a a ]         a += A[row][k] in all lanes * B[k][columns],
 *     row 1     [ a a a a a a a ] [ a a a a a a a ]         for k = 0, 1, …
 *
 * B is of floats (or pairs of bf16); of quantised values that are dequantised here; or of quantised values in integer
 * products.
 *
 * On targets with hardware tiles, a register tile may consist of these: 2 x 2 of 16 x 16, and two for each factor. */
#include "nest/gemm_tile.h"
#include "base/integers.h"
#include "schedule/variant.h"

const ir_access *mha_gemm_at(const mha_gemm_task *c, const ir_expr *row, const ir_expr *column) {
    return ir_at(c->b, c->tile, c->m->lanes, 2, row, column);
}

static const ir_expr *column_of(const mha_gemm_task *c, const mha_gemm_tile *t, int64_t vector) {
    return ir_plus(c->b, t->column, vector * c->m->lanes);
}

/* The place of a row of the register tile in scratch, before and after the product. */
static const ir_access *home_of(const mha_gemm_task *c, const mha_gemm_tile *t, int64_t row, int64_t vector) {
    return mha_gemm_at(c, ir_plus(c->b, t->base, row), column_of(c, t, vector));
}

const ir_expr *mha_gemm_start(const mha_gemm_task *c, const ir_expr *column) {
    return ir_let(c->b, "start", c->g->start(c->m, c->g, column, c->m->lanes));
}

static void begin_tile(const mha_gemm_task *c, const mha_gemm_tile *t) {
    for (int64_t v = 0; v < c->vectors; v++) {
        const ir_expr *start = c->one_pass ? mha_gemm_start(c, column_of(c, t, v)) : NULL;
        for (int64_t r = 0; r < t->product.rows; r++)
            ir_store(c->b, mha_product_at(&t->product, r, v), start ? start : ir_load(c->b, home_of(c, t, r, v)));
    }
}

static void end_tile(const mha_gemm_task *c, const mha_gemm_tile *t) {
    for (int64_t r = 0; r < t->product.rows; r++)
        for (int64_t v = 0; v < c->vectors; v++)
            ir_store(c->b, home_of(c, t, r, v), mha_product_sum(&t->product, r, v));
}

static const ir_expr *right_of(const mha_gemm_task *c, const mha_gemm_tile *t, const ir_expr *k, int64_t vector) {
    return c->g->right(c->m, c->g, k, column_of(c, t, vector), c->m->lanes);
}

/* Prefetches the rows of B that are multiplied gemm_prefetch steps of k later, line by line. With hardware prefetching
 * alone, products are a few per cent slower (at the ends of pages and panels), and half as fast if B comes from memory.
 */
static void prefetch_right(const mha_gemm_task *c, const mha_gemm_tile *t, const ir_expr *k) {
    const int64_t line = 64 / ir_elem_get(c->m->elem)->bytes, steps = c->m->s->gemm_prefetch;
    const ir_expr *later = ir_plus(c->b, k, steps);
    for (int64_t v = 0; steps > 0 && v < c->vectors; v += c->m->lanes < line ? line / c->m->lanes : 1) {
        const ir_expr *x = right_of(c, t, later, v);
        while (x && x->op == IR_CAST) x = x->args[0];
        if (x && x->op == IR_LOAD) ir_prefetch(c->b, x->value.access);
    }
}

/* Prefetches some of the rows of A that are copied next. Several iterations prefetch the same line, which costs less
 * than counting columns. */
static void prefetch_left(const mha_gemm_task *c, const mha_gemm_tile *t, const ir_expr *column) {
    for (int64_t n = 0; n < t->num_next; n++) ir_prefetch(c->b, c->g->left(c->m, c->g, &t->next[n], column));
}

static void multiply_rows(const mha_gemm_task *c, const mha_gemm_tile *t, const ir_expr *column) {
    const mha_product *p = &t->product;
    for (int64_t r = 0; r < p->rows; r++)
        mha_product_repeat(p, "left", r, ir_at(c->b, c->slab, (int)p->kind, 2, ir_plus(c->b, t->base, r), column));
}

/* One of the quantised values of the word in each lane, as c->elem. */
static const ir_expr *code_of(const mha_gemm_task *c, const ir_expr *words, int input) {
    enum { BITS = 32, BYTE = 8, HALF = 4 };
    ir_builder *b = c->b;
    if (!words) return NULL;
    const int bits = BITS / c->g->quantised->inputs, first = input % HALF * BYTE + input / HALF * HALF;
    const int lanes = words->type.lanes;
    const ir_expr *above = ir_splat(b, ir_int(b, IR_I32, BITS - bits - first), lanes);
    const ir_expr *below = ir_splat(b, ir_int(b, IR_I32, BITS - bits), lanes);
    return ir_cast(b, c->m->elem, ir_apply(b, IR_SHR, ir_apply(b, IR_SHL, words, above, NULL), below, NULL));
}

/* The rows of B in the words k. */
static void multiply_words(const mha_gemm_task *c, mha_gemm_tile *t, const ir_expr *k, const ir_expr *const *scale) {
    ir_builder *b = c->b;
    const int64_t vectors = t->product.vectors, inputs = c->g->quantised->inputs;
    const ir_expr *words[MHA_MAX_VECTORS], *column = ir_times(b, k, inputs);
    for (int64_t v = 0; v < vectors; v++) words[v] = ir_let(b, "quantised", right_of(c, t, k, v));
    prefetch_right(c, t, k);
    prefetch_left(c, t, column);
    for (int input = 0; input < inputs; input++) {
        for (int64_t v = 0; v < vectors; v++)
            mha_product_vector(&t->product, "right", v, ir_mul(b, code_of(c, words[v], input), scale[v]));
        multiply_rows(c, t, ir_plus(b, column, input));
    }
}

/* A step is the rows of B that share scales. */
static void multiply_quantised(const mha_gemm_task *c, mha_gemm_tile *t, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    const mha_quantised_weights *quantised = c->g->quantised;
    const ir_expr *scale[MHA_MAX_VECTORS];
    IR_FOR(b, step, from, to, 1) {
        for (int64_t v = 0; v < t->product.vectors; v++)
            scale[v] = ir_let(b, "scale", quantised->scale(c->m, c->g, step, column_of(c, t, v), c->m->lanes));
        IR_FOR(b, word, ir_idx(b, 0), ir_idx(b, quantised->words), 1) {
            multiply_words(c, t, ir_add(b, ir_times(b, step, quantised->words), word), scale);
        }
    }
}

/* The exact sums of a step. They begin with the correction for the flipped signs of B's values. */
static void sum_words(const mha_gemm_task *c, mha_product *sums, const mha_gemm_tile *t, const ir_expr *step) {
    ir_builder *b = c->b;
    const mha_quantised_weights *quantised = c->g->quantised;
    mha_product_begin(sums);
    for (int64_t r = 0; r < sums->rows; r++) {
        const ir_expr *start = mha_left_start(c->m, &c->left, ir_plus(b, t->base, r), step);
        for (int64_t v = 0; v < sums->vectors; v++) ir_store(b, mha_product_at(sums, r, v), start);
    }
    IR_FOR(b, word, ir_idx(b, 0), ir_idx(b, quantised->words), 1) {
        const ir_expr *k = ir_add(b, ir_times(b, step, quantised->words), word), *words[MHA_MAX_VECTORS];
        const ir_expr *column = ir_times(b, k, quantised->inputs);
        for (int64_t v = 0; v < sums->vectors; v++) words[v] = ir_let(b, "quantised", right_of(c, t, k, v));
        prefetch_right(c, t, k);
        prefetch_left(c, t, column);
        for (int input = 0; input < quantised->inputs; input += MHA_DOT4) {
            for (int64_t v = 0; v < sums->vectors; v++)
                mha_product_vector(sums, "right", v, mha_unsigned_values(c->m, words[v], quantised->inputs, input));
            for (int64_t r = 0; r < sums->rows; r++)
                mha_product_repeat(
                    sums, "left", r,
                    ir_at(b, c->left.values, MHA_DOT4, 2, ir_plus(b, t->base, r), ir_plus(b, column, input)));
        }
    }
}

/* acc = madd(integer sum, scale of A * scale of B, acc), step by step. */
static void multiply_integers(const mha_gemm_task *c, mha_gemm_tile *t, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    const mha_product *p = &t->product;
    IR_FOR(b, step, from, to, 1) {
        mha_product sums = mha_product_of(c->m, MHA_DOT4, p->rows, p->vectors);
        sums.vectors_first = true;
        sum_words(c, &sums, t, step);
        for (int64_t v = 0; v < p->vectors; v++) {
            const ir_expr *scale = c->g->quantised->scale(c->m, c->g, step, column_of(c, t, v), c->m->lanes);
            scale = ir_let(b, "scale", scale);
            for (int64_t r = 0; r < p->rows; r++) {
                const ir_expr *both = ir_mul(b, mha_left_scale(c->m, &c->left, ir_plus(b, t->base, r), step), scale);
                const ir_expr *sum = ir_cast(b, c->m->elem, mha_product_sum(&sums, r, v));
                ir_store(b, mha_product_at(p, r, v), mha_madd(c->m, sum, both, mha_product_sum(p, r, v)));
            }
        }
    }
}

static bool splits_pairs(const mha_gemm_task *c) { return c->inputs == 2 && c->kind == MHA_MADD; }

/* Rows of B, or pairs of rows, in an iteration. With 16 registers, a register tile is small, so the loop's overhead and
 * prefetching A are 20 % of the instructions, and unrolling pays. Passes need not end with an iteration, so they do not
 * unroll. */
static int64_t rows_in_iteration(const mha_gemm_task *c) {
    const int64_t rows = splits_pairs(c) ? 2 : 4;
    if (!at_has_few_registers(c->m->target) || !c->one_pass || c->steps % rows) return 1;
    return rows;
}

/* acc += A B for row k of B, or a pair of rows. */
static void multiply_row(const mha_gemm_task *c, mha_gemm_tile *t, const ir_expr *k, bool asks_for_left) {
    ir_builder *b = c->b;
    for (int half = 0; half < (splits_pairs(c) ? 2 : 1); half++) {
        const ir_expr *column = ir_plus(b, ir_times(b, k, c->inputs), half);
        for (int64_t v = 0; v < c->vectors; v++) {
            const ir_expr *x = right_of(c, t, k, v);
            mha_product_vector(&t->product, "right", v, splits_pairs(c) ? mha_half_of_pairs(c->m, x, half) : x);
        }
        if (half == 0) prefetch_right(c, t, k);
        if (half == 0 && asks_for_left) prefetch_left(c, t, column);
        multiply_rows(c, t, column);
    }
}

/* Sums in the order of k, which counts pairs of rows if B is packed in pairs. */
static void multiply(const mha_gemm_task *c, mha_gemm_tile *t, const ir_expr *from, const ir_expr *to) {
    const int64_t rows = rows_in_iteration(c);
    IR_FOR(c->b, k, from, to, rows) {
        for (int64_t i = 0; i < rows; i++) multiply_row(c, t, ir_plus(c->b, k, i), i == 0);
    }
}
/* ---- A register tile of hardware tiles ---- */

enum { TILE = 16, TILE_DEPTH = 32, NUM_TILES = 8 }; /* rows, and columns of C; columns of A and rows of B */

bool mha_gemm_goes_by_tiles(const mha_gemm_task *c, int64_t rows) {
    return c->m->s->gemm_by == MHA_GEMM_BY_TILES && c->kind == MHA_DOT2 && c->one_pass && c->m->lanes == TILE &&
           mha_gemm_tiles(rows, c->vectors, c->g->depth);
}

/* Writes start to the scratch from which hardware tiles load the sums. */
static void start_product(const mha_gemm_task *c, const mha_gemm_tile *t) {
    ir_builder *b = c->b;
    for (int64_t v = 0; v < c->vectors; v++) {
        const ir_expr *start = mha_gemm_start(c, column_of(c, t, v));
        IR_FOR(b, r, ir_idx(b, 0), ir_idx(b, t->product.rows), 1) {
            ir_store(b, mha_gemm_at(c, ir_add(b, t->base, r), column_of(c, t, v)), start);
        }
    }
}

static const ir_access *tile_of(const mha_gemm_task *c, const ir_buffer *tiles, int64_t row, int64_t column) {
    return tiles && tiles->num_dims == 2 ? ir_at(c->b, tiles, 1, 2, ir_idx(c->b, row), ir_idx(c->b, column))
                                         : ir_at(c->b, tiles, 1, 1, ir_idx(c->b, row));
}

static void multiply_tiles(const mha_gemm_task *c, const mha_gemm_tile *t) {
    ir_builder *b = c->b;
    const int64_t high = t->product.rows / TILE, wide = c->vectors, pairs = TILE_DEPTH / 2;
    const ir_type f32 = ir_type_of(IR_F32, 1), bf16 = ir_type_of(IR_BF16, 1);
    const ir_buffer *sum = ir_alloc(b, "sum", IR_TILES, f32, 2, (int64_t[]){high, wide});
    const ir_buffer *left = ir_alloc(b, "left", IR_TILES, bf16, 1, &high);
    const ir_buffer *right = ir_alloc(b, "right", IR_TILES, bf16, 1, &wide);
    for (int64_t i = 0; i < high * wide; i++)
        ir_tile(b, IR_TILE_LOAD, tile_of(c, sum, i / wide, i % wide), home_of(c, t, i / wide * TILE, i % wide), NULL);
    IR_FOR(b, k, ir_idx(b, 0), ir_idx(b, c->steps), pairs) {
        for (int64_t i = 0; i < high; i++) {
            const ir_expr *row = ir_plus(b, t->base, i * TILE), *column = ir_times(b, k, 2);
            ir_tile(b, IR_TILE_LOAD, tile_of(c, left, i, 0), ir_at(b, c->slab, TILE_DEPTH, 2, row, column), NULL);
        }
        for (int64_t v = 0; v < wide; v++) {
            const ir_expr *x = right_of(c, t, k, v);
            ir_tile(b, IR_TILE_LOAD, tile_of(c, right, v, 0), x ? x->value.access : NULL, NULL);
        }
        for (int64_t i = 0; i < high * wide; i++)
            ir_tile(b, IR_TILE_DOT2, tile_of(c, sum, i / wide, i % wide), tile_of(c, left, i / wide, 0),
                    tile_of(c, right, i % wide, 0));
    }
    for (int64_t i = 0; i < high * wide; i++)
        ir_tile(b, IR_TILE_STORE, home_of(c, t, i / wide * TILE, i % wide), tile_of(c, sum, i / wide, i % wide), NULL);
}
/* ---- Either of them ---- */

void mha_gemm_build_tile(const mha_gemm_task *c, mha_gemm_tile *t, const ir_expr *from, const ir_expr *to) {
    if (mha_gemm_goes_by_tiles(c, t->product.rows)) {
        start_product(c, t);
        multiply_tiles(c, t);
        return;
    }
    mha_product_begin(&t->product);
    begin_tile(c, t);
    if (c->left.values)
        multiply_integers(c, t, from, to);
    else if (c->g->quantised)
        multiply_quantised(c, t, from, to);
    else
        multiply(c, t, from, to);
    end_tile(c, t);
}
