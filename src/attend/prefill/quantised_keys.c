/* The two phases of quantised_keys.h. The first computes the mean key of each sequence and KV head. The second writes
 * the rows of K, less that mean, as i8, with a scale and the start of the sums of each key. Lanes run along the columns
 * of K in both. */
#include "attend/prefill/quantised_keys.h"

#include "base/integers.h"
#include "nest/product.h"
#include "nest/rows.h"

#include <math.h>

enum { LARGEST = 127, UNSIGNED_OFFSET = 128 };

/* ---- Quantised rows ---- */

/* head_dim rounded up to a multiple of the lanes of any target, and of a lane's four columns. */
int64_t mha_quantised_columns(const mha_context *c) {
    enum { STEP = 16 };
    return ceil_div(c->p->head_dim, STEP) * STEP;
}

static void clear_row(const mha_context *c, const mha_row *row) {
    IR_FOR(c->b, at, ir_idx(c->b, 0), ir_idx(c->b, mha_quantised_columns(c)), c->lanes) {
        ir_store(c->b, mha_row_access(c, row, at, c->lanes), mha_number(c, 0, c->lanes));
    }
}

const ir_buffer *mha_row_numbers(const mha_context *c) {
    const ir_buffer *numbers = ir_scratch(c->b, "numbers", c->elem, 1, (int64_t[]){mha_quantised_columns(c)});
    const mha_row row = {numbers, {NULL}, NULL};
    if (numbers) clear_row(c, &row);
    return numbers;
}

/* By how much a loop over `vectors` vectors is unrolled. */
static int64_t unrolling(int64_t vectors) { return divisor_below(vectors, 4); }

const ir_expr *mha_quantised_columns_begin(const mha_context *c) {
    const int64_t vectors = mha_quantised_columns(c) / c->lanes;
    const ir_expr *vector = mha_steps_begin(c, "vector", ir_idx(c->b, 0), ir_idx(c->b, vectors), unrolling(vectors));
    return ir_times(c->b, vector, c->lanes);
}

/* The bits of |x| as i32 are ordered as the numbers are, with NaN above infinity. */
static const ir_expr *size_bits(const mha_context *c, const ir_expr *x) {
    return x ? ir_bitcast(c->b, IR_I32, ir_abs(c->b, x)) : NULL;
}

/* A row that is loaded, and the largest size_bits so far: `most` of x, `most_less` of x less the mean. */
typedef struct loading {
    const ir_buffer *numbers;
    const mha_row *from, *mean; /* mean may be NULL */
    const ir_access *most, *most_less;
    int lanes;
} loading;

static void join_maximum(const mha_context *c, const ir_access *most, const ir_expr *x) {
    ir_store(c->b, most, ir_max(c->b, size_bits(c, x), ir_load(c->b, most)));
}

static void load_columns(const mha_context *c, const loading *l, const ir_expr *column) {
    ir_builder *b = c->b;
    const ir_expr *x = ir_let(b, "x", mha_load_row(c, l->from, column, l->lanes));
    ir_store(b, ir_at(b, l->numbers, l->lanes, 1, column), x);
    join_maximum(c, l->most, x);
    if (l->mean) join_maximum(c, l->most_less, ir_sub(b, x, ir_load(b, mha_row_access(c, l->mean, column, l->lanes))));
}

static const ir_expr *largest(const mha_context *c, const ir_access *most) {
    return ir_let(c->b, "bits", ir_reduce(c->b, IR_MAX, ir_let(c->b, "most_lanes", ir_load(c->b, most))));
}

mha_quantised_scale mha_load_numbers(const mha_context *c, const ir_buffer *numbers, const mha_row *from,
                                     const mha_row *mean) {
    ir_builder *b = c->b;
    const int64_t columns = c->p->head_dim;
    const int lanes = mha_column_lanes(columns, c->lanes);
    const ir_expr *none = ir_splat(b, ir_int(b, IR_I32, 0), lanes), *takes = NULL;
    const loading l = {numbers, from, mean, ir_mutable(b, "most", none), mean ? ir_mutable(b, "most_less", none) : NULL,
                       lanes};
    if (columns % lanes) {
        MHA_COLUMNS(c, d, columns, lanes) load_columns(c, &l, d.at);
    } else {
        MHA_STEPS(c, vector, ir_idx(b, 0), ir_idx(b, columns / lanes), unrolling(columns / lanes))
        load_columns(c, &l, ir_times(b, vector, lanes));
    }
    const ir_expr *bits = largest(c, l.most);
    if (mean) {
        const ir_expr *less = largest(c, l.most_less);
        takes = ir_let(b, "takes", ir_select(b, ir_lt(b, less, bits), ir_int(b, IR_I32, -1), ir_int(b, IR_I32, 0)));
        bits = ir_min(b, less, bits);
    }
    const ir_expr *range = ir_let(b, "range", ir_bitcast(b, IR_F32, bits));
    const ir_expr *factor = ir_let(b, "factor", ir_div(b, mha_number(c, LARGEST, 1), range));
    const ir_expr *usable = ir_lt(b, factor, mha_number(c, INFINITY, 1));
    return (mha_quantised_scale){ir_let(b, "code_factor", ir_select(b, usable, factor, mha_number(c, 0, 1))),
                                 ir_let(b, "code_scale", ir_div(b, range, mha_number(c, LARGEST, 1))), takes};
}

