/* A block of MLA beside f64, in both forms, all types and shapes; the same bits by the interpreter and any number of
 * threads; prompts in chunks and token by token through pages; ragged batches; the choice of the form; and a sentence
 * for what is wrong. */
#include "ref_attention.h"
#include "mla/mla.h"

#include <attune/mla.h>
#include <attune/status.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Numbers ---- */

static uint32_t state_of_numbers;

static double next_number(void) {
    state_of_numbers = state_of_numbers * 1664525u + 1013904223u;
    return (double)(state_of_numbers >> 8) / (1 << 23) - 1;
}

static size_t bytes_of(attune_dtype dtype) { return dtype == ATTUNE_F32 ? 4 : 2; }

/* ---- A model: weights of a layer, and the tokens of some sequences, each of LENGTH ---- */

enum { LENGTH = 37, SEQUENCES = 3, POSITIONS = 64, PAGE = 16, MAX_PAGES = 3, NUM_PAGES = 11 };

typedef enum matrix { Q_A, Q_B, KV_A, KV_B, O, Q_NORM, KV_NORM, Q_BIAS, KV_BIAS, O_BIAS, X, NUM_ARRAYS } matrix;

typedef struct model {
    attune_mla_desc d;
    void *array[NUM_ARRAYS];
    float cos[POSITIONS * 128], sin[POSITIONS * 128];
    double *wanted; /* [SEQUENCES, LENGTH, out_dim] */
} model;

static void fill(model *m, matrix which, int64_t count, double middle, double size) {
    m->array[which] = calloc((size_t)count + 1, bytes_of(m->d.dtype));
    for (int64_t i = 0; i < count; i++) ref_store(m->d.dtype, m->array[which], i, middle + size * next_number());
}

static double at(const model *m, matrix which, int64_t i) { return (double)ref_load(m->d.dtype, m->array[which], i); }

/* y[out] = W[out, in] x + bias */
static void multiply(const model *m, matrix w, matrix bias, int64_t first, int64_t outputs, int64_t inputs,
                     const double *x, double *y) {
    for (int64_t o = 0; o < outputs; o++) {
        y[o] = bias != NUM_ARRAYS && m->array[bias] ? at(m, bias, o) : 0;
        for (int64_t i = 0; i < inputs; i++) y[o] += at(m, w, (first + o) * inputs + i) * x[i];
    }
}

static void normalise(const model *m, matrix norm, int64_t columns, double *x) {
    double sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += x[i] * x[i];
    const double factor = 1 / sqrt(sum / (double)columns + m->d.norm_eps);
    for (int64_t i = 0; i < columns; i++) x[i] *= factor * at(m, norm, i);
}

static void rotate(const model *m, int64_t position, double *x) {
    const int64_t half = m->d.qk_rope_head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const double c = (double)m->cos[position * half + i], s = (double)m->sin[position * half + i];
        double *const a = x + (m->d.rope_interleaved ? 2 * i : i), *const b = m->d.rope_interleaved ? a + 1 : a + half;
        const double first = *a, second = *b;
        *a = first * c - second * s;
        *b = second * c + first * s;
    }
}

