/* The layout of decoding: how many rows, columns and keys a task has, its scratch, where a row lies, and loops over
 * rows and columns. All other files of the folder use it. */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "schedule/variant.h"

/* ---- facts for the prover ---- */

const ir_expr *dl_first(const d_lanes *d, const char *name, const ir_expr *first, const ir_expr *count,
                        const ir_expr *size) {
    return ir_let_in(d->b, name, ir_idx(d->b, 0), ir_plus(d->b, ir_sub(d->b, size, count), 1), first);
}

const ir_expr *dl_part(const d_lanes *d, const char *name, const ir_expr *part, int64_t parts, const ir_expr *whole) {
    part = ir_let_in(d->b, name, ir_idx(d->b, 0), ir_plus(d->b, whole, 1), part);
    for (int64_t i = 2; i <= parts; i++) {
        const ir_expr *some = ir_times(d->b, part, i);
        ir_assume(d->b, ir_le(d->b, ir_idx(d->b, 0), some));
        ir_assume(d->b, ir_le(d->b, some, whole));
    }
    return part;
}

/* ---- sizes ---- */

static int64_t least_multiple(int64_t x, int64_t y) {
    int64_t multiple = x;
    while (multiple % y) multiple += x;
    return multiple;
}

/* More rows than this are divided among several tasks. Up to this number, all rows use a key while it is in the L1
 * cache. */
enum { MAX_TASK_ROWS = 64 };

/* If the number of rows is known at run time only, the rows after the last whole register tile would cost a whole one:
 * 5 rows as much as 8. So they get register tiles of REST_ROWS, and with an odd group a last row gets its own. Heads of
 * a group that fill whole register tiles leave no rest. General kernels, whose group is an argument, have tiles of two
 * rows only. */
enum { REST_ROWS = 2 };
static int64_t row_step_of(const d_lanes *d) {
    const mha_schedule *s = d->c->s;
    const int64_t score = s->score_rows, value = s->value_rows, step = least_multiple(score, value);
    const int64_t rest = d->c->p->is_general || d->c->group % REST_ROWS == 0 ? REST_ROWS : 1;
    const bool are_powers = power_below(score) == score && power_below(value) == value;
    const bool may = are_powers && !d->planes && !d->k_by_panels && !d->v_by_panels;
    return may && step > rest && d->c->group % step != 0 ? rest : step;
}

static void derive_rows(d_lanes *d) {
    const attune_problem *p = d->c->p;
    const int64_t most = mha_likely_queries(p), group = d->c->group;
    if (d->by_query) {
        d->row_step = least_multiple(d->c->s->score_rows, d->c->s->value_rows);
        d->max_rows = p->is_general ? dl_round_up(MAX_TASK_ROWS, d->row_step) : min_of(group, MAX_TASK_ROWS);
        if (p->is_general) return;
        while (group % d->max_rows) d->max_rows--;
        d->fixed_rows = d->max_rows;
        return;
    }
    d->row_step = row_step_of(d);
    if (p->seq_q >= 0 && p->seq_q * group <= MAX_TASK_ROWS) { /* a general problem has no seq_q */
        d->max_rows = d->fixed_rows = p->seq_q * group;
        return;
    }
    const int64_t rows = most > MAX_TASK_ROWS || most * group > MAX_TASK_ROWS ? MAX_TASK_ROWS : most * group;
    d->max_rows = dl_round_up(rows, d->row_step);
}

