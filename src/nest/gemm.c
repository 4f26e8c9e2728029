/* Products of matrices as tasks, scratch and register tiles.
 *
 * A register tile is gemm_rows rows of A by gemm_column_vectors vectors of columns of B. Tiles of the same rows follow
 * each other, so that their part of A stays in the first cache while the group of B passes by from the second one.
 *
 * In one pass (gemm_depth 0) a task has no more than the rows of one register tile in scratch at a time. In several,
 * for products so deep that a group of B would not stay in the second cache, it has all its rows there: then each
 * gemm_depth rows of B serve all rows of the task before the next ones are read.
 *
 * On targets with tiles, a register tile may consist of tiles: 2 x 2 of 16 x 16, with two of each factor.
 *
 * A register tile that is not full repeats the last row, and stores it once. If the number of rows is a constant, the
 * last rows get a smaller register tile instead, if that saves enough. */
#include "nest/gemm.h"
#include "base/integers.h"
#include "nest/product.h"
#include "schedule/decide.h"

typedef struct gemm {
    mha_context *m;
    ir_builder *b;
    const mha_gemm *g;
    int64_t rows, vectors, task_rows; /* of the schedule */
    mha_kind kind;
    ir_elem elem;   /* of the slab */
    int64_t inputs; /* columns of A that a step along the depth multiplies */
    int64_t steps;  /* all of them, */
    int64_t depth;  /* and those of a pass */
    bool one_pass;
    int64_t rest; /* rows of the smaller register tile that ends the last task; 0: it has none */
    const ir_buffer *slab, *tile;
    mha_left_codes encoded; /* A as codes, which the phase before has made, */
    mha_left_codes left;    /* and its rows that the task needs, in place of the slab */
    /* variables of the task */
    const ir_expr *first, *count; /* its rows */
} gemm;

/* Elements from one row of the slab to the next: an odd number of cache lines, so that the same column of neighbouring
 * rows, which a register tile reads at once, is in different sets of the first cache. */
static int64_t slab_row(const gemm *c) {
    const int64_t line = 64 / ir_elem_get(c->elem)->bytes;
    return (ceil_div(c->steps * c->inputs, line) | 1) * line;
}

static const ir_access *tile_at(const gemm *c, const ir_expr *row, const ir_expr *column) {
    return ir_at(c->b, c->tile, c->m->lanes, 2, row, column);
}

/* ---- A register tile ---- */

enum { MAX_NEXT = 2 };

typedef struct register_tile {
    const ir_expr *base;   /* its first row in slab and tile */
    const ir_expr *column; /* its first column in the group */
    mha_product product;
    mha_token next[MAX_NEXT];
    int64_t num_next; /* rows of A to be prefetched meanwhile */
} register_tile;

static const ir_expr *column_of(const gemm *c, const register_tile *t, int64_t vector) {
    return ir_plus(c->b, t->column, vector * c->m->lanes);
}

/* Where a row of the register tile is kept before and after the product. */
static const ir_access *home_of(const gemm *c, const register_tile *t, int64_t row, int64_t vector) {
    return tile_at(c, ir_plus(c->b, t->base, row), column_of(c, t, vector));
}

static const ir_expr *start_of(const gemm *c, const ir_expr *column) {
    return ir_let(c->b, "start", c->g->start(c->m, c->g, column, c->m->lanes));
}

static void begin_tile(const gemm *c, const register_tile *t) {
    for (int64_t v = 0; v < c->vectors; v++) {
        const ir_expr *start = c->one_pass ? start_of(c, column_of(c, t, v)) : NULL;
        for (int64_t r = 0; r < t->product.rows; r++)
            ir_store(c->b, mha_product_at(&t->product, r, v), start ? start : ir_load(c->b, home_of(c, t, r, v)));
    }
}

static void end_tile(const gemm *c, const register_tile *t) {
    for (int64_t r = 0; r < t->product.rows; r++)
        for (int64_t v = 0; v < c->vectors; v++)
            ir_store(c->b, home_of(c, t, r, v), mha_product_sum(&t->product, r, v));
}