/* One sequence, as the models' papers have it: k and v of every head and token. */
static void reference(const model *m, int64_t sequence) {
    const attune_mla_desc *d = &m->d;
    const int64_t n = d->qk_nope_head_dim, e = d->qk_rope_head_dim, v = d->v_head_dim, r = d->kv_lora_rank;
    const int64_t h = d->num_heads, dim = n + e, low = d->q_lora_rank ? d->q_lora_rank : d->embed_dim;
    double *const q = calloc((size_t)(LENGTH * h * dim), 8), *const kv = calloc((size_t)(LENGTH * h * (n + v)), 8);
    double *const rows = calloc((size_t)(LENGTH * (r + e)), 8), *const heads = calloc((size_t)(h * v), 8);
    double *const x = calloc((size_t)(d->embed_dim + low), 8);
    for (int64_t t = 0; t < LENGTH; t++) {
        for (int64_t i = 0; i < d->embed_dim; i++) x[i] = at(m, X, (sequence * LENGTH + t) * d->embed_dim + i);
        double *of_q = x;
        if (d->q_lora_rank) {
            of_q = x + d->embed_dim;
            multiply(m, Q_A, Q_BIAS, 0, low, d->embed_dim, x, of_q);
            normalise(m, Q_NORM, low, of_q);
        }
        multiply(m, Q_B, NUM_ARRAYS, 0, h * dim, low, of_q, q + t * h * dim);
        for (int64_t head = 0; head < h; head++) rotate(m, t, q + (t * h + head) * dim + n);
        multiply(m, KV_A, KV_BIAS, 0, r + e, d->embed_dim, x, rows + t * (r + e));
        normalise(m, KV_NORM, r, rows + t * (r + e));
        rotate(m, t, rows + t * (r + e) + r);
        multiply(m, KV_B, NUM_ARRAYS, 0, h * (n + v), r, rows + t * (r + e), kv + t * h * (n + v));
        for (int64_t head = 0; head < h; head++) {
            double p[LENGTH], most = -INFINITY, sum = 0;
            for (int64_t j = 0; j <= t; j++) {
                p[j] = 0;
                for (int64_t i = 0; i < n; i++) p[j] += q[(t * h + head) * dim + i] * kv[(j * h + head) * (n + v) + i];
                for (int64_t i = 0; i < e; i++) p[j] += q[(t * h + head) * dim + n + i] * rows[j * (r + e) + r + i];
                p[j] *= d->softmax_scale;
                most = fmax(most, p[j]);
            }
            for (int64_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - most);
            for (int64_t i = 0; i < v; i++) {
                heads[head * v + i] = 0;
                for (int64_t j = 0; j <= t; j++)
                    heads[head * v + i] += p[j] / sum * kv[(j * h + head) * (n + v) + n + i];
            }
        }
        multiply(m, O, O_BIAS, 0, d->out_dim, h * v, heads, m->wanted + (sequence * LENGTH + t) * d->out_dim);
    }
    free(q), free(kv), free(rows), free(heads), free(x);
}

static void open_model(model *m, attune_mla_desc d, bool has_bias) {
    if (!d.out_dim) d.out_dim = d.embed_dim;
    if (isnan(d.softmax_scale)) d.softmax_scale = 1 / sqrt((double)(d.qk_nope_head_dim + d.qk_rope_head_dim));
    memset(m, 0, sizeof *m);
    d.norm_eps = 1e-5;
    m->d = d;
    state_of_numbers = (uint32_t)(d.embed_dim * 31 + d.kv_lora_rank);
    const int64_t n = d.qk_nope_head_dim, e = d.qk_rope_head_dim, r = d.kv_lora_rank, h = d.num_heads;
    const int64_t low = d.q_lora_rank ? d.q_lora_rank : d.embed_dim;
    fill(m, Q_A, d.q_lora_rank * d.embed_dim, 0, 2 / sqrt((double)d.embed_dim));
    fill(m, Q_B, h * (n + e) * low, 0, 3 / sqrt((double)low));
    fill(m, KV_A, (r + e) * d.embed_dim, 0, 3 / sqrt((double)d.embed_dim));
    fill(m, KV_B, h * (n + d.v_head_dim) * r, 0, 2 / sqrt((double)r));
    fill(m, O, d.out_dim * h * d.v_head_dim, 0, 2 / sqrt((double)(h * d.v_head_dim)));
    fill(m, Q_NORM, d.q_lora_rank, 1, 0.3);
    fill(m, KV_NORM, r, 1, 0.3);
    const int64_t biases[] = {d.q_lora_rank, r + e, d.out_dim};
    for (int i = 0; has_bias && i < 3; i++) fill(m, (matrix)(Q_BIAS + i), biases[i], 0, 0.5);
    fill(m, X, SEQUENCES * LENGTH * d.embed_dim, 0, 1);
    for (int64_t p = 0; p < POSITIONS; p++)
        for (int64_t i = 0; i < e / 2; i++) {
            const double angle = (double)p * pow(10000, -2 * (double)i / (double)e);
            m->cos[p * (e / 2) + i] = (float)cos(angle), m->sin[p * (e / 2) + i] = (float)sin(angle);
        }
    m->wanted = calloc((size_t)(SEQUENCES * LENGTH * d.out_dim), 8);
    for (int64_t s = 0; s < SEQUENCES; s++) reference(m, s);
}

