/* Takes a call apart into numbers and views of its tensors. Then a row at a time: the visible keys, all scores in a
 * wide type, their softmax, the values. */
#include "ref_codes.h"
#include "ref_functions.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tgmath.h>

/* ---- A call taken apart ---- */

typedef struct view {
    const attune_tensor *tensor; /* NULL: the problem has no such tensor */
    const void *data;
} view;

typedef struct reading {
    const attune_problem *p;
    const ref_call *call;
    view q, k, v, out, lse, mask, bias, slopes, sinks, kv_lens, offsets, cu_q, cu_kv, table, k_new, v_new, cos, sin,
        position_ids, row_ids, kv_ids, id_lens, weights, parts, parts_lse, k_scale, v_scale, q_norm, k_norm;
    int64_t heads, group, dim, dim_v, seq_q, seq_kv, seq_new;
    double scale;
    bool is_double;                                  /* the arithmetic is f64 */
    attune_dtype q_rounding, k_rounding, v_rounding; /* as in ref_call; of Q (rotated) in the plain implementation */
    attune_dtype p_rounding;                         /* there, too, of the factors of values */
    bool codes_shares;                               /* there, too: they become codes of integer=all */
    view k_taken, v_taken;                           /* as in ref_call, with their errors */
    ref_format k_format, v_format;
    double k_error, v_error;
    double *largest_modified; /* of the result */
    double *most_mixed;       /* of the result */
} reading;

static view find(const ref_call *c, const char *name) {
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->tensors[i].name, name) == 0) {
            view found = {&c->tensors[i], NULL};
            memcpy(&found.data, (const char *)c->arguments + c->tensors[i].pointer_offset, sizeof found.data);
            return found;
        }
    return (view){NULL, NULL};
}

static int64_t settled(int64_t of_problem, int64_t of_call) {
    return of_problem == ATTUNE_DYNAMIC ? of_call : of_problem;
}

/* Whether scores are in integers. op=weights computes its own, in numbers. */
static bool has_integers(const reading *r) { return r->p->integer && r->p->op != ATTUNE_WEIGHTS; }
static bool is_f64(const view *v) { return v->tensor && v->tensor->dtype == ATTUNE_F64; }

static double scale_of(const attune_problem *p, const attune_arguments *a) {
    const double scale = p->has_softmax_scale ? a->softmax_scale : p->softmax_scale;
    return isnan(scale) ? 1.0 / sqrt((double)p->head_dim) : scale;
}

static reading read_call(const ref_call *c) {
    const attune_problem *const p = c->problem;
    const attune_arguments *const a = c->arguments;
    reading r = {
        .p = p,
        .call = c,
        .q = find(c, "q"),
        .k = find(c, "k"),
        .v = find(c, "v"),
        .out = find(c, "out"),
        .lse = find(c, "lse"),
        .mask = find(c, "attn_mask"),
        .bias = find(c, "attn_bias"),
        .slopes = find(c, "alibi_slopes"),
        .sinks = find(c, "sinks"),
        .kv_lens = find(c, "kv_lens"),
        .offsets = find(c, "causal_offsets"),
        .cu_q = find(c, "cu_seqlens_q"),
        .cu_kv = find(c, "cu_seqlens_kv"),
        .table = find(c, "block_table"),
        .k_new = find(c, "k_new"),
        .v_new = find(c, "v_new"),
        .cos = find(c, "cos"),
        .sin = find(c, "sin"),
        .position_ids = find(c, "position_ids"),
        .row_ids = find(c, "row_ids"),
        .kv_ids = find(c, "kv_ids"),
        .id_lens = find(c, "kv_id_lens"),
        .weights = find(c, "weights"),
        .parts = find(c, "parts"),
        .parts_lse = find(c, "parts_lse"),
        .k_scale = find(c, "k_scale"),
        .v_scale = find(c, "v_scale"),
        .q_norm = find(c, "q_norm"),
        .k_norm = find(c, "k_norm"),
        .heads = a->num_heads,
        .group = a->num_kv_heads ? a->num_heads / a->num_kv_heads : 1,
        .dim = p->head_dim,
        .dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim,
        .seq_q = settled(p->seq_q, a->seq_q),
        .seq_kv = p->seq_kv ? settled(p->seq_kv, a->seq_kv) : settled(p->seq_q, a->seq_kv < 0 ? a->seq_q : a->seq_kv),
        .seq_new = settled(p->seq_new, a->seq_new),
        .scale = scale_of(p, a),
        .k_rounding = c->k_rounding,
        .v_rounding = c->v_rounding,
        .k_taken = {NULL, c->k_taken},
        .v_taken = {NULL, c->v_taken},
        .k_error = c->k_error,
        .v_error = c->v_error,
        .k_format = ref_format_of(p, true),
        .v_format = ref_format_of(p, p->v_in_k),
    };
    r.k_taken.tensor = r.k.tensor;
    r.v_taken.tensor = r.v.tensor;
    r.is_double = p->softmax_precision
                      ? p->softmax_precision == ATTUNE_F64
                      : is_f64(&r.q) || is_f64(&r.k) || is_f64(&r.v) || is_f64(&r.bias) || is_f64(&r.parts);
    if (p->v_in_k) r.v = r.k, r.v_new = r.k_new, r.v_scale = r.k_scale, r.v_taken = r.k_taken;
    return r;
}