const ir_expr *mha_if_taken(const mha_context *c, const ir_expr *takes, const ir_expr *x) {
    const ir_expr *bits = mha_in_lanes(c, takes, x->type.lanes);
    return ir_bitcast(c->b, IR_F32, ir_and(c->b, ir_bitcast(c->b, IR_I32, x), bits));
}

const ir_expr *mha_quantised_at(const mha_context *c, const ir_expr *x, const ir_expr *factor) {
    if (!x) return NULL;
    x = ir_rint(c->b, ir_mul(c->b, x, mha_in_lanes(c, factor, x->type.lanes)));
    return ir_let(c->b, "code", ir_cast(c->b, IR_I32, x));
}

/* ---- What the phases write ---- */

const ir_expr *const *mha_quantised_key_index(const mha_context *c, const mha_kv_row *row) {
    return c->p->page_size ? row->linear : row->index;
}

/* With pages, quantised keys are indexed by sequence and token, and not by page. */
void mha_quantised_keys_shared(mha_context *c) {
    ir_builder *b = c->b;
    const ir_expr *const *size = c->params.size;
    if (!mha_quantises_keys(c->p) || ir_failed(b)) return;
    const bool is_paged = c->p->page_size > 0;
    const ir_expr *batch = is_paged ? size[MHA_BATCH] : c->k->dims[0];
    const ir_expr *heads = is_paged ? size[MHA_KV_HEADS] : c->k->dims[1];
    const ir_expr *tokens = is_paged ? size[MHA_SEQ_KV] : mha_kv_tokens(c, c->k);
    const ir_expr *columns = ir_idx(b, mha_quantised_columns(c));
    const ir_expr *const rows[] = {batch, heads, tokens, columns}, *const keys[] = {batch, heads, tokens};
    const ir_expr *const means[] = {size[MHA_BATCH], heads, columns};
    c->quantised_k.values = ir_shared(b, "key_codes", IR_I8, 4, rows);
    c->quantised_k.scales = ir_shared(b, "key_scales", c->elem, 3, keys);
    c->quantised_k.starts = ir_shared(b, "key_starts", IR_I32, 3, keys);
    c->quantised_k.takes = ir_shared(b, "key_takes", IR_I32, 3, keys);
    c->quantised_k.mean = ir_shared(b, "mean_key", c->elem, 3, means);
}

/* ---- The phases ---- */

/* x if it is finite, else 0. */
static const ir_expr *if_finite(const mha_context *c, const ir_expr *x) {
    ir_builder *b = c->b;
    if (!x) return NULL;
    const int lanes = x->type.lanes;
    return ir_select(b, ir_lt(b, ir_abs(b, x), mha_number(c, INFINITY, lanes)), x, mha_number(c, 0, lanes));
}

/* The mean of `count` vectors of columns, in one loop over all keys. */
static void average_columns(mha_context *c, const mha_sequence *e, const mha_row *mean, const ir_expr *column,
                            int lanes, int64_t count) {
    ir_builder *b = c->b;
    const ir_expr *kv_head = mean->index[1];
    const ir_buffer *sums = ir_registers(b, "sums", c->elem, lanes, 1, &count);
    for (int64_t i = 0; i < count; i++) ir_store(b, ir_at(b, sums, lanes, 1, ir_idx(b, i)), mha_number(c, 0, lanes));
    IR_FOR(b, key, ir_idx(b, 0), e->seq_kv, 1) {
        const mha_kv_row row = mha_kv_row_at(c, e, kv_head, key);
        for (int64_t i = 0; i < count; i++) {
            const ir_access *sum = ir_at(b, sums, lanes, 1, ir_idx(b, i));
            const ir_expr *x = mha_load_kv(c, c->k, &row, ir_plus(b, column, i * lanes), lanes);
            ir_store(b, sum, ir_add(b, ir_load(b, sum), if_finite(c, ir_let(b, "x", x))));
        }
    }
    const ir_expr *keys = ir_let(b, "keys", ir_cast(b, c->elem, ir_max(b, e->seq_kv, ir_idx(b, 1))));
    for (int64_t i = 0; i < count; i++) {
        const ir_expr *sum = ir_load(b, ir_at(b, sums, lanes, 1, ir_idx(b, i)));
        const ir_expr *quotient = ir_let(b, "quotient", ir_div(b, sum, ir_splat(b, keys, lanes)));
        ir_store(b, mha_row_access(c, mean, ir_plus(b, column, i * lanes), lanes), if_finite(c, quotient));
    }
}

