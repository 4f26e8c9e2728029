/* The output of scores or probabilities (op=weights): its tasks, and the steps from scores to one row of the output. */
#include "attend/around/probabilities.h"
#include "attend/around/around.h"

#include <math.h>

/* ---- Sizes ---- */

static int64_t at_most(int64_t value, const ir_expr *bound) {
    return ir_is_const(bound) && bound->value.i > 0 && bound->value.i < value ? bound->value.i : value;
}

static void derive_sizes(probabilities *w) {
    enum { ROWS = 48, TILE_ROWS = 6, TILE_VECTORS = 2, SLICE_VECTORS = 4 };
    const mha_context *c = w->c;
    w->lanes = c->lanes;
    w->all_queries = c->params.size[c->p->has_row_ids ? MHA_NUM_ROWS : MHA_SEQ_Q];
    w->all_keys = c->params.size[MHA_SEQ_KV];
    w->queries = at_most(c->group < ROWS ? ROWS / c->group : 1, w->all_queries);
    w->rows = w->queries * c->group;
    w->keys = (int64_t)SLICE_VECTORS * w->lanes;
    w->tile_rows = w->rows < TILE_ROWS ? w->rows : TILE_ROWS;
    w->tile_vectors = w->tile_rows * TILE_VECTORS < 2 * SLICE_VECTORS ? SLICE_VECTORS : TILE_VECTORS;
}

static const ir_expr *tasks_of(const probabilities *w, const ir_expr *count, int64_t each) {
    return ir_ceil_div(w->b, count, each);
}

/* ---- Which keys count ---- */

static bool shows_hidden_keys(const probabilities *w) {
    const attune_weights_mode mode = w->c->p->weights_mode;
    return mode == ATTUNE_WEIGHTS_SCALED || mode == ATTUNE_WEIGHTS_CAPPED;
}

/* Whether c->k may be read beyond the sequence's keys: not with pages, which may not exist, nor if this kernel prepares
 * keys, which it does only for the sequence's. */
static bool has_keys_beyond(const probabilities *w) { return !w->c->p->page_size && !w->c->prepares_keys; }

/* The end of the keys whose products are needed. Queries of a band are in order, so the last one attends to the last
 * key. */
static const ir_expr *limit_of(const probabilities *w) {
    const mha_context *c = w->c;
    if (shows_hidden_keys(w)) return has_keys_beyond(w) ? w->all_keys : w->e.seq_kv;
    if (!c->has_last || c->p->has_row_ids || c->has_global) return w->e.seq_kv;
    const ir_expr *last = ir_add(w->b, w->first_query, ir_plus(w->b, w->count_queries, -1));
    const mha_sight sight = mha_sight_at(c, &w->e, ir_add(w->b, w->e.base, last));
    return ir_let(w->b, "limit", ir_plus(w->b, sight.last, 1));
}

/* ---- One vector of the output ---- */

/* Scalars of a row. */
typedef struct probabilities_row {
    const ir_expr *number, *query_in_band; /* of the row, and of its query, in the band */
    const ir_expr *head, *query, *out_row;
    const ir_expr *position; /* NULL if it does not matter */
    const ir_expr *slope, *lse;
    const ir_expr
        *has_keys; /* whether the LSE is not -inf; it may belong to other keys, so scores may be finite all the same */
    mha_sight sight; /* i32 */
    const ir_expr *kv_head;
    mha_values values; /* values of users' functions that depend on the row */
} probabilities_row;

/* A vector of keys: from `key` on, which is key `at` of the slice. */
typedef struct probabilities_keys {
    const ir_expr *at, *key, *numbers; /* numbers: i32 vector */
    bool is_last;                      /* some may be beyond the end of a row, so accesses are masked */
} probabilities_keys;

/* A bound of keys as i32. It is clamped first, as positions may exceed i32. */
static const ir_expr *as_key(const probabilities *w, const ir_expr *x) {
    if (!x) return NULL;
    const ir_expr *fits = ir_min(w->b, ir_max(w->b, ir_idx(w->c->b, -1), x), w->all_keys);
    return ir_let(w->b, "bound", ir_cast(w->b, IR_I32, fits));
}

