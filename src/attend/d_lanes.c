/* The d-lanes strategy: tasks, chunks and tiles. */
#include "attend/d_lanes.h"
#include "base/integers.h"
#include "attend/phases.h"
#include "problem/problem.h"
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

/* More rows than this are shared by several tasks. Up to it, all of them use each key as long as it is in the first
 * cache. */
enum { MAX_TASK_ROWS = 64 };

static void derive_rows(d_lanes *d) {
    const attune_problem *p = d->c->p;
    const attune_schedule *s = d->c->s;
    const int64_t most = mha_most_queries(p), group = d->c->group;
    d->row_step = least_multiple(s->score_rows, s->value_rows);
    if (p->seq_q >= 0 && p->seq_q * group <= MAX_TASK_ROWS) {
        d->max_rows = d->fixed_rows = p->seq_q * group;
        return;
    }
    const int64_t rows = most > MAX_TASK_ROWS || most * group > MAX_TASK_ROWS ? MAX_TASK_ROWS : most * group;
    d->max_rows = dl_round_up(rows, d->row_step);
}

static void derive_sizes(d_lanes *d, mha_context *c) {
    const attune_problem *p = c->p;
    const bool all_codes = p->integer == ATTUNE_INTEGER_ALL;
    d->c = c;
    d->b = c->b;
    d->lanes = c->lanes;
    d->width = c->variant.by_pairs ? 2 * c->lanes : c->lanes;
    d->planes = p->integer ? (int)mha_query_planes(p) : 0;
    d->pack = d->planes ? c->variant.query_pack : 1;
    d->k_width = d->planes ? 4 * c->lanes / d->pack : d->width;
    d->k_halves = d->planes && p->k_dtype == ATTUNE_I4 ? 2 : 1;
    d->v_halves = all_codes && p->v_dtype == ATTUNE_I4 ? 2 : 1;
    d->k_groups = d->planes && mha_is_by_group(p->k_scales) ? p->head_dim / p->k_group : 1;
    derive_rows(d);
    d->is_serial = p->reproducible && !all_codes;
    d->k_by_panels = mha_is_paneled(c, c->k);
    d->v_by_panels = mha_is_paneled(c, c->v);
    d->tiles_are_fixed = p->reproducible || all_codes || d->k_by_panels || d->v_by_panels;
    /* Codes that are multiplied as they lie need no table. With v_in_k, c->v is c->k. */
    if (!d->planes) d->k_by = dl_conversion_of(d, c->k, p->k_dtype, p->k_scales, p->head_dim);
    if (!all_codes) d->v_by = dl_conversion_of(d, c->v, p->v_dtype, p->v_scales, p->head_dim_v);
    d->holds_values = c->variant.holds_values && (d->v_by == DL_SINGLE || d->v_by == DL_WORDS);
    if (d->k_by) d->k_width = dl_columns_at_once(d, d->k_by);
    d->k_columns = dl_round_up(p->head_dim, (int64_t)d->k_width * d->k_halves);
    d->v_columns = dl_round_up(p->head_dim_v, d->width);
    d->one_chunk = p->reproducible || mha_most_keys(p) <= c->s->kv_chunk;
    d->masks_keys = p->attn_mask_dims[3] || p->attn_bias_dims[3] || p->mask_mod[0];
    /* The keys of a lone query are one interval, and only these are read. Exceptions: global keys, and tiles that begin
     * where those of other queries do. */
    const bool one_query = p->seq_q == 1 && !c->has_global && !(d->tiles_are_fixed && c->has_first);
    d->masks_positions = (c->has_first || c->has_last) && !one_query;
}

/* Rows of a KV head of the longest entry. */
static const ir_expr *all_rows(const d_lanes *d) { return ir_times(d->b, d->c->params.size[MHA_SEQ_Q], d->c->group); }

static const ir_expr *all_chunks(const d_lanes *d) {
    return d->one_chunk ? ir_idx(d->b, 1) : ir_ceil_div(d->b, d->c->params.size[MHA_SEQ_KV], d->c->s->kv_chunk);
}

static const ir_expr *row_tasks(const d_lanes *d) {
    return d->fixed_rows ? ir_idx(d->b, 1) : ir_ceil_div(d->b, all_rows(d), d->max_rows);
}

void mha_d_lanes_shared(mha_context *c) {
    d_lanes d = {0};
    derive_sizes(&d, c);
    if (d.one_chunk) return;
    const ir_expr *const dims[] = {c->params.size[MHA_BATCH], c->params.size[MHA_KV_HEADS], all_chunks(&d),
                                   all_rows(&d), ir_idx(d.b, d.v_columns)};
    c->parts.max = ir_shared(c->b, "chunk_max", c->elem, 4, dims);
    c->parts.sum = ir_shared(c->b, "chunk_sum", c->elem, 4, dims);
    c->parts.out = ir_shared(c->b, "chunk_out", c->elem, 5, dims);
}

