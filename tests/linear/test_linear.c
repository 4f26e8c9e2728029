/* Linear attention: rules, decays, heads, types and layouts beside f64; the same bits by the interpreter, for any cut
 * into steps and in any batch; and a sentence for what is wrong. */
#include <attune/linear.h>
#include <attune/status.h>

#include "ref_attention.h"
#include "ref_linear.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
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

/* ---- A call: dense tensors of [tokens, heads, columns] ---- */

enum { Q, K, V, DECAY, BETA, OUT, GATE, NUM_TENSORS };

typedef struct linear_case {
    attune_linear_desc desc;
    int64_t tokens, states, columns[NUM_TENSORS], heads[NUM_TENSORS];
    attune_dtype dtypes[NUM_TENSORS];
    void *data[NUM_TENSORS], *state, *norm;
} linear_case;

static int64_t state_numbers(const linear_case *c) {
    return c->states * c->desc.num_kv_heads * c->desc.head_dim * c->desc.head_dim_v;
}

static void open_case(linear_case *c, attune_linear_desc desc, int64_t tokens, int64_t states, double least_decay) {
    if (!desc.num_kv_heads) desc.num_kv_heads = desc.num_heads;
    if (!desc.num_k_heads) desc.num_k_heads = desc.num_kv_heads;
    if (!desc.head_dim_v) desc.head_dim_v = desc.head_dim;
    attune_dtype *const dtypes[] = {&desc.dtype, &desc.decay_dtype, &desc.beta_dtype, &desc.state_dtype};
    for (int i = 0; i < 4; i++)
        if (!*dtypes[i]) *dtypes[i] = ATTUNE_F32;
    *c = (linear_case){.desc = desc, .tokens = tokens, .states = states};
    const int64_t out_heads = desc.num_heads > desc.num_kv_heads ? desc.num_heads : desc.num_kv_heads;
    const int64_t columns[] = {
        desc.head_dim,   desc.head_dim,  desc.head_dim_v, desc.decay == ATTUNE_DECAY_KEY ? desc.head_dim : 1, 1,
        desc.head_dim_v, desc.head_dim_v};
    const int64_t heads[] = {desc.num_heads,    desc.num_k_heads, desc.num_kv_heads, desc.num_kv_heads,
                             desc.num_kv_heads, out_heads,        out_heads};
    state_of_numbers = (uint32_t)(tokens * 31 + desc.head_dim);
    for (int t = 0; t < NUM_TENSORS; t++) {
        const int64_t count = tokens * heads[t] * columns[t];
        c->columns[t] = columns[t], c->heads[t] = heads[t];
        c->dtypes[t] = t == DECAY ? desc.decay_dtype : t == BETA ? desc.beta_dtype : desc.dtype;
        c->data[t] = calloc((size_t)count + 1, bytes_of(c->dtypes[t]));
        for (int64_t i = 0; i < count && t != OUT; i++) {
            const double x = next_number(), share = (x + 1) / 2;
            const double value = t == DECAY ? least_decay * share : t == BETA ? share : t == K ? x / 3 : x;
            ref_store(c->dtypes[t], c->data[t], i, value);
        }
    }
    c->state = calloc((size_t)state_numbers(c), bytes_of(desc.state_dtype));
    for (int64_t i = 0; i < state_numbers(c); i++) ref_store(desc.state_dtype, c->state, i, next_number());
    c->norm = calloc((size_t)desc.head_dim_v, bytes_of(desc.dtype));
    for (int64_t i = 0; i < desc.head_dim_v; i++) ref_store(desc.dtype, c->norm, i, 1 + next_number() / 2);
}

static void close_case(linear_case *c) {
    for (int t = 0; t < NUM_TENSORS; t++) free(c->data[t]);
    free(c->state);
    free(c->norm);
}

static attune_linear_step step_of(const linear_case *c) {
    attune_linear_step s = ATTUNE_LINEAR_STEP_INIT;
    s.batch = 1, s.seq = c->tokens, s.num_states = c->states;
    s.q.data = c->data[Q], s.k.data = c->data[K], s.v.data = c->data[V];
    s.decay.data = c->data[DECAY], s.beta.data = c->data[BETA], s.out.data = c->data[OUT];
    s.state.data = c->state, s.gate.data = c->data[GATE], s.norm_weights = c->norm;
    return s;
}