static const ir_expr *lanes_below(const probabilities *w, const probabilities_keys *k, const ir_expr *end) {
    const ir_expr *ramp = ir_ramp(w->b, k->key, ir_idx(w->c->b, 1), w->lanes);
    return ir_lt(w->b, ramp, ir_splat(w->b, end, w->lanes));
}

/* An access of a tensor of four dimensions, masked to its columns. */
static const ir_access *along_keys(const probabilities *w, const ir_buffer *tensor, const ir_expr *const index[3],
                                   const probabilities_keys *k) {
    if (!tensor) return NULL;
    const ir_expr *const indices[4] = {index[0], index[1], index[2], k->key};
    const ir_expr *mask = k->is_last ? lanes_below(w, k, tensor->dims[3]) : NULL;
    return ir_access_make(w->b, tensor, w->lanes, -1, 4, indices, mask);
}

/* An access to a mask or bias: a single element if it is the same for all keys. */
static const ir_access *mask_at(const probabilities *w, mha_tensor_id id, const probabilities_row *row,
                                const probabilities_keys *k) {
    const ir_buffer *tensor = w->c->params.tensor[id];
    const ir_expr *const index[3] = {w->e.number, row->head, row->query};
    if (!tensor || !ir_is(tensor->strides[3], 0)) return along_keys(w, tensor, index, k);
    return ir_at(w->b, tensor, 1, 4, index[0], index[1], index[2], k->key);
}

static const ir_expr *bias_at(const probabilities *w, const probabilities_row *row, const probabilities_keys *k) {
    if (!w->c->params.tensor[MHA_ATTN_BIAS]) return NULL;
    return ir_let(w->b, "bias", mha_in_lanes(w->c, mha_load(w->c, mask_at(w, MHA_ATTN_BIAS, row, k)), w->lanes));
}

static mha_place place_of(const probabilities *w, const probabilities_row *row, const probabilities_keys *k) {
    return (mha_place){.sequence = &w->e,
                       .head = row->head,
                       .kv_head = row->kv_head,
                       .query = row->query,
                       .key = k ? k->key : NULL,
                       .lanes = w->lanes};
}

static void open_functions(const probabilities *w, probabilities_row *row, const ir_expr *kv_head) {
    row->kv_head = kv_head;
    const mha_place place = place_of(w, row, NULL);
    row->values = (mha_values){{NULL}};
    if (shows_hidden_keys(w)) return;
    mha_fill_values(w->c, MHA_SCORE_FUNCTION, &place, &row->values);
    mha_fill_values(w->c, MHA_MASK_FUNCTION, &place, &row->values);
}

/* Which of the keys are visible to the row; NULL: all. */
static const ir_expr *visible(const probabilities *w, const probabilities_row *row, const probabilities_keys *k,
                              const ir_expr *bias) {
    mha_hiding hiding = {.sight = row->sight, .key = k->numbers, .bias = bias};
    if (bias && k->is_last) hiding.there = lanes_below(w, k, w->c->params.tensor[MHA_ATTN_BIAS]->dims[3]);
    const mha_place place = place_of(w, row, k);
    hiding.by_function = mha_function_sees(w->c, &place, &row->values, w->lanes);
    if (w->c->params.tensor[MHA_ATTN_MASK])
        hiding.mask = ir_cast(w->b, IR_I32, ir_load(w->b, mask_at(w, MHA_ATTN_MASK, row, k)));
    return mha_sees(w->c, &hiding, w->lanes);
}