static void average(mha_context *c, const mha_sequence *e, const ir_expr *kv_head) {
    ir_builder *b = c->b;
    const mha_row mean = {c->quantised_k.mean, {e->number, kv_head}, NULL};
    const int64_t columns = c->p->head_dim;
    const int lanes = mha_column_lanes(columns, c->lanes);
    const int64_t together = columns % lanes ? 1 : unrolling(columns / lanes);
    clear_row(c, &mean);
    if (together == 1) {
        MHA_COLUMNS(c, d, columns, lanes) average_columns(c, e, &mean, d.at, lanes, 1);
        return;
    }
    IR_FOR(b, column, ir_idx(b, 0), ir_idx(b, columns), together * lanes) {
        average_columns(c, e, &mean, column, lanes, together);
    }
}

static void quantise_key(mha_context *c, const ir_buffer *numbers, const mha_row *mean, const mha_kv_row *key) {
    ir_builder *b = c->b;
    const ir_expr *const *at = mha_quantised_key_index(c, key);
    const mha_row from = mha_kv_row_of(c, c->k, key);
    const mha_quantised_scale scale = mha_load_numbers(c, numbers, &from, mean);
    const ir_access *sum = ir_mutable(b, "code_sum", ir_splat(b, ir_int(b, IR_I32, 0), c->lanes));
    MHA_QUANTISED_COLUMNS(c, d) {
        const ir_expr *less = mha_if_taken(c, scale.takes, ir_load(b, mha_row_access(c, mean, d, c->lanes)));
        const ir_expr *x = ir_sub(b, ir_load(b, ir_at(b, numbers, c->lanes, 1, d)), less);
        const ir_expr *quantised = mha_quantised_at(c, x, scale.factor);
        ir_store(b, ir_at(b, c->quantised_k.values, c->lanes, 4, at[0], at[1], at[2], d), ir_cast(b, IR_I8, quantised));
        ir_store(b, sum, ir_add(b, ir_load(b, sum), quantised));
    }
    const ir_expr *all = ir_reduce(b, IR_ADD, ir_let(b, "code_lanes", ir_load(b, sum)));
    ir_store(b, ir_at(b, c->quantised_k.starts, 1, 3, at[0], at[1], at[2]),
             ir_mul(b, all, ir_int(b, IR_I32, -UNSIGNED_OFFSET)));
    ir_store(b, ir_at(b, c->quantised_k.scales, 1, 3, at[0], at[1], at[2]), scale.scale);
    ir_store(b, ir_at(b, c->quantised_k.takes, 1, 3, at[0], at[1], at[2]), scale.takes);
}

void mha_quantised_keys(mha_context *c) {
    ir_builder *b = c->b;
    if (!c->quantised_k.values) return;
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->params.size[MHA_BATCH]);
        const ir_expr *kv_head = ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
        const mha_sequence e = mha_sequence_open(c, number);
        average(c, &e, kv_head);
    }
    IR_PHASE(b) {
        const ir_expr *number = ir_parallel(b, "sequence", c->params.size[MHA_BATCH]);
        const ir_expr *kv_head = ir_parallel(b, "kv_head", c->params.size[MHA_KV_HEADS]);
        const ir_expr *task = ir_parallel(b, "task", mha_row_tasks(c, c->params.size[MHA_SEQ_KV]));
        const mha_sequence e = mha_sequence_open(c, number);
        const mha_row mean = {c->quantised_k.mean, {number, kv_head}, NULL};
        const ir_buffer *numbers = mha_row_numbers(c);
        MHA_ROWS(c, key, task, e.seq_kv) {
            const mha_kv_row row = mha_kv_row_at(c, &e, kv_head, key);
            quantise_key(c, numbers, &mean, &row);
        }
    }
}