/* The same step from a token on. */
static void shift(attune_linear_step *s, const linear_case *c, int64_t token) {
    const void **const views[] = {
        &s->q.data, &s->k.data, &s->v.data, &s->decay.data, &s->beta.data, (const void **)&s->out.data, &s->gate.data};
    for (int t = 0; t < NUM_TENSORS; t++)
        *views[t] = (char *)c->data[t] + (size_t)(token * c->heads[t] * c->columns[t]) * bytes_of(c->dtypes[t]);
}

/* ---- The reference, in f64 ---- */

static double *reference_of(const linear_case *c, double **state) {
    double *const out = calloc((size_t)(c->tokens * c->heads[OUT] * c->columns[OUT]) + 1, sizeof *out);
    double *const s = calloc((size_t)state_numbers(c), sizeof *s);
    for (int64_t i = 0; i < state_numbers(c); i++) s[i] = (double)ref_load(c->desc.state_dtype, c->state, i);
    const ref_linear r = {&c->desc,       c->tokens,     c->data[Q],    c->data[K], c->data[V],
                          c->data[DECAY], c->data[BETA], c->data[GATE], c->norm};
    assert_true(ref_linear_compute(&r, s, out, NULL, NULL));
    *state = s;
    return out;
}

static void assert_near(const char *what, const void *have, attune_dtype dtype, const double *want, int64_t count,
                        double tolerance) {
    double largest = 1;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)ref_load(dtype, have, i) - want[i]) <= tolerance * largest))
            fail_msg("%s[%lld] is %g, not %g", what, (long long)i, (double)ref_load(dtype, have, i), want[i]);
}

/* ---- What is computed ---- */

static attune_linear *make(const attune_linear_desc *desc) {
    attune_linear *linear;
    if (attune_linear_create(NULL, desc, &linear)) fail_msg("%s", attune_last_message());
    return linear;
}

static void run(attune_linear *linear, const attune_linear_step *step) {
    if (attune_linear_run(linear, step)) fail_msg("%s", attune_last_message());
}

static void compare_one(const char *name, attune_linear_desc desc, int64_t tokens, double least_decay) {
    linear_case c, again;
    double *state, *out;
    open_case(&c, desc, tokens, 1, least_decay);
    open_case(&again, desc, tokens, 1, least_decay);
    out = reference_of(&c, &state);
    attune_linear *const linear = make(&desc);
    const attune_linear_step s = step_of(&c), interpreted = step_of(&again);
    run(linear, &s);
    const double f32 = 2e-5, narrow = 2e-2;
    assert_near(name, c.data[OUT], c.desc.dtype, out, tokens * c.heads[OUT] * c.columns[OUT],
                c.desc.dtype == ATTUNE_F32 && c.desc.state_dtype == ATTUNE_F32 ? f32 : narrow);
    assert_near(name, c.state, c.desc.state_dtype, state, state_numbers(&c),
                c.desc.state_dtype == ATTUNE_F32 ? f32 : narrow);
    if (attune_linear_run_interpreted(linear, &interpreted)) fail_msg("%s: %s", name, attune_last_message());
    assert_memory_equal(c.data[OUT], again.data[OUT],
                        (size_t)(tokens * c.heads[OUT] * c.columns[OUT]) * bytes_of(c.desc.dtype));
    assert_memory_equal(c.state, again.state, (size_t)state_numbers(&c) * bytes_of(c.desc.state_dtype));
    attune_linear_destroy(linear);
    close_case(&c);
    close_case(&again);
    free(out);
    free(state);
}

/* In chunks, where there are enough tokens for one, and token after token. */
static void compare(const char *name, attune_linear_desc desc, int64_t tokens, double least_decay) {
    enum { CHUNK = 8 };
    compare_one(name, desc, tokens, least_decay);
    desc.reproducible = 1;
    if (tokens >= CHUNK) compare_one(name, desc, tokens, least_decay);
}

static attune_linear_desc desc_of(attune_linear_rule rule, attune_linear_decay decay, int has_beta) {
    attune_linear_desc d = ATTUNE_LINEAR_DESC_INIT;
    d.num_heads = 2, d.head_dim = 24, d.head_dim_v = 40;
    d.rule = rule, d.decay = decay, d.has_beta = has_beta;
    return d;
}

