/* S = Q K^T for one tile, lanes along head_dim. A register tile is score_rows query rows by score_keys keys, with a
 * vector of sums for each:
 *
 *               key 0              key 1
 *     row 0   [ a a a a a a a ] [ a a a a a a a ]        a += Q[row][d…] * K[key][d…], a vector of columns at a time
 *     row 1   [ a a a a a a a ] [ a a a a a a a ]
 *
 * Then several vectors of sums are reduced together, while the next register tile multiplies.
 *
 * With four streams of keys, an iteration computes scores of all streams, and these are neighbours in its result. But
 * the scores of one stream must be contiguous in memory. So as many iterations as there are lanes are a round, whose
 * scores go to scratch, and are transposed when the round is complete:
 *
 *     iteration i    [ stream 0 | stream 1 | stream 2 | stream 3 ]      ->      stream s    [ i = 0, 1, …, L-1 ]
 */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "nest/columns.h"
#include "nest/transpose.h"

enum { STREAMS = 4 }; /* a quarter of a vector has at most so many lanes */

/* The keys of one iteration: score_keys / streams neighbouring keys of each stream. */
typedef struct score_tile {
    const dl_tile *tile;
    const dl_streams *streams;
    const ir_expr *round, *turn; /* first key of the round in its stream, and of the iteration in the round */
    const ir_buffer *turns;      /* scratch [max_rows, STREAMS, lanes]: scores of a round */
    const ir_expr *first_row;
    mha_kv_row key[IR_MAX_LANES];
    mha_product product; /* rows by keys */
} score_tile;

static const ir_expr *row_at(const d_lanes *d, const score_tile *t, int64_t row) {
    return ir_plus(d->b, t->first_row, row);
}

/* Adds Q * K over one vector of columns. */
static void multiply(d_lanes *d, score_tile *t, const ir_expr *column, int64_t count) {
    mha_product *p = &t->product;
    for (int j = 0; j < p->vectors; j++)
        mha_product_vector(p, "k", j, dl_load_key(d, d->c->k, &t->key[j], column, count));
    for (int r = 0; r < p->rows; r++)
        mha_product_row(p, "q", r, ir_load(d->b, ir_at(d->b, d->q, d->width, 2, row_at(d, t, r), column)));
}

/* The same for columns that are converted to several vectors at once. */
static void multiply_converted(d_lanes *d, score_tile *t, const ir_expr *column, int64_t count) {
    mha_product *p = &t->product;
    const ir_expr *k[IR_MAX_LANES][4];
    for (int j = 0; j < p->vectors; j++) dl_convert_k(d, &t->key[j], column, k[j]);
    for (int64_t done = 0; done < count; done += d->width) {
        const ir_expr *at = ir_plus(d->b, column, done);
        for (int j = 0; j < p->vectors; j++) mha_product_vector(p, "k", j, k[j][done / d->width]);
        for (int r = 0; r < p->rows; r++)
            mha_product_row(p, "q", r, ir_load(d->b, ir_at(d->b, d->q, d->width, 2, row_at(d, t, r), at)));
    }
}

/* Key j of an iteration is number j / count of stream j % count. */
static void open_keys(d_lanes *d, score_tile *t) {
    ir_builder *b = d->b;
    const dl_streams *streams = t->streams;
    const ir_expr *keys = streams->keys;
    const int64_t count = t->product.vectors;
    const bool fits = streams->count > 1 || (ir_is_const(keys) && keys->value.i % count == 0);
    for (int64_t j = 0; j < count; j++) {
        const ir_expr *i = ir_add(b, t->round, ir_plus(b, t->turn, j / streams->count));
        if (!fits) i = ir_min(b, i, ir_plus(b, keys, -1));
        t->key[j] = dl_key_at(d, streams, j % streams->count, i);
    }
}

/* The place of the scores of `lanes` keys from the j-th of the iteration on. In the scratch of a round, iterations i, i
 * + 4, i + 8, … are neighbours, so that mha_transpose_quarters gives a vector for each stream. */
static const ir_access *scores_at(const d_lanes *d, const score_tile *t, int64_t row, int64_t j, int lanes) {
    ir_builder *b = d->b;
    const ir_expr *r = row_at(d, t, row);
    if (t->streams->count == 1)
        return ir_at(b, d->scores, lanes, 2, r,
                     ir_add(b, t->streams->first[0], ir_plus(b, ir_add(b, t->round, t->turn), j)));
    const ir_expr *turn = ir_plus(b, t->turn, j / STREAMS), *four = ir_idx(b, STREAMS);
    const ir_expr *quarter = ir_mul(b, ir_div(b, turn, four), four);
    return ir_at(b, t->turns, lanes, 3, r, ir_mod(b, turn, four), ir_plus(b, quarter, j % STREAMS));
}

