/* S = Q K^T for one tile: register tiles of score_rows keys by score_vectors query rows, lanes along head_dim. The
 * lanes of their sums are added up later, for a block of as many turns as there are lanes: the scores of neighbours are
 * then one vector, and the long chain of shuffles does not hold up the multiplications.
 *
 * Each key of a register tile comes from a stream of its own, a part of the tile that is read from its first key to its
 * last: prefetchers follow a few streams in pages of their own well, and neighbouring rows side by side badly. */
#include "mha/columns.h"
#include "mha/d_lanes.h"
#include "mha/transpose.h"

/* A block: `lanes` neighbours of each stream s, from first + s * distance within the run. A turn takes score_rows keys.
 */
typedef struct key_block {
    const dl_run *run;
    const ir_expr *first, *distance;
    int64_t streams;
    const ir_buffer *sums; /* scratch [max_rows, streams, neighbours, lanes] */
    bool is_rest;          /* keys beyond the run's last are that one again */
} key_block;

typedef struct score_tile {
    const key_block *block;
    const ir_expr *first_row, *turn;
    int64_t rows, keys;
    mha_kv_row key[IR_MAX_LANES];
    const ir_buffer *acc; /* registers [rows, keys] */
} score_tile;

static const ir_access *acc_at(const d_lanes *d, const score_tile *t, int64_t row, int64_t key) {
    return ir_at(d->b, t->acc, d->lanes, 2, dl_i(d, row), dl_i(d, key));
}

/* Where the sums of key `key` of a turn go: those of neighbours follow each other. */
static const ir_access *sums_at(const d_lanes *d, const key_block *block, const ir_expr *row, int64_t stream,
                                const ir_expr *neighbour) {
    return ir_at(d->b, block->sums, d->lanes, 4, row, dl_i(d, stream), neighbour, dl_i(d, 0));
}

/* acc += K * Q over one vector of columns. */
static void multiply(d_lanes *d, const score_tile *t, const ir_expr *column, int64_t count) {
    ir_builder *b = d->b;
    const ir_expr *key[IR_MAX_LANES];
    for (int64_t j = 0; j < t->keys; j++) key[j] = ir_let(b, "k", dl_load_key(d, d->c->k, &t->key[j], column, count));
    for (int64_t r = 0; r < t->rows; r++) {
        const ir_access *query = ir_at(b, d->q, d->lanes, 2, ir_add(b, t->first_row, dl_i(d, r)), column);
        const ir_expr *q = ir_let(b, "q", ir_load(b, query));
        for (int64_t j = 0; j < t->keys; j++) {
            const ir_access *acc = acc_at(d, t, r, j);
            ir_store(b, acc, mha_madd(d->c, key[j], q, ir_load(b, acc)));
        }
    }
}

/* Key `j` of the turn, as a neighbour within its stream. */
static const ir_expr *neighbour_at(const d_lanes *d, const score_tile *t, int64_t j) {
    return t->block->streams > 1 ? t->turn : ir_add(d->b, t->turn, dl_i(d, j));
}

static void open_keys(d_lanes *d, score_tile *t) {
    ir_builder *b = d->b;
    const key_block *block = t->block;
    for (int64_t j = 0; j < t->keys; j++) {
        const ir_expr *i = ir_add(b, block->first, neighbour_at(d, t, j));
        if (block->streams > 1) i = ir_add(b, i, ir_mul(b, block->distance, dl_i(d, j)));
        if (block->is_rest) i = ir_min(b, i, ir_sub(b, block->run->keys, dl_i(d, 1)));
        t->key[j] = dl_run_at(d, block->run, i);
    }
}