/* ---- rows ---- */

void dl_each_rows(d_lanes *d, int64_t step, dl_rows_fn *build, const void *user) {
    const int64_t whole = d->fixed_rows / step, rest = d->fixed_rows % step;
    if (!d->fixed_rows || whole > 1) {
        const ir_expr *end = d->fixed_rows ? ir_idx(d->b, whole * step) : d->padded_rows;
        IR_LOOP(d->b, first, ir_for_begin(d->b, "row", ir_idx(d->b, 0), end, step, false)) {
            build(d, user, first, step);
        }
    } else if (whole == 1) {
        build(d, user, ir_idx(d->b, 0), step);
    }
    if (rest) build(d, user, ir_idx(d->b, whole * step), rest);
}

void dl_each_columns(d_lanes *d, const dl_columns *loop, dl_columns_fn *build, void *user) {
    ir_builder *b = d->b;
    const int64_t width = loop->width, step = loop->unroll * width;
    int64_t done = loop->columns / step * step;
    if (done) {
        const bool turns = done > step;
        const ir_expr *at =
            turns ? ir_for_begin(b, loop->name, ir_idx(b, 0), ir_idx(b, done), step, false) : ir_idx(b, 0);
        for (int64_t u = 0; u < step; u += width) build(d, user, ir_plus(b, at, u), width);
        if (turns) ir_for_end(b);
    }
    for (; done < loop->columns; done += width) build(d, user, ir_idx(b, done), min_of(width, loop->columns - done));
}

dl_row dl_row_at(const d_lanes *d, const ir_expr *row) {
    ir_builder *b = d->b;
    const ir_expr *group = ir_idx(b, d->c->group), *first_head = ir_mul(b, d->kv_head, group);
    if (!d->fixed_rows) row = ir_min(b, row, ir_plus(b, d->rows, -1));
    row = ir_let(b, "number", ir_add(b, d->first_row, row));
    dl_row r = {.head = ir_let(b, "head", ir_add(b, first_head, ir_mod(b, row, group))),
                .query = dl_first(d, "query", ir_div(b, row, group), ir_idx(b, 1), d->entry.seq_q)};
    r.token = ir_add(b, d->entry.first_q, r.query);
    return r;
}

/* ---- scratch of a task ---- */

static const ir_buffer *scratch(const d_lanes *d, const char *name, ir_elem elem, int64_t rows, int64_t columns) {
    return ir_scratch(d->b, name, elem, columns ? 2 : 1, (int64_t[]){rows, columns});
}

static void alloc_codes(d_lanes *d, int64_t keys) {
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
    d->p_codes = scratch(d, "p_codes", IR_I8, d->planes * d->max_rows, keys + d->lanes + 4);
    d->p_units = scratch(d, "p_units", c->elem, d->max_rows, 0);
    d->p_shares = scratch(d, "p_shares", c->elem, d->max_rows, 0);
}

static void alloc_scratch(d_lanes *d) {
    const mha_context *c = d->c;
    const int64_t together = d->k_by_panels ? (int64_t)c->s->score_keys * d->lanes : c->s->score_keys;
    const int64_t more = max_of(together, max_of(d->width, dl_side_by_side(d)));
    const int64_t keys = dl_round_up(c->s->kv_tile + more, d->width);
    if (!d->planes) d->q = scratch(d, "queries", c->variant.by_pairs ? IR_BF16 : c->elem, d->max_rows, d->k_columns);
    d->scores = scratch(d, "scores", c->elem, d->max_rows, keys);
    if (d->planes) alloc_codes(d, keys);
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

/* ---- which keys a task visits ---- */

typedef struct key_range {
    const ir_expr *first, *end;         /* of the keys that some row sees */
    const ir_expr *all_first, *all_end; /* of those that every row sees, where positions matter */
} key_range;

static const ir_expr *position_of(const d_lanes *d, const ir_expr *row) {
    const ir_expr *query = ir_div(d->b, ir_add(d->b, d->first_row, row), ir_idx(d->b, d->c->group));
    return ir_add(d->b, d->entry.base, query);
}

static key_range keys_of_task(const d_lanes *d) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    key_range keys = {.first = ir_idx(b, 0), .end = d->entry.seq_kv};
    if (!c->has_first && !c->has_last) return keys;
    const ir_expr *low = ir_let(b, "low", position_of(d, ir_idx(b, 0)));
    const ir_expr *high = ir_let(b, "high", position_of(d, ir_plus(b, d->rows, -1)));
    const mha_sights sights = mha_sights_of(c, &d->entry, low, high);
    keys.all_end = ir_let(b, "low_end", sights.all_end);
    keys.all_first = ir_let(b, "all_first", sights.all_first);
    keys.first = sights.globals_end ? ir_idx(b, 0) : sights.some_first;
    keys.end = sights.globals_end ? ir_max(b, sights.some_end, sights.globals_end) : sights.some_end;
    return keys;
}

