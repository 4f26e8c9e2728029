/* attn_mask and attn_bias, which vary along the lanes: before the scores of a tile and stripe, their part is copied to
 * scratch as [key][row]. How it is read depends on what they vary along:
 *
 *     keys     the same for all rows, such as padding     one element for each key, broadcast
 *     rows     the same for all keys                      one vector for all keys
 *     both     neighbouring keys contiguous in memory     transposed, a quarter of a vector of keys at a time
 *     both     otherwise                                  element by element */
#include "attend/prefill/layout.h"

#include <math.h>

static void store_element(q_lanes *c, const ir_expr *j, const ir_expr *at, const ir_expr *keep, const ir_expr *bias) {
    ir_builder *b = c->b;
    if (!bias) {
        if (keep) ir_store(b, ir_at(b, c->keep, keep->type.lanes, 2, j, at), keep);
        return;
    }
    const int lanes = bias->type.lanes;
    if (keep) {
        const ir_expr *keeps = ir_ne(b, ir_cast(b, IR_I32, keep), ir_splat(b, ir_int(b, IR_I32, 0), lanes));
        bias = ir_select(b, keeps, bias, mha_number(c->m, -INFINITY, lanes));
    }
    ir_store(b, ir_at(b, c->bias, lanes, 2, j, at), bias);
}

/* How a mask or bias changes along the rows of a stripe and along the keys. */
typedef enum variation {
    ALONG_KEYS, /* the same for all rows: one element for each key */
    ALONG_ROWS, /* the same for all keys: one vector for all of them */
    ALONG_BOTH, /* along both, and neighbouring keys are contiguous: transposed */
    SCATTERED   /* along both, otherwise: element by element */
} variation;

typedef struct elements {
    const ir_buffer *tensor; /* NULL: the problem has none */
    variation varies;
    int lanes;              /* rows that are loaded together */
    const ir_expr *of_rows; /* the elements of these rows, if ALONG_ROWS */
} elements;

static elements elements_of(const q_lanes *c, mha_tensor_id id) {
    const attune_problem *p = c->m->p;
    const int64_t *dims = id == MHA_ATTN_MASK ? p->attn_mask_dims : p->attn_bias_dims;
    const ir_buffer *tensor = c->m->params.tensor[id];
    elements e = {.tensor = tensor, .varies = SCATTERED, .lanes = c->m->lanes};
    if (!tensor) return e;
    const ir_expr *inner = tensor->strides[3];
    if (dims[2] == 1 && (dims[1] == 1 || c->m->group == 1))
        e.varies = ALONG_KEYS;
    else if (dims[3] == 1)
        e.varies = ALONG_ROWS;
    else if (!inner || ir_is(inner, 1))
        e.varies = ALONG_BOTH;
    return e;
}

/* The elements of the rows at a key: one load for each row, or one for all rows. */
static const ir_expr *load_rows(q_lanes *c, const elements *e, const q_lanes_row *rows, const ir_expr *key) {
    ir_builder *b = c->b;
    const ir_expr *parts[IR_MAX_LANES];
    const int count = e->varies == ALONG_KEYS ? 1 : e->lanes;
    for (int l = 0; l < count; l++) {
        const ir_access *at = ir_at(b, e->tensor, 1, 4, c->e.number, rows[l].head, rows[l].query, key);
        parts[l] = e->tensor->type.elem == IR_I8 ? ir_load(b, at) : mha_load(c->m, at);
    }
    if (e->lanes == 1) return parts[0];
    return ir_let(b, "elements", count == 1 ? ir_splat(b, parts[0], e->lanes) : mha_concat(b, parts, count, 1));
}

/* Prefetches the same rows of the next tile: the hardware prefetcher does not predict accesses of a few bytes to many
 * rows. */
static void prefetch_next(q_lanes *c, const q_lanes_tile *t, const ir_buffer *tensor, const q_lanes_row *rows) {
    enum { LINE_BYTES = 64 };
    ir_builder *b = c->b;
    const ir_expr *next = ir_plus(c->b, t->first_key, c->m->s->kv_tile);
    const int64_t step = LINE_BYTES / ir_elem_get(tensor->type.elem)->bytes;
    IR_LOOP(b, j, ir_for_begin(b, "ahead", ir_idx(b, 0), ir_idx(b, c->m->s->kv_tile), step, false)) {
        for (int l = 0; l < c->m->lanes; l++)
            ir_prefetch(b, ir_at(b, tensor, 1, 4, c->e.number, rows[l].head, rows[l].query, ir_add(b, next, j)));
    }
}