static void close_model(model *m) {
    for (int i = 0; i < NUM_ARRAYS; i++) free(m->array[i]);
    free(m->wanted);
}

static attune_mla_weights weights_of(const model *m) {
    attune_mla_weights w = ATTUNE_MLA_WEIGHTS_INIT;
    if (m->d.q_lora_rank)
        w.q_a_proj = m->array[Q_A], w.q_a_layernorm = m->array[Q_NORM], w.q_b_proj = m->array[Q_B];
    else
        w.q_proj = m->array[Q_B];
    w.q_a_bias = m->d.q_lora_rank ? m->array[Q_BIAS] : NULL;
    w.kv_a_proj = m->array[KV_A], w.kv_a_bias = m->array[KV_BIAS], w.kv_a_layernorm = m->array[KV_NORM];
    w.kv_b_proj = m->array[KV_B], w.o_proj = m->array[O], w.o_bias = m->array[O_BIAS];
    return w;
}

/* ---- Steps ---- */

/* The pages of a sequence, in no order. */
static const int32_t table[SEQUENCES][MAX_PAGES] = {{7, 2, 9}, {0, 10, 4}, {5, 1, 8}};

typedef struct run {
    const model *m;
    attune_mla *mla;
    char *cache;
    char *out; /* [SEQUENCES, LENGTH, out_dim] */
    bool is_interpreted;
    uint32_t max_threads;
    int lists; /* each token lists itself and all before it: 1 in order, -1 the last one first; 0: there are no lists */
} run;

static void open_run(run *r, const model *m, attune_mla_form form, int64_t page_size, bool is_reproducible) {
    const attune_mla_weights w = weights_of(m);
    attune_mla_desc d = m->d;
    d.form = form, d.page_size = page_size, d.reproducible = is_reproducible;
    d.has_ids = form != ATTUNE_MLA_UNABSORBED;
    *r = (run){.m = m};
    r->cache = calloc(NUM_PAGES * PAGE * (size_t)(d.kv_lora_rank + d.qk_rope_head_dim), 4);
    r->out = calloc(SEQUENCES * LENGTH * (size_t)d.out_dim, 4);
    const attune_status status = attune_mla_create(NULL, &d, &w, &r->mla);
    if (status) fail_msg("%s", attune_last_message());
}

static void close_run(run *r) {
    attune_mla_destroy(r->mla);
    free(r->cache);
    free(r->out);
}

static void check_ran(attune_status status) {
    if (status) fail_msg("%s", attune_last_message());
}

static attune_mla_step step_of(const run *r) {
    attune_mla_step s = ATTUNE_MLA_STEP_INIT;
    s.cos = r->m->cos, s.sin = r->m->sin, s.num_positions = POSITIONS;
    s.cache.data = r->cache;
    s.num_pages = NUM_PAGES, s.max_pages = MAX_PAGES, s.cache_rows = LENGTH;
    return s;
}

/* The lists of tokens from[b] to before to[b], and their lengths behind them. */
static void list_keys(attune_mla_step *s, const run *r, const int32_t *from, int32_t *lists) {
    int32_t *lens = lists + SEQUENCES * LENGTH * LENGTH;
    s->kv_ids = lists, s->kv_id_lens = lens, s->num_ids = LENGTH;
    for (int b = 0; b < SEQUENCES; b++)
        for (int32_t t = from[b]; t < s->kv_lens[b]; t++, lists += LENGTH, lens++) {
            *lens = t + 1;
            for (int32_t i = 0; i < LENGTH; i++) lists[i] = i > t ? INT32_MAX : r->lists > 0 ? i : t - i;
        }
}

