/* The loops of decoding, from the outside in:
 *
 *     for each sequence, chunk of keys, KV head, task of rows      in parallel
 *       for each row                       Q into scratch; maximum, sum and O begin
 *       for each tile of keys
 *         scores, softmax, values          the steps, each for all rows
 *       for each row                       O / sum to memory, or the chunk's maximum, sum and O
 *
 * and, with several chunks, a second phase that merges them for each row.
 *
 * All heads compute a chunk before any computes the next one. A token's heads are usually neighbours in memory, so the
 * pages that the chunk lies in are walked through once, and their addresses are found in the TLB. Plans know this order
 * of tasks (plan/work.c), and leave out the chunks beyond the end of a sequence. */
#include "attend/decode/layout.h"
#include "base/integers.h"
#include "attend/decode/decode.h"
#include "problem/problem.h"
#include "schedule/variant.h"

/* Rows of a KV head of the longest sequence. */
static const ir_expr *all_rows(const d_lanes *d) {
    return ir_mul(d->b, d->c->params.size[MHA_SEQ_Q], d->c->params.size[MHA_GROUP]);
}

/* Of the longest sequence: as many as mha_most_chunks says. */
static const ir_expr *all_chunks(const d_lanes *d) {
    ir_builder *b = d->b;
    if (d->one_chunk) return ir_idx(b, 1);
    const ir_expr *units = ir_ceil_div(b, d->c->params.size[mha_scored_keys(d->c->p)], d->c->s->kv_chunk);
    if (!mha_bounds_chunks(d->c->p)) return units;
    const ir_expr *heads = d->c->params.size[MHA_KV_HEADS];
    return ir_min(b, units, ir_plus(b, ir_div(b, ir_idx(b, MHA_CHUNK_TASKS - 1), heads), 1));
}

/* Tasks of a query that has a list of its own. */
static const ir_expr *tasks_of_query(const d_lanes *d) {
    if (d->fixed_rows) return ir_idx(d->b, d->c->group / d->max_rows);
    return ir_ceil_div(d->b, d->c->params.size[MHA_GROUP], d->max_rows);
}

static const ir_expr *row_tasks(const d_lanes *d) {
    if (d->by_query) return ir_mul(d->b, d->c->params.size[MHA_SEQ_Q], tasks_of_query(d));
    return d->fixed_rows ? ir_idx(d->b, 1) : ir_ceil_div(d->b, all_rows(d), d->max_rows);
}

void mha_d_lanes_shared(mha_context *c) {
    d_lanes d = {0};
    dl_derive_sizes(&d, c);
    if (d.one_chunk) return;
    const ir_expr *const dims[] = {c->params.size[MHA_BATCH], c->params.size[MHA_KV_HEADS], all_chunks(&d),
                                   all_rows(&d), ir_idx(d.b, d.v_columns)};
    c->parts.max = ir_shared(c->b, "chunk_max", c->elem, 4, dims);
    c->parts.sum = ir_shared(c->b, "chunk_sum", c->elem, 4, dims);
    c->parts.out = ir_shared(c->b, "chunk_out", c->elem, 5, dims);
}

/* ---- which keys a task visits ---- */

typedef struct key_range {
    const ir_expr *first, *end;         /* of the keys that some row attends to */
    const ir_expr *all_first, *all_end; /* of the keys that every row attends to, if there is a window or causality */
} key_range;

static const ir_expr *position_of(const d_lanes *d, const ir_expr *row) {
    const ir_expr *query = ir_div(d->b, ir_add(d->b, d->first_row, row), d->c->params.size[MHA_GROUP]);
    return ir_add(d->b, d->sequence.base, query);
}