/* Opens the loop over the stripe's rows, mask->lanes at a time, and loads elements that all keys share. */
static const ir_expr *begin_rows(q_lanes *c, const q_lanes_tile *t, elements *mask, elements *bias, q_lanes_row *rows) {
    const ir_expr *at = ir_for_begin(c->b, "at", ir_idx(c->b, 0), ir_idx(c->b, c->stripe_rows), mask->lanes, false);
    elements *const both[2] = {mask, bias};
    const bool alike = (!mask->tensor || mask->varies == ALONG_KEYS) && (!bias->tensor || bias->varies == ALONG_KEYS);
    for (int l = 0; l < (alike ? 1 : mask->lanes); l++) rows[l] = ql_row(c, t->stripe, ir_plus(c->b, at, l));
    for (int i = 0; i < 2; i++)
        if (both[i]->tensor && both[i]->varies == ALONG_ROWS)
            both[i]->of_rows = load_rows(c, both[i], rows, ir_let_index(c->b, "any_key", c->e.seq_kv, t->first_key));
    return at;
}

static const ir_expr *load_key(q_lanes *c, const elements *e, const q_lanes_row *rows, const ir_expr *key) {
    if (!e->tensor) return NULL;
    return e->of_rows ? e->of_rows : load_rows(c, e, rows, key);
}

/* Keys lo … hi - 1, one by one. Keys beyond the last one repeat it, as in the register tile. */
static void load_keys(q_lanes *c, const q_lanes_tile *t, elements mask, elements bias, const ir_expr *lo,
                      const ir_expr *hi) {
    ir_builder *b = c->b;
    q_lanes_row rows[IR_MAX_LANES];
    IR_LOOP(b, at, begin_rows(c, t, &mask, &bias, rows)) {
        IR_FOR(b, j, lo, hi, 1) {
            const ir_expr *key = ir_let(b, "column", ql_clamp_key(c, ir_add(b, t->first_key, j)));
            store_element(c, j, at, load_key(c, &mask, rows, key), load_key(c, &bias, rows, key));
        }
    }
}

/* The elements of a quarter of a vector of keys from `column` on, a vector of rows for each key. */
static void load_quarter(q_lanes *c, const elements *e, const q_lanes_row *rows, const ir_expr *column,
                         const ir_expr *vectors[4]) {
    if (!e->tensor) return;
    if (e->varies != ALONG_BOTH)
        for (int i = 0; i < mha_quarter(c->m->lanes); i++) vectors[i] = load_key(c, e, rows, ir_plus(c->b, column, i));
    else if (e->tensor->type.elem == IR_I8)
        ql_load_bytes_transposed(c, e->tensor, c->e.number, rows, column, vectors);
    else
        ql_load_transposed(c, &(q_lanes_tensor){e->tensor, c->e.number, ir_idx(c->b, 0), false, NULL}, rows, column,
                           vectors);
}

/* Keys lo, lo + 4, … < hi - 3, for all rows of the stripe. */
static void load_columns(q_lanes *c, const q_lanes_tile *t, elements mask, elements bias, const ir_expr *lo,
                         const ir_expr *hi) {
    ir_builder *b = c->b;
    const int quarter = mha_quarter(c->m->lanes);
    q_lanes_row rows[IR_MAX_LANES];
    const ir_expr *kept[4] = {0}, *biases[4] = {0};
    IR_LOOP(b, at, begin_rows(c, t, &mask, &bias, rows)) {
        if (mask.tensor && mask.varies == ALONG_BOTH) prefetch_next(c, t, mask.tensor, rows);
        IR_FOR(b, j, lo, ir_plus(c->b, hi, 1 - quarter), quarter) {
            const ir_expr *column = ir_let(b, "column", ir_add(b, t->first_key, j));
            load_quarter(c, &mask, rows, column, kept);
            load_quarter(c, &bias, rows, column, biases);
            for (int i = 0; i < quarter; i++) store_element(c, ir_plus(c->b, j, i), at, kept[i], biases[i]);
        }
    }
}

void ql_load_elements(q_lanes *c, const q_lanes_tile *t, const ir_expr *to) {
    ir_builder *b = c->b;
    elements mask = elements_of(c, MHA_ATTN_MASK), bias = elements_of(c, MHA_ATTN_BIAS);
    const bool scattered = (mask.tensor && mask.varies == SCATTERED) || (bias.tensor && bias.varies == SCATTERED);
    if (scattered || (mask.varies != ALONG_BOTH && bias.varies != ALONG_BOTH)) {
        load_keys(c, t, mask, bias, t->from, to);
        return;
    }
    const ir_expr *quarter = ir_idx(b, mha_quarter(c->m->lanes));
    const ir_expr *end = ir_let(b, "columns_end", ir_min(b, t->room, to));
    load_columns(c, t, mask, bias, t->from, end);
    const ir_expr *steps = ir_div(b, ir_max(b, ir_idx(b, 0), ir_sub(b, end, t->from)), quarter);
    /* The few remaining keys go one row at a time, which needs little code. */
    mask.lanes = bias.lanes = 1;
    load_keys(c, t, mask, bias, ir_let(b, "columns_done", ir_add(b, t->from, ir_mul(b, steps, quarter))), to);
}
