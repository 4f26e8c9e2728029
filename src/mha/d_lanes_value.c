/* O = O * factor + P V for one tile. A register tile is the probabilities of value_rows query rows and value_unroll
 * keys; the columns of O and of those rows of V pass by it, value_vectors vectors in a turn.
 *
 * So V is read along its rows, which prefetchers follow, each row from a stream of its own as in d_lanes_score.c; or,
 * serially, from neighbours. O stays in the first cache. */
#include "mha/columns.h"
#include "mha/d_lanes.h"

typedef struct value_tile {
    const dl_tile *tile;
    const dl_run *run;
    const ir_expr *first, *distance; /* of the keys within the run: first, first + distance, … */
    int64_t keys;
    bool careful; /* V may hold NaN or infinity where a row does not see it */
} value_tile;

/* A register tile on its way along the columns. */
typedef struct row_tile {
    const value_tile *t;
    const ir_expr *first_row;
    int64_t rows;
    mha_kv_row key[IR_MAX_LANES];
    const ir_expr *p[IR_MAX_LANES], *sees[IR_MAX_LANES]; /* [rows, keys], in all lanes; sees if t->careful */
} row_tile;

static const ir_expr *row_at(const d_lanes *d, const row_tile *r, int64_t row) {
    return ir_add(d->b, r->first_row, dl_i(d, row));
}

/* Whether a row sees key j of the tile, in all lanes. */
static const ir_expr *sees(const d_lanes *d, const row_tile *tile, int64_t r, const ir_expr *j) {
    const dl_row row = dl_row_at(d, row_at(d, tile, r));
    const dl_sight sight = dl_sight_of(d, tile->t->tile, &row);
    const ir_expr *bias = dl_bias(d, &sight, j, 1);
    if (bias) bias = ir_let(d->b, "bias", bias);
    return ir_let(d->b, "sees", ir_splat(d->b, dl_sees(d, &sight, j, 1, bias), d->lanes));
}

/* O += P V for `count` columns of a vector. */
static void add_vector(d_lanes *d, const row_tile *tile, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    const int64_t keys = tile->t->keys;
    const ir_expr *value[IR_MAX_LANES];
    for (int64_t k = 0; k < keys; k++) value[k] = ir_let(b, "v", dl_load_key(d, c->v, &tile->key[k], column, count));
    for (int64_t r = 0; r < tile->rows; r++) {
        const ir_access *o = ir_at(b, d->o, d->lanes, 2, row_at(d, tile, r), column);
        const ir_expr *sum = ir_load(b, o);
        for (int64_t k = 0; k < keys; k++) {
            const ir_expr *seen = tile->sees[r * keys + k];
            const ir_expr *v = seen ? ir_select(b, seen, value[k], mha_number(c, 0, d->lanes)) : value[k];
            sum = mha_madd(c, v, tile->p[r * keys + k], sum);
        }
        ir_store(b, o, sum);
    }
}

static void add_columns(d_lanes *d, const row_tile *tile) {
    ir_builder *b = d->b;
    const int64_t dim = d->c->p->head_dim_v, step = (int64_t)d->c->s->value_vectors * d->lanes;
    int64_t done = dim / step * step;
    if (done) {
        const ir_expr *at =
            done > step ? ir_for_begin(b, "column", dl_i(d, 0), dl_i(d, done), step, false) : dl_i(d, 0);
        for (int64_t v = 0; v < step; v += d->lanes) add_vector(d, tile, ir_add(b, at, dl_i(d, v)), d->lanes);
        if (done > step) ir_for_end(b);
    }
    for (; done < dim; done += d->lanes) add_vector(d, tile, dl_i(d, done), dim - done);
}

static void add_rows(d_lanes *d, const void *user, const ir_expr *first_row, int64_t rows) {
    ir_builder *b = d->b;
    const value_tile *t = user;
    row_tile tile = {.t = t, .first_row = first_row, .rows = rows};
    for (int64_t k = 0; k < t->keys; k++) {
        const ir_expr *i = ir_add(b, t->first, ir_mul(b, t->distance, dl_i(d, k))), *j = ir_add(b, t->run->first, i);
        tile.key[k] = dl_run_at(d, t->run, i);
        for (int64_t r = 0; r < rows; r++) {
            const ir_expr *p = ir_load(b, ir_at(b, d->scores, 1, 2, row_at(d, &tile, r), j));
            const ir_expr *scale = dl_v_scale(d, j), *seen = t->careful ? sees(d, &tile, r, j) : NULL;
            p = ir_splat(b, scale ? ir_mul(b, p, scale) : p, d->lanes);
            if (scale && seen) p = ir_select(b, seen, p, mha_number(d->c, 0, d->lanes));
            tile.p[r * t->keys + k] = ir_let(b, "p", p);
            tile.sees[r * t->keys + k] = seen;
        }
    }
    add_columns(d, &tile);
}

static void add_run(d_lanes *d, const dl_tile *tile, const dl_run *run, bool careful) {
    ir_builder *b = d->b;
    const int64_t keys = careful ? 1 : d->c->s->value_unroll, step = d->is_serial ? keys : 1;
    value_tile t = {.tile = tile, .run = run, .distance = dl_i(d, 1), .keys = keys, .careful = careful};
    if (!dl_is_short(d, keys)) {
        const ir_expr *turns = dl_part(d, "distance", ir_div(b, run->keys, dl_i(d, keys)), keys, run->keys);
        const ir_expr *i = ir_for_begin(b, "i", dl_i(d, 0), turns, 1, false);
        t.first = ir_mul(b, i, dl_i(d, step));
        if (!d->is_serial) t.distance = turns;
        dl_each_rows(d, d->c->s->value_rows, add_rows, &t);
        ir_for_end(b);
    }
    const ir_expr *rest = ir_mod(b, run->keys, dl_i(d, keys));
    if (!rest || (rest->op == IR_CONST && !rest->value.i)) return;
    t.keys = 1;
    t.first = ir_for_begin(b, "i", dl_first(d, "done", ir_sub(b, run->keys, rest), dl_i(d, 0), run->keys), run->keys, 1,
                           false);
    dl_each_rows(d, d->c->s->value_rows, add_rows, &t);
    ir_for_end(b);
}