static void rules(void **state) {
    (void)state;
    for (int tokens = 1; tokens < 40; tokens += 19) {
        compare("linear", desc_of(ATTUNE_LINEAR, ATTUNE_DECAY_NONE, 0), tokens, 0);
        compare("gated", desc_of(ATTUNE_GATED, ATTUNE_DECAY_HEAD, 0), tokens, -1);
        compare("gated by key", desc_of(ATTUNE_GATED, ATTUNE_DECAY_KEY, 0), tokens, -1);
        compare("delta", desc_of(ATTUNE_DELTA, ATTUNE_DECAY_NONE, 1), tokens, 0);
        compare("delta without beta", desc_of(ATTUNE_DELTA, ATTUNE_DECAY_NONE, 0), tokens, 0);
        compare("gated delta", desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_HEAD, 1), tokens, -1);
        compare("gated delta by key", desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_KEY, 1), tokens, -1);
    }
}

static void heads(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{8, 2, 0}, {4, 1, 0}, {6, 1, 0}, {2, 4, 2}, {2, 6, 3}, {1, 3, 1}, {12, 2, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_HEAD, 1);
        d.num_heads = sizes[i][0], d.num_kv_heads = sizes[i][1], d.num_k_heads = sizes[i][2];
        compare("heads", d, 3, -1);
        compare("heads of a prompt", d, 13, -1);
    }
}

static void sizes(void **state) {
    (void)state;
    static const int64_t dims[][2] = {{1, 1}, {3, 5}, {16, 16}, {17, 33}, {64, 64}, {128, 128}, {100, 96}, {32, 200}};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, i % 2 ? ATTUNE_DECAY_KEY : ATTUNE_DECAY_HEAD, 1);
        d.head_dim = dims[i][0], d.head_dim_v = dims[i][1];
        compare("sizes", d, 2, -1);
        compare("sizes of a prompt", d, 11, -1);
    }
}

static void types(void **state) {
    (void)state;
    static const attune_dtype narrow[] = {ATTUNE_BF16, ATTUNE_F16};
    for (int i = 0; i < 2; i++) {
        attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_HEAD, 1);
        d.dtype = narrow[i];
        compare("type", d, 3, -1);
        compare("type of a prompt", d, 12, -1);
        d.decay_dtype = d.beta_dtype = narrow[i];
        compare("all types", d, 12, -1);
        d.dtype = ATTUNE_F32;
        d.state_dtype = ATTUNE_BF16;
        compare("state in bf16", d, 1, -1);
        compare("state in bf16, a prompt", d, 12, -1);
    }
}

static void norms_and_scale(void **state) {
    (void)state;
    attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_HEAD, 1);
    d.qk_norm_eps = 1e-6, d.scale = 0.3;
    compare("norms", d, 1, -1);
    compare("norms of a prompt", d, 14, -1);
}

static void norm_and_gate_of_out(void **state) {
    (void)state;
    for (int gate = 0; gate < ATTUNE_GATE_COUNT; gate++)
        for (int has_norm = gate == 0; has_norm < 2; has_norm++) {
            attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_HEAD, 1);
            d.gate = (attune_linear_gate)gate, d.out_norm_eps = has_norm ? 1e-5 : 0;
            compare("a finished token", d, 1, -1);
            d.num_heads = 4, d.num_kv_heads = 2, d.dtype = gate == 1 ? ATTUNE_BF16 : ATTUNE_F32;
            compare("a finished prompt", d, 13, -1);
        }
}

/* Decays above 0 are not refused: the state grows. */
static void growing_decay(void **state) {
    (void)state;
    compare("growing", desc_of(ATTUNE_GATED, ATTUNE_DECAY_HEAD, 0), 9, 0.5);
}

/* Decays to exp(-80) forget the state, and none keeps it; nothing overflows. */
static void strong_decay(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        const attune_linear_decay decay = i ? ATTUNE_DECAY_KEY : ATTUNE_DECAY_HEAD;
        compare("strong", desc_of(ATTUNE_GATED_DELTA, decay, 1), 30, -80);
        compare("none", desc_of(ATTUNE_GATED_DELTA, decay, 1), 30, 0);
    }
}

/* ---- The same bits ---- */

enum { TOKENS = 33, MOST_PARTS = 8 };