static key_range keys_of_task(const d_lanes *d) {
    ir_builder *b = d->b;
    const mha_context *c = d->c;
    key_range keys = {.first = ir_idx(b, 0), .end = d->sequence.seq_kv};
    if (!c->has_first && !c->has_last) return keys;
    const ir_expr *low = ir_let(b, "low", position_of(d, ir_idx(b, 0)));
    const ir_expr *high = ir_let(b, "high", position_of(d, ir_plus(b, d->rows, -1)));
    const mha_sights sights = mha_sights_of(c, &d->sequence, low, high);
    keys.all_end = ir_let(b, "low_end", sights.all_end);
    keys.all_first = ir_let(b, "all_first", sights.all_first);
    keys.first = sights.globals_end ? ir_idx(b, 0) : sights.some_first;
    keys.end = sights.globals_end ? ir_max(b, sights.some_end, sights.globals_end) : sights.some_end;
    return keys;
}

/* How the keys of a task's rows are cut into chunks. */
typedef struct chunk_cut {
    const ir_expr *first, *units; /* in units of kv_chunk keys: before the first one in sight, and from there on */
    const ir_expr *count;         /* of chunks; the first ones may have a unit less than the others */
} chunk_cut;

static chunk_cut chunks_of(const d_lanes *d, const key_range *keys) {
    ir_builder *b = d->b;
    const int64_t unit = d->c->s->kv_chunk;
    chunk_cut cut = {.first = ir_idx(b, 0), .units = ir_ceil_div(b, d->sequence.seq_kv, unit)};
    if (!mha_bounds_chunks(d->c->p)) {
        cut.count = cut.units;
        return cut;
    }
    if (d->c->has_first) {
        cut.first = ir_let(b, "first_unit", ir_div(b, keys->first, ir_idx(b, unit)));
        cut.units = ir_max(b, ir_idx(b, 0), ir_sub(b, cut.units, cut.first));
    }
    cut.units = ir_let(b, "units", cut.units);
    const ir_expr *all = all_chunks(d);
    cut.count = ir_let_in(b, "chunks", ir_idx(b, 0), ir_plus(b, all, 1), ir_min(b, cut.units, all));
    return cut;
}

/* The key that chunk `chunk` begins with. One beyond the last begins beyond the last key. */
static const ir_expr *first_of_chunk(const d_lanes *d, const chunk_cut *cut, const ir_expr *chunk) {
    ir_builder *b = d->b;
    if (mha_bounds_chunks(d->c->p)) {
        const ir_expr *divisor = ir_max(b, cut->count, ir_idx(b, 1));
        chunk = ir_add(b, cut->first, ir_div(b, ir_mul(b, chunk, cut->units), divisor));
    }
    return ir_times(b, chunk, d->c->s->kv_chunk);
}

static const ir_expr *is_partial(const d_lanes *d, const key_range *task, const dl_tile *tile) {
    ir_builder *b = d->b;
    if (d->masks_keys || (d->masks_positions && d->c->has_global)) return ir_int(b, IR_BOOL, 1);
    if (!d->masks_positions) return ir_int(b, IR_BOOL, 0);
    const ir_expr *before = ir_lt(b, tile->first, task->all_first);
    const ir_expr *after = ir_gt(b, ir_add(b, tile->first, tile->keys), task->all_end);
    return ir_let(b, "is_partial", ir_or(b, before, after));
}

/* Whether every tile is known to have kv_tile keys. */
static bool tiles_are_whole(const d_lanes *d) {
    const attune_problem *p = d->c->p;
    return p->seq_kv >= 0 && !p->kv_ids && !p->is_ragged && !p->has_kv_lens && !d->c->has_first && !d->c->has_last &&
           p->seq_kv % d->c->s->kv_tile == 0;
}

/* ---- one task ---- */

/* Each step of a tile is one of a few loop nests. Which one follows from the variant, with one exception: V that is
 * converted by a table keeps its sums in memory. */
