/* Prefetch of the next head (task_prefetch=head), a few lines in each register tile of scores: its K and V, its Q, and
 * the lines of O that its tasks will write. A CPU's prefetchers begin anew with each head and are late for short ones.
 *
 * The lines of a few keys are shared out among the stripes, and those of a stripe's rows among the register tiles. A
 * task of the same head finds them in the cache, so it does not matter which of the head's tasks asks. Where lengths
 * are known at run time only, the shares are those of the usual length. Lines beyond the last row touch nothing. */
#include "attend/q_lanes.h"

#include "base/integers.h"

enum { LINE_BYTES = 64, USUAL_LENGTH = 512 };

/* Line `number` of rows that lie one after the other: its row, and its first column. */
typedef struct line {
    const ir_expr *row, *column;
} line;

static line line_at(const q_lanes *c, const ir_buffer *buffer, int64_t lines_of_row, const ir_expr *number) {
    const int64_t step = LINE_BYTES / ir_elem_get(buffer->type.elem)->bytes;
    const ir_expr *lines = ir_idx(c->b, lines_of_row);
    return (line){ir_div(c->b, number, lines), ir_times(c->b, ir_mod(c->b, number, lines), step)};
}

static int64_t lines_of_row(const ir_buffer *buffer, int64_t columns) {
    return ceil_div(columns * ir_elem_get(buffer->type.elem)->bytes, LINE_BYTES);
}

/* The share `part` of `parts` of the keys from `first` on that a register tile has. */
static void ask_for_keys(q_lanes *c, const ir_buffer *k_or_v, int64_t columns, const ir_expr *first,
                         const ir_expr *part, int64_t parts) {
    ir_builder *b = c->b;
    const int64_t lines = lines_of_row(k_or_v, columns), count = ceil_div(c->m->s->score_keys * lines, parts);
    mha_entry next = c->e;
    next.kv_batch = c->next_kv_batch;
    for (int64_t i = 0; i < count; i++) {
        const line at = line_at(c, k_or_v, lines, ir_plus(b, ir_times(b, part, count), i));
        const ir_expr *key = ir_let(b, "ahead", ir_min(b, ir_add(b, first, at.row), ir_plus(b, c->e.seq_kv, -1)));
        const mha_kv_row row = mha_kv_row_at(c->m, &next, c->next_head, key);
        ir_prefetch(b, mha_kv_access(c->m, k_or_v, &row, at.column, 1));
    }
}

/* The same of the rows of a stripe from row number `first` on, in Q or O. */
static void ask_for_rows(q_lanes *c, const ir_buffer *q_or_o, int64_t columns, const ir_expr *first,
                         const ir_expr *part, int64_t parts) {
    ir_builder *b = c->b;
    const ir_expr *group = ir_idx(b, c->m->group);
    const int64_t lines = lines_of_row(q_or_o, columns), count = ceil_div(c->stripe_rows * lines, parts);
    for (int64_t i = 0; i < count; i++) {
        const line at = line_at(c, q_or_o, lines, ir_plus(b, ir_times(b, part, count), i));
        const ir_expr *row = ir_add(b, first, at.row);
        const ir_expr *head = ir_add(b, ir_mul(b, c->next_head, group), ir_mod(b, row, group));
        const ir_expr *token = ir_add(b, c->e.first_q, ir_div(b, row, group));
        ir_prefetch(b, ir_at(b, q_or_o, 1, 4, c->next_batch, head, token, at.column));
    }
}

/* The next head of the entry. After the last one the first of the next entry, whose place is simple to tell if all
 * entries are alike; otherwise the last one again. */
void ql_open_ahead(q_lanes *c) {
    ir_builder *b = c->b;
    if (c->m->s->task_prefetch != ATTUNE_PREFETCH_HEAD) return;
    const ir_expr *heads = c->m->params.size[MHA_KV_HEADS], *next = ir_plus(b, c->kv_head, 1);
    c->next_batch = c->e.batch;
    c->next_kv_batch = c->e.kv_batch;
    if (c->m->p->is_ragged || c->m->p->page_size) {
        c->next_head = ir_let(b, "next_head", ir_min(b, next, ir_plus(b, heads, -1)));
        return;
    }
    const ir_expr *is_last = ir_let(b, "is_last_head", ir_ge(b, next, heads));
    c->next_head = ir_let(b, "next_head", ir_select(b, is_last, ir_idx(b, 0), next));
    c->next_batch = ir_let(b, "next_entry", ir_select(b, is_last, ir_plus(b, c->e.batch, 1), c->e.batch));
    c->next_kv_batch = c->next_batch;
}

void ql_ask_ahead(q_lanes *c, const q_lanes_tile *tile, const ir_expr *first) {
    ir_builder *b = c->b;
    const mha_context *m = c->m;
    if (!c->next_head) return;
    const int64_t rows = m->s->score_keys, usual = ceil_div(USUAL_LENGTH * m->group, c->stripe_rows);
    const int64_t stripes = c->num_stripes ? c->num_stripes : usual;
    const int64_t tiles = ceil_div(ir_is_const(c->e.seq_kv) ? c->e.seq_kv->value.i : USUAL_LENGTH, rows);
    const ir_expr *stripe = ir_let(b, "stripe_of_head", ir_add(b, c->first_stripe, tile->stripe));
    const ir_expr *key = ir_let(b, "ahead_from", ir_add(b, tile->first_key, first));
    ask_for_keys(c, m->k, m->p->head_dim, key, stripe, stripes);
    ask_for_keys(c, m->v, m->p->head_dim_v, key, stripe, stripes);
    const ir_expr *number = ir_let(b, "tile_of_head", ir_div(b, key, ir_idx(b, rows)));
    const ir_expr *row = ir_let(b, "row_of_head", ir_times(b, stripe, c->stripe_rows));
    ask_for_rows(c, m->q, m->p->head_dim, row, number, tiles);
    ask_for_rows(c, m->out, m->p->head_dim_v, row, number, tiles);
}