static const ir_expr *right_of(const gemm *c, const register_tile *t, const ir_expr *k, int64_t vector) {
    return c->g->right(c->m, c->g, k, column_of(c, t, vector), c->m->lanes);
}

/* Asks for the rows of B that are multiplied gemm_prefetch rows later, line by line. The prefetchers of a CPU lose a
 * few per cent at the ends of pages and panels, and half of the speed where B comes from memory. */
static void prefetch_right(const gemm *c, const register_tile *t, const ir_expr *k) {
    const int64_t line = 64 / ir_elem_get(c->m->elem)->bytes, turns = c->m->s->gemm_prefetch;
    const ir_expr *later = ir_plus(c->b, k, turns);
    for (int64_t v = 0; turns > 0 && v < c->vectors; v += c->m->lanes < line ? line / c->m->lanes : 1) {
        const ir_expr *x = right_of(c, t, later, v);
        while (x && x->op == IR_CAST) x = x->args[0];
        if (x && x->op == IR_LOAD) ir_prefetch(c->b, x->value.access);
    }
}

/* Asks for some of the rows of A that are copied next, for each turn again: counting columns would cost more. */
static void prefetch_left(const gemm *c, const register_tile *t, const ir_expr *column) {
    for (int64_t n = 0; n < t->num_next; n++) ir_prefetch(c->b, c->g->left(c->m, c->g, &t->next[n], column));
}

static void multiply_rows(const gemm *c, const register_tile *t, const ir_expr *column) {
    const mha_product *p = &t->product;
    for (int64_t r = 0; r < p->rows; r++)
        mha_product_repeat(p, "left", r, ir_at(c->b, c->slab, (int)p->kind, 2, ir_plus(c->b, t->base, r), column));
}

/* A word of codes in each lane: the code of one of its inputs, as c->elem. */
static const ir_expr *code_of(const gemm *c, const ir_expr *words, int input) {
    enum { BITS = 32, BYTE = 8, HALF = 4 };
    ir_builder *b = c->b;
    if (!words) return NULL;
    const int bits = BITS / c->g->codes->inputs, first = input % HALF * BYTE + input / HALF * HALF;
    const int lanes = words->type.lanes;
    const ir_expr *above = ir_splat(b, ir_int(b, IR_I32, BITS - bits - first), lanes);
    const ir_expr *below = ir_splat(b, ir_int(b, IR_I32, BITS - bits), lanes);
    return ir_cast(b, c->m->elem, ir_apply(b, IR_SHR, ir_apply(b, IR_SHL, words, above, NULL), below, NULL));
}

/* The rows of B in the words k of codes. */
static void multiply_words(const gemm *c, register_tile *t, const ir_expr *k, const ir_expr *const *scale) {
    ir_builder *b = c->b;
    const int64_t vectors = t->product.vectors, inputs = c->g->codes->inputs;
    const ir_expr *words[MHA_MAX_VECTORS], *column = ir_times(b, k, inputs);
    for (int64_t v = 0; v < vectors; v++) words[v] = ir_let(b, "codes", right_of(c, t, k, v));
    prefetch_right(c, t, k);
    prefetch_left(c, t, column);
    for (int input = 0; input < inputs; input++) {
        for (int64_t v = 0; v < vectors; v++)
            mha_product_vector(&t->product, "right", v, ir_mul(b, code_of(c, words[v], input), scale[v]));
        multiply_rows(c, t, ir_plus(b, column, input));
    }
}

/* A step has the rows of B that share scales. */
static void multiply_codes(const gemm *c, register_tile *t, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    const mha_codes *codes = c->g->codes;
    const ir_expr *scale[MHA_MAX_VECTORS];
    IR_FOR(b, step, from, to, 1) {
        for (int64_t v = 0; v < t->product.vectors; v++)
            scale[v] = ir_let(b, "scale", codes->scale(c->m, c->g, step, column_of(c, t, v), c->m->lanes));
        IR_FOR(b, word, ir_idx(b, 0), ir_idx(b, codes->words), 1) {
            multiply_words(c, t, ir_add(b, ir_times(b, step, codes->words), word), scale);
        }
    }
}