static int64_t place(const attune_tensor *t, int64_t i, int64_t j, int64_t k, int64_t l) {
    const int64_t index[4] = {i, j, k, l};
    int64_t at = 0;
    for (int d = 0; d < t->rank; d++) at += index[d] * t->strides[d];
    return at;
}

static int64_t integer_at(const view *v, int64_t i, int64_t j) {
    return ((const int32_t *)v->data)[place(v->tensor, i, j, 0, 0)];
}

/* One sequence of the batch: its queries and keys, and where they begin. */
typedef struct sequence {
    int64_t number, q_batch, kv_batch, first_q, first_kv;
    int64_t rows, keys, fresh; /* the last `fresh` keys come from k_new */
    int64_t base;              /* position of query 0 */
} sequence;

static sequence open_sequence(const reading *r, int64_t number) {
    const attune_problem *const p = r->p;
    sequence e = {.number = number, .q_batch = number, .kv_batch = number, .rows = r->seq_q, .keys = r->seq_kv};
    if (r->cu_q.tensor) {
        e.q_batch = 0;
        e.first_q = integer_at(&r->cu_q, number, 0);
        e.rows = integer_at(&r->cu_q, number + 1, 0) - e.first_q;
    }
    if (r->cu_kv.tensor) {
        e.kv_batch = 0;
        e.first_kv = integer_at(&r->cu_kv, number, 0);
        e.keys = integer_at(&r->cu_kv, number + 1, 0) - e.first_kv;
    }
    if (r->kv_lens.tensor) e.keys = integer_at(&r->kv_lens, number, 0);
    if (p->seq_new) e.fresh = p->is_ragged ? e.rows : r->seq_new;
    e.base = p->causal_offset;
    if (p->op != ATTUNE_ROTARY && p->causal_align == ATTUNE_BOTTOM_RIGHT) e.base += e.keys - e.rows;
    if (r->offsets.tensor) e.base += integer_at(&r->offsets, number, 0);
    return e;
}

/* How a tensor of tokens lies; scales lie as rows do. */
static ref_format layout_of(const reading *r, const view *cache) {
    const ref_format rows = {.unit = 0};
    return cache->tensor == r->k.tensor ? r->k_format : cache->tensor == r->v.tensor ? r->v_format : rows;
}

/* Where column 0 of key j lies in k or v. */
static int64_t key_place(const reading *r, const sequence *e, const view *cache, int64_t head, int64_t j) {
    const int64_t size = r->p->page_size, page = size ? integer_at(&r->table, e->number, j / size) : e->kv_batch;
    const ref_format f = layout_of(r, cache);
    return place(cache->tensor, page, head, 0, 0) +
           ref_token_place(&f, size ? j % size : e->first_kv + j, cache->tensor->strides[2]);
}

long double ref_scale(const attune_tensor *scale, const void *data, int64_t i, int64_t j, int64_t k) {
    if (!scale) return 1;
    return ref_load(scale->dtype, data, scale->rank == 1 ? place(scale, j, 0, 0, 0) : place(scale, i, j, k, 0));
}