static void compare_cuts(const attune_linear_desc *desc, const int cuts[][MOST_PARTS], int count) {
    attune_linear_desc d = *desc;
    attune_linear *const linear = make(&d);
    linear_case first;
    open_case(&first, d, TOKENS, 1, -1);
    const attune_linear_step whole = step_of(&first);
    run(linear, &whole);
    for (int i = 0; i < count; i++) {
        linear_case c;
        open_case(&c, d, TOKENS, 1, -1);
        for (int64_t part = 0, token = 0; token < TOKENS; token += cuts[i][part++]) {
            attune_linear_step s = step_of(&c);
            shift(&s, &c, token);
            s.seq = cuts[i][part];
            run(linear, &s);
        }
        assert_memory_equal(c.data[OUT], first.data[OUT], (size_t)(TOKENS * c.heads[OUT] * c.columns[OUT]) * 4);
        assert_memory_equal(c.state, first.state, (size_t)state_numbers(&c) * 4);
        close_case(&c);
    }
    close_case(&first);
    attune_linear_destroy(linear);
}

static void bits_of_cuts(void **state) {
    (void)state;
    static const int anywhere[][MOST_PARTS] = {{1, 1, 31}, {16, 17}, {20, 9, 1, 1, 1, 1}, {7, 8, 9, 9}};
    static const int between_chunks[][MOST_PARTS] = {{8, 25}, {16, 8, 8, 1}, {32, 1}};
    for (int decay = ATTUNE_DECAY_HEAD; decay <= ATTUNE_DECAY_KEY; decay++) {
        attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, (attune_linear_decay)decay, 1);
        compare_cuts(&d, between_chunks, 3);
        d.reproducible = 1;
        compare_cuts(&d, between_chunks, 3);
        compare_cuts(&d, anywhere, 4);
    }
}

/* Sequences of several lengths, one empty, with states out of order: each as if it were alone. */
static void ragged_batches(void **state) {
    (void)state;
    static const int32_t starts[] = {0, 5, 5, 6, 26}, ids[] = {3, 0, 5, 1};
    attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_KEY, 1);
    attune_linear *const linear = make(&d);
    linear_case c, alone;
    open_case(&c, d, 26, 6, -1);
    open_case(&alone, d, 26, 6, -1);
    attune_linear_step s = step_of(&c);
    s.batch = 4, s.cu_seqlens = starts, s.state_ids = ids, s.max_threads = 1;
    run(linear, &s);
    for (int b = 0; b < 4; b++) {
        attune_linear_step one = step_of(&alone);
        shift(&one, &alone, starts[b]);
        one.seq = starts[b + 1] - starts[b], one.state_ids = &ids[b];
        run(linear, &one);
    }
    assert_memory_equal(c.data[OUT], alone.data[OUT], (size_t)(26 * c.heads[OUT] * c.columns[OUT]) * 4);
    assert_memory_equal(c.state, alone.state, (size_t)state_numbers(&c) * 4);
    close_case(&c);
    close_case(&alone);
    attune_linear_destroy(linear);
}

/* [batch, heads, seq, dim] by strides is [batch, seq, heads, dim]. */
static void strides(void **state) {
    (void)state;
    enum { BATCH = 2, SEQ = 9 };
    attune_linear_desc d = desc_of(ATTUNE_DELTA, ATTUNE_DECAY_NONE, 1);
    attune_linear *const linear = make(&d);
    linear_case c, turned;
    open_case(&c, d, BATCH * SEQ, BATCH, 0);
    open_case(&turned, d, BATCH * SEQ, BATCH, 0);
    for (int t = Q; t <= V; t++)
        for (int64_t i = 0; i < BATCH * SEQ * c.heads[t] * c.columns[t]; i++) {
            const int64_t column = i % c.columns[t], head = i / c.columns[t] % c.heads[t];
            const int64_t token = i / c.columns[t] / c.heads[t] % SEQ, b = i / c.columns[t] / c.heads[t] / SEQ;
            const int64_t to = ((b * c.heads[t] + head) * SEQ + token) * c.columns[t] + column;
            ((float *)turned.data[t])[to] = ((float *)c.data[t])[i];
        }
    attune_linear_step s = step_of(&c), by_heads = step_of(&turned);
    s.batch = by_heads.batch = BATCH, s.seq = by_heads.seq = SEQ;
    attune_view *const views[] = {&by_heads.q, &by_heads.k, &by_heads.v};
    for (int t = Q; t <= V; t++) {
        views[t]->token = c.columns[t], views[t]->head = SEQ * c.columns[t];
        views[t]->batch = c.heads[t] * SEQ * c.columns[t];
    }
    run(linear, &s);
    run(linear, &by_heads);
    assert_memory_equal(c.data[OUT], turned.data[OUT], (size_t)(BATCH * SEQ * c.heads[OUT] * c.columns[OUT]) * 4);
    assert_memory_equal(c.state, turned.state, (size_t)state_numbers(&c) * 4);
    close_case(&c);
    close_case(&turned);
    attune_linear_destroy(linear);
}