/* The exact sums of a step, whose sums begin with what the signs of B's codes take away. */
static void sum_words(const gemm *c, mha_product *sums, const register_tile *t, const ir_expr *step) {
    ir_builder *b = c->b;
    const mha_codes *codes = c->g->codes;
    mha_product_begin(sums);
    for (int64_t r = 0; r < sums->rows; r++) {
        const ir_expr *start = mha_left_start(c->m, &c->left, ir_plus(b, t->base, r), step);
        for (int64_t v = 0; v < sums->vectors; v++) ir_store(b, mha_product_at(sums, r, v), start);
    }
    IR_FOR(b, word, ir_idx(b, 0), ir_idx(b, codes->words), 1) {
        const ir_expr *k = ir_add(b, ir_times(b, step, codes->words), word), *words[MHA_MAX_VECTORS];
        const ir_expr *column = ir_times(b, k, codes->inputs);
        for (int64_t v = 0; v < sums->vectors; v++) words[v] = ir_let(b, "codes", right_of(c, t, k, v));
        prefetch_right(c, t, k);
        prefetch_left(c, t, column);
        for (int input = 0; input < codes->inputs; input += MHA_DOT4) {
            for (int64_t v = 0; v < sums->vectors; v++)
                mha_product_vector(sums, "right", v, mha_unsigned_codes(c->m, words[v], codes->inputs, input));
            for (int64_t r = 0; r < sums->rows; r++)
                mha_product_repeat(
                    sums, "left", r,
                    ir_at(b, c->left.codes, MHA_DOT4, 2, ir_plus(b, t->base, r), ir_plus(b, column, input)));
        }
    }
}

/* acc = madd(sum of code * code, scale of A * scale of B, acc), step by step. */
static void multiply_integers(const gemm *c, register_tile *t, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    const mha_product *p = &t->product;
    IR_FOR(b, step, from, to, 1) {
        mha_product sums = mha_product_of(c->m, MHA_DOT4, p->rows, p->vectors);
        sums.vectors_first = true;
        sum_words(c, &sums, t, step);
        for (int64_t v = 0; v < p->vectors; v++) {
            const ir_expr *scale = c->g->codes->scale(c->m, c->g, step, column_of(c, t, v), c->m->lanes);
            scale = ir_let(b, "scale", scale);
            for (int64_t r = 0; r < p->rows; r++) {
                const ir_expr *both = ir_mul(b, mha_left_scale(c->m, &c->left, ir_plus(b, t->base, r), step), scale);
                const ir_expr *sum = ir_cast(b, c->m->elem, mha_product_sum(&sums, r, v));
                ir_store(b, mha_product_at(p, r, v), mha_madd(c->m, sum, both, mha_product_sum(p, r, v)));
            }
        }
    }
}

static bool takes_apart(const gemm *c) { return c->inputs == 2 && c->kind == MHA_MADD; }

/* Rows of B, or pairs of them, in a turn of the loop. With 16 registers a register tile is small, so that counting and
 * asking for A are a fifth of the instructions; and the other thread of a core takes from those. The ends of a pass are
 * not known to be those of a turn. */
static int64_t rows_in_turn(const gemm *c) {
    const int64_t rows = takes_apart(c) ? 2 : 4;
    if (c->m->target->vector_registers > 16 || !c->one_pass || c->steps % rows) return 1;
    return rows;
}