/* Tokens from[b] to before to[b] of each sequence, through pages, in one ragged step. */
static void run_ragged(run *r, const int32_t *from, const int32_t *to) {
    const attune_mla_desc *d = &r->m->d;
    const size_t size = bytes_of(d->dtype), x_row = (size_t)d->embed_dim * size, out_row = (size_t)d->out_dim * size;
    int32_t starts[SEQUENCES + 1] = {0};
    char *const x = calloc(SEQUENCES * LENGTH, x_row), *const out = calloc(SEQUENCES * LENGTH, out_row);
    for (int b = 0; b < SEQUENCES; b++) {
        starts[b + 1] = starts[b] + to[b] - from[b];
        memcpy(x + (size_t)starts[b] * x_row, (char *)r->m->array[X] + (size_t)(b * LENGTH + from[b]) * x_row,
               (size_t)(to[b] - from[b]) * x_row);
    }
    attune_mla_step s = step_of(r);
    s.batch = SEQUENCES, s.cu_seqlens = starts, s.kv_lens = to;
    s.block_table = &table[0][0];
    s.x.data = x, s.out.data = out, s.max_threads = r->max_threads;
    int32_t *const lists = calloc(SEQUENCES * LENGTH * (LENGTH + 1), sizeof *lists);
    if (r->lists) list_keys(&s, r, from, lists);
    check_ran((r->is_interpreted ? attune_mla_run_interpreted : attune_mla_run)(r->mla, &s));
    for (int b = 0; b < SEQUENCES; b++)
        memcpy(r->out + (size_t)(b * LENGTH + from[b]) * out_row, out + (size_t)starts[b] * out_row,
               (size_t)(to[b] - from[b]) * out_row);
    free(x), free(out), free(lists);
}

static const int32_t none[SEQUENCES] = {0, 0, 0}, all[SEQUENCES] = {LENGTH, LENGTH, LENGTH};

/* Chunks of different lengths, some sequences without a token in some steps, and single tokens at the end. */
static void run_chunks(run *r) {
    static const int32_t ends[][SEQUENCES] = {
        {5, 0, 21}, {6, 17, 22}, {23, 17, 23}, {34, 34, 34}, {35, 35, 35}, {36, 36, 36}, {LENGTH, LENGTH, LENGTH}};
    run_ragged(r, none, ends[0]);
    for (size_t i = 1; i < sizeof ends / sizeof *ends; i++) run_ragged(r, ends[i - 1], ends[i]);
}

/* The largest error, of the largest number. */
static double error_of(const run *r) {
    double worst = 0, most = 0;
    for (int64_t i = 0; i < SEQUENCES * LENGTH * r->m->d.out_dim; i++) {
        const double is = (double)ref_load(r->m->d.dtype, r->out, i), wanted = r->m->wanted[i];
        worst = isnan(is) ? INFINITY : fmax(worst, fabs(is - wanted));
        most = fmax(most, fabs(wanted));
    }
    return worst / most;
}

static double limit_of(const model *m) {
    return m->d.dtype == ATTUNE_F32 ? 1e-5 : m->d.dtype == ATTUNE_F16 ? 4e-3 : 3e-2;
}

static size_t out_bytes(const model *m) { return SEQUENCES * LENGTH * (size_t)m->d.out_dim * bytes_of(m->d.dtype); }

/* ---- Tests ---- */

static attune_mla_desc desc_of(int64_t heads, int64_t embed, int64_t q_rank, int64_t rank, int64_t nope, int64_t rope,
                               int64_t v, attune_dtype dtype, int interleaved) {
    attune_mla_desc d = ATTUNE_MLA_DESC_INIT;
    d.num_heads = heads, d.embed_dim = embed, d.q_lora_rank = q_rank, d.kv_lora_rank = rank;
    d.qk_nope_head_dim = nope, d.qk_rope_head_dim = rope, d.v_head_dim = v;
    d.dtype = dtype, d.rope_interleaved = interleaved;
    return d;
}

