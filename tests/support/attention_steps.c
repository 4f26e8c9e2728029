/* Elements follow from their place, so each form has the same sequences, and row_of needs no tensors. */
#define _GNU_SOURCE
#include "support/attention_steps.h"

#include <math.h>
#include <stdlib.h>

/* ---- What is computed ---- */

const lengths mixed = {{5, 1, 9}, {21, 14, 9}}, equal = {{5, 5, 5}, {21, 21, 21}}, ends = {{5, 5, 5}, {21, 9, 5}};

float element(what t, int b, int token, int head, int column) {
    uint32_t x = (uint32_t)((((int)t * 8 + b) * 64 + token) * 8 + head) * 64u + (uint32_t)column;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return (float)((x ^ x >> 15) % 2001) / 1000 - 1;
}

void row_of(const lengths *n, int b, int i, int h, bool is_causal, int window, double out[DIM_V]) {
    const int position = i + n->kv[b] - n->q[b], kv_head = h / (HEADS / KV_HEADS);
    double sum = 0, scores[MOST], largest = -INFINITY;
    for (int j = 0; j < n->kv[b]; j++) {
        const bool is_seen = (!is_causal || j <= position) && (window < 0 || j >= position - window);
        double dot = 0;
        for (int d = 0; d < DIM; d++) dot += (double)element(Q, b, i, h, d) * element(K, b, j, kv_head, d);
        scores[j] = is_seen ? dot / sqrt(DIM) : -INFINITY;
        largest = fmax(largest, scores[j]);
    }
    memset(out, 0, DIM_V * sizeof *out);
    for (int j = 0; j < n->kv[b]; j++) {
        const double p = exp(scores[j] - largest);
        sum += p;
        for (int d = 0; d < DIM_V; d++) out[d] += p * element(V, b, j, kv_head, d);
    }
    for (int d = 0; d < DIM_V; d++) out[d] /= sum;
}

/* ---- Tensors ---- */

/* The first element of a row; `tokens` are those of a sequence or page, `b` sequence or page. */
static size_t at(const form *f, int b, int token, int tokens, int head, int heads, int columns) {
    const int c = columns + f->is_strided;
    if (f->layout == ATTUNE_BHSD) return (size_t)((b * heads + head) * tokens + token) * (size_t)c;
    return (size_t)((b * tokens + token) * heads + head) * (size_t)c;
}

size_t place(const tensors *t, const int32_t *starts, int b, int token, int tokens, int head, int heads, int columns) {
    return t->form.layout == ATTUNE_THD ? at(&t->form, 0, starts[b] + token, 0, head, heads, columns)
                                        : at(&t->form, b, token, tokens, head, heads, columns);
}

size_t cached(const tensors *t, int b, int j, int head, int columns) {
    if (t->form.kv == ATTUNE_KV_CACHE) return at(&t->form, b, j, MOST, head, KV_HEADS, columns);
    return at(&t->form, t->table[b][j / PAGE], j % PAGE, PAGE, head, KV_HEADS, columns);
}

static float *filled(size_t count) {
    float *const all = malloc(count * sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i < count; i++) all[i] = NAN;
    return all;
}

static void put(float *row, what t, int b, int token, int head) {
    for (int d = 0; d < (t == V ? DIM_V : DIM); d++) row[d] = element(t, b, token, head, d);
}

static void put_keys(tensors *t, int b) {
    const bool has_tensors = t->form.kv == ATTUNE_KV_TENSORS;
    const int fresh = has_tensors ? 0 : t->form.appends ? t->n.kv[b] - t->n.q[b] : t->n.kv[b];
    const int tokens = has_tensors ? t->n.kv[0] : t->n.q[0];
    const int32_t *const starts = has_tensors ? t->starts_kv : t->starts_q;
    for (int j = 0; j < t->n.kv[b]; j++)
        for (int h = 0; h < KV_HEADS; h++)
            if (j < fresh) {
                put(t->k_cache + cached(t, b, j, h, DIM), K, b, j, h);
                put(t->v_cache + cached(t, b, j, h, DIM_V), V, b, j, h);
            } else {
                put(t->k + place(t, starts, b, j - fresh, tokens, h, KV_HEADS, DIM), K, b, j, h);
                put(t->v + place(t, starts, b, j - fresh, tokens, h, KV_HEADS, DIM_V), V, b, j, h);
            }
}

tensors tensors_of(form f, const lengths *n) {
    enum { ROWS = BATCH * MOST, ROW = DIM_V + 1 };
    tensors t = {.form = f, .n = *n};
    t.q = filled(ROWS * HEADS * ROW), t.out = filled(ROWS * HEADS * ROW), t.lse = filled(ROWS * HEADS);
    t.k = filled(ROWS * KV_HEADS * ROW), t.v = filled(ROWS * KV_HEADS * ROW);
    t.k_cache = filled(ROWS * KV_HEADS * ROW), t.v_cache = filled(ROWS * KV_HEADS * ROW);
    for (int b = 0; b < BATCH; b++) {
        t.starts_q[b + 1] = t.starts_q[b] + n->q[b];
        t.starts_kv[b + 1] = t.starts_kv[b] + n->kv[b];
        t.lens[b] = n->kv[b];
        for (int c = 0; c < COLUMNS; c++) t.table[b][c] = (c * BATCH + b) * 5 % (BATCH * COLUMNS);
    }
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < n->q[b]; i++)
            for (int h = 0; h < HEADS; h++) put(t.q + place(&t, t.starts_q, b, i, n->q[0], h, HEADS, DIM), Q, b, i, h);
        put_keys(&t, b);
    }
    return t;
}