/* A vector of scores, or of probabilities. w->scores are multiplied by K's scale already. */
static const ir_expr *shown(const probabilities *w, const probabilities_row *row, const probabilities_keys *k) {
    ir_builder *b = w->b;
    const mha_context *c = w->c;
    const attune_weights_mode mode = c->p->weights_mode;
    const ir_expr *z = ir_load(b, ir_at(b, w->scores, w->lanes, 2, row->number, k->at));
    mha_score_operands operands = {.slope = row->slope};
    if (row->slope) {
        operands.position = ir_cast(b, c->elem, row->position);
        operands.key = ir_cast(b, c->elem, k->numbers);
    }
    if (!shows_hidden_keys(w)) operands.bias = bias_at(w, row, k);
    z = mha_score(c, &operands, z, mode);
    if (shows_hidden_keys(w))
        return mha_hide(c, mha_sees(c, &(mha_hiding){row->sight, .key = k->numbers}, w->lanes), z, 0);
    const mha_place place = place_of(w, row, k);
    z = mha_modified(c, MHA_SCORE_FUNCTION, &place, &row->values, z);
    const ir_expr *seen = visible(w, row, k, operands.bias);
    if (mode != ATTUNE_WEIGHTS_SOFTMAX) return mha_hide(c, seen, z, -INFINITY);
    const ir_expr *probability = mha_hide(c, seen, mha_probability(c, z, ir_splat(b, row->lse, w->lanes)), 0);
    return mha_hide(c, ir_splat(b, row->has_keys, w->lanes), probability, 0);
}

/* ---- Rows ---- */

/* Stores a vector, or adds it to the sum over the heads. */
static void put_vector(const probabilities *w, const probabilities_row *row, const probabilities_keys *k) {
    ir_builder *b = w->b;
    const ir_expr *value = shown(w, row, k);
    if (w->sums) {
        const ir_access *sum = ir_at(b, w->sums, w->lanes, 2, row->query_in_band, k->at);
        ir_store(b, sum, ir_add(b, ir_load(b, sum), value));
        return;
    }
    const ir_expr *const index[3] = {w->e.number, row->head, row->out_row};
    mha_store(w->c, along_keys(w, w->c->params.tensor[MHA_WEIGHTS_OUT], index, k), value);
}

static void put_mean(const probabilities *w, const probabilities_row *row, const probabilities_keys *k) {
    ir_builder *b = w->b;
    const ir_expr *heads = ir_cast(b, w->c->elem, w->c->params.size[MHA_HEADS]);
    const ir_expr *sum = ir_load(b, ir_at(b, w->sums, w->lanes, 2, row->query_in_band, k->at));
    const ir_expr *const index[3] = {w->e.number, ir_idx(b, 0), row->out_row};
    mha_store(w->c, along_keys(w, w->c->params.tensor[MHA_WEIGHTS_OUT], index, k),
              ir_div(b, sum, ir_splat(b, heads, w->lanes)));
}

typedef void put_fn(const probabilities *w, const probabilities_row *row, const probabilities_keys *k);

/* The columns that the output and all masks that are read have: vectors within them need no masks. */
static const ir_expr *whole_columns(const probabilities *w) {
    const ir_expr *end = w->all_keys;
    for (mha_tensor_id id = MHA_ATTN_MASK; id <= MHA_ATTN_BIAS && !shows_hidden_keys(w); id++)
        if (w->c->params.tensor[id]) end = ir_min(w->b, end, w->c->params.tensor[id]->dims[3]);
    return end;
}

/* Whether the whole vector at k->key is within these columns. There is one comparison for each tensor; with one
 * comparison to their minimum, the bounds prover would need case distinctions for every access. */
static const ir_expr *is_whole(const probabilities *w, const probabilities_keys *k) {
    const ir_expr *next = ir_let(w->b, "next", ir_plus(w->b, k->key, w->lanes));
    const ir_expr *whole = ir_le(w->b, next, w->all_keys);
    for (mha_tensor_id id = MHA_ATTN_MASK; id <= MHA_ATTN_BIAS && !shows_hidden_keys(w); id++) {
        const ir_buffer *tensor = w->c->params.tensor[id];
        if (tensor && ir_min(w->b, w->all_keys, tensor->dims[3]) != w->all_keys)
            whole = ir_and(w->b, whole, ir_le(w->b, next, tensor->dims[3]));
    }
    return whole;
}

