/* S^T = K Q^T for one tile and block: register tiles of score_rows keys by score_vectors vectors of query rows. The
 * last one overlaps the one before it instead of being shorter: it recomputes the same bits. */
#include "mha/q_lanes.h"

#include <math.h>

typedef struct score_tile {
    const ir_expr *first; /* its first key within the tile */
    const ir_expr *key;   /* the same within K */
    const ir_buffer *acc; /* registers [score_rows, score_vectors] */
    const ir_buffer *max; /* registers [score_vectors]: running maximum over the tile */
} score_tile;

static void clear(q_lanes *c, const score_tile *t) {
    const ir_expr *j = ql_unrolled(c, "jj", c->s->score_rows);
    const ir_expr *v = ql_unrolled(c, "v", c->s->score_vectors);
    ir_store(c->b, ir_at(c->b, t->acc, c->s->lanes, 2, j, v), ql_splat(c, 0));
    ir_for_end(c->b);
    ir_for_end(c->b);
}

/* acc += K[key + jj, d] * Q^T[d, rows], summed in the order of d. */
static void multiply(q_lanes *c, const q_lanes_tile *tile, const score_tile *t) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *step = ir_for_begin(b, "d", ql_i(c, 0), ql_i(c, c->p->head_dim), c->s->score_unroll, false);
    const ir_expr *d = ir_add(b, step, ql_unrolled(c, "du", c->s->score_unroll));
    const ir_buffer *q = ql_registers(c, "queries", 1, (int64_t[]){c->s->score_vectors});
    const ir_expr *v = ql_unrolled(c, "v", c->s->score_vectors);
    const ir_expr *at = ir_mul(b, v, ql_i(c, lanes));
    ir_store(b, ir_at(b, q, lanes, 1, v), ir_load(b, ir_at(b, c->qt, lanes, 3, tile->block, d, at)));
    ir_for_end(b);
    const ir_expr *j = ql_unrolled(c, "jj", c->s->score_rows);
    const ir_access *key = ir_at(b, c->k, 1, 4, c->batch, c->kv_head, ir_add(b, t->key, j), d);
    const ir_expr *k = ir_let(b, "key_value", ir_splat(b, ir_load(b, key), lanes));
    v = ql_unrolled(c, "v", c->s->score_vectors);
    const ir_access *acc = ir_at(b, t->acc, lanes, 2, j, v);
    ir_store(b, acc, ql_madd(c, k, ir_load(b, ir_at(b, q, lanes, 1, v)), ir_load(b, acc)));
    ir_for_end(b);
    ir_for_end(b);
    ir_for_end(b);
    ir_for_end(b);
}

/* Stores the register tile and folds it into the maximum; `masked`: keys that a row does not see become -inf. */
static void finish(q_lanes *c, const q_lanes_tile *tile, const score_tile *t, bool masked) {
    ir_builder *b = c->b;
    const int lanes = c->s->lanes;
    const ir_expr *v = ql_unrolled(c, "v", c->s->score_vectors);
    const ir_expr *at = ir_mul(b, v, ql_i(c, lanes));
    const ir_expr *last =
        masked ? ir_let(b, "last", ir_load(b, ir_at(b, c->last_key, lanes, 2, tile->block, at))) : NULL;
    const ir_expr *j = ql_unrolled(c, "jj", c->s->score_rows);
    const ir_expr *score = ir_load(b, ir_at(b, t->acc, lanes, 2, j, v));
    if (masked) {
        const ir_expr *key = ir_cast(b, IR_I32, ir_add(b, t->key, j));
        const ir_expr *sees = ir_apply(b, IR_GE, last, ir_splat(b, key, lanes), NULL);
        score = ir_let(b, "score", ir_select(b, sees, score, ql_splat(c, -INFINITY)));
    }
    ir_store(b, ir_at(b, c->scores, lanes, 2, ir_add(b, t->first, j), at), score);
    const ir_access *max = ir_at(b, t->max, lanes, 1, v);
    ir_store(b, max, ir_max(b, ir_load(b, max), score));
    ir_for_end(b);
    ir_for_end(b);
}

void ql_scores(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int64_t rows = c->s->score_rows, vectors = c->s->score_vectors;
    score_tile t = {.max = ql_registers(c, "max_so_far", 1, &vectors)};
    const ir_expr *v = ql_unrolled(c, "v", vectors);
    ir_store(b, ir_at(b, t.max, c->s->lanes, 1, v), ql_splat(c, -INFINITY));
    ir_for_end(b);

    const ir_expr *count = ir_div(b, ir_add(b, tile->keys, ql_i(c, rows - 1)), ql_i(c, rows));
    const ir_expr *n = ir_for_begin(b, "score_tile", ql_i(c, 0), count, 1, false);
    const ir_expr *latest = ir_sub(b, ql_i(c, c->p->seq_kv - rows), tile->first_key);
    t.first = ir_let(b, "first", ir_min(b, ir_mul(b, n, ql_i(c, rows)), latest));
    t.key = ir_let(b, "key", ir_add(b, tile->first_key, t.first));
    t.acc = ql_registers(c, "acc", 2, (int64_t[]){rows, vectors});
    clear(c, &t);
    multiply(c, tile, &t);
    if (c->p->is_causal) {
        ir_if_begin(b, ir_apply(b, IR_GT, ir_add(b, t.first, ql_i(c, rows)), tile->full_keys, NULL));
        finish(c, tile, &t, true);
        ir_if_else(b);
        finish(c, tile, &t, false);
        ir_if_end(b);
    } else {
        finish(c, tile, &t, false);
    }
    ir_for_end(b);
    v = ql_unrolled(c, "v", vectors);
    const ir_access *max = ir_at(b, c->tile_max, c->s->lanes, 1, ir_mul(b, v, ql_i(c, c->s->lanes)));
    ir_store(b, max, ir_load(b, ir_at(b, t.max, c->s->lanes, 1, v)));
    ir_for_end(b);
}