/* acc += A B of row k of B, or pair of rows. */
static void multiply_row(const gemm *c, register_tile *t, const ir_expr *k, bool asks_for_left) {
    ir_builder *b = c->b;
    for (int half = 0; half < (takes_apart(c) ? 2 : 1); half++) {
        const ir_expr *column = ir_plus(b, ir_times(b, k, c->inputs), half);
        for (int64_t v = 0; v < c->vectors; v++) {
            const ir_expr *x = right_of(c, t, k, v);
            mha_product_vector(&t->product, "right", v, takes_apart(c) ? mha_half_of_pairs(c->m, x, half) : x);
        }
        if (half == 0) prefetch_right(c, t, k);
        if (half == 0 && asks_for_left) prefetch_left(c, t, column);
        multiply_rows(c, t, column);
    }
}

/* In the order of k, which counts pairs of rows of B where they come so. */
static void multiply(const gemm *c, register_tile *t, const ir_expr *from, const ir_expr *to) {
    const int64_t rows = rows_in_turn(c);
    IR_FOR(c->b, k, from, to, rows) {
        for (int64_t i = 0; i < rows; i++) multiply_row(c, t, ir_plus(c->b, k, i), i == 0);
    }
}

/* Of the gemm_rows rows of A or C from `first` on those, at most MAX_NEXT, that are prefetched in column tile n of
 * `tiles`. */
static int64_t find_rows(const gemm *c, const ir_expr *first, const ir_expr *n, int64_t tiles, mha_token *found) {
    ir_builder *b = c->b;
    const int64_t count = min_of(MAX_NEXT, ceil_div(c->rows, tiles));
    for (int64_t i = 0; i < count; i++) {
        const ir_expr *r = ir_plus(b, ir_times(b, n, count), i);
        const ir_expr *row = ir_add(b, first, ir_min(b, ir_idx(b, c->rows - 1), r));
        row = ir_let_index(b, "asked", c->g->rows, ir_min(b, ir_plus(b, c->g->rows, -1), row));
        found[i] = c->g->locate(c->m, c->g, row);
    }
    return count;
}

/* Prefetches the rows of C that this tile is about to write: another core probably owns them. */
static void prefetch_results(const gemm *c, const ir_expr *first, const ir_expr *n, int64_t tiles) {
    ir_builder *b = c->b;
    mha_token found[MAX_NEXT];
    const int64_t count = find_rows(c, first, n, tiles, found);
    for (int64_t i = 0; i < count; i++) {
        const ir_access *start = c->g->result(c->m, c->g, &found[i], ir_idx(b, 0));
        const int64_t line = start ? 64 / ir_elem_get((ir_elem)start->buffer->type.elem)->bytes : 1;
        IR_LOOP(b, column, ir_for_begin(b, "line", ir_idx(b, 0), ir_idx(b, c->g->group_columns), line, false)) {
            ir_prefetch(b, c->g->result(c->m, c->g, &found[i], column));
        }
    }
}

/* ---- A register tile of tiles ---- */

enum { TILE = 16, TILE_DEPTH = 32, NUM_TILES = 8 }; /* rows, and columns of C; columns of A and rows of B */

static bool by_tiles(const gemm *c, int64_t rows) {
    return c->m->s->gemm_by == ATTUNE_GEMM_BY_TILES && c->kind == MHA_DOT2 && c->one_pass && c->m->lanes == TILE &&
           mha_gemm_tiles(rows, c->vectors, c->g->depth);
}

/* Writes start to the place from which tiles load the product. */
static void start_product(const gemm *c, const register_tile *t) {
    ir_builder *b = c->b;
    for (int64_t v = 0; v < c->vectors; v++) {
        const ir_expr *start = start_of(c, column_of(c, t, v));
        IR_FOR(b, r, ir_idx(b, 0), ir_idx(b, t->product.rows), 1) {
            ir_store(b, tile_at(c, ir_add(b, t->base, r), column_of(c, t, v)), start);
        }
    }
}

static const ir_access *tile_of(const gemm *c, const ir_buffer *tiles, int64_t row, int64_t column) {
    return tiles && tiles->num_dims == 2 ? ir_at(c->b, tiles, 1, 2, ir_idx(c->b, row), ir_idx(c->b, column))
                                         : ir_at(c->b, tiles, 1, 1, ir_idx(c->b, row));
}

