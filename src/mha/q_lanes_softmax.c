/* The softmax of one tile and block, one vector of query rows at a time: a register tile would save nothing here, and
 * the code for exp2 is long. */
#include "mha/q_lanes.h"

#include <math.h>

static void accumulate(q_lanes *c, const ir_access *sum, const ir_expr *term) {
    ir_store(c->b, sum, ir_add(c->b, ir_load(c->b, sum), term));
}

/* P = exp(S - base) in place, for the rows from `at`. Summed chunk by chunk: one long serial sum would be the largest
 * rounding error of all. Chunks begin where the tile does, not where the block's sight does. */
static const ir_expr *exponentials(q_lanes *c, const q_lanes_tile *tile, const ir_expr *at, const ir_expr *base) {
    enum { CHUNK = 16 };
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_access *sum = ir_at(b, ql_registers(c, "sum", 0, NULL), lanes, 0);
    ir_store(b, sum, ql_splat(c, 0));
    const ir_expr *start = ir_mul(b, ir_div(b, tile->from, ql_i(c, CHUNK)), ql_i(c, CHUNK));
    const ir_expr *first = ir_for_begin(b, "chunk", start, tile->to, CHUNK, false);
    const ir_access *part = ir_at(b, ql_registers(c, "part", 0, NULL), lanes, 0);
    ir_store(b, part, ql_splat(c, 0));
    const ir_expr *begin = c->m->has_first ? ir_max(b, first, tile->from) : first;
    const ir_expr *end = ir_min(b, ir_add(b, first, ql_i(c, CHUNK)), tile->to);
    const ir_expr *j = ir_for_begin(b, "j", begin, end, 1, false);
    const ir_access *score = ir_at(b, c->scores, lanes, 2, j, at);
    const ir_expr *probability = ir_let(b, "probability", mha_exp(c->m, ir_load(b, score), base));
    ir_store(b, score, probability);
    accumulate(c, part, probability);
    ir_for_end(b);
    accumulate(c, sum, ir_load(b, part));
    ir_for_end(b);
    return ir_load(b, sum);
}

/* Turns scores into probabilities relative to the new maximum and updates maximum and sum; c->factor says by how much
 * what was summed so far must shrink. A row that has seen no key yet keeps the maximum -inf; 0 stands in for it, so
 * that exp2 gives 0 and not NaN. */
void ql_softmax(q_lanes *c, const q_lanes_tile *tile) {
    ir_builder *b = c->b;
    const int lanes = c->m->lanes;
    const ir_expr *at = ir_for_begin(b, "at", ql_i(c, 0), ql_i(c, c->block_rows), lanes, false);
    const ir_access *row_max = ir_at(b, c->row_max, lanes, 2, tile->block, at);
    const ir_access *row_sum = ir_at(b, c->row_sum, lanes, 2, tile->block, at);
    const ir_expr *old = c->by_rows ? NULL : ir_let(b, "old_max", ir_load(b, row_max));
    const ir_expr *new = ir_load(b, ir_at(b, c->tile_max, lanes, 1, at));
    new = ir_let(b, "new_max", old ? ir_max(b, old, new) : new);
    ir_store(b, row_max, new);
    const ir_expr *empty = ir_apply(b, IR_EQ, new, ql_splat(c, -INFINITY), NULL);
    const ir_expr *base = ir_let(b, "base", ir_select(b, empty, ql_splat(c, 0), new));
    const ir_expr *factor = old ? ir_let(b, "shrink", mha_exp(c->m, old, base)) : NULL;
    if (factor) ir_store(b, ir_at(b, c->factor, lanes, 1, at), factor);
    const ir_expr *sum = exponentials(c, tile, at, base);
    ir_store(b, row_sum, factor ? mha_madd(c->m, ir_load(b, row_sum), factor, sum) : sum);
    ir_for_end(b);
}