void dl_derive_sizes(d_lanes *d, mha_context *c) {
    const attune_problem *p = c->p;
    const bool all_quantised = p->integer == ATTUNE_INTEGER_ALL;
    d->c = c;
    d->b = c->b;
    d->lanes = c->lanes;
    d->width = c->variant.by_pairs ? 2 * c->lanes : c->lanes;
    d->planes = p->integer ? (int)mha_query_planes(p) : 0;
    d->pack = d->planes ? c->variant.rows_in_vector : 1;
    d->k_width = d->planes ? 4 * c->lanes / d->pack : d->width;
    d->k_halves = d->planes && p->k_dtype == ATTUNE_I4 ? 2 : 1;
    d->v_halves = all_quantised && p->v_dtype == ATTUNE_I4 ? 2 : 1;
    d->k_groups = d->planes && mha_is_by_group(p->k_scales) ? p->head_dim / p->k_group : 1;
    d->is_listed = p->kv_ids != ATTUNE_KV_IDS_NONE;
    d->by_query = p->kv_ids == ATTUNE_KV_IDS_QUERY;
    d->page_size = d->is_listed ? 0 : p->page_size;
    d->is_serial = p->reproducible && !all_quantised;
    d->k_by_panels = mha_is_paneled(c, c->k);
    d->v_by_panels = mha_is_paneled(c, c->v);
    derive_rows(d);
    d->tiles_are_fixed = p->reproducible || all_quantised || d->k_by_panels || d->v_by_panels;
    /* Quantised values in integer products need no conversion. With v_in_k, c->v is c->k. */
    if (!d->planes) d->k_by = dl_conversion_of(d, c->k, p->k_dtype, p->k_scales, p->head_dim);
    if (!all_quantised) d->v_by = dl_conversion_of(d, c->v, p->v_dtype, p->v_scales, p->head_dim_v);
    if (d->k_by) d->k_width = dl_columns_at_once(d, d->k_by);
    d->k_columns = dl_round_up(p->head_dim, (int64_t)d->k_width * d->k_halves);
    d->v_columns = dl_round_up(p->head_dim_v, d->width);
    d->one_chunk = p->reproducible || mha_most_scored(p) <= c->s->kv_chunk;
    d->masks_keys = p->attn_mask_dims[3] || p->attn_bias_dims[3] || p->mask_mod[0];
    /* A single query attends to one interval of keys, and only these are read, so nothing is masked. Exceptions are
     * global keys, and tiles with fixed beginnings. */
    const bool one_query = p->seq_q == 1 && !c->has_global && !(d->tiles_are_fixed && c->has_first);
    d->masks_positions = (c->has_first || c->has_last) && !one_query;
    d->begins_with_page = p->is_general && c->has_first && d->page_size;
}

/* ---- scratch of a task ---- */

static const ir_buffer *scratch(const d_lanes *d, const char *name, ir_elem elem, int64_t rows, int64_t columns) {
    return ir_scratch(d->b, name, elem, columns ? 2 : 1, (int64_t[]){rows, columns});
}

static void alloc_quantised(d_lanes *d, int64_t keys) {
    const mha_context *c = d->c;
    const int64_t vectors = ceil_div(d->max_rows, d->pack);
    const int64_t dims[] = {vectors * d->planes, d->k_columns / d->k_width, 4 * (int64_t)d->lanes};
    d->q = ir_scratch(d->b, "queries", IR_I8, 3, dims);
    d->q_scales = scratch(d, "q_scales", c->elem, d->max_rows, 0);
    d->starts = scratch(d, "starts", IR_I32, vectors * d->k_groups, d->lanes);
    d->dots = scratch(d, "dots", IR_I32, d->max_rows * d->k_groups, keys);
    if (mha_scales_runs(c->p->k_scales))
        d->k_group_scales = scratch(d, "k_group_scales", c->elem, dl_group_numbers(d), keys);
    if (mha_has_least(c->p->k_scales)) d->q_sums = scratch(d, "q_sums", c->elem, vectors * d->pack * d->k_groups, 0);
    if (c->p->integer != ATTUNE_INTEGER_ALL) return;
    d->p_quantised = scratch(d, "p_codes", IR_I8, d->planes * d->max_rows, keys + d->lanes + 4);
    d->p_units = scratch(d, "p_units", c->elem, d->max_rows, 0);
    d->p_shares = scratch(d, "p_shares", c->elem, d->max_rows, 0);
}

void dl_alloc_scratch(d_lanes *d) {
    const mha_context *c = d->c;
    const int64_t together = d->k_by_panels ? (int64_t)c->s->score_keys * d->lanes : c->s->score_keys;
    const int64_t more = max_of(together, max_of(d->width, dl_side_by_side(d)));
    const int64_t keys = dl_round_up(c->s->kv_tile + more, d->width);
    if (!d->planes) d->q = scratch(d, "queries", c->variant.by_pairs ? IR_BF16 : c->elem, d->max_rows, d->k_columns);
    dl_alloc_places(d);
    d->scores = scratch(d, "scores", c->elem, d->max_rows, keys);
    if (d->planes) alloc_quantised(d, keys);
    if (c->variant.by_pairs) d->rounded = scratch(d, "rounded", IR_BF16, d->max_rows, keys);
    d->o = scratch(d, "o", c->elem, d->max_rows, d->v_columns);
    d->row_max = scratch(d, "row_max", c->elem, d->max_rows, 0);
    d->row_sum = scratch(d, "row_sum", c->elem, d->max_rows, 0);
    d->factor = scratch(d, "factor", c->elem, d->max_rows, 0);
    if (d->is_serial) {
        d->tile_o = scratch(d, "tile_o", c->elem, d->max_rows, d->v_columns);
        d->o_lost = scratch(d, "o_lost", c->elem, d->max_rows, d->v_columns);
        d->row_sum_lost = scratch(d, "row_sum_lost", c->elem, d->max_rows, 0);
    }
    if (d->k_by == DL_F8_TABLES || d->v_by == DL_F8_TABLES) d->f8_tables = mha_f8_tables(c);
    if (c->p->k_scales == ATTUNE_SCALES_TOKEN) d->k_scales = scratch(d, "k_scales", c->elem, keys, 0);
    if (c->p->v_scales == ATTUNE_SCALES_TOKEN) d->v_scales = scratch(d, "v_scales", c->elem, keys, 0);
}