static void multiply_tiles(const gemm *c, const register_tile *t) {
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

/* ---- All columns of a group ---- */

/* All columns of the group for `rows` rows from `base` on. `first`: the number of the first of them, where rows are to
 * be prefetched; else NULL. */
static void row_of_tiles(const gemm *c, int64_t rows, const ir_expr *base, const ir_expr *from, const ir_expr *to,
                         const ir_expr *first) {
    ir_builder *b = c->b;
    const int64_t columns = c->vectors * c->m->lanes, tiles = c->g->group_columns / columns;
    register_tile t = {.base = base, .product = mha_product_of(c->m, c->kind, rows, c->vectors)};
    IR_LOOP(b, n, ir_for_begin(b, "column_tile", ir_idx(b, 0), ir_idx(b, tiles), 1, false)) {
        t.column = ir_times(b, n, columns);
        /* Rows that are codes have been copied by now. */
        if (first && c->g->left && !c->left.codes)
            t.num_next = find_rows(c, ir_plus(b, first, c->rows), n, tiles, t.next);
        if (first && c->g->result) prefetch_results(c, first, n, tiles);
        if (by_tiles(c, rows)) {
            start_product(c, &t);
            multiply_tiles(c, &t);
        } else {
            mha_product_begin(&t.product);
            begin_tile(c, &t);
            if (c->left.codes)
                multiply_integers(c, &t, from, to);
            else if (c->g->codes)
                multiply_codes(c, &t, from, to);
            else
                multiply(c, &t, from, to);
            end_tile(c, &t);
        }
    }
}

/* ---- Rows of a task ---- */

/* Zeros after a row of the slab, as many as the last step lacks. */
static void fill_row(const gemm *c, const ir_expr *row) {
    ir_builder *b = c->b;
    const int64_t missing = c->steps * c->inputs - c->g->depth;
    if (missing == 1) mha_store(c->m, ir_at(b, c->slab, 1, 2, row, ir_idx(b, c->g->depth)), mha_number(c->m, 0, 1));
    if (missing <= 1) return;
    MHA_COLUMNS(c->m, d, missing, c->m->lanes) {
        const ir_expr *column = ir_plus(b, d.at, c->g->depth);
        mha_store(c->m, ir_at(b, c->slab, d.lanes, 2, row, column), mha_number(c->m, 0, d.lanes));
    }
}

/* `rows` rows of the task from `at` on into the slab from `base` on. */
static void load_rows(const gemm *c, const ir_expr *rows, const ir_expr *at, const ir_expr *base) {
    ir_builder *b = c->b;
    IR_LOOP(b, r, ir_for_begin(b, "load", ir_idx(b, 0), rows, 1, false)) {
        const ir_expr *row = ir_add(b, ir_add(b, c->first, at), r);
        row = ir_let_index(b, "row", c->g->rows, ir_min(b, ir_plus(b, c->g->rows, -1), row));
        const ir_expr *slab_at = ir_add(b, base, r);
        if (c->left.codes) {
            mha_copy_left(c->m, &c->encoded, row, &c->left, slab_at);
            continue;
        }
        c->g->load_row(c->m, c->g, row, &(mha_row){c->slab, {slab_at}, NULL});
        fill_row(c, slab_at);
    }
}

/* A phase of its own: A becomes codes once, and not in each task. */
static void encode_rows(gemm *c) {
    ir_builder *b = c->b;
    IR_PHASE(b) {
        const ir_expr *row = ir_parallel(b, "row", c->g->rows);
        c->slab = ir_scratch(b, c->g->name, c->elem, 2, (int64_t[]){1, slab_row(c)});
        c->g->load_row(c->m, c->g, row, &(mha_row){c->slab, {ir_idx(b, 0)}, NULL});
        fill_row(c, ir_idx(b, 0));
        mha_encode_left(c->m, &c->encoded, c->slab, row);
    }
}

static void store_rows(const gemm *c, const ir_expr *rows, const ir_expr *at, const ir_expr *base) {
    ir_builder *b = c->b;
    IR_LOOP(b, r, ir_for_begin(b, "store", ir_idx(b, 0), rows, 1, false)) {
        const ir_expr *row = ir_let_index(b, "row", c->g->rows, ir_add(b, ir_add(b, c->first, at), r));
        c->g->store_row(c->m, c->g, row, &(mha_row){c->tile, {ir_add(b, base, r)}, NULL});
    }
}

static void start_rows(const gemm *c, const ir_expr *rows) {
    ir_builder *b = c->b;
    const int64_t lanes = c->m->lanes;
    IR_LOOP(b, n, ir_for_begin(b, "column_vector", ir_idx(b, 0), ir_idx(b, c->g->group_columns / lanes), 1, false)) {
        const ir_expr *column = ir_times(b, n, lanes);
        const ir_expr *start = start_of(c, column);
        IR_FOR(b, r, ir_idx(b, 0), rows, 1) {
            ir_store(b, tile_at(c, r, column), start);
        }
    }
}

/* ---- A task ---- */

/* Register tiles of gemm_rows rows that the task has; rows beyond them are those of a smaller tile. */
static const ir_expr *num_tiles(const gemm *c) {
    ir_builder *b = c->b;
    const ir_expr *count = c->rest ? c->count : ir_plus(b, c->count, c->rows - 1);
    return ir_let(b, "tiles", ir_min(b, ir_idx(b, c->task_rows / c->rows), ir_div(b, count, ir_idx(b, c->rows))));
}

/* Whether the task has the smaller tile: it is not full; and the first row of that tile, after the others. */
static const ir_expr *has_rest(const gemm *c) { return ir_lt(c->b, c->count, ir_idx(c->b, c->task_rows)); }
static const ir_expr *first_of_rest(const gemm *c, const ir_expr *tiles) {
    ir_builder *b = c->b;
    return ir_let(b, "at", ir_min(b, ir_idx(b, c->task_rows - c->rows), ir_times(b, tiles, c->rows)));
}

/* `rows` rows of the task from `at` on. Rows beyond the task's last one are not stored. */
static void whole_depth(const gemm *c, int64_t rows, const ir_expr *at, const ir_expr *first) {
    load_rows(c, ir_idx(c->b, rows), at, ir_idx(c->b, 0));
    row_of_tiles(c, rows, ir_idx(c->b, 0), ir_idx(c->b, 0), ir_idx(c->b, c->depth), first);
    store_rows(c, ir_min(c->b, ir_idx(c->b, rows), ir_sub(c->b, c->count, at)), at, ir_idx(c->b, 0));
}

/* Whether other rows follow those of a tile: of its task, or of the next one, which is mostly the same thread's. */
static bool has_next(const gemm *c) { return !ir_is_const(c->g->rows) || c->g->rows->value.i > c->rows; }

static void one_pass(const gemm *c, const ir_expr *tiles) {
    ir_builder *b = c->b;
    IR_FOR(b, t, ir_idx(b, 0), tiles, 1) {
        const ir_expr *at = ir_let(b, "at", ir_times(b, t, c->rows));
        whole_depth(c, c->rows, at, has_next(c) ? ir_add(b, c->first, at) : NULL);
    }
    if (!c->rest) return;
    IR_IF(b, has_rest(c)) whole_depth(c, c->rest, first_of_rest(c, tiles), NULL);
}

static void all_tiles(const gemm *c, const ir_expr *tiles, const ir_expr *from, const ir_expr *to) {
    ir_builder *b = c->b;
    IR_FOR(b, t, ir_idx(b, 0), tiles, 1) {
        row_of_tiles(c, c->rows, ir_let(b, "at", ir_times(b, t, c->rows)), from, to, NULL);
    }
    if (!c->rest) return;
    IR_IF(b, has_rest(c)) row_of_tiles(c, c->rest, first_of_rest(c, tiles), from, to, NULL);
}

static void several_passes(const gemm *c, const ir_expr *tiles) {
    ir_builder *b = c->b;
    const ir_expr *filled = c->count;
    if (!c->rest) filled = ir_times(b, tiles, c->rows);
    filled = ir_let(b, "filled", ir_min(b, ir_idx(b, c->task_rows), filled));
    load_rows(c, filled, ir_idx(b, 0), ir_idx(b, 0));
    start_rows(c, filled);
    IR_LOOP(b, from, ir_for_begin(b, "pass", ir_idx(b, 0), ir_idx(b, c->steps), c->depth, false)) {
        const ir_expr *to = ir_let(b, "end", ir_min(b, ir_idx(b, c->steps), ir_plus(b, from, c->depth)));
        all_tiles(c, tiles, from, to);
    }
    store_rows(c, c->count, ir_idx(b, 0), ir_idx(b, 0));
}

/* A smaller register tile costs compile time: it must save a fiftieth of the whole. */
static int64_t rest_of(const gemm *c) {
    if (c->m->s->gemm_rest != ATTUNE_REST_OWN || !ir_is_const(c->g->rows)) return 0;
    const int64_t rows = c->g->rows->value.i, rest = rows % c->rows;
    return (c->rows - rest) * 50 >= rows ? rest : 0;
}

static gemm gemm_of(mha_context *m, mha_gemm *g) {
    const attune_schedule *s = m->s;
    gemm c = {.m = m,
              .b = m->b,
              .g = g,
              .rows = s->gemm_rows,
              .vectors = s->gemm_column_vectors,
              .task_rows = s->gemm_task_rows};
    c.kind = mha_kind_of(g->inputs == 2 && m->projects_by_pairs);
    c.elem = mha_factor_elem(m, c.kind);
    c.inputs = g->inputs;
    c.steps = ceil_div(g->depth, c.inputs);
    c.one_pass = !s->gemm_depth || s->gemm_depth >= g->depth;
    c.depth = c.one_pass ? c.steps : ceil_div(s->gemm_depth, c.inputs);
    if (g->rows && !by_tiles(&c, c.rows)) c.rest = rest_of(&c); /* a smaller register tile has no tiles */
    return c;
}

static void open_task(gemm *c, mha_gemm *g) {
    ir_builder *b = c->b;
    for (int n = 0; n < g->num_outer; n++) g->outer[n] = ir_parallel(b, g->outer_names[n], g->outer_counts[n]);
    g->column_group = ir_parallel(b, "column_group", ir_idx(b, g->num_groups));
    const ir_expr *task = ir_parallel(b, "task", ir_ceil_div(b, g->rows, c->task_rows));
    c->first = ir_let(b, "first", ir_times(b, task, c->task_rows));
    c->count = ir_let(b, "count", ir_min(b, ir_idx(b, c->task_rows), ir_sub(b, g->rows, c->first)));
    const int64_t rows = c->one_pass ? c->rows : c->task_rows;
    if (c->encoded.codes)
        c->left = mha_left_scratch(c->m, &c->encoded, rows);
    else
        c->slab = ir_scratch(b, g->name, c->elem, 2, (int64_t[]){rows, slab_row(c)});
    c->tile = ir_scratch(b, "product", c->m->elem, 2, (int64_t[]){rows, g->group_columns});
}

void mha_gemm_phase(mha_context *m, mha_gemm *g) {
    gemm c = gemm_of(m, g);
    if (g->codes && g->codes->left) {
        c.encoded = *g->codes->left;
        encode_rows(&c);
    }
    IR_PHASE(c.b) {
        open_task(&c, g);
        const ir_expr *tiles = num_tiles(&c);
        if (c.one_pass)
            one_pass(&c, tiles);
        else
            several_passes(&c, tiles);
    }
}
