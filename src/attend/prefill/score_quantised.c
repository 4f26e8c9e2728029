/* Integer scores (integer=scores) of a K that is not quantised: rows of Q are quantised here, K in an earlier phase
 * (quantised_keys.h), and dot4 multiplies four columns of both at once.
 *
 *     Q^T     [ d0-d3 of row 0 ][ d0-d3 of row 1 ] …          i8, a lane holds four columns of a row
 *     K[j]    [ d0-d3 ] in all lanes
 *
 *     score = dot * scale of the key * scale of the row + q · mean
 *
 * The last product and the sum are one mha_madd. q · mean is 0 for keys whose mean was not subtracted. */
#include "attend/prefill/quantised_keys.h"
#include "attend/prefill/score_tile.h"
#include "base/integers.h"

enum { UNSIGNED_OFFSET = 128 };

/* Quantises the row in c->row_numbers. Returns its dot product with the mean key. */
static const ir_expr *quantise(q_lanes *c, const ir_expr *factor) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *offset = ir_splat(b, ir_int(b, IR_I32, UNSIGNED_OFFSET), lanes);
    const ir_access *dot = ir_mutable(b, "mean_dot", mha_number(c->m, 0, lanes));
    MHA_QUANTISED_COLUMNS(c->m, d) {
        const ir_expr *x = ir_let(b, "x", ir_load(b, ir_at(b, c->row_numbers, lanes, 1, d)));
        const ir_expr *quantised = ir_add(b, mha_quantised_at(c->m, x, factor), offset);
        const ir_access *mean = ir_at(b, c->m->quantised_k.mean, lanes, 3, c->e.number, c->kv_head, d);
        ir_store(b, ir_at(b, c->row_quantised, lanes, 1, d), ir_cast(b, IR_I8, quantised));
        ir_store(b, dot, mha_madd(c->m, x, ir_load(b, mean), ir_load(b, dot)));
    }
    return ir_reduce(b, IR_ADD, ir_let(b, "mean_lanes", ir_load(b, dot)));
}

/* The factor of a row's scores. */
static const ir_expr *row_factor(q_lanes *c) {
    const ir_expr *sign = mha_query_sign(c->m), *factor = c->m->in_log2 ? mha_score_log2e(c->m) : NULL;
    return sign && factor ? ir_mul(c->b, sign, factor) : sign ? sign : factor;
}

static void copy_units(q_lanes *c, const ir_expr *stripe, const ir_expr *at) {
    ir_builder *b = c->b;
    const int64_t units = ql_quantised_units(c);
    MHA_STEPS(c->m, unit, ir_idx(b, 0), ir_idx(b, units), divisor_below(units, 8)) {
        const ir_expr *quantised = ir_load(b, ir_at(b, c->row_quantised, MHA_DOT4, 1, ir_times(b, unit, MHA_DOT4)));
        ir_store(b, ir_at(b, c->qt, MHA_DOT4, 3, stripe, unit, ir_times(b, at, MHA_DOT4)), quantised);
    }
}

void ql_quantise_queries(q_lanes *c, const ir_expr *stripe) {
    ir_builder *b = c->b;
    const ir_expr *times = row_factor(c);
    if (times) times = ir_let(b, "row_factor", times);
    IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, c->stripe_rows), 1) {
        const q_lanes_row row = ql_row(c, stripe, at);
        const ir_expr *token = ir_let(b, "token", ir_add(b, c->e.first_q, row.query));
        const mha_row from = {c->m->q, {c->e.batch, row.head, token}, NULL};
        const mha_quantised_scale of = mha_load_numbers(c->m, c->row_numbers, &from, NULL);
        const ir_expr *mean = quantise(c, of.factor);
        ir_store(b, ir_at(b, c->row_scale, 1, 2, stripe, at), times ? ir_mul(b, of.scale, times) : of.scale);
        ir_store(b, ir_at(b, c->row_mean, 1, 2, stripe, at), times ? ir_mul(b, mean, times) : mean);
        copy_units(c, stripe, at);
    }
}