static long double scale_of_key(const reading *r, const sequence *e, const view *scale, int64_t head, int64_t j) {
    if (!scale->tensor) return 1;
    if (scale->tensor->rank == 1) return ref_scale(scale->tensor, scale->data, 0, head, 0);
    return ref_load(scale->tensor->dtype, scale->data, key_place(r, e, scale, head, j));
}

/* Scale number `number` of a row of them. */
static long double scale_of_row(const reading *r, const sequence *e, const ref_format *f, const view *scale,
                                int64_t head, int64_t j, int64_t number) {
    const attune_tensor *const t = scale->tensor;
    if (f->by_channel) return ref_load(t->dtype, scale->data, place(t, head, number, 0, 0));
    return ref_load(t->dtype, scale->data, key_place(r, e, scale, head, j) + number * t->strides[3]);
}

/* The scale by which the quantised value of a column is multiplied. */
static long double scale_of_column(const reading *r, const sequence *e, const ref_format *f, const view *cache,
                                   const view *scale, int64_t head, int64_t j, int64_t column) {
    if (f->is_inline) return ref_inline_scale(f, cache->data, key_place(r, e, cache, head, j), column);
    if (f->by_channel) return scale_of_row(r, e, f, scale, head, j, column);
    if (f->by_group) return scale_of_row(r, e, f, scale, head, j, column / ref_run(f));
    return scale_of_key(r, e, scale, head, j);
}

/* And what is added then. */
static long double least_of_column(const reading *r, const sequence *e, const ref_format *f, const view *cache,
                                   const view *scale, int64_t head, int64_t j, int64_t column) {
    if (f->is_inline) return ref_inline_least(f, cache->data, key_place(r, e, cache, head, j), column);
    const int64_t number = ref_row_scales(f) + (f->by_channel ? column : column / ref_run(f));
    return f->has_least ? scale_of_row(r, e, f, scale, head, j, number) : 0;
}

/* The same for the n-th new key in k_new or v_new. */
static int64_t new_place(const sequence *e, const view *fresh, int64_t head, int64_t n) {
    return place(fresh->tensor, e->q_batch, head, e->first_q + n, 0);
}

/* Keys that an earlier call has left in a cache, normalised and rotated if the problem says so. */
static bool has_finished_keys(const attune_problem *p) { return p->seq_new || p->kv_projected; }
/* Whether there are scores of keys beyond a sequence's last: of stored ones that this call leaves as they are. */
static bool has_more_keys(const attune_problem *p) {
    const bool is_prepared = p->rotary_dim || p->qk_norm_eps > 0 || p->qk_hadamard;
    return !p->page_size && (!is_prepared || has_finished_keys(p));
}

/* ---- Who sees whom ---- */

static bool outside_window(const attune_problem *p, int64_t position, int64_t j) {
    /* Positions may be negative: without global tokens such a query has its window all the same. */
    if (p->global_tokens > 0 && (j < p->global_tokens || position < p->global_tokens)) return false;
    return (p->window_left >= 0 && j < position - p->window_left) ||
           (p->window_right >= 0 && j > position + p->window_right);
}

static ref_place function_place(const reading *r, const sequence *e, int64_t head, int64_t i, int64_t j) {
    return (ref_place){r->call, e->number, head, head / r->group, i, j, e->rows, e->keys};
}

static bool is_hidden(const reading *r, const sequence *e, int64_t head, int64_t i, int64_t j) {
    const int64_t position = e->base + i;
    if (j >= e->keys || (r->p->is_causal && j > position) || outside_window(r->p, position, j)) return true;
    const attune_tensor *const mask = r->mask.tensor, *const bias = r->bias.tensor;
    if (mask && (j >= mask->dims[3] || ref_load(mask->dtype, r->mask.data, place(mask, e->number, head, i, j)) == 0))
        return true;
    if (bias && (j >= bias->dims[3] ||
                 ref_load(bias->dtype, r->bias.data, place(bias, e->number, head, i, j)) == -(long double)INFINITY))
        return true;
    if (!r->p->mask_mod[0]) return false;
    const ref_place at = function_place(r, e, head, i, j);
    return !ref_function_sees(&at);
}

/* ---- Lists of keys ---- */

