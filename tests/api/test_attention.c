/* The tier for engines: every layout and kind of cache computes the same attention, and a step that is wrong says so.
 */
#define _GNU_SOURCE
#include "support/temp_dir.h"

#include <attune/attention.h>
#include <attune/expert/kernel.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- What is computed ---- */

/* Three sequences: a chunk of a prompt, a decoding query, and a prompt from its start. Odd sizes. */
enum { BATCH = 3, HEADS = 6, KV_HEADS = 2, DIM = 16, DIM_V = 24, PAGE = 4, MOST = 24, COLUMNS = MOST / PAGE };
typedef struct lengths {
    int q[BATCH], kv[BATCH];
} lengths;
static const lengths mixed = {{5, 1, 9}, {21, 14, 9}}, equal = {{5, 5, 5}, {21, 21, 21}},
                     ends = {{5, 5, 5}, {21, 9, 5}};

typedef enum what { Q, K, V } what;

/* An element, by its place in a sequence. */
static float element(what t, int b, int token, int head, int column) {
    uint32_t x = (uint32_t)((((int)t * 8 + b) * 64 + token) * 8 + head) * 64u + (uint32_t)column;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return (float)((x ^ x >> 15) % 2001) / 1000 - 1;
}

/* A row by the definition, in double. */
static void row_of(const lengths *n, int b, int i, int h, bool is_causal, int window, double out[DIM_V]) {
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

typedef struct form {
    attune_layout layout;
    attune_kv kv;
    int appends;
    int is_strided; /* with strides of its own: one element between two rows */
} form;

typedef struct tensors {
    form form;
    lengths n;
    float *q, *k, *v, *k_cache, *v_cache, *out, *lse;
    int32_t starts_q[BATCH + 1], starts_kv[BATCH + 1], lens[BATCH], table[BATCH][COLUMNS];
} tensors;

/* The first element of a row; `tokens` are those of a sequence or page, `b` sequence or page. */
static size_t at(const form *f, int b, int token, int tokens, int head, int heads, int columns) {
    const int c = columns + f->is_strided;
    if (f->layout == ATTUNE_BHSD) return (size_t)((b * heads + head) * tokens + token) * (size_t)c;
    return (size_t)((b * tokens + token) * heads + head) * (size_t)c;
}

/* Where a query, or a key that is no cache's, has its row. */
static size_t place(const tensors *t, const int32_t *starts, int b, int token, int tokens, int head, int heads,
                    int columns) {
    return t->form.layout == ATTUNE_THD ? at(&t->form, 0, starts[b] + token, 0, head, heads, columns)
                                        : at(&t->form, b, token, tokens, head, heads, columns);
}

static size_t cached(const tensors *t, int b, int j, int head, int columns) {
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

static tensors tensors_of(form f, const lengths *n) {
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

static void free_tensors(tensors *t) {
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

static attune_step step_of(tensors *t) {
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

static attune_attention_desc desc_of(const form *f) {
    attune_attention_desc d = ATTUNE_ATTENTION_DESC_INIT;
    d.num_heads = HEADS, d.num_kv_heads = KV_HEADS, d.head_dim = DIM, d.head_dim_v = DIM_V;
    d.layout = f->layout, d.kv = f->kv, d.appends = f->appends;
    if (f->kv == ATTUNE_KV_PAGED) d.page_size = PAGE;
    d.is_causal = 1;
    return d;
}

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if (call) fail_msg("%s", attune_last_message());                                                               \
    } while (0)
#define assert_fails(call, want, part)                                                                                 \
    do {                                                                                                               \
        assert_int_equal(call, want);                                                                                  \
        if (!strstr(attune_last_message(), part)) fail_msg("%s", attune_last_message());                               \
    } while (0)

static attune_attention *attention_of(const attune_attention_desc *d) {
    attune_attention *attention = NULL;
    assert_ok(attune_attention_create(NULL, d, &attention));
    return attention;
}

/* ---- All forms ---- */

static const form forms[] = {
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
enum { NUM_FORMS = sizeof forms / sizeof *forms };

/* Sequences of different lengths where a form can have them. */
static const lengths *lengths_of(const form *f) {
    return f->layout == ATTUNE_THD ? &mixed : f->kv == ATTUNE_KV_TENSORS ? &equal : &ends;
}

static void check_rows(const tensors *t, bool is_causal, int window) {
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

static void every_form_computes_the_same(void **state) {
    (void)state;
    for (int i = 0; i < NUM_FORMS; i++) {
        tensors t = tensors_of(forms[i], lengths_of(&forms[i]));
        const attune_attention_desc desc = desc_of(&forms[i]);
        attune_attention *const attention = attention_of(&desc);
        const attune_step step = step_of(&t);
        if (attune_attention_run(attention, &step)) fail_msg("form %d: %s", i, attune_last_message());
        check_rows(&t, true, -1);
        attune_attention_destroy(attention);
        free_tensors(&t);
    }
}

/* ---- Step plans ---- */

static void spoil(tensors *t) {
    memset(t->starts_q, -1, sizeof t->starts_q), memset(t->starts_kv, -1, sizeof t->starts_kv);
    memset(t->lens, -1, sizeof t->lens), memset(t->table, -1, sizeof t->table);
}

/* A plan has copies of lengths and tables, and computes every layer's tensors as the step itself would. */
static void a_plan_computes_each_layer(void **state) {
    (void)state;
    for (int i = 0; i < NUM_FORMS; i++) {
        tensors t = tensors_of(forms[i], lengths_of(&forms[i])), layer = tensors_of(forms[i], lengths_of(&forms[i]));
        const attune_attention_desc desc = desc_of(&forms[i]);
        attune_attention *const attention = attention_of(&desc);
        attune_step step = step_of(&t);
        attune_step_plan *plan;
        attune_step lists = step;
        lists.q.data = lists.k.data = lists.v.data = NULL;
        lists.k_cache.data = lists.v_cache.data = lists.out.data = NULL;
        if (attune_step_plan_create(attention, &lists, &plan)) fail_msg("form %d: %s", i, attune_last_message());
        size_t bytes;
        assert_ok(attune_step_plan_workspace_size(plan, &lists, &bytes));
        void *const workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
        for (int n = 0; n < 2; n++) {
            tensors *const of = n ? &layer : &t;
            const tensors kept = *of;
            step = step_of(of);
            step.workspace = workspace, step.workspace_bytes = bytes;
            spoil(of);
            if (attune_step_plan_run(plan, &step)) fail_msg("form %d: %s", i, attune_last_message());
            check_rows(&kept, true, -1);
        }
        /* Other strides than before. */
        form other = forms[i];
        other.is_strided = !other.is_strided;
        tensors last = tensors_of(other, lengths_of(&other));
        step = step_of(&last);
        step.workspace = workspace, step.workspace_bytes = bytes;
        if (attune_step_plan_run(plan, &step)) fail_msg("form %d: %s", i, attune_last_message());
        check_rows(&last, true, -1);
        free(workspace);
        attune_step_plan_destroy(plan);
        attune_attention_destroy(attention);
        free_tensors(&t), free_tensors(&layer), free_tensors(&last);
    }
}

static void plans_that_are_wrong(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed);
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    attune_step step = step_of(&t);
    attune_step_plan *plan = NULL;
    assert_fails(attune_step_plan_create(attention, &step, NULL), ATTUNE_INVALID_ARGUMENT, "no pointer to the plan");
    assert_fails(attune_step_plan_create(NULL, &step, &plan), ATTUNE_INVALID_ARGUMENT, "given no attention");
    assert_fails(attune_step_plan_create(attention, NULL, &plan), ATTUNE_INVALID_ARGUMENT, "given no step");
    assert_fails(attune_step_plan_run(NULL, &step), ATTUNE_INVALID_ARGUMENT, "given no plan");
    t.table[1][2] = BATCH * COLUMNS;
    assert_fails(attune_step_plan_create(attention, &step, &plan), ATTUNE_INVALID_ARGUMENT, "block_table[1, 2] is 18");
    assert_null(plan);
    t.table[1][2] = 0;
    step.kv_lens = NULL;
    assert_fails(attune_step_plan_create(attention, &step, &plan), ATTUNE_INVALID_ARGUMENT, "kv_lens");
    step = step_of(&t);
    assert_ok(attune_step_plan_create(attention, &step, &plan));
    step.q.data = NULL;
    assert_fails(attune_step_plan_run(plan, &step), ATTUNE_INVALID_ARGUMENT, "the step's q.data is NULL");
    attune_step_plan_destroy(plan);
    step = (attune_step)ATTUNE_STEP_INIT;
    assert_ok(attune_step_plan_create(attention, &step, &plan));
    assert_ok(attune_step_plan_run(plan, &step));
    attune_step_plan_destroy(plan);
    attune_step_plan_destroy(NULL);
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* Angles are bound in each run, and with them their number. */
static void a_plan_of_rotated_rows(void **state) {
    (void)state;
    enum { HALF = DIM / 4, POSITIONS = MOST };
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed), again = tensors_of(f, &mixed);
    attune_attention_desc desc = desc_of(&f);
    float cos_of[1][POSITIONS][HALF], sin_of[1][POSITIONS][HALF];
    for (int i = 0; i < POSITIONS * HALF; i++) {
        cos_of[0][i / HALF][i % HALF] = cosf((float)i / 7);
        sin_of[0][i / HALF][i % HALF] = sinf((float)i / 7);
    }
    int64_t shape[3] = {1, POSITIONS, HALF};
    const attune_dltensor cosines = {.data = cos_of,
                                     .device_type = 1,
                                     .ndim = 3,
                                     .dtype_code = 2,
                                     .dtype_bits = 32,
                                     .dtype_lanes = 1,
                                     .shape = shape};
    attune_dltensor sines = cosines;
    sines.data = sin_of;
    const attune_binding bindings[] = {{"cos", &cosines}, {"sin", &sines}};
    desc.extra = "rotary_dim=8";
    attune_attention *const attention = attention_of(&desc);
    attune_step step = step_of(&t), lists = step;
    attune_step_plan *plan;
    step.bindings = bindings, step.num_bindings = 2;
    assert_ok(attune_attention_run(attention, &step));
    assert_ok(attune_step_plan_create(attention, &lists, &plan));
    shape[1] = 20; /* the longest sequence has 21 keys */
    step = step_of(&again);
    step.bindings = bindings, step.num_bindings = 2;
    assert_fails(attune_step_plan_run(plan, &step), ATTUNE_INVALID_ARGUMENT, "rotary_positions is 20");
    for (int n = 0; n < 2; n++) {
        shape[1] = POSITIONS;
        assert_ok(attune_step_plan_run(plan, &step));
        for (int i = 0; i < again.starts_q[BATCH] * HEADS * DIM_V; i++) assert_true(again.out[i] == t.out[i]);
        shape[1] = 20;
        assert_fails(attune_step_plan_run(plan, &step), ATTUNE_INVALID_ARGUMENT, "rotary_positions is 20");
    }
    attune_step_plan_destroy(plan);
    attune_attention_destroy(attention);
    free_tensors(&t), free_tensors(&again);
}

/* What was appended lies in the cache, where the next step finds it. */
static void appended_keys_stay(void **state) {
    (void)state;
    const form append = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(append, &mixed);
    const attune_attention_desc desc = desc_of(&append);
    attune_attention *const attention = attention_of(&desc);
    const attune_step step = step_of(&t);
    assert_ok(attune_attention_run(attention, &step));
    for (int b = 0; b < BATCH; b++)
        for (int j = 0; j < t.n.kv[b]; j++)
            for (int h = 0; h < KV_HEADS; h++)
                for (int d = 0; d < DIM; d++)
                    assert_true(t.k_cache[cached(&t, b, j, h, DIM) + (size_t)d] == element(K, b, j, h, d));
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* The same bits in every layout, cache and batch. */
static void reproducible_rows_have_the_same_bits(void **state) {
    (void)state;
    static float first[BATCH][5][HEADS][DIM_V];
    for (int i = 0; i < NUM_FORMS; i++) {
        tensors t = tensors_of(forms[i], &equal);
        attune_attention_desc desc = desc_of(&forms[i]);
        desc.reproducible = 1;
        attune_attention *const attention = attention_of(&desc);
        const attune_step step = step_of(&t);
        assert_ok(attune_attention_run(attention, &step));
        for (int row = 0; row < BATCH * 5 * HEADS; row++) {
            const int b = row / (5 * HEADS), q = row / HEADS % 5, h = row % HEADS;
            const float *const got = t.out + place(&t, t.starts_q, b, q, 5, h, HEADS, DIM_V);
            if (!i) memcpy(first[b][q][h], got, sizeof first[b][q][h]);
            assert_memory_equal(got, first[b][q][h], sizeof first[b][q][h]);
        }
        attune_attention_destroy(attention);
        free_tensors(&t);
    }
}

static void masks_and_more(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 0, 0};
    tensors t = tensors_of(f, &mixed);
    attune_attention_desc desc = desc_of(&f);
    desc.window_left = 6;
    desc.has_lse = 1;
    attune_attention *attention = attention_of(&desc);
    attune_step step = step_of(&t);
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, 6);
    for (int i = 0; i < t.starts_q[BATCH] * HEADS; i++) assert_true(isfinite(t.lse[i]));
    attune_attention_destroy(attention);

    desc = desc_of(&f);
    desc.is_causal = 0;
    attention = attention_of(&desc);
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, false, -1);
    attune_attention_destroy(attention);

    /* Sinks far below all scores add nothing. */
    desc = desc_of(&f);
    desc.extra = "sinks=1,logits_soft_cap=1000000";
    attention = attention_of(&desc);
    float sinks[HEADS];
    int64_t shape = HEADS;
    for (int h = 0; h < HEADS; h++) sinks[h] = -1e30f;
    const attune_dltensor tensor = {.data = sinks,
                                    .device_type = 1,
                                    .ndim = 1,
                                    .dtype_code = 2,
                                    .dtype_bits = 32,
                                    .dtype_lanes = 1,
                                    .shape = &shape};
    const attune_binding binding = {"sinks", &tensor};
    step.bindings = &binding, step.num_bindings = 1;
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, -1);
    const attune_binding taken = {"q", &tensor};
    step.bindings = &taken;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT,
                 "bindings[0] is q, which has a member");
    const attune_binding wrong = {"slopes", &tensor};
    step.bindings = &wrong;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "bindings[0]");
    step.bindings = NULL;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "num_bindings is 1");
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* ---- Caches ---- */