static dl_steps steps_of(const d_lanes *d) {
    static dl_step *const scores[] = {[MHA_SCORES_BY_COLUMNS] = dl_scores,
                                      [MHA_SCORES_SERIAL] = dl_serial_scores,
                                      [MHA_SCORES_PANELS] = dl_panel_scores,
                                      [MHA_SCORES_QUANTISED] = dl_quantised_scores,
                                      [MHA_SCORES_QUANTISED_PANELS] = dl_quantised_panel_scores};
    static dl_step *const values[] = {[MHA_SUMS_IN_MEMORY] = dl_values,
                                      [MHA_SUMS_HELD] = dl_held_values,
                                      [MHA_SUMS_QUANTISED] = dl_quantised_values,
                                      [MHA_SUMS_QUANTISED_PANELS] = dl_quantised_panel_values};
    const mha_variant *const v = &d->c->variant;
    const bool is_widened = v->sums_of_values == MHA_SUMS_HELD && d->v_by != DL_SINGLE && d->v_by != DL_WORDS;
    const bool quantises = v->sums_of_values >= MHA_SUMS_QUANTISED;
    return (dl_steps){scores[v->scores_of_keys], quantises ? dl_quantised_softmax : dl_softmax,
                      is_widened ? dl_values : values[v->sums_of_values]};
}

/* The three steps of a tile of `keys` keys from `key` on. */
static void build_tile(d_lanes *d, const dl_steps *steps, const key_range *task, const ir_expr *key,
                       const ir_expr *keys) {
    ir_builder *b = d->b;
    dl_tile tile = {.keys = ir_let_in(b, "keys", ir_idx(b, 1), ir_idx(b, d->c->s->kv_tile + 1), keys)};
    tile.first = dl_first(d, "first_key", key, tile.keys, d->sequence.seq_kv);
    tile.is_partial = is_partial(d, task, &tile);
    const bool has_mask_mod = mha_has_function(d->c, MHA_MASK_FUNCTION);
    IR_GUARD(b, has_mask_mod, dl_shows_some(d, &tile)) {
        dl_locate_keys(d, &tile);
        dl_load_scales(d, &tile);
        steps->scores(d, &tile);
        steps->softmax(d, &tile);
        steps->values(d, &tile);
    }
}

/* With `reproducible`, each listed key is in the tile that has it in dense attention. */
static void build_listed_tiles(d_lanes *d, const dl_steps *steps, const key_range *task, const ir_expr *first,
                               const ir_expr *end) {
    ir_builder *b = d->b;
    IR_FOR(b, key, first, end, 1) {
        const ir_expr *run = dl_listed_run(d, key, end);
        IR_IF(b, ir_gt(b, run, ir_idx(b, 0))) build_tile(d, steps, task, key, run);
    }
}

/* One task: its range of keys, and the tiles of that range. */
static void build_task(d_lanes *d) {
    ir_builder *b = d->b;
    const dl_steps steps = steps_of(d);
    const int64_t most = d->c->s->kv_tile;
    const key_range task = keys_of_task(d);
    const ir_expr *first = task.first, *end = task.end;
    if (!d->one_chunk) {
        const chunk_cut cut = chunks_of(d, &task);
        first = ir_max(b, first, first_of_chunk(d, &cut, d->chunk));
        end = ir_min(b, end, first_of_chunk(d, &cut, ir_plus(b, d->chunk, 1)));
    }
    if (d->tiles_are_fixed) { /* they are counted from the first key */
        const ir_expr *step = ir_idx(b, most);
        first = ir_mul(b, ir_div(b, first, step), step);
    } else if (d->begins_with_page) {
        const ir_expr *size = ir_idx(b, d->page_size);
        first = ir_mul(b, ir_div(b, first, size), size);
    }
    first = ir_let(b, "first", first);
    end = ir_let(b, "end", end);
    IR_GUARD(b, !d->one_chunk, ir_lt(b, first, end)) {
        dl_alloc_scratch(d);
        IR_FOR(b, r, ir_idx(b, 0), d->padded_rows, 1) dl_init_row(d, r);
        if (d->planes) dl_quantise_queries(d);
        if (d->is_listed && d->is_serial) {
            build_listed_tiles(d, &steps, &task, first, end);
        } else {
            IR_FOR(b, key, first, end, most) {
                const ir_expr *left = ir_min(b, ir_sub(b, end, key), ir_idx(b, most));
                build_tile(d, &steps, &task, key, tiles_are_whole(d) ? ir_idx(b, most) : left);
            }
        }
        dl_finish_rows(d, true);
    }
    if (d->one_chunk) return;
    IR_ELSE(b) dl_finish_rows(d, false);
}