/* Keys in the list of query i of a sequence, and key n of it. */
static int64_t list_row(const reading *r, const sequence *e, int64_t i) {
    return r->p->kv_ids == ATTUNE_KV_IDS_QUERY ? e->first_q + i : 0;
}
static int64_t list_batch(const reading *r, const sequence *e) {
    return r->p->kv_ids == ATTUNE_KV_IDS_QUERY ? e->q_batch : e->number;
}
static int64_t listed_keys(const reading *r, const sequence *e, int64_t i) {
    if (r->id_lens.tensor) return integer_at(&r->id_lens, list_batch(r, e), list_row(r, e, i));
    return r->kv_ids.tensor->dims[2];
}
static int64_t listed_key(const reading *r, const sequence *e, int64_t i, int64_t n) {
    const attune_tensor *const t = r->kv_ids.tensor;
    return ((const int32_t *)r->kv_ids.data)[place(t, list_batch(r, e), list_row(r, e, i), n, 0)];
}

/* Whether key j is in the list of query i, and not hidden there. */
static bool is_listed(const reading *r, const sequence *e, int64_t head, int64_t i, int64_t j) {
    sequence as_list = *e;
    as_list.keys = listed_keys(r, e, i);
    for (int64_t n = 0; n < as_list.keys; n++)
        if (listed_key(r, e, i, n) == j && !is_hidden(r, &as_list, head, i, n)) return true;
    return false;
}

static void mark_row(unsigned char *seen, const attune_tensor *t, int64_t at, int64_t columns) {
    if (!seen) return;
    for (int64_t c = 0; c < columns; c++) seen[at + c * t->strides[t->rank - 1]] = 1;
}

static void mark_cached(unsigned char *seen, const ref_format *f, const attune_tensor *t, int64_t at,
                        int64_t elements) {
    for (int64_t i = 0; seen && i < elements; i++)
        seen[at + (f->unit ? ref_column_place(f, i, 1) : i * t->strides[t->rank - 1])] = 1;
}

/* Or of groups. */
static bool is_of_tokens(const view *scale) { return scale->tensor && scale->tensor->rank > 2; }

static void mark_scales(const reading *r, const sequence *e, const view *scale, int64_t head, int64_t j,
                        unsigned char *seen) {
    if (!seen || !is_of_tokens(scale)) return;
    const attune_tensor *const t = scale->tensor;
    const int64_t at = key_place(r, e, scale, head, j);
    for (int64_t i = 0; i < (t->rank == 4 ? t->dims[3] : 1); i++) seen[at + (t->rank == 4 ? i * t->strides[3] : 0)] = 1;
}

static void mark_key(const reading *r, const sequence *e, int64_t kv_head, int64_t j, const ref_seen *seen) {
    const int64_t n = j - (e->keys - e->fresh);
    unsigned char *const v = r->p->v_in_k ? seen->k : seen->v, *const v_new = r->p->v_in_k ? seen->k_new : seen->v_new;
    if (n < 0 || j >= e->keys) {
        mark_scales(r, e, &r->k_scale, kv_head, j, seen->k_scale);
        mark_scales(r, e, &r->v_scale, kv_head, j, seen->v_scale);
    }
    if (n >= 0 && j < e->keys) {
        mark_row(seen->k_new, r->k_new.tensor, new_place(e, &r->k_new, kv_head, n), r->dim);
        if (r->v_new.tensor) mark_row(v_new, r->v_new.tensor, new_place(e, &r->v_new, kv_head, n), r->dim_v);
    } else {
        const int64_t elements_v = r->v_format.is_packed ? ref_row_elements(&r->v_format) : r->dim_v;
        mark_cached(seen->k, &r->k_format, r->k.tensor, key_place(r, e, &r->k, kv_head, j),
                    ref_row_elements(&r->k_format));
        if (r->v.tensor) mark_cached(v, &r->v_format, r->v.tensor, key_place(r, e, &r->v, kv_head, j), elements_v);
    }
}