static void check_form(const model *m, attune_mla_form form) {
    run whole, chunks;
    open_run(&whole, m, form, PAGE, false);
    open_run(&chunks, m, form, PAGE, false);
    run_ragged(&whole, none, all);
    run_chunks(&chunks);
    const double errors[] = {error_of(&whole), error_of(&chunks)};
    for (int i = 0; i < 2; i++)
        if (!(errors[i] <= limit_of(m))) fail_msg("form %d, %s: error %g", form, i ? "chunks" : "whole", errors[i]);
    close_run(&whole), close_run(&chunks);
}

static void forms_agree_with_f64(void **unused) {
    (void)unused;
    attune_mla_desc descs[] = {
        desc_of(16, 64, 48, 64, 32, 32, 32, ATTUNE_F32, 1),  desc_of(3, 40, 0, 521, 24, 16, 40, ATTUNE_F32, 0),
        desc_of(4, 96, 64, 128, 64, 32, 96, ATTUNE_BF16, 1), desc_of(5, 72, 33, 72, 16, 8, 48, ATTUNE_BF16, 0),
        desc_of(18, 64, 0, 64, 32, 16, 32, ATTUNE_F16, 1), /* keys and values of 9 heads at a time */
    };
    descs[1].out_dim = 523; /* the last column groups of this and of 521 are not full */
    descs[2].softmax_scale = 0.2;
    for (size_t i = 0; i < sizeof descs / sizeof *descs; i++) {
        model m;
        open_model(&m, descs[i], i % 2 == 0);
        check_form(&m, ATTUNE_MLA_ABSORBED);
        check_form(&m, ATTUNE_MLA_UNABSORBED);
        if (i < 1) check_form(&m, ATTUNE_MLA_BY_COST);
        close_model(&m);
    }
}

static model *shared_model(void) {
    static model m;
    static bool is_open;
    if (!is_open) open_model(&m, desc_of(4, 48, 32, 64, 32, 16, 24, ATTUNE_F32, 1), true);
    is_open = true;
    return &m;
}

static void chunks_have_the_bits_of_the_whole(void **unused) {
    (void)unused;
    for (attune_mla_form form = ATTUNE_MLA_ABSORBED; form <= ATTUNE_MLA_UNABSORBED; form++) {
        run whole, chunks;
        open_run(&whole, shared_model(), form, PAGE, true);
        open_run(&chunks, shared_model(), form, PAGE, true);
        run_ragged(&whole, none, all);
        run_chunks(&chunks);
        assert_memory_equal(whole.out, chunks.out, out_bytes(whole.m));
        close_run(&whole), close_run(&chunks);
    }
}

static void interpreter_has_the_same_bits(void **unused) {
    (void)unused;
    for (int i = 0; i < 2; i++) {
        model m;
        run machine, interpreted;
        open_model(&m, desc_of(3, 40, 24 * i, 48, 24, 16, 40, i ? ATTUNE_BF16 : ATTUNE_F32, i), true);
        for (attune_mla_form form = ATTUNE_MLA_ABSORBED; form <= ATTUNE_MLA_UNABSORBED; form++) {
            open_run(&machine, &m, form, PAGE, true);
            open_run(&interpreted, &m, form, PAGE, true);
            interpreted.is_interpreted = true;
            run_ragged(&machine, none, all);
            run_ragged(&interpreted, none, all);
            assert_memory_equal(machine.out, interpreted.out, out_bytes(&m));
            close_run(&machine), close_run(&interpreted);
        }
        close_model(&m);
    }
}