static void sizes_of_caches(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    attune_attention_desc desc = desc_of(&f);
    desc.page_size = 16, desc.head_dim = desc.head_dim_v = 64;
    const struct {
        attune_dtype dtype;
        attune_scales scales;
        const char *extra;
        size_t k_bytes, scale_bytes;
        int64_t row;
    } cases[] = {
        {ATTUNE_DTYPE_DEFAULT, ATTUNE_SCALES_DEFAULT, NULL, 10 * 2 * 16 * 64 * 4, 0, 64},
        {ATTUNE_BF16, ATTUNE_SCALES_DEFAULT, NULL, 10 * 2 * 16 * 64 * 2, 0, 64},
        {ATTUNE_I8, ATTUNE_SCALES_HEAD, NULL, 10 * 2 * 16 * 64, 2 * 4, 64},
        {ATTUNE_I8, ATTUNE_SCALES_TOKEN, NULL, 10 * 2 * 16 * 64, 10 * 2 * 16 * 4, 64},
        {ATTUNE_I8, ATTUNE_SCALES_INLINE, NULL, 10 * 2 * 16 * 68, 0, 68},
        {ATTUNE_I4, ATTUNE_SCALES_GROUP, NULL, 10 * 2 * 16 * 32, 10 * 2 * 16 * 2 * 4, 32},
        {ATTUNE_BF16, ATTUNE_SCALES_DEFAULT, "kv_layout=panels", 10 * 2 * 16 * 64 * 2, 0, 16 * 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_cache_size size = ATTUNE_CACHE_SIZE_INIT;
        desc.kv_dtype = cases[i].dtype, desc.kv_scales = cases[i].scales, desc.extra = cases[i].extra;
        attune_attention *const attention = attention_of(&desc);
        assert_ok(attune_attention_cache_size(attention, 10, 0, &size));
        assert_int_equal(size.k_bytes, cases[i].k_bytes);
        assert_int_equal(size.v_bytes, cases[i].k_bytes);
        assert_int_equal(size.k_scale_bytes, cases[i].scale_bytes);
        assert_int_equal(size.v_scale_bytes, cases[i].scale_bytes);
        assert_int_equal(size.k_row, cases[i].row);
        assert_fails(attune_attention_cache_size(attention, INT64_MAX / 2, 0, &size), ATTUNE_INVALID_ARGUMENT,
                     "not possible");
        attune_attention_destroy(attention);
    }
}

/* Nine views and tensors of `extra` after them: more once wrote beyond the attention. */
static void all_views_and_more(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    attune_attention_desc desc = desc_of(&f);
    attune_cache_size size = ATTUNE_CACHE_SIZE_INIT;
    desc.has_lse = 1, desc.kv_dtype = ATTUNE_I8, desc.kv_scales = ATTUNE_SCALES_TOKEN;
    desc.extra = "rotary_dim=16,sinks=1,qk_norm_eps=1e-6,position_ids=1";
    attune_attention *const attention = attention_of(&desc);
    assert_ok(attune_attention_cache_size(attention, 1, 0, &size));
    assert_int_equal(size.v_scale_bytes, PAGE * KV_HEADS * 4);
    attune_attention_destroy(attention);
}

/* A quantised cache that the steps themselves fill: first prompts, then one query of each sequence. */
static void a_quantised_cache_is_filled_and_read(void **state) {
    (void)state;
    static const lengths prompts = {{20, 13, 9}, {20, 13, 9}}, decoding = {{1, 1, 1}, {21, 14, 10}};
    for (int heads_first = 0; heads_first < 2; heads_first++) { /* in the pages of k */
        const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
        attune_attention_desc desc = desc_of(&f);
        desc.kv_dtype = ATTUNE_I8, desc.kv_scales = ATTUNE_SCALES_TOKEN;
        attune_attention *const attention = attention_of(&desc);
        float k_scale[BATCH * COLUMNS * PAGE * KV_HEADS], v_scale[BATCH * COLUMNS * PAGE * KV_HEADS];
        tensors first = tensors_of(f, &prompts), second = tensors_of(f, &decoding);
        attune_step steps[] = {step_of(&first), step_of(&second)};
        for (int i = 0; i < 2; i++) {
            steps[i].k_cache.data = first.k_cache, steps[i].v_cache.data = first.v_cache;
            steps[i].k_scale.data = k_scale, steps[i].v_scale.data = v_scale;
            if (heads_first) {
                steps[i].k_cache = (attune_mutable_view){
                    .data = first.k_cache, .batch = KV_HEADS * PAGE * DIM, .head = PAGE * DIM, .token = DIM};
            }
            assert_ok(attune_attention_run(attention, &steps[i]));
        }
        for (int b = 0; b < BATCH; b++)
            for (int h = 0; h < HEADS; h++) {
                double want[DIM_V];
                row_of(&decoding, b, 0, h, true, -1, want);
                for (int d = 0; d < DIM_V; d++) {
                    const float got = second.out[place(&second, second.starts_q, b, 0, 1, h, HEADS, DIM_V) + (size_t)d];
                    assert_true(fabs(got - want[d]) < 0.02);
                }
            }
        attune_attention_destroy(attention);
        free_tensors(&first), free_tensors(&second);
    }
}

/* ---- The rest ---- */

static void workspace_and_preparing(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed);
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    attune_step step = step_of(&t);
    size_t bytes = 1;
    assert_ok(attune_attention_prepare(attention));
    attune_step unset = step;
    unset.q.data = unset.k.data = NULL, unset.k_cache.data = NULL, unset.out.data = NULL;
    assert_ok(attune_attention_workspace_size(attention, &unset, &bytes));
    step.workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
    step.workspace_bytes = bytes;
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, -1);
    free(step.workspace);
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* An empty step writes nothing and needs no pointers; a sequence without queries is fine. */
static void empty_steps(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 0, 0};
    const lengths some = {{0, 1, 0}, {3, 14, 0}};
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    attune_step step = ATTUNE_STEP_INIT;
    assert_ok(attune_attention_run(attention, &step));
    tensors t = tensors_of(f, &some);
    step = step_of(&t);
    assert_ok(attune_attention_run(attention, &step));
    check_rows(&t, true, -1);
    attune_attention_destroy(attention);
    free_tensors(&t);
}