void ref_mark_seen(const ref_call *call, const ref_seen *seen) {
    const reading r = read_call(call);
    if (!r.k.tensor) return;
    /* The weights of hidden keys are their scores all the same. */
    const bool sees_all = r.p->weights_mode == ATTUNE_WEIGHTS_SCALED || r.p->weights_mode == ATTUNE_WEIGHTS_CAPPED;
    for (int64_t b = 0; b < call->arguments->batch; b++) {
        const sequence e = open_sequence(&r, b);
        const int64_t keys = sees_all && has_more_keys(r.p) ? r.seq_kv : e.keys;
        for (int64_t kv_head = 0; kv_head * r.group < r.heads; kv_head++)
            for (int64_t j = 0; j < keys; j++) {
                bool is_seen = sees_all;
                for (int64_t h = kv_head * r.group; h < (kv_head + 1) * r.group && !is_seen; h++)
                    for (int64_t i = 0; i < e.rows && !is_seen; i++)
                        is_seen = r.kv_ids.tensor ? is_listed(&r, &e, h, i, j) : !is_hidden(&r, &e, h, i, j);
                if (is_seen) mark_key(&r, &e, kv_head, j, seen);
            }
    }
}

/* ---- Results ---- */

static int64_t elements(const attune_tensor *t) {
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++) count *= t->dims[d];
    return count;
}

static long double *allocate(int64_t count, bool *good) {
    long double *const data = malloc((size_t)(count ? count : 1) * sizeof *data);
    *good = *good && data;
    return data;
}

/* Dense, as the output is now. */
static long double *copy_output(const view *v, bool *good) {
    const attune_tensor *const t = v->tensor;
    if (!t || !t->is_output) return NULL;
    long double *const dense = allocate(elements(t), good), *to = dense;
    if (!dense) return NULL;
    int64_t dims[4] = {1, 1, 1, 1};
    memcpy(dims, t->dims, (size_t)t->rank * sizeof *dims);
    for (int64_t i = 0; i < dims[0]; i++)
        for (int64_t j = 0; j < dims[1]; j++)
            for (int64_t k = 0; k < dims[2]; k++)
                for (int64_t l = 0; l < dims[3]; l++) *to++ = ref_load(t->dtype, v->data, place(t, i, j, k, l));
    return dense;
}

static bool create_result(const reading *r, ref_result *result) {
    bool good = true;
    *result = (ref_result){
        .out = copy_output(&r->out, &good),
        .lse = copy_output(&r->lse, &good),
        .weights = copy_output(&r->weights, &good),
        .k = copy_output(&r->k, &good),
        .v = r->p->v_in_k ? NULL : copy_output(&r->v, &good),
        .k_scale = copy_output(&r->k_scale, &good),
        .v_scale = r->p->v_in_k ? NULL : copy_output(&r->v_scale, &good),
    };
    result->knows_caches = r->k_taken.data != NULL;
    if (!r->k.tensor) return good;
    const int64_t rows = elements(r->q.tensor) / r->dim;
    result->row_lse = allocate(rows, &good);
    result->loses_key = calloc((size_t)rows + 1, sizeof *result->loses_key);
    for (int64_t i = 0; result->row_lse && i < rows; i++) result->row_lse[i] = 0;
    return good && result->loses_key;
}

void ref_result_free(ref_result *result) {
    free(result->out);
    free(result->lse);
    free(result->weights);
    free(result->k);
    free(result->v);
    free(result->k_scale);
    free(result->v_scale);
    free(result->row_lse);
    free(result->loses_key);
    *result = (ref_result){0};
}

/* Index into a dense array of the tensor's dims. */
static int64_t dense_place(const attune_tensor *t, int64_t i, int64_t j, int64_t k, int64_t l) {
    const int64_t index[4] = {i, j, k, l};
    int64_t at = 0;
    for (int d = 0; d < t->rank; d++) at = at * t->dims[d] + index[d];
    return at;
}

/* Where the cache keeps key j, in the dense result. */
static int64_t dense_key_place(const reading *r, const sequence *e, const view *cache, int64_t head, int64_t j) {
    const int64_t size = r->p->page_size, page = size ? integer_at(&r->table, e->number, j / size) : e->kv_batch;
    const attune_tensor *const t = cache->tensor;
    const ref_format f = layout_of(r, cache);
    return dense_place(t, page, head, 0, 0) +
           ref_token_place(&f, size ? j % size : e->first_kv + j, t->rank > 3 ? t->dims[3] : 1);
}

/* ---- Rows of caches ---- */

/* One row that is appended to a cache. */
typedef struct coding {
    const view *cache, *scale;
    const ref_format *format;
    bool is_double;    /* the arithmetic is f64 */
    const view *taken; /* as ref_call has them */
    int64_t taken_place;
    double error;
    long double least; /* of the run, or of the column; 0: codes have a sign */
} coding;