/* Whether some row sees none of a tile's keys, or not all of them. */
static const ir_expr *is_partial(const d_lanes *d, const key_range *task, const dl_tile *tile) {
    ir_builder *b = d->b;
    if (d->masks_keys || (d->masks_positions && d->c->has_global)) return ir_int(b, IR_BOOL, 1);
    if (!d->masks_positions) return ir_int(b, IR_BOOL, 0);
    const ir_expr *before = ir_lt(b, tile->first, task->all_first);
    const ir_expr *after = ir_gt(b, ir_add(b, tile->first, tile->keys), task->all_end);
    return ir_let(b, "is_partial", ir_or(b, before, after));
}

/* Whether the keys are known to come in whole tiles. */
static bool tiles_are_whole(const d_lanes *d) {
    const attune_problem *p = d->c->p;
    return p->seq_kv >= 0 && !p->is_ragged && !p->has_kv_lens && !d->c->has_first && !d->c->has_last &&
           p->seq_kv % d->c->s->kv_tile == 0;
}

/* Scales of the keys from key i of the stream on, which lie side by side. */
static void load_scales_at(d_lanes *d, const dl_streams *streams, const ir_expr *i, int lanes) {
    ir_builder *b = d->b;
    const mha_kv_row key = dl_key_at(d, streams, 0, i);
    const ir_expr *j = ir_add(b, streams->first[0], i);
    if (d->k_scales)
        ir_store(b, ir_at(b, d->k_scales, lanes, 1, j), mha_scales_of_keys(d->c, MHA_K_SCALE, &key, lanes));
    if (d->v_scales)
        ir_store(b, ir_at(b, d->v_scales, lanes, 1, j), mha_scales_of_keys(d->c, MHA_V_SCALE, &key, lanes));
}

static void load_scales_of(d_lanes *d, const dl_streams *streams, const void *user) {
    ir_builder *b = d->b;
    const ir_expr *rest = ir_mod(b, streams->keys, ir_idx(b, d->lanes));
    (void)user;
    IR_FOR(b, i, ir_idx(b, 0), ir_sub(b, streams->keys, ir_idx(b, d->lanes - 1)), d->lanes) {
        load_scales_at(d, streams, i, d->lanes);
    }
    if (ir_is(rest, 0)) return;
    const ir_expr *done = dl_first(d, "done", ir_sub(b, streams->keys, rest), ir_idx(b, 0), streams->keys);
    IR_FOR(b, i, done, streams->keys, 1) load_scales_at(d, streams, i, 1);
}

static void load_scales(d_lanes *d, const dl_tile *tile) {
    const ir_buffer *const scales[2] = {d->k_scales, d->v_scales};
    if (!scales[0] && !scales[1]) return;
    for (int i = 0; i < 2; i++)
        for (int l = 0; scales[i] && l < d->width; l += d->lanes) {
            const ir_access *beyond = ir_at(d->b, scales[i], d->lanes, 1, ir_plus(d->b, tile->keys, l));
            ir_store(d->b, beyond, mha_number(d->c, 1, d->lanes));
        }
    dl_each_streams(d, tile, 1, 1, load_scales_of, NULL);
}

const ir_expr *dl_k_scales(const d_lanes *d, const ir_expr *j, int lanes) {
    if (d->k_scales) return ir_load(d->b, ir_at(d->b, d->k_scales, lanes, 1, j));
    const ir_expr *scale = mha_k_scale(d->c, &(mha_kv_row){.index = {NULL, d->kv_head, NULL}});
    return scale ? ir_splat(d->b, scale, lanes) : NULL;
}

const ir_expr *dl_v_scales(const d_lanes *d, const ir_expr *j, int lanes) {
    if (d->v_scales) return ir_load(d->b, ir_at(d->b, d->v_scales, lanes, 1, j));
    const ir_expr *scale = mha_v_scale(d->c, &(mha_kv_row){.index = {NULL, d->kv_head, NULL}});
    return scale ? ir_splat(d->b, scale, lanes) : NULL;
}

static void visit_tile(d_lanes *d, const dl_tile *tile) {
    load_scales(d, tile);
    if (d->k_group_scales) dl_load_group_scales(d, tile);
    if (d->planes) /* sums of integers are the same in any order */
        (d->k_by_panels ? dl_code_panel_scores : dl_code_scores)(d, tile);
    else if (d->k_by_panels)
        dl_panel_scores(d, tile);
    else if (d->is_serial)
        dl_serial_scores(d, tile);
    else
        dl_scores(d, tile);
    dl_softmax(d, tile);
    if (d->p_codes)
        (d->v_by_panels ? dl_code_panel_values : dl_code_values)(d, tile);
    else
        dl_values(d, tile);
}