static void threads_change_no_bit(void **unused) {
    (void)unused;
    for (attune_mla_form form = ATTUNE_MLA_BY_COST; form <= ATTUNE_MLA_UNABSORBED; form++) {
        run one, more;
        open_run(&one, shared_model(), form, PAGE, false);
        open_run(&more, shared_model(), form, PAGE, false);
        one.max_threads = 1;
        run_chunks(&one);
        run_chunks(&more);
        assert_memory_equal(one.out, more.out, out_bytes(one.m));
        close_run(&one), close_run(&more);
    }
}

/* A sequence each of 1 of 37 tokens, of all 37, and of none. */
static void form_follows_from_cost(void **unused) {
    (void)unused;
    static const int32_t begun[SEQUENCES] = {LENGTH - 1, 0, 9}, end[SEQUENCES] = {LENGTH, LENGTH, 9};
    run by_cost, absorbed, unabsorbed, *const runs[] = {&by_cost, &absorbed, &unabsorbed};
    for (int i = 0; i < 3; i++) {
        open_run(runs[i], shared_model(), (attune_mla_form)i, PAGE, false);
        run_ragged(runs[i], none, (int32_t[]){LENGTH - 1, 0, 9});
        run_ragged(runs[i], begun, end);
    }
    const size_t row = (size_t)by_cost.m->d.out_dim * 4, last = (LENGTH - 1) * row, all_rows = LENGTH * row;
    assert_memory_equal(by_cost.out + last, absorbed.out + last, row);
    assert_memory_not_equal(by_cost.out + last, unabsorbed.out + last, row);
    assert_memory_equal(by_cost.out + all_rows, unabsorbed.out + all_rows, all_rows);
    assert_memory_not_equal(by_cost.out + all_rows, absorbed.out + all_rows, all_rows);
    for (int i = 0; i < 3; i++) close_run(runs[i]);
}

/* A cache without pages, wide strides, positions of one's own, and fewer threads. */
static void contiguous_caches_and_strides(void **unused) {
    (void)unused;
    const model *m = shared_model();
    enum { ROOM = LENGTH + 3, WIDE = 7 };
    const int64_t width = m->d.kv_lora_rank + m->d.qk_rope_head_dim, embed = m->d.embed_dim, out = m->d.out_dim;
    for (attune_mla_form form = ATTUNE_MLA_BY_COST; form <= ATTUNE_MLA_UNABSORBED; form++) {
        run r;
        open_run(&r, m, form, 0, false);
        free(r.cache);
        r.cache = calloc(SEQUENCES * ROOM * (size_t)(width + 1) + WIDE, 4);
        for (int64_t from = 0, to = 20; from < LENGTH; from = to, to = LENGTH) {
            const int64_t seq = to - from;
            int32_t lens[SEQUENCES], positions[SEQUENCES * LENGTH];
            float *const x = calloc((size_t)(SEQUENCES * seq * (embed + WIDE)), 4);
            float *const y = calloc((size_t)(SEQUENCES * seq * (out + WIDE)), 4);
            for (int64_t t = 0; t < SEQUENCES * seq; t++) {
                positions[t] = (int32_t)(from + t % seq);
                memcpy(x + t * (embed + WIDE), (float *)m->array[X] + (t / seq * LENGTH + positions[t]) * embed,
                       (size_t)embed * 4);
            }
            for (int b = 0; b < SEQUENCES; b++) lens[b] = (int32_t)to;
            attune_mla_step s = step_of(&r);
            s.batch = SEQUENCES, s.seq = seq, s.kv_lens = lens, s.cache_rows = ROOM;
            s.cache.token = width + 1, s.cache.batch = ROOM * (width + 1) + 1;
            s.x.data = x, s.x.token = embed + WIDE;
            s.out.data = y, s.out.token = out + WIDE;
            s.positions = positions, s.max_threads = 1;
            check_ran(attune_mla_run(r.mla, &s));
            for (int64_t t = 0; t < SEQUENCES * seq; t++) {
                memcpy((float *)(void *)r.out + (t / seq * LENGTH + positions[t]) * out, y + t * (out + WIDE),
                       (size_t)out * 4);
                for (int i = 0; i < WIDE; i++) assert_true(y[t * (out + WIDE) + out + i] == 0);
            }
            free(x), free(y);
        }
        assert_true(error_of(&r) <= limit_of(m));
        close_run(&r);
    }
}

