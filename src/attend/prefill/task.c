/* The loops of prefill, from the outside in:
 *
 *     for each sequence, KV head, task        in parallel
 *       for each stripe                       Q^T into scratch; maximum, sum and O begin
 *       for each tile of keys                 K and V of the tile into scratch, where that pays
 *         for each stripe
 *           scores, softmax, values           the steps
 *       for each stripe                       O / sum to memory
 *
 * So K and V of a tile serve all stripes of a task while they are in the cache. */
#include "attend/prefill/layout.h"
#include "attend/prefill/prefill.h"
#include "base/integers.h"
#include "problem/problem_sight.h"

/* ---- one task ---- */

/* Each step of a tile is one of a few loop nests. Which one follows from the variant. */
static ql_steps steps_of(const q_lanes *c) {
    const mha_variant *v = c->v;
    ql_steps steps = {ql_scores, ql_softmax, ql_values};
    if (v->scores_by_columns || v->rest_rows) steps.scores = ql_column_scores;
    if (ql_is_quantised(c)) steps.scores = ql_quantised_scores;
    if (v->by_pairs) steps.softmax = ql_pair_softmax;
    if (v->by_pairs && v->values == MHA_VALUES_WHOLE && c->m->s->score_row_vectors > 1)
        steps.softmax = ql_pair_softmax_by_turns;
    if (v->values != MHA_VALUES_TRANSPOSED) steps.values = ql_values_by_rows;
    return steps;
}

/* If the keys are one tile, its sums are the rows' sums: so the rows are closed, and P is normalised for its users,
 * before the values. */
static void softmax_at_once(q_lanes *c, const q_lanes_tile *tile) {
    c->steps.softmax(c, tile);
    ql_close_rows(c, tile->stripe);
    if (c->v->writes_probabilities) ql_store_probabilities(c, tile->stripe);
    if (!ql_has_prob(c)) return;
    ql_modify_probabilities(c, tile);
    ql_end_division(c, tile->stripe);
}

/* The values of a pass that computes only the sums. */
static void no_values(q_lanes *c, const q_lanes_tile *tile) {
    (void)c;
    (void)tile;
}

/* For each tile and each stripe of the task: the three steps. A stripe skips the tiles that are hidden from all of its
 * rows. */
static void visit_tiles(q_lanes *c, const ql_steps *steps) {
    ir_builder *b = c->b;
    const bool leaves_out = !mha_values_at_once(c->v), wants_values = steps->values != no_values;
    q_lanes_tile tile = {0};
    IR_LOOP(b, number, ql_begin_tiles(c)) {
        tile.number = number;
        tile.first_key = ir_let(b, "first_key", ir_times(b, number, c->m->s->kv_tile));
        tile.first_pair = ir_times(b, number, c->m->s->kv_tile / 2);
        ql_open_tile(c, &tile);
        IR_GUARD(b, ql_has_table(c) && leaves_out, tile.is_visited) {
            if (wants_values) ql_find_finite(c, &tile);
            ql_load_tile(c, &tile, wants_values);
            IR_FOR(b, stripe, ir_idx(b, 0), c->stripes, 1) {
                tile.stripe = stripe;
                ql_open_stripe(c, &tile);
                IR_GUARD(b, (ql_has_edges(c) || ql_has_table(c)) && leaves_out, ir_gt(b, tile.to, tile.from)) {
                    ql_fill_distances(c, &tile);
                    steps->scores(c, &tile);
                    steps->softmax(c, &tile);
                    steps->values(c, &tile);
                }
            }
        }
    }
}

/* The stripes of a task, from Q to O. */
static void build_stripes(q_lanes *c) {
    ir_builder *b = c->b;
    const ql_steps *steps = &c->steps;
    c->steps = steps_of(c);
    ql_alloc_scratch(c);
    if (ql_has_pair_exp(c)) ql_fill_corrections(c);
    ql_alloc_functions(c);
    ql_alloc_distances(c);
    IR_FOR(b, stripe, ir_idx(b, 0), c->stripes, 1) {
        ql_init_rows(c, stripe);
        ql_load_queries(c, stripe);
    }
    if (mha_values_at_once(c->v)) {
        visit_tiles(c, &(ql_steps){steps->scores, softmax_at_once, steps->values});
        return;
    }
    if (ql_has_prob(c)) { /* it needs the sums before the first value */
        visit_tiles(c, &(ql_steps){steps->scores, steps->softmax, no_values});
        IR_FOR(b, stripe, ir_idx(b, 0), c->stripes, 1) {
            ql_keep_base(c, stripe);
            ql_close_rows(c, stripe);
        }
        visit_tiles(c, &(ql_steps){steps->scores, ql_modify_probabilities, steps->values});
    } else {
        visit_tiles(c, steps);
    }
    IR_FOR(b, stripe, ir_idx(b, 0), c->stripes, 1) {
        (ql_has_prob(c) ? ql_end_division : ql_close_rows)(c, stripe);
        (c->o ? ql_store_kept : ql_store_rows)(c, stripe);
    }
}

/* Where later rows attend to more keys, their long tasks go first, so that threads end together. */
static const ir_expr *task_of(q_lanes *c, const ir_expr *task, const ir_expr *tasks) {
    ir_builder *b = c->b;
    if (!mha_sees_more_later(c->m->p)) return task;
    const ir_expr *mirrored = ir_sub(b, ir_plus(b, tasks, -1), task);
    return ir_is_const(tasks) ? ir_let(b, "task", mirrored) : ir_let_index(b, "task", tasks, mirrored);
}