/* All keys of the slice, by vectors. */
static void each_vector(const probabilities *w, const probabilities_row *row, const ir_expr *first_key, put_fn *put) {
    ir_builder *b = w->b;
    const ir_expr *count = ir_min(b, ir_idx(b, w->keys), ir_sub(b, w->all_keys, first_key)), *end = whole_columns(w);
    const int64_t known = ir_is_const(end) ? end->value.i : -1;
    const bool none_is_last = end == w->all_keys && known >= 0 && known % w->lanes == 0;
    const bool is_only_one = known >= 0 && known < w->lanes, may_be_last = !none_is_last && !is_only_one;
    IR_FOR(b, at, ir_idx(b, 0), count, w->lanes) {
        probabilities_keys k = {.at = at, .key = ir_let(b, "key", ir_add(b, first_key, at)), .is_last = is_only_one};
        const ir_expr *numbers = ir_ramp(b, ir_cast(b, IR_I32, k.key), ir_int(b, IR_I32, 1), w->lanes);
        k.numbers = ir_let(b, "numbers", numbers);
        IR_GUARD(b, may_be_last, is_whole(w, &k)) put(w, row, &k);
        if (may_be_last) {
            k.is_last = true;
            IR_ELSE(b) put(w, row, &k);
        }
    }
}

/* What all heads of a query share. */
static probabilities_row open_query(const probabilities *w, const ir_expr *n) {
    ir_builder *b = w->b;
    const mha_context *c = w->c;
    probabilities_row row = {.query_in_band = n, .out_row = ir_let(b, "out_row", ir_add(b, w->first_query, n))};
    row.query = probabilities_query(w, row.out_row);
    const bool has_lengths = w->e.seq_kv != w->all_keys;
    mha_sight sight = {0};
    if (has_lengths && !(shows_hidden_keys(w) && has_keys_beyond(w))) sight.last = ir_plus(b, w->e.seq_kv, -1);
    if (!shows_hidden_keys(w) && c->has_position) {
        row.position = ir_let(b, "position", ir_add(b, w->e.base, row.query));
        const mha_sight own = mha_sight_at(c, &w->e, row.position);
        sight = (mha_sight){own.first, own.last ? own.last : sight.last, own.last_global};
    }
    row.sight.last = as_key(w, sight.last);
    row.sight.first = as_key(w, sight.first);
    row.sight.last_global = as_key(w, sight.last_global);
    return row;
}

static void open_head(const probabilities *w, probabilities_row *row, const ir_expr *n, const ir_expr *g,
                      const ir_expr *kv_head) {
    ir_builder *b = w->b;
    const mha_context *c = w->c;
    const ir_expr *group = ir_idx(b, c->group);
    row->number = ir_let(b, "row", ir_add(b, ir_mul(b, n, group), g));
    row->head = ir_let(b, "head", ir_add(b, ir_mul(b, kv_head, group), g));
    open_functions(w, row, kv_head);
    if (shows_hidden_keys(w)) return;
    if (c->p->has_alibi_slopes)
        row->slope = ir_let(b, "slope", mha_load(c, ir_at(b, c->params.tensor[MHA_ALIBI_SLOPES], 1, 1, row->head)));
    if (c->p->weights_mode != ATTUNE_WEIGHTS_SOFTMAX) return;
    const ir_access *at = ir_at(b, c->lse, 1, 3, w->e.batch, row->head, row->query);
    row->lse = ir_let(b, "lse_value", mha_load(c, at));
    row->has_keys = ir_let(b, "has_keys", ir_ne(b, row->lse, mha_number(c, -INFINITY, 1)));
}

static void put_rows(const probabilities *w, const ir_expr *kv_head, const ir_expr *first_key) {
    ir_builder *b = w->b;
    IR_FOR(b, n, ir_idx(b, 0), w->count_queries, 1) {
        probabilities_row row = open_query(w, n);
        IR_FOR(b, g, ir_idx(b, 0), ir_idx(b, w->c->group), 1) {
            open_head(w, &row, n, g, kv_head);
            each_vector(w, &row, first_key, put_vector);
        }
    }
}

/* ---- Tasks ---- */

static void clear_sums(const probabilities *w) {
    ir_builder *b = w->b;
    IR_FOR(b, n, ir_idx(b, 0), ir_idx(b, w->queries), 1) {
        IR_FOR(b, at, ir_idx(b, 0), ir_idx(b, w->keys), w->lanes) {
            ir_store(b, ir_at(b, w->sums, w->lanes, 2, n, at), mha_number(w->c, 0, w->lanes));
        }
    }
}