/* ---- Products ---- */

static const ir_expr *key_number(q_lanes *c, const ir_buffer *of_keys, const mha_kv_row *row) {
    const ir_expr *const *at = mha_quantised_key_index(c->m, row);
    return ir_splat(c->b, ir_load(c->b, ir_at(c->b, of_keys, 1, 3, at[0], at[1], at[2])), c->m->lanes);
}

static void start_sums(q_lanes *c, mha_product *dots, const mha_kv_row *rows) {
    mha_product_begin(dots);
    for (int64_t jj = 0; jj < dots->rows; jj++) {
        const ir_expr *start = ir_let(c->b, "start", key_number(c, c->m->quantised_k.starts, &rows[jj]));
        for (int64_t v = 0; v < dots->vectors; v++) ir_store(c->b, mha_product_at(dots, jj, v), start);
    }
}

static void multiply(q_lanes *c, const q_lanes_tile *tile, mha_product *dots, const mha_kv_row *rows) {
    ir_builder *b = c->b;
    const int64_t unroll = divisor_below(ql_quantised_units(c), c->m->s->score_columns);
    const int wide = c->m->lanes * MHA_DOT4;
    MHA_STEPS(c->m, unit, ir_idx(b, 0), ir_idx(b, ql_quantised_units(c)), unroll) {
        mha_product_hold(dots, "queries");
        for (int v = 0; v < dots->vectors; v++)
            mha_product_vector(dots, NULL, v,
                               ir_load(b, ir_at(b, c->qt, wide, 3, tile->stripe, unit, ir_idx(b, (int64_t)v * wide))));
        for (int jj = 0; jj < dots->rows; jj++) {
            const ir_expr *const *at = mha_quantised_key_index(c->m, &rows[jj]);
            mha_product_repeat(
                dots, "key_codes", jj,
                ir_at(b, c->m->quantised_k.values, MHA_DOT4, 4, at[0], at[1], at[2], ir_times(b, unit, MHA_DOT4)));
        }
    }
}

static void multiply_tile(q_lanes *c, const q_lanes_tile *tile, ql_score_tile *t) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const mha_kv_row *rows = t->row;
    mha_product dots = mha_product_of(c->m, MHA_DOT4, t->product.rows, t->product.vectors);
    const ir_expr *row_scale[MHA_MAX_VECTORS], *row_mean[MHA_MAX_VECTORS];
    mha_product_begin(&t->product);
    dots.vectors_first = true;
    start_sums(c, &dots, rows);
    multiply(c, tile, &dots, rows);
    for (int64_t v = 0; v < dots.vectors; v++) {
        const ir_expr *at = ir_idx(b, v * lanes);
        row_scale[v] = ir_let(b, "row_scale", ir_load(b, ir_at(b, c->row_scale, lanes, 2, tile->stripe, at)));
        row_mean[v] = ir_let(b, "row_mean", ir_load(b, ir_at(b, c->row_mean, lanes, 2, tile->stripe, at)));
    }
    for (int64_t jj = 0; jj < dots.rows; jj++) {
        const ir_expr *scale = ir_let(b, "key_scale", key_number(c, c->m->quantised_k.scales, &rows[jj]));
        const ir_expr *takes = ir_let(b, "takes", key_number(c, c->m->quantised_k.takes, &rows[jj]));
        for (int64_t v = 0; v < dots.vectors; v++) {
            const ir_expr *dot = ir_mul(b, ir_cast(b, c->m->elem, mha_product_sum(&dots, jj, v)), scale);
            const ir_expr *mean = mha_if_taken(c->m, takes, row_mean[v]);
            ir_store(b, mha_product_at(&t->product, jj, v), mha_madd(c->m, dot, row_scale[v], mean));
        }
    }
}

void ql_quantised_scores(q_lanes *c, const q_lanes_tile *tile) { ql_score_tiles(c, tile, multiply_tile); }