/* Stores `count` scores, from number `from` of the register tile on, in contiguous pieces. */
static void store_scores(d_lanes *d, const score_tile *t, int64_t from, int64_t count, const ir_expr *scores) {
    const int64_t keys = t->product.vectors;
    for (int64_t done = 0; done < count;) {
        const int64_t row = (from + done) / keys, j = (from + done) % keys;
        int64_t most = min_of(keys - j, count - done);
        if (t->streams->count > 1) most = min_of(most, STREAMS - j % STREAMS);
        const int lanes = (int)power_below(most);
        const ir_expr *some = mha_lanes_of(d->b, scores, (int)done, lanes);
        ir_store(d->b, scores_at(d, t, row, j, lanes), some);
        done += lanes;
    }
}

/* Reduces all vectors of sums of a register tile over their lanes, at most 8 together: with 16 lanes, the first step
 * adds the halves of each vector, and 8 vectors of 8 lanes are left. */
static void finish_sums(d_lanes *d, const score_tile *t, int64_t rows) {
    const int64_t keys = t->product.vectors, all = rows * keys, most = min_of(d->lanes, 8);
    for (int64_t from = 0; from < all; from += most) {
        const int64_t count = min_of(all - from, most);
        const ir_expr *sums[IR_MAX_LANES];
        int padded = 1;
        while (padded < count) padded *= 2;
        for (int64_t i = 0; i < padded; i++) {
            const int64_t n = from + i;
            sums[i] = i < count ? mha_product_sum(&t->product, n / keys, n % keys) : mha_number(d->c, 0, d->lanes);
        }
        store_scores(d, t, from, count, ir_let(d->b, "s", mha_sum_lanes(d->b, d->lanes, padded, sums)));
    }
}

/* A tile that is not whole may have fewer keys than the iteration. It is the last one, and has no next tile. */
static dl_ahead ahead_of(const d_lanes *d, const score_tile *t, const dl_rows *rows) {
    const ir_expr *first = ir_add(d->b, t->streams->first[0], t->turn);
    return dl_keys_of_next_tile(d, t->tile, first, d->c->s->score_keys, 0, rows, d->c->s->score_rows);
}

/* The keys of an iteration, for all rows. */
static void register_tiles(d_lanes *d, score_tile *t) {
    mha_product *p = &t->product;
    DL_ROWS(d, rows, d->c->s->score_rows) {
        t->first_row = rows.first;
        *p = mha_product_of(d->c, dl_kind(d), rows.count, d->c->s->score_keys);
        p->vectors_first = true;
        mha_product_clear(p);
        open_keys(d, t);
        const dl_ahead ahead = ahead_of(d, t, &rows);
        DL_COLUMNS(d, c, "d", d->c->p->head_dim, d->k_width, d->c->s->score_column_vectors) {
            dl_prefetch_ahead(d, &ahead, c.at, c.count);
            (d->k_by ? multiply_converted : multiply)(d, t, c.at, c.count);
        }
        finish_sums(d, t, rows.count);
    }
}

/* Writes the scores of a round to d->scores. */
static void transpose_round(d_lanes *d, const score_tile *t) {
    ir_builder *b = d->b;
    IR_LOOP(b, row, ir_for_begin(b, "r", ir_idx(b, 0), d->padded_rows, 1, false)) {
        const ir_expr *squares[STREAMS];
        for (int i = 0; i < STREAMS; i++)
            squares[i] = ir_let(b, "s", ir_load(b, ir_at(b, t->turns, d->lanes, 3, row, ir_idx(b, i), ir_idx(b, 0))));
        mha_transpose_quarters(b, d->lanes, squares);
        for (int s = 0; s < STREAMS; s++)
            ir_store(b, ir_at(b, d->scores, d->lanes, 2, row, ir_add(b, t->streams->first[s], t->round)), squares[s]);
    }
}

static void score_streams(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    const int64_t keys = d->c->s->score_keys;
    score_tile t = {.tile = user, .streams = streams};
    dl_open_tables(d);
    if (streams->count == 1) {
        t.round = ir_idx(b, 0);
        IR_FOR(b, i, ir_idx(b, 0), streams->keys, keys) {
            t.turn = i;
            for (int64_t j = 0; d->is_listed && j < keys; j++)
                dl_prefetch_key(d, d->c->k, streams, 0, ir_plus(b, i, j));
            register_tiles(d, &t);
        }
        return;
    }
    IR_FOR(b, i, ir_idx(b, 0), ir_sub(b, streams->keys, ir_idx(b, d->lanes - 1)), d->lanes) {
        t.round = i;
        t.turns = ir_scratch(b, "turns", d->c->elem, 3, (int64_t[]){d->max_rows, STREAMS, d->lanes});
        IR_FOR(b, turn, ir_idx(b, 0), ir_idx(b, d->lanes), keys / STREAMS) {
            t.turn = turn;
            const ir_expr *key = ir_add(b, t.round, t.turn);
            for (int64_t j = 0; j < keys; j++)
                dl_prefetch_key(d, d->c->k, streams, j % STREAMS, ir_plus(b, key, j / STREAMS));
            register_tiles(d, &t);
        }
        transpose_round(d, &t);
    }
}

void dl_scores(d_lanes *d, const dl_tile *tile) {
    const int64_t keys = d->c->s->score_keys;
    const bool by_rounds = d->c->s->score_streams == STREAMS;
    dl_each_streams(d, tile, by_rounds ? STREAMS : 1, by_rounds ? d->lanes : keys, score_streams, tile);
}