static void visit_keys(d_lanes *d, const key_range *task, const ir_expr *first, const ir_expr *end) {
    ir_builder *b = d->b;
    const int64_t most = d->c->s->kv_tile;
    dl_tile tile;
    IR_FOR(b, key, first, end, most) {
        tile.keys = tiles_are_whole(d) ? ir_idx(b, most) : ir_min(b, ir_sub(b, end, key), ir_idx(b, most));
        tile.keys = ir_let_in(b, "keys", ir_idx(b, 1), ir_idx(b, most + 1), tile.keys);
        tile.first = dl_first(d, "first_key", key, tile.keys, d->entry.seq_kv);
        tile.is_partial = is_partial(d, task, &tile);
        const bool asks = mha_has_function(d->c, MHA_MASK_FUNCTION);
        IR_GUARD(b, asks, dl_shows_some(d, &tile)) visit_tile(d, &tile);
    }
}

static void build_task(d_lanes *d) {
    ir_builder *b = d->b;
    const int64_t chunk = d->c->s->kv_chunk;
    const key_range task = keys_of_task(d);
    const ir_expr *first = task.first, *end = task.end;
    if (!d->one_chunk) {
        const ir_expr *begin = ir_times(b, d->chunk, chunk);
        first = ir_max(b, first, begin);
        end = ir_min(b, end, ir_plus(b, begin, chunk));
    }
    if (d->tiles_are_fixed) { /* they are counted from the first key */
        const ir_expr *step = ir_idx(b, d->c->s->kv_tile);
        first = ir_mul(b, ir_div(b, first, step), step);
    }
    first = ir_let(b, "first", first);
    end = ir_let(b, "end", end);
    IR_GUARD(b, !d->one_chunk, ir_lt(b, first, end)) {
        alloc_scratch(d);
        IR_FOR(b, r, ir_idx(b, 0), d->padded_rows, 1) dl_init_row(d, r);
        if (d->planes) dl_encode_queries(d);
        visit_keys(d, &task, first, end);
        dl_finish_rows(d, true);
    }
    if (d->one_chunk) return;
    IR_ELSE(b) dl_finish_rows(d, false);
}

/* ---- phases ---- */

/* Opens the entry and the rows of a task. If their number is known only at run time, there may be none. */
static void open_rows(d_lanes *d, const ir_expr *number, const ir_expr *task) {
    ir_builder *b = d->b;
    d->entry = mha_entry_open(d->c, number);
    mha_scale_open(d->c);
    d->first_row = ir_times(b, task, d->max_rows);
    const ir_expr *left = ir_sub(b, ir_times(b, d->entry.seq_q, d->c->group), d->first_row);
    d->rows = d->fixed_rows ? ir_idx(b, d->fixed_rows) : ir_let(b, "rows", ir_min(b, left, ir_idx(b, d->max_rows)));
}

/* Opens the block of a task's rows, if there are any. */
#define DL_ROWS(d) IR_GUARD((d)->b, !(d)->fixed_rows, ir_gt((d)->b, (d)->rows, ir_idx((d)->b, 0)))

static void pad_rows(d_lanes *d) {
    const ir_expr *padded = ir_times(d->b, ir_ceil_div(d->b, d->rows, d->row_step), d->row_step);
    d->padded_rows = d->fixed_rows ? d->rows : ir_let(d->b, "padded_rows", padded);
}

/* The second phase: the chunks of each row, in order. */
static void merge_chunks(d_lanes *d) {
    ir_builder *b = d->b;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "merge_b", d->c->params.size[MHA_BATCH]);
        d->kv_head = ir_parallel(b, "merge_h", d->c->params.size[MHA_KV_HEADS]);
        open_rows(d, number, ir_parallel(b, "merge_t", row_tasks(d)));
        DL_ROWS(d) {
            IR_FOR(b, r, ir_idx(b, 0), d->rows, 1) dl_merge_row(d, r);
        }
    }
}

void mha_d_lanes(mha_context *c) {
    d_lanes d = {0};
    derive_sizes(&d, c);
    IR_PHASE(c->b) {
        const ir_expr *number = ir_parallel(c->b, "b", c->params.size[MHA_BATCH]);
        d.kv_head = ir_parallel(c->b, "h", c->params.size[MHA_KV_HEADS]);
        d.chunk = ir_parallel(c->b, "chunk", all_chunks(&d));
        open_rows(&d, number, ir_parallel(c->b, "t", row_tasks(&d)));
        DL_ROWS(&d) {
            pad_rows(&d);
            build_task(&d);
        }
    }
    if (!d.one_chunk) merge_chunks(&d);
}