/* ---- Sentences ---- */

static void check_desc(attune_mla_desc d, const attune_mla_weights *w, const char *sentence) {
    attune_mla *mla = (attune_mla *)&d;
    assert_int_not_equal(attune_mla_create(NULL, &d, w, &mla), ATTUNE_OK);
    assert_null(mla);
    assert_string_equal(attune_last_message(), sentence);
}

/* In any order they are all keys; in their order, and reproducible, with the bits of a step without lists. */
static void lists_of_all_keys(void **unused) {
    (void)unused;
    run listed, plain, interpreted;
    open_run(&listed, shared_model(), ATTUNE_MLA_BY_COST, PAGE, false);
    listed.lists = -1;
    run_chunks(&listed);
    assert_true(error_of(&listed) <= limit_of(shared_model()));
    close_run(&listed);
    open_run(&listed, shared_model(), ATTUNE_MLA_ABSORBED, PAGE, true);
    open_run(&plain, shared_model(), ATTUNE_MLA_ABSORBED, PAGE, true);
    open_run(&interpreted, shared_model(), ATTUNE_MLA_ABSORBED, PAGE, true);
    listed.lists = interpreted.lists = 1, interpreted.is_interpreted = true;
    run_chunks(&listed);
    run_ragged(&plain, none, all);
    run_ragged(&interpreted, none, all);
    assert_memory_equal(listed.out, plain.out, out_bytes(shared_model()));
    assert_memory_equal(interpreted.out, plain.out, out_bytes(shared_model()));
    close_run(&listed), close_run(&plain), close_run(&interpreted);
}

static void wrong_descriptions_have_a_sentence(void **unused) {
    (void)unused;
    const model *m = shared_model();
    attune_mla_weights w = weights_of(m);
    attune_mla_desc d = m->d;
    d.page_size = 24;
    check_desc(d, &w, "page_size is 24; it must be a multiple of 16, or 0");
    d = m->d, d.qk_rope_head_dim = 15;
    check_desc(d, &w, "qk_rope_head_dim is 15; it must be even");
    d = m->d, d.kv_lora_rank = 0;
    check_desc(d, &w, "kv_lora_rank is 0; it must be from 1 to 1024");
    d = m->d, d.dtype = ATTUNE_I8;
    check_desc(d, &w, "dtype is i8; it must be f32, bf16 or f16");
    d = m->d, d.reproducible = 1;
    check_desc(d, &w, "reproducible is 1 and form ATTUNE_MLA_BY_COST; the two forms have different bits: name one");
    d = m->d, d.has_ids = 1, d.form = ATTUNE_MLA_UNABSORBED;
    check_desc(d, &w, "has_ids is 1 and form ATTUNE_MLA_UNABSORBED; listed keys are attended to in the absorbed form");
    d = m->d, d.reserved = 7;
    check_desc(d, &w, "reserved is 7; it must be 0");
    d = m->d, d.q_lora_rank = 0;
    check_desc(d, &w, "q_proj of the weights is NULL");
    w.q_proj = w.o_proj;
    check_desc(m->d, &w, "q_lora_rank is 32, but there are weights of q_proj");
    w = weights_of(m), w.kv_a_layernorm = NULL;
    check_desc(m->d, &w, "kv_a_layernorm of the weights is NULL");
    check_desc(m->d, NULL, "attune_mla_create was given no weights");
}

static void check_step(run *r, attune_mla_step s, const char *sentence) {
    assert_int_equal(attune_mla_run(r->mla, &s), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), sentence);
    for (size_t i = 0; i < NUM_PAGES * PAGE * 80 * sizeof(float); i++) assert_int_equal(r->cache[i], 0);
}