/* The value that the checked call has stored in column c; NaN: unknown. */
static long double taken_at(const coding *c, int64_t column) {
    const attune_tensor *const t = c->cache->tensor;
    if (!c->taken->data) return (long double)NAN;
    if (c->format->is_packed) return ref_code(c->format, c->taken->data, c->taken_place, 1, column);
    return ref_load(t->dtype, c->taken->data,
                    c->taken_place + ref_column_place(c->format, column, t->strides[t->rank - 1]));
}

/* The nearest number of the cache's type; the one that was taken where the errors allow that, too. Numbers of f64 go
 * through f32 on their way to narrower types. */
static long double cached_number(const coding *c, long double x, int64_t column) {
    const attune_dtype dtype = c->cache->tensor->dtype;
    const bool through_f32 = c->is_double && ref_dtype_bytes(dtype) < sizeof(float);
    const long double taken = taken_at(c, column), error = c->error + (through_f32 ? fabsl(x) * FLT_EPSILON / 2 : 0);
    if (ref_rounded(dtype, x - error) <= taken && taken <= ref_rounded(dtype, x + error)) return taken;
    return ref_rounded(dtype, x);
}

static long double narrowed(const coding *c, long double x) { return c->is_double ? (double)x : (float)x; }

static long double divided(const coding *c, long double x, long double y) {
    if (c->is_double) return (double)x / (double)y;
    return (float)x / (float)y;
}

static long double largest_code(const coding *c) {
    if (c->format->has_least) return 15;
    return c->format->dtype == ATTUNE_I8 ? 127 : c->format->dtype == ATTUNE_F8 ? 448 : 7;
}

/* Codes of i4 go one further down where a group has a scale. */
static bool is_signed(const coding *c) {
    return c->format->dtype == ATTUNE_I4 && c->format->by_group && !c->format->has_least;
}

static long double code_of(const coding *c, long double x) {
    const bool is_whole = c->format->dtype != ATTUNE_F8;
    const long double most = largest_code(c), least = c->format->has_least ? 0 : is_signed(c) ? -8 : -most;
    if (isnan(x)) return is_whole ? 0 : x;
    x = x > most ? most : x < least ? least : x;
    return is_whole ? rint(x) : ref_rounded(ATTUNE_F8, (float)x);
}

static long double half(long double x) { return (long double)(_Float16)(float)x; }

/* A scale or a minimum, rounded as the cache stores it. */
static long double as_stored(const coding *c, long double x) { return c->format->is_inline ? half(x) : (float)x; }

static long double subtracted(const coding *c, long double x, long double y) { return narrowed(c, x - y); }

/* The scale that follows from the largest and the smallest number of a run. */
static long double scale_of_extremes(const coding *c, long double most, long double least) {
    if (c->format->has_least) return as_stored(c, divided(c, subtracted(c, most, least), largest_code(c)));
    const long double extreme = most >= -least ? most : least;
    const long double scale = is_signed(c) ? divided(c, extreme, -8) : divided(c, fabs(extreme), largest_code(c));
    return as_stored(c, scale);
}

/* Where the row has errors and the scale's last bit is in doubt, the scale that was taken. */
static long double near_scale(const coding *c, long double scale, int64_t column) {
    if (c->error == 0 || !c->taken->data) return scale;
    const long double taken = ref_inline_scale(c->format, c->taken->data, c->taken_place, column);
    const bool is_near = fabs(fabs(taken) - fabs(scale)) <= fabs(scale) * 0x1p-9L + c->error + 0x1p-24L;
    return is_near ? taken : scale;
}

static long double near_least(const coding *c, long double least, int64_t column) {
    if (c->error == 0 || !c->taken->data) return least;
    const long double taken = ref_inline_least(c->format, c->taken->data, c->taken_place, column);
    return fabsl(taken - least) <= fabsl(least) * 0x1p-9L + c->error + 0x1p-24L ? taken : least;
}

/* How far x, a number of a row divided by its scale, may be off: the row's error makes one in the number and, of
 * tokens, as much in the scale; the quotient is rounded. Scales that are denormal have few digits. */