static void nothing_to_do(void **state) {
    (void)state;
    attune_linear_desc d = desc_of(ATTUNE_DELTA, ATTUNE_DECAY_NONE, 1);
    attune_linear *const linear = make(&d);
    linear_case c, before;
    open_case(&c, d, 4, 1, 0);
    open_case(&before, d, 4, 1, 0);
    attune_linear_step s = step_of(&c);
    s.seq = 0;
    run(linear, &s);
    s.batch = 0;
    run(linear, &s);
    assert_memory_equal(c.state, before.state, (size_t)state_numbers(&c) * 4);
    assert_int_equal(attune_linear_prepare(linear), ATTUNE_OK);
    close_case(&c);
    close_case(&before);
    attune_linear_destroy(linear);
    attune_linear_destroy(NULL);
}

/* ---- What is refused ---- */

static void refuse_desc(const attune_linear_desc *d, const char *sentence) {
    attune_linear *linear = (attune_linear *)d;
    assert_int_not_equal(attune_linear_create(NULL, d, &linear), ATTUNE_OK);
    assert_null(linear);
    assert_string_equal(attune_last_message(), sentence);
}

static void wrong_descriptions(void **state) {
    (void)state;
    const attune_linear_desc good = desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_HEAD, 1);
    attune_linear_desc d = good;
    d.num_heads = 0;
    refuse_desc(&d, "num_heads is 0; it must be from 1 to 1024");
    d = good, d.num_heads = 3, d.num_kv_heads = 2;
    refuse_desc(&d, "num_heads is 3 and num_kv_heads 2; one of them must divide the other");
    d = good, d.num_k_heads = 3;
    refuse_desc(&d, "num_k_heads is 3, which does not divide num_kv_heads, 2");
    d = good, d.head_dim = 4096;
    refuse_desc(&d, "head_dim is 4096; it must be from 1 to 1024");
    d = good, d.dtype = ATTUNE_I8;
    refuse_desc(&d, "dtype is i8; it must be f32, bf16 or f16");
    d = good, d.state_dtype = ATTUNE_F16;
    refuse_desc(&d, "state_dtype is f16; it must be f32 or bf16");
    d = good, d.decay = ATTUNE_DECAY_NONE;
    refuse_desc(&d, "the rule gated_delta has a decay, but decay is none");
    d = desc_of(ATTUNE_LINEAR, ATTUNE_DECAY_HEAD, 0);
    refuse_desc(&d, "the rule linear has no decay, but decay is head");
    d = desc_of(ATTUNE_GATED, ATTUNE_DECAY_HEAD, 1);
    refuse_desc(&d, "has_beta is 1; of the rule gated it must be 0");
    d = good, d.scale = INFINITY;
    refuse_desc(&d, "scale is inf; it must be within +-1e38");
    d = good, d.qk_norm_eps = 2;
    refuse_desc(&d, "qk_norm_eps is 2; it must be 0, or from 1e-12 to 1");
    d = good, d.out_norm_eps = -1;
    refuse_desc(&d, "out_norm_eps is -1; it must be 0, or from 1e-12 to 1");
    d = good, d.gate = (attune_linear_gate)3;
    refuse_desc(&d, "gate is 3, which is no attune_linear_gate");
}

static void refuse_step(attune_linear *linear, const attune_linear_step *s, const char *sentence) {
    assert_int_equal(attune_linear_run(linear, s), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), sentence);
}