static void the_problem_is_told(void **state) {
    (void)state;
    char text[512], longer[64];
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    attune_attention_desc desc = desc_of(&f);
    desc.extra = "logits_soft_cap=30";
    attune_attention *const attention = attention_of(&desc);
    const size_t length = attune_attention_problem(attention, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_non_null(strstr(text, "page_size=4"));
    assert_non_null(strstr(text, "logits_soft_cap=30"));
    assert_int_equal(attune_attention_problem(attention, longer, sizeof longer), length);
    assert_int_equal(strlen(longer), sizeof longer - 1);
    assert_int_equal(attune_attention_problem(attention, NULL, 5), length);
    attune_attention_destroy(attention);
}

static void descriptions_that_are_wrong(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    const struct {
        size_t member;
        int value;
        const char *extra, *message;
    } cases[] = {
        {offsetof(attune_attention_desc, layout), 3, NULL, "layout is 3; it must be ATTUNE_THD"},
        {offsetof(attune_attention_desc, kv), 7, NULL, "kv is 7; it must be"},
        {offsetof(attune_attention_desc, kv), ATTUNE_KV_CACHE, NULL, "which needs layout ATTUNE_BSHD"},
        {offsetof(attune_attention_desc, kv), ATTUNE_KV_TENSORS, NULL, "there is no cache"},
        {offsetof(attune_attention_desc, page_size), 0, NULL, "page_size is 0; it must be at least 1"},
        {offsetof(attune_attention_desc, appends), 2, NULL, "appends is 2"},
        {offsetof(attune_attention_desc, num_heads), 5, NULL, "num_kv_heads is 2"},
        {offsetof(attune_attention_desc, head_dim), 0, NULL, "head_dim"},
        {offsetof(attune_attention_desc, is_causal), 2, NULL, "is_causal is 2"},
        {offsetof(attune_attention_desc, deadline_us), -5, NULL, "deadline_us is"},
        {offsetof(attune_attention_desc, is_causal), 1, "logits_cap=3", "extra: "},
        {offsetof(attune_attention_desc, is_causal), 1, "page_size=8", "extra has page_size"},
        {offsetof(attune_attention_desc, is_causal), 1, "embed_dim=64", "extra has embed_dim"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_attention_desc desc = desc_of(&f);
        attune_attention *attention = (attune_attention *)&desc;
        memcpy((char *)&desc + cases[i].member, &cases[i].value, sizeof cases[i].value);
        desc.extra = cases[i].extra;
        assert_int_not_equal(attune_attention_create(NULL, &desc, &attention), ATTUNE_OK);
        if (!strstr(attune_last_message(), cases[i].message)) fail_msg("case %zu: %s", i, attune_last_message());
        assert_null(attention);
    }
}

static void steps_that_are_wrong(void **state) {
    (void)state;
    const form f = {ATTUNE_THD, ATTUNE_KV_PAGED, 1, 0};
    tensors t = tensors_of(f, &mixed);
    const attune_attention_desc desc = desc_of(&f);
    attune_attention *const attention = attention_of(&desc);
    const struct {
        size_t member;
        const char *message;
    } pointers[] = {
        {offsetof(attune_step, q), "the step's q.data is NULL"},
        {offsetof(attune_step, k), "the step's k.data is NULL"},
        {offsetof(attune_step, v_cache), "the step's v_cache.data is NULL"},
        {offsetof(attune_step, out), "the step's out.data is NULL"},
        {offsetof(attune_step, cu_seqlens_q), "the step's cu_seqlens_q is NULL"},
        {offsetof(attune_step, kv_lens), "kv_lens"},
        {offsetof(attune_step, block_table), "block_table"},
    };
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        attune_step step = step_of(&t);
        const void *const nothing = NULL;
        memcpy((char *)&step + pointers[i].member, &nothing, sizeof nothing);
        assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, pointers[i].message);
    }
    attune_step step = step_of(&t);
    step.batch = -1;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "batch is -1; it must be from 0");
    step.batch = INT64_MAX / 8;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "batch is 1152921504606846975");
    step = step_of(&t);
    step.k_cache.batch = -1; /* k, in the problem */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "k_cache.batch is -1");
    step = step_of(&t);
    step.k.token = -1; /* k_new, in the problem */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "k.token is -1");
    step = step_of(&t);
    step.q.column = 2;
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "the step's q.column is 2");
    t.table[1][0] = BATCH * COLUMNS;
    step = step_of(&t);
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT, "block_table");
    t.table[1][0] = 0;
    step = step_of(&t);
    step.max_pages = 0; /* as in a step whose caller forgot it */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT,
                 "it must be from 0 to 0 (max_pages * page_size = 0 * ");
    step = step_of(&t);
    t.lens[2] = 3; /* nine of them are new */
    assert_fails(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT,
                 "sequence 2 has 3 keys (kv_lens), fewer than the 9");
    assert_fails(attune_attention_run(NULL, &step), ATTUNE_INVALID_ARGUMENT, "given no attention");
    assert_fails(attune_attention_run(attention, NULL), ATTUNE_INVALID_ARGUMENT, "given no step");
    for (int i = 0; i < t.starts_q[BATCH] * HEADS * DIM_V; i++) assert_true(isnan(t.out[i])); /* nothing was written */
    attune_attention_destroy(attention);
    free_tensors(&t);
}