static void register_tile(d_lanes *d, const void *user, const ir_expr *first_row, int64_t rows) {
    ir_builder *b = d->b;
    const attune_schedule *s = d->c->s;
    score_tile t = *(const score_tile *)user;
    t.first_row = first_row;
    t.rows = rows;
    t.acc = dl_registers(d, "acc", d->lanes, 2, (int64_t[]){rows, t.keys});
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < t.keys; j++) ir_store(b, acc_at(d, &t, r, j), mha_number(d->c, 0, d->lanes));
    open_keys(d, &t);
    const int64_t dim = d->c->p->head_dim, whole = dim / d->lanes;
    int64_t done = 0;
    if (whole >= s->score_unroll) {
        const int64_t step = (int64_t)d->lanes * s->score_unroll;
        done = whole / s->score_unroll * step;
        const ir_expr *at = done > step ? ir_for_begin(b, "d", dl_i(d, 0), dl_i(d, done), step, false) : dl_i(d, 0);
        for (int64_t u = 0; u < step; u += d->lanes) multiply(d, &t, ir_add(b, at, dl_i(d, u)), d->lanes);
        if (done > step) ir_for_end(b);
    }
    for (; done < dim; done += d->lanes) multiply(d, &t, dl_i(d, done), dim - done);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < t.keys; j++) {
            const int64_t stream = t.block->streams > 1 ? j : 0;
            ir_store(b, sums_at(d, t.block, ir_add(b, first_row, dl_i(d, r)), stream, neighbour_at(d, &t, j)),
                     ir_load(b, acc_at(d, &t, r, j)));
        }
}

/* Adds up lanes: one vector of scores for each stream. */
static void finish(d_lanes *d, const key_block *block) {
    ir_builder *b = d->b;
    const ir_expr *row = ir_for_begin(b, "r", dl_i(d, 0), d->padded_rows, 1, false);
    for (int64_t s = 0; s < block->streams; s++) {
        const ir_expr *vectors[IR_MAX_LANES];
        for (int l = 0; l < d->lanes; l++) vectors[l] = ir_load(b, sums_at(d, block, row, s, dl_i(d, l)));
        const ir_expr *sums = mha_sum_lanes(b, d->lanes, vectors);
        const ir_expr *at =
            ir_add(b, ir_add(b, block->run->first, block->first), ir_mul(b, block->distance, dl_i(d, s)));
        ir_store(b, ir_at(b, d->scores, d->lanes, 2, row, at), sums);
    }
    ir_for_end(b);
}

static void score_block(d_lanes *d, key_block *block) {
    ir_builder *b = d->b;
    const int64_t keys = d->c->s->score_rows, step = block->streams > 1 ? 1 : keys;
    const int64_t neighbours = dl_round_up(d->lanes, step);
    block->sums = ir_alloc(b, "sums", IR_SCRATCH, ir_type_of(d->c->elem, 1), 4,
                           (int64_t[]){d->max_rows, block->streams, neighbours, d->lanes});
    score_tile t = {.block = block, .keys = keys};
    t.turn = ir_for_begin(b, "turn", dl_i(d, 0), dl_i(d, neighbours), step, false);
    dl_each_rows(d, d->c->s->score_vectors, register_tile, &t);
    ir_for_end(b);
    finish(d, block);
}

void dl_scores(d_lanes *d, const dl_tile *tile) {
    ir_builder *b = d->b;
    const int64_t lanes = d->lanes, streams = d->c->p->page_size ? 1 : d->c->s->score_rows, step = streams * lanes;
    const dl_run run = dl_run_begin(d, tile);
    key_block block = {.run = &run, .streams = streams, .distance = dl_i(d, 0)};
    const ir_expr *rest = run.keys;
    if (streams > 1) {
        const ir_expr *part = ir_mul(b, ir_div(b, run.keys, dl_i(d, step)), dl_i(d, lanes));
        block.distance = dl_part(d, "distance", part, streams, run.keys);
        const ir_expr *end = ir_sub(b, block.distance, dl_i(d, lanes - 1));
        block.first = ir_for_begin(b, "i", dl_i(d, 0), end, lanes, false);
        score_block(d, &block);
        ir_for_end(b);
        rest = ir_mod(b, run.keys, dl_i(d, step));
    }
    if (rest && (rest->op != IR_CONST || rest->value.i)) {
        const ir_expr *done = dl_first(d, "done", ir_sub(b, run.keys, rest), dl_i(d, 0), run.keys);
        block = (key_block){.run = &run, .streams = 1, .distance = dl_i(d, 0), .is_rest = true};
        block.first = ir_for_begin(b, "i", done, run.keys, lanes, false);
        score_block(d, &block);
        ir_for_end(b);
    }
    dl_run_end(d);
}