/* The stripes of a task if their number is known. If they do not divide evenly, the first tasks get one more. */
static void assign_stripes(q_lanes *c, const ir_expr *task) {
    ir_builder *b = c->b;
    const int64_t base = c->num_stripes / c->num_tasks, extra = c->num_stripes % c->num_tasks;
    c->first_stripe = ir_times(b, task, base);
    c->stripes = ir_idx(b, base);
    if (extra) {
        const ir_expr *is_longer = ir_lt(b, task, ir_idx(b, extra));
        c->first_stripe = ir_add(b, c->first_stripe, ir_min(b, task, ir_idx(b, extra)));
        c->stripes = ir_let(b, "stripes", ir_select(b, is_longer, ir_idx(b, base + 1), ir_idx(b, base)));
    }
    c->first_stripe = ir_let(b, "first_stripe", c->first_stripe);
    build_stripes(c);
}

/* As many as mha_task_stripes says, of so many rows of a KV head of the longest sequence. */
static const ir_expr *open_task_stripes(const q_lanes *c, const ir_expr *rows) {
    ir_builder *b = c->b;
    const ir_expr *const *size = c->m->params.size;
    const ir_expr *usual = ir_idx(b, mha_usual_stripes(c->m->s)), *most = ir_idx(b, c->max_stripes);
    if (ir_is(usual, c->max_stripes)) return usual;
    const ir_expr *all = ir_mul(b, size[MHA_KV_HEADS], ir_ceil_div(b, rows, c->stripe_rows));
    const ir_expr *fit = ir_min(b, ir_div(b, all, ir_idx(b, MHA_LONG_TASKS)), most);
    return ir_select(b, ir_lt(b, size[MHA_SEQ_KV], ir_idx(b, MHA_LONG_KEYS)), usual, ir_max(b, fit, usual));
}

/* Tasks of so many stripes. */
static const ir_expr *open_tasks(const q_lanes *c, const ir_expr *rows, const ir_expr *stripes) {
    const ir_expr *of_task = ir_times(c->b, stripes, c->stripe_rows);
    return ir_div(c->b, ir_add(c->b, rows, ir_plus(c->b, of_task, -1)), of_task);
}

/* The same if their number is known at run time only: a task gets `most` stripes, or the remaining ones, or none. */
static void assign_open_stripes(q_lanes *c, const ir_expr *task, const ir_expr *tasks, const ir_expr *most) {
    ir_builder *b = c->b;
    if (ir_is_const(most)) {
        c->first_stripe = ir_let(b, "first_stripe", ir_mul(b, task, most));
    } else {
        most = ir_let_in(b, "most_stripes", ir_idx(b, 1), ir_idx(b, c->max_stripes + 1), most);
        c->first_stripe = ir_let_index(b, "first_stripe", ir_mul(b, tasks, most), ir_mul(b, task, most));
    }
    const ir_expr *left = ir_sub(b, ir_ceil_div(b, c->rows, c->stripe_rows), c->first_stripe);
    c->stripes = ir_let(b, "stripes", ir_min(b, left, most));
    IR_IF(b, ir_gt(b, c->stripes, ir_idx(b, 0))) {
        if (!ir_is_const(most)) ir_assume(b, ir_gt(b, c->rows, ir_idx(b, 0)));
        build_stripes(c);
    }
}

/* Keys beyond the end of a short mask are hidden, as if the sequence ended there. Its positions stay the same. */
static void shorten_sequence(q_lanes *c) {
    static const struct {
        mha_tensor_id tensor;
        mha_size size;
    } masks[] = {{MHA_ATTN_MASK, MHA_MASK_KV}, {MHA_ATTN_BIAS, MHA_BIAS_KV}};
    for (int i = 0; i < 2; i++)
        if (c->m->params.tensor[masks[i].tensor] && c->m->params.size[masks[i].size])
            c->e.seq_kv = ir_min(c->b, c->e.seq_kv, c->m->params.size[masks[i].size]);
    c->e.seq_kv = ir_let(c->b, "num_keys", c->e.seq_kv);
}

void mha_q_lanes(mha_context *m) {
    ir_builder *b = m->b;
    q_lanes c = {.m = m, .v = &m->variant, .b = b};
    ql_derive_sizes(&c);
    IR_PHASE(b) {
        const ir_expr *sequence = ir_parallel(b, "b", m->params.size[MHA_BATCH]);
        c.kv_head = ir_parallel(b, "h", m->params.size[MHA_KV_HEADS]);
        const ir_expr *longest = c.num_tasks ? NULL : ir_mul(b, m->params.size[MHA_SEQ_Q], m->params.size[MHA_GROUP]);
        const ir_expr *most = longest ? open_task_stripes(&c, longest) : NULL;
        const ir_expr *tasks = longest ? open_tasks(&c, longest, most) : ir_idx(b, c.num_tasks);
        const ir_expr *task = ir_parallel(b, "t", tasks);
        c.e = c.whole = mha_sequence_open(m, sequence);
        mha_scale_open(m);
        shorten_sequence(&c);
        c.rows = ir_let(b, "rows", ir_mul(b, c.e.seq_q, m->params.size[MHA_GROUP]));
        c.e.positions_are_keys = mha_positions_are_keys(m, &c.e);
        c.keys_fill_tiles =
            c.v->score_tiles_overlap || (ir_is_const(c.e.seq_kv) && c.e.seq_kv->value.i % m->s->score_keys == 0);
        ql_open_functions(&c);
        ql_open_prefetch(&c);
        if (c.num_tasks)
            assign_stripes(&c, task_of(&c, task, tasks));
        else
            assign_open_stripes(&c, task_of(&c, task, tasks), tasks, most);
    }
}