/* ---- phases ---- */

/* Opens the sequence and the rows of a task. The task has no rows if the result is not above 0. */
static const ir_expr *open_rows(d_lanes *d, const ir_expr *number, const ir_expr *task) {
    ir_builder *b = d->b;
    d->sequence = mha_sequence_open(d->c, number);
    mha_scale_open(d->c);
    const ir_expr *const group = d->c->params.size[MHA_GROUP];
    d->first_row = ir_times(b, task, d->max_rows);
    const ir_expr *left = ir_sub(b, ir_mul(b, d->sequence.seq_q, group), d->first_row), *end = left;
    if (d->by_query && !d->fixed_rows) {
        const ir_expr *tasks = ir_let(b, "tasks", tasks_of_query(d)), *query = ir_div(b, task, tasks);
        const ir_expr *first = ir_times(b, ir_mod(b, task, tasks), d->max_rows);
        d->first_row = ir_let(b, "first_row", ir_add(b, ir_mul(b, query, group), first));
        left = ir_sub(b, d->sequence.seq_q, query), end = ir_sub(b, group, first);
    }
    d->rows = d->fixed_rows ? ir_idx(b, d->fixed_rows) : ir_let(b, "rows", ir_min(b, end, ir_idx(b, d->max_rows)));
    return d->by_query ? left : d->rows;
}

/* Whether a task may be beyond the last row of its sequence. */
static bool may_be_idle(const d_lanes *d) { return !d->fixed_rows || (d->by_query && d->c->p->is_ragged); }

/* One phase for the tasks; with several chunks, a second phase merges each row's parts in order. */
void mha_d_lanes(mha_context *c) {
    ir_builder *b = c->b;
    d_lanes d = {0};
    dl_derive_sizes(&d, c);
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "b", c->params.size[MHA_BATCH]);
        d.chunk = ir_parallel(b, "chunk", all_chunks(&d));
        d.kv_head = ir_parallel(b, "h", c->params.size[MHA_KV_HEADS]);
        const ir_expr *rows = open_rows(&d, number, ir_parallel(b, "t", row_tasks(&d)));
        IR_GUARD(b, may_be_idle(&d), ir_gt(b, rows, ir_idx(b, 0))) {
            dl_open_list(&d);
            const ir_expr *padded = ir_times(b, ir_ceil_div(b, d.rows, d.row_step), d.row_step);
            d.padded_rows = d.fixed_rows ? d.rows : ir_let(b, "padded_rows", padded);
            build_task(&d);
        }
    }
    if (d.one_chunk) return;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "merge_b", c->params.size[MHA_BATCH]);
        d.kv_head = ir_parallel(b, "merge_h", c->params.size[MHA_KV_HEADS]);
        const ir_expr *rows = open_rows(&d, number, ir_parallel(b, "merge_t", row_tasks(&d)));
        IR_GUARD(b, may_be_idle(&d), ir_gt(b, rows, ir_idx(b, 0))) {
            dl_open_list(&d);
            const key_range keys = d.c->has_first ? keys_of_task(&d) : (key_range){0};
            const ir_expr *chunks = chunks_of(&d, &keys).count;
            IR_FOR(b, r, ir_idx(b, 0), d.rows, 1) dl_merge_row(&d, r, chunks);
        }
    }
}