static long double error_of_quotient(const coding *c, long double x, long double scale) {
    enum { ROUNDINGS = 4 };
    if (c->error == 0) return 0;
    if (fabs(scale) < FLT_MIN) return (long double)INFINITY;
    const int errors = c->format->has_least ? 4 : 2; /* the minimum is off as well */
    const double epsilon = c->is_double ? DBL_EPSILON : (double)FLT_EPSILON;
    return errors * c->error / fabs(scale) + ROUNDINGS * epsilon * fabs(x);
}

/* The code of number x at a column. */
static long double encoded(const coding *c, long double x, int64_t column, long double scale) {
    const bool has_scale = c->scale->tensor || c->format->is_inline;
    x = narrowed(c, x);
    if (c->format->has_least) x = subtracted(c, x, c->least);
    if (has_scale) x = scale == 0 || !isfinite(scale) ? 0 : divided(c, x, scale);
    const long double error = error_of_quotient(c, x, has_scale ? scale : 1), taken = taken_at(c, column);
    const bool is_near = code_of(c, x - error) <= taken && taken <= code_of(c, x + error);
    return is_near ? taken : code_of(c, x);
}

/* ---- The loops, in each precision ---- */

enum { NUM_BUFFERS = 10 }; /* of one computation; see attend */

#define REAL    float
#define NAME(x) x##_float
#include "ref_loops.h"
#undef REAL
#undef NAME

#define REAL    double
#define NAME(x) x##_double
#include "ref_loops.h"
#undef REAL
#undef NAME

#define REAL    long double
#define NAME(x) x##_long_double
#include "ref_loops.h"
#undef REAL
#undef NAME

static void round_output(long double *dense, const view *v) {
    for (int64_t i = 0; dense && i < elements(v->tensor); i++) dense[i] = ref_rounded(v->tensor->dtype, dense[i]);
}

bool ref_attention(const ref_call *call, ref_result *result) {
    reading r = read_call(call);
    r.largest_modified = &result->largest_modified;
    r.most_mixed = &result->most_mixed;
    if (create_result(&r, result) && (r.is_double ? compute_long_double(&r, call->arguments->batch, result)
                                                  : compute_double(&r, call->arguments->batch, result)))
        return true;
    ref_result_free(result);
    return false;
}

static bool is_bf16_or_default(attune_dtype dtype) { return dtype == ATTUNE_BF16 || !dtype; }

/* Elements that bf16 holds. */
static bool fits_bf16(attune_dtype dtype) { return is_bf16_or_default(dtype) || dtype == ATTUNE_F8; }

bool ref_may_round(const attune_problem *p) {
    const bool may = p->matmul_precision == ATTUNE_BF16 || (p->dtype == ATTUNE_BF16 && !p->matmul_precision);
    return may && p->op == ATTUNE_ATTENTION && !p->embed_dim && !p->reproducible && !p->integer && !p->weights_mode;
}

/* A problem of bf16 throughout has bf16 between its steps as well; a cache of f8 becomes bf16. */
static bool has_bf16_steps(const reading *r) {
    const attune_problem *const p = r->p;
    const bool is_all = p->dtype == ATTUNE_BF16 && fits_bf16(p->k_dtype) && fits_bf16(p->v_dtype);
    return (is_all || ref_may_round(p)) && !r->is_double;
}

bool ref_attention_plain(const ref_call *call, ref_result *result) {
    reading r = read_call(call);
    r.largest_modified = &result->largest_modified;
    r.most_mixed = &result->most_mixed;
    r.k_error *= 2; /* this implementation has errors of its own */
    r.v_error *= 2;
    if (has_bf16_steps(&r)) r.q_rounding = r.k_rounding = r.v_rounding = r.p_rounding = ATTUNE_BF16;
    r.codes_shares = r.p->integer == ATTUNE_INTEGER_ALL;
    if (!create_result(&r, result) || !(r.is_double ? compute_double(&r, call->arguments->batch, result)
                                                    : compute_float(&r, call->arguments->batch, result))) {
        ref_result_free(result);
        return false;
    }
    round_output(result->out, &r.out);
    round_output(result->lse, &r.lse);
    round_output(result->weights, &r.weights);
    round_output(result->k, &r.k);
    round_output(result->v, &r.v);
    round_output(result->k_scale, &r.k_scale);
    round_output(result->v_scale, &r.v_scale);
    return true;
}