/* O *= factor. */
static void rescale(d_lanes *d) {
    ir_builder *b = d->b;
    const ir_expr *r = ir_for_begin(b, "r", dl_i(d, 0), d->padded_rows, 1, false);
    const ir_expr *factor = ir_splat(b, ir_load(b, ir_at(b, d->factor, 1, 1, r)), d->lanes);
    factor = ir_let(b, "shrink", factor);
    const ir_expr *at = ir_for_begin(b, "at", dl_i(d, 0), dl_i(d, d->v_columns), d->lanes, false);
    const ir_access *o = ir_at(b, d->o, d->lanes, 2, r, at);
    ir_store(b, o, ir_mul(b, ir_load(b, o), factor));
    ir_for_end(b);
    ir_for_end(b);
}

static void add_tile(d_lanes *d, const dl_tile *tile, bool careful) {
    const dl_run run = dl_run_begin(d, tile);
    add_run(d, tile, &run, careful);
    dl_run_end(d);
}

/* Adds 0 * V of one key to sums[num_sums], over all columns. */
static void add_zeros(d_lanes *d, const mha_kv_row *key, const ir_buffer *sums, int num_sums) {
    ir_builder *b = d->b;
    const int64_t dim = d->c->p->head_dim_v, step = (int64_t)num_sums * d->lanes;
    const ir_expr *zero = mha_number(d->c, 0, d->lanes), *scale = mha_v_scale(d->c, key);
    if (scale) zero = ir_let(b, "scaled_zero", ir_mul(b, zero, ir_splat(b, scale, d->lanes)));
    int64_t done = dim / step * step;
    const ir_expr *at = done ? ir_for_begin(b, "at", dl_i(d, 0), dl_i(d, done), step, false) : NULL;
    for (int64_t column = done ? 0 : dim; column < step && done; column += d->lanes) {
        const ir_access *sum = ir_at(b, sums, d->lanes, 1, dl_i(d, column / d->lanes));
        const ir_expr *v = dl_load_key(d, d->c->v, key, ir_add(b, at, dl_i(d, column)), d->lanes);
        ir_store(b, sum, mha_madd(d->c, v, zero, ir_load(b, sum)));
    }
    if (done) ir_for_end(b);
    for (; done < dim; done += d->lanes) {
        const ir_access *sum = ir_at(b, sums, d->lanes, 1, dl_i(d, 0));
        const int64_t count = dim - done < d->lanes ? dim - done : d->lanes;
        const ir_expr *v = dl_load_key(d, d->c->v, key, dl_i(d, done), count);
        ir_store(b, sum, mha_madd(d->c, v, zero, ir_load(b, sum)));
    }
}

/* Whether there is a NaN or an infinity in the tile: 0 times it is not 0. Several sums, so that none waits for itself.
 */
static const ir_expr *has_nonfinite(d_lanes *d, const dl_tile *tile) {
    enum { NUM_SUMS = 4 };
    ir_builder *b = d->b;
    const ir_buffer *sums = dl_registers(d, "zeros", d->lanes, 1, (int64_t[]){NUM_SUMS});
    for (int i = 0; i < NUM_SUMS; i++)
        ir_store(b, ir_at(b, sums, d->lanes, 1, dl_i(d, i)), mha_number(d->c, 0, d->lanes));
    const dl_run run = dl_run_begin(d, tile);
    const mha_kv_row key = dl_run_at(d, &run, ir_for_begin(b, "i", dl_i(d, 0), run.keys, 1, false));
    add_zeros(d, &key, sums, NUM_SUMS);
    ir_for_end(b);
    dl_run_end(d);
    const ir_expr *sum = ir_load(b, ir_at(b, sums, d->lanes, 1, dl_i(d, 0)));
    for (int i = 1; i < NUM_SUMS; i++) sum = ir_add(b, sum, ir_load(b, ir_at(b, sums, d->lanes, 1, dl_i(d, i))));
    const ir_expr *total = ir_let(b, "zero_sum", ir_reduce(b, IR_ADD, ir_let(b, "zero_lanes", sum)));
    return ir_apply(b, IR_NE, total, total, NULL);
}

void dl_values(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const ir_expr *partial = tile->is_partial;
    const bool is_known = partial && partial->op == IR_CONST;
    rescale(d);
    if (is_known && !partial->value.i) {
        add_tile(d, tile, false);
        return;
    }
    const ir_access *careful = ir_at(b, ir_alloc(b, "careful", IR_REG, ir_type_of(IR_I32, 1), 0, NULL), 1, 0);
    ir_store(b, careful, ir_int(b, IR_I32, 0));
    ir_if_begin(b, partial);
    ir_store(b, careful, ir_cast(b, IR_I32, has_nonfinite(d, tile)));
    ir_if_end(b);
    ir_if_begin(b, ir_apply(b, IR_EQ, ir_load(b, careful), ir_int(b, IR_I32, 0), NULL));
    add_tile(d, tile, false);
    ir_if_else(b);
    add_tile(d, tile, true);
    ir_if_end(b);
}