void free_tensors(tensors *t) {
    float *const all[] = {t->q, t->k, t->v, t->k_cache, t->v_cache, t->out, t->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Strides of the view of a strided form: as `at` has them. */
static void stride(const form *f, int tokens, int heads, int columns, int64_t *batch, int64_t *head, int64_t *token) {
    if (!f->is_strided) return;
    *batch = (int64_t)at(f, 1, 0, tokens, 0, heads, columns);
    *head = (int64_t)at(f, 0, 0, tokens, 1, heads, columns);
    *token = (int64_t)at(f, 0, 1, tokens, 0, heads, columns);
}

attune_step step_of(tensors *t) {
    attune_step s = ATTUNE_STEP_INIT;
    const form *const f = &t->form;
    const bool has_tensors = f->kv == ATTUNE_KV_TENSORS, is_ragged = f->layout == ATTUNE_THD;
    const int tokens = has_tensors ? t->n.kv[0] : t->n.q[0], page = f->kv == ATTUNE_KV_PAGED ? PAGE : MOST;
    s.batch = BATCH;
    s.seq_q = is_ragged ? 0 : t->n.q[0];
    s.seq_kv = has_tensors ? t->n.kv[0] : MOST;
    s.q.data = t->q, s.out.data = t->out, s.lse.data = t->lse;
    stride(f, t->n.q[0], HEADS, DIM, &s.q.batch, &s.q.head, &s.q.token);
    stride(f, t->n.q[0], HEADS, DIM_V, &s.out.batch, &s.out.head, &s.out.token);
    if (has_tensors || f->appends) {
        s.k.data = t->k, s.v.data = t->v;
        stride(f, tokens, KV_HEADS, DIM, &s.k.batch, &s.k.head, &s.k.token);
        stride(f, tokens, KV_HEADS, DIM_V, &s.v.batch, &s.v.head, &s.v.token);
    }
    if (is_ragged) s.cu_seqlens_q = t->starts_q;
    if (is_ragged && has_tensors) s.cu_seqlens_kv = t->starts_kv;
    if (has_tensors) return s;
    s.k_cache.data = t->k_cache, s.v_cache.data = t->v_cache, s.kv_lens = t->lens;
    stride(f, page, KV_HEADS, DIM, &s.k_cache.batch, &s.k_cache.head, &s.k_cache.token);
    stride(f, page, KV_HEADS, DIM_V, &s.v_cache.batch, &s.v_cache.head, &s.v_cache.token);
    if (f->kv == ATTUNE_KV_PAGED) {
        s.block_table = t->table[0];
        s.max_pages = COLUMNS;
        s.num_pages = BATCH * COLUMNS;
    }
    return s;
}

attune_attention_desc desc_of(const form *f) {
    attune_attention_desc d = ATTUNE_ATTENTION_DESC_INIT;
    d.num_heads = HEADS, d.num_kv_heads = KV_HEADS, d.head_dim = DIM, d.head_dim_v = DIM_V;
    d.layout = f->layout, d.kv = f->kv, d.appends = f->appends;
    if (f->kv == ATTUNE_KV_PAGED) d.page_size = PAGE;
    d.is_causal = 1;
    return d;
}

attune_attention *attention_of(const attune_attention_desc *d) {
    attune_attention *attention = NULL;
    assert_ok(attune_attention_create(NULL, d, &attention));
    return attention;
}

const form forms[NUM_FORMS] = {
    {ATTUNE_THD, ATTUNE_KV_TENSORS, 0, 0},  {ATTUNE_THD, ATTUNE_KV_PAGED, 0, 0},
    {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0},    {ATTUNE_BSHD, ATTUNE_KV_TENSORS, 0, 0},
    {ATTUNE_BSHD, ATTUNE_KV_CACHE, 0, 0},   {ATTUNE_BSHD, ATTUNE_KV_CACHE, 1, 0},
    {ATTUNE_BSHD, ATTUNE_KV_PAGED, 0, 0},   {ATTUNE_BSHD, ATTUNE_KV_PAGED, 1, 0},
    {ATTUNE_BHSD, ATTUNE_KV_TENSORS, 0, 0}, {ATTUNE_BHSD, ATTUNE_KV_CACHE, 0, 0},
    {ATTUNE_BHSD, ATTUNE_KV_CACHE, 1, 0},   {ATTUNE_BHSD, ATTUNE_KV_PAGED, 0, 0},
    {ATTUNE_BHSD, ATTUNE_KV_PAGED, 1, 0},   {ATTUNE_THD, ATTUNE_KV_TENSORS, 0, 1},
    {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 1},    {ATTUNE_BSHD, ATTUNE_KV_CACHE, 1, 1},
    {ATTUNE_BHSD, ATTUNE_KV_PAGED, 1, 1},
};

const lengths *lengths_of(const form *f) {
    return f->layout == ATTUNE_THD ? &mixed : f->kv == ATTUNE_KV_TENSORS ? &equal : &ends;
}

void check_rows(const tensors *t, bool is_causal, int window) {
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < t->n.q[b]; i++)
            for (int h = 0; h < HEADS; h++) {
                const float *const got = t->out + place(t, t->starts_q, b, i, t->n.q[0], h, HEADS, DIM_V);
                double want[DIM_V];
                row_of(&t->n, b, i, h, is_causal, window, want);
                for (int d = 0; d < DIM_V; d++)
                    if (!(fabs(got[d] - want[d]) < 1e-5))
                        fail_msg("layout %d, kv %d, appends %d: sequence %d, query %d, head %d: %g, not %g",
                                 (int)t->form.layout, (int)t->form.kv, t->form.appends, b, i, h, got[d], want[d]);
            }
}