/* The mean over all heads, in their order, so that its bits are always the same. */
static void average_slice(const probabilities *w, const ir_expr *first_key) {
    ir_builder *b = w->b;
    clear_sums(w);
    IR_FOR(b, kv_head, ir_idx(b, 0), w->c->params.size[MHA_KV_HEADS], 1) {
        probabilities_load_queries(w, kv_head);
        probabilities_scores(w, kv_head, first_key);
        put_rows(w, kv_head, first_key);
    }
    IR_FOR(b, n, ir_idx(b, 0), w->count_queries, 1) {
        const probabilities_row row = {.query_in_band = n,
                                       .out_row = ir_let(b, "out_row", ir_add(b, w->first_query, n))};
        each_vector(w, &row, first_key, put_mean);
    }
}

static const ir_buffer *scratch(const probabilities *w, const char *name, int64_t rows, int64_t columns) {
    return ir_scratch(w->b, name, w->c->elem, 2, (int64_t[]){rows, columns});
}

static void build_phase(probabilities *w) {
    enum { SLICES_IN_A_CHUNK = 8 };
    ir_builder *b = w->b;
    const mha_context *c = w->c;
    const int64_t chunk = w->keys * SLICES_IN_A_CHUNK;
    const bool averages = c->p->weights_average;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->params.size[MHA_BATCH]);
        const ir_expr *kv_head = averages ? NULL : ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
        const ir_expr *band = ir_parallel(b, "band", tasks_of(w, w->all_queries, w->queries));
        const ir_expr *chunk_number = ir_parallel(b, "chunk", tasks_of(w, w->all_keys, chunk));
        w->e = mha_sequence_open(c, number);
        w->first_query = ir_let(b, "first_query", ir_times(b, band, w->queries));
        const ir_expr *left = ir_sub(b, w->all_queries, w->first_query);
        w->count_queries = ir_let(b, "count", ir_min(b, ir_idx(b, w->queries), left));
        w->limit = limit_of(w);
        w->q = scratch(w, "queries", w->rows, c->p->head_dim);
        w->kt = scratch(w, "keys_t", c->p->head_dim, w->keys);
        if (c->params.tensor[MHA_K_SCALE]) w->scales = scratch(w, "scales", 1, w->keys);
        w->scores = scratch(w, "scores", w->rows, w->keys);
        if (averages) w->sums = scratch(w, "sums", w->queries, w->keys);
        if (!averages) probabilities_load_queries(w, kv_head);
        const ir_expr *first = ir_times(b, chunk_number, chunk);
        const ir_expr *end = ir_min(b, ir_plus(b, first, chunk), w->all_keys);
        IR_LOOP(b, key, ir_for_begin(b, "first_key", first, end, w->keys, false)) {
            if (averages) {
                average_slice(w, key);
            } else {
                probabilities_scores(w, kv_head, key);
                put_rows(w, kv_head, key);
            }
        }
    }
}

/* Copies the kernel's LSE to the caller's, which is an output and cannot be read by this kernel. */
static void copy_lse(mha_context *c, const ir_buffer *lse) {
    ir_builder *b = c->b;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->params.size[MHA_BATCH]);
        const ir_expr *head = ir_parallel(b, "head", c->params.size[MHA_HEADS]);
        IR_FOR(b, query, ir_idx(b, 0), c->params.size[MHA_SEQ_Q], 1) {
            ir_store(b, ir_at(b, lse, 1, 3, number, head, query),
                     ir_load(b, ir_at(b, c->lse, 1, 3, number, head, query)));
        }
    }
}

void mha_probabilities(mha_context *c) {
    mha_context natural = *c;
    natural.is_natural = true;
    probabilities w = {.c = &natural, .b = c->b};
    const ir_buffer *lse = c->params.tensor[MHA_LSE];
    derive_sizes(&w);
    if (lse && c->lse && c->lse != lse) copy_lse(c, lse);
    build_phase(&w);
}