static void wrong_steps_have_a_sentence(void **unused) {
    (void)unused;
    static const int32_t starts[] = {0, 2, 4}, falling[] = {0, 3, 2}, lens[] = {20, 2}, few[] = {20, 1};
    static const int32_t wrong_table[] = {1, 11, 3, 4, 5, 6};
    run r;
    open_run(&r, shared_model(), ATTUNE_MLA_BY_COST, PAGE, false);
    attune_mla_step good = step_of(&r), s;
    good.batch = 2, good.cu_seqlens = starts, good.kv_lens = lens, good.block_table = &table[0][0];
    good.x.data = r.m->array[X], good.out.data = r.out;
    s = good, s.x.data = NULL;
    check_step(&r, s, "x is NULL");
    s = good, s.cu_seqlens = falling;
    check_step(&r, s, "cu_seqlens[2] is 2; it must rise from 0");
    s = good, s.kv_lens = few;
    check_step(&r, s, "sequence 1 has 1 tokens in all; it has 2 new ones, and the cache room for 48");
    s = good, s.block_table = wrong_table;
    check_step(&r, s, "block_table[0, 1] is 11; there are pages from 0 to 10");
    s = good, s.num_positions = 19;
    check_step(&r, s, "token 1 has the position 19; cos and sin have 19 rows");
    s = good, s.out.token = 5;
    check_step(&r, s, "out has rows 5 elements apart; they would overlap below 48");
    s = good, s.cache.token = 80, s.cache.batch = 81;
    check_step(&r, s, "cache has pages 81 elements apart; they would overlap below 1280");
    static const int32_t ids[] = {0, 19, 20, 0, 1, 1, 0, 1}, id_lens[] = {2, 2, 3, 2};
    s = good, s.kv_ids = ids, s.num_ids = 2;
    check_step(&r, s, "kv_ids has key 20 at place 0 of the list of token 1; sequence 0 has 20 tokens");
    s.kv_id_lens = id_lens, s.kv_ids = ids + 4;
    check_step(&r, s, "kv_id_lens[2] is 3; it must be from 0 to 2 (num_ids)");
    s = good, s.kv_ids = ids;
    check_step(&r, s, "num_ids is 0; lists have at least one place");
    s = good, s.kv_id_lens = id_lens;
    check_step(&r, s, "there are kv_id_lens, but kv_ids is NULL");
    s = good, s.batch = -1;
    check_step(&r, s, "batch is -1; it must be from 0 to 2147483647");
    s = good, s.batch = 0;
    assert_int_equal(attune_mla_run(r.mla, &s), ATTUNE_OK);
    assert_int_equal(attune_mla_run(NULL, &good), ATTUNE_INVALID_ARGUMENT);
    close_run(&r);
    open_run(&r, shared_model(), ATTUNE_MLA_BY_COST, 0, false);
    check_step(&r, good, "there are cu_seqlens, but page_size is 0: sequences of different lengths need pages");
    close_run(&r);
    open_run(&r, shared_model(), ATTUNE_MLA_UNABSORBED, PAGE, false);
    s = good, s.kv_ids = ids, s.num_ids = 2;
    check_step(&r, s, "there are kv_ids, but has_ids of the description is 0");
    close_run(&r);
    open_run(&r, shared_model(), ATTUNE_MLA_ABSORBED, PAGE, true);
    s = good, s.kv_ids = ids + 4, s.num_ids = 2;
    check_step(&r, s, "kv_ids has key 1 after key 1 in the list of token 0; with reproducible they must ascend");
    close_run(&r);
}

static int close_shared(void **unused) {
    (void)unused;
    close_model(shared_model());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_agree_with_f64),
        cmocka_unit_test(chunks_have_the_bits_of_the_whole),
        cmocka_unit_test(interpreter_has_the_same_bits),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(form_follows_from_cost),
        cmocka_unit_test(contiguous_caches_and_strides),
        cmocka_unit_test(lists_of_all_keys),
        cmocka_unit_test(wrong_descriptions_have_a_sentence),
        cmocka_unit_test(wrong_steps_have_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, close_shared);
}