static void wrong_steps(void **state) {
    (void)state;
    static const int32_t falling[] = {0, 5, 3}, late[] = {1, 2, 3}, twice[] = {1, 1}, far[] = {0, 2};
    attune_linear_desc d = desc_of(ATTUNE_GATED_DELTA, ATTUNE_DECAY_HEAD, 1);
    attune_linear *const linear = make(&d);
    linear_case c;
    open_case(&c, d, 6, 2, -1);
    const attune_linear_step good = step_of(&c);
    attune_linear_step s = good;
    s.k.data = NULL;
    refuse_step(linear, &s, "k is NULL");
    s = good, s.batch = 2, s.cu_seqlens = falling;
    refuse_step(linear, &s, "cu_seqlens[1] is 5 and cu_seqlens[2] 3; it must rise from 0");
    s = good, s.batch = 2, s.cu_seqlens = late;
    refuse_step(linear, &s, "cu_seqlens[0] is 1 and cu_seqlens[1] 2; it must rise from 0");
    s = good, s.batch = 2, s.seq = 3, s.state_ids = twice;
    refuse_step(linear, &s, "state_ids[1] is 1, which another sequence has, too");
    s.state_ids = far;
    refuse_step(linear, &s, "state_ids[1] is 2; there are states from 0 to 1");
    s = good, s.batch = 3, s.seq = 2;
    refuse_step(linear, &s, "num_states is 2 for a batch of 3 without state_ids");
    s = good, s.out.token = 4, s.out.head = 40;
    refuse_step(linear, &s, "out has the dims [1, 2, 6, 40] and the strides [0, 40, 4, 1]; its elements would overlap");
    s = good, s.batch = 2, s.seq = 3, s.out.token = 80, s.out.head = 40, s.out.batch = 80;
    refuse_step(linear, &s,
                "out has the dims [2, 2, 3, 40] and the strides [80, 40, 80, 1]; its elements would overlap");
    s = good, s.state.token = 40, s.state.head = 40 * 80, s.state.batch = 40;
    refuse_step(linear, &s,
                "state has the dims [2, 2, 24, 40] and the strides [40, 3200, 40, 1]; its elements would overlap");
    s = good, s.batch = 2, s.seq = 3, s.state_ids = far, s.num_states = 0;
    refuse_step(linear, &s, "num_states is 0; with state_ids it must be the number of states");
    s = good, s.k.column = 2;
    refuse_step(linear, &s, "k has the column stride 2; it must be 0 or 1");
    /* The smaller tensor moves into the larger one, so that it reaches no other. */
    s = good, s.q.data = (char *)s.out.data + 4;
    refuse_step(linear, &s, "out overlaps q; they must not share memory");
    s = good, s.v.data = s.state.data;
    refuse_step(linear, &s, "state overlaps v; they must not share memory");
    s = good, s.v.head = -1;
    refuse_step(linear, &s, "v has a negative stride");
    d.gate = ATTUNE_GATE_SILU, d.out_norm_eps = 1e-6;
    attune_linear *const finished = make(&d);
    s = good, s.gate.data = NULL;
    refuse_step(finished, &s, "gate is NULL");
    s = good, s.norm_weights = NULL;
    refuse_step(finished, &s, "norm_weights is NULL");
    attune_linear_destroy(finished);
    s = good, s.seq = -1;
    refuse_step(linear, &s, "seq is -1; it must be from 0 to 2147483647");
    close_case(&c);
    attune_linear_destroy(linear);
}

/* The names of a kernel's variables are counted, and depend on the heads of q that share a state. */
static void any_group(void **state) {
    (void)state;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.compile_mode = ATTUNE_COMPILE_NEVER;
    attune_context *context;
    assert_int_equal(attune_context_create(&options, &context), ATTUNE_OK);
    for (int rule = ATTUNE_LINEAR; rule <= ATTUNE_GATED_DELTA; rule++)
        for (int64_t group = 1; group <= 64; group++) {
            attune_linear_desc d = ATTUNE_LINEAR_DESC_INIT;
            d.rule = (attune_linear_rule)rule, d.num_heads = group, d.num_kv_heads = 1, d.head_dim = 8;
            if (rule == ATTUNE_GATED || rule == ATTUNE_GATED_DELTA)
                d.decay = group % 2 ? ATTUNE_DECAY_HEAD : ATTUNE_DECAY_KEY;
            attune_linear *linear;
            assert_int_equal(attune_linear_create(context, &d, &linear), ATTUNE_OK);
            if (attune_linear_prepare(linear)) fail_msg("%s", attune_last_message());
            attune_linear_destroy(linear);
        }
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules),           cmocka_unit_test(heads),
        cmocka_unit_test(sizes),           cmocka_unit_test(types),
        cmocka_unit_test(norms_and_scale), cmocka_unit_test(norm_and_gate_of_out),
        cmocka_unit_test(growing_decay),   cmocka_unit_test(strong_decay),
        cmocka_unit_test(bits_of_cuts),    cmocka_unit_test(ragged_batches),
        cmocka_unit_test(strides),         cmocka_unit_test(any_group),
        cmocka_unit_test(nothing_to_do),   cmocka_unit_test(wrong_descriptions),
        cmocka_unit_test(wrong_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