/* ---- rows ---- */

/* A loop over register tiles of `step` rows from `first` on, if the number of rows is known at run time only. */
static dl_rows open_rows(const d_lanes *d, const ir_expr *first, int64_t step) {
    ir_builder *b = d->b;
    const bool has_rest = step > d->row_step;
    const ir_expr *end = has_rest ? ir_times(b, ir_div(b, d->padded_rows, ir_idx(b, step)), step) : d->padded_rows;
    const ir_expr *row = ir_for_begin(b, "row", first, end, step, false);
    const bool is_rest = !ir_is(first, 0);
    return (dl_rows){has_rest || is_rest ? dl_first(d, "row", row, ir_idx(b, step), d->padded_rows) : row, step, true};
}

dl_rows dl_rows_begin(const d_lanes *d, int64_t step) {
    ir_builder *b = d->b;
    const int64_t whole = d->fixed_rows / step * step;
    if (d->fixed_rows && whole <= step) return (dl_rows){ir_idx(b, 0), whole ? whole : d->fixed_rows, false};
    if (!d->fixed_rows) return open_rows(d, ir_idx(b, 0), step);
    return (dl_rows){ir_for_begin(b, "row", ir_idx(b, 0), ir_idx(b, whole), step, false), step, true};
}

dl_rows dl_rows_next(const d_lanes *d, dl_rows rows, int64_t step) {
    const int64_t rest = d->fixed_rows % step;
    if (rows.is_open) ir_for_end(d->b);
    if (!d->fixed_rows && rows.count > d->row_step) {
        const int64_t done = rows.count, next = done > REST_ROWS ? max_of(REST_ROWS, d->row_step) : d->row_step;
        return open_rows(d, ir_times(d->b, ir_div(d->b, d->padded_rows, ir_idx(d->b, done)), done), next);
    }
    if (rows.count < step || !rest) return (dl_rows){0};
    return (dl_rows){ir_idx(d->b, d->fixed_rows - rest), rest, false};
}

/* The next of the vectors after the loop. */
static void next_remaining(const d_lanes *d, dl_columns *c) {
    c->at = ir_idx(d->b, c->done);
    c->count = max_of(min_of(c->width, c->columns - c->done), 0);
    c->done += c->width;
}

dl_columns dl_columns_begin(const d_lanes *d, const char *name, int64_t columns, int64_t width, int64_t unroll) {
    ir_builder *b = d->b;
    const int64_t step = unroll * width, whole = columns / step * step;
    dl_columns c = {.columns = columns, .width = width, .left = whole ? unroll - 1 : 0, .done = whole};
    if (!whole) {
        next_remaining(d, &c);
        return c;
    }
    c.is_open = whole > step;
    c.at = c.is_open ? ir_for_begin(b, name, ir_idx(b, 0), ir_idx(b, whole), step, false) : ir_idx(b, 0);
    c.first = c.at;
    c.count = width;
    return c;
}

void dl_columns_next(const d_lanes *d, dl_columns *c, int64_t unroll) {
    if (c->left) {
        c->at = ir_plus(d->b, c->first, (unroll - c->left--) * c->width);
        return;
    }
    if (c->is_open) ir_for_end(d->b);
    c->is_open = false;
    next_remaining(d, c);
}

dl_row dl_row_at(const d_lanes *d, const ir_expr *row) {
    ir_builder *b = d->b;
    const ir_expr *group = d->c->params.size[MHA_GROUP], *first_head = ir_mul(b, d->kv_head, group);
    if (!d->fixed_rows) row = ir_min(b, row, ir_plus(b, d->rows, -1));
    row = ir_let(b, "number", ir_add(b, d->first_row, row));
    const ir_expr *head = ir_add(b, first_head, ir_mod(b, row, group));
    dl_row r = {.head = d->c->p->is_general ? ir_let_index(b, "head", d->c->params.size[MHA_HEADS], head)
                                            : ir_let(b, "head", head),
                .query = dl_first(d, "query", ir_div(b, row, group), ir_idx(b, 1), d->sequence.seq_q)};
    r.token = ir_add(b, d->sequence.first_q, r.query);
    return r;
}