/* Attentions without a context share one. */
static void a_context_is_shared(void **state) {
    (void)state;
    const form f = {ATTUNE_BSHD, ATTUNE_KV_TENSORS, 0, 0};
    const attune_attention_desc desc = desc_of(&f);
    for (int round = 0; round < 2; round++) {
        attune_attention *const one = attention_of(&desc), *const two = attention_of(&desc);
        tensors t = tensors_of(f, &equal);
        const attune_step step = step_of(&t);
        attune_attention_destroy(one);
        assert_ok(attune_attention_run(two, &step));
        check_rows(&t, true, -1);
        attune_attention_destroy(two);
        free_tensors(&t);
    }
    attune_attention_destroy(NULL);
}

static int setup(void **state) {
    const int failure = temp_dir_setup(state);
    setenv("ATTUNE_CACHE_DIR", *state, 1);
    return failure;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_computes_the_same),
        cmocka_unit_test(a_plan_computes_each_layer),
        cmocka_unit_test(plans_that_are_wrong),
        cmocka_unit_test(a_plan_of_rotated_rows),
        cmocka_unit_test(appended_keys_stay),
        cmocka_unit_test(reproducible_rows_have_the_same_bits),
        cmocka_unit_test(masks_and_more),
        cmocka_unit_test(sizes_of_caches),
        cmocka_unit_test(all_views_and_more),
        cmocka_unit_test(a_quantised_cache_is_filled_and_read),
        cmocka_unit_test(workspace_and_preparing),
        cmocka_unit_test(empty_steps),
        cmocka_unit_test(the_problem_is_told),
        cmocka_unit_test(descriptions_that_are_wrong),
        cmocka_unit_test(steps_that_are_wrong),
        cmocka_unit_test(a_context_is_shared),
    };
    return cmocka_run_group_tests(tests, setup, temp_dir_teardown);
}
