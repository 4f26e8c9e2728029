/* Random steps: ragged batches of prompts, chunks, verified tokens and decoding in any order, over pages or tensors.
 * Each is computed in several ways, whose bits must be the same: in one call, by a plan of the step, by threads that a
 * host cuts otherwise, and with `reproducible` sequence by sequence and, of short ones, by the interpreter. And all
 * must be near the formula, in double.
 *
 * ATTUNE_STEPS: how many (`make steps` has 10,000). */
#include <attune.h>

#include "support/problems.h"
#include "support/seed.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    MOST_BATCH = 14,
    MOST_KEYS = 2600,
    FEW_KEYS = 160,
    LONG_KEYS = 16500,
    MOST_TOKENS = 800,
    MOST_HEADS = 8,
    MOST_DIM = 24
};

static uint64_t random_state;

static int below(int most) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)most);
}

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        if (call) fail_msg("%s", attune_last_message());                                                               \
    } while (0)

/* ---- What a step is ---- */

typedef struct shape {
    attune_attention_desc desc;
    int group, batch, columns, pages;
    int most_keys; /* many make chunks that are merged */
    int32_t starts_q[MOST_BATCH + 1], starts_kv[MOST_BATCH + 1], lens[MOST_BATCH];
    int32_t *table;
} shape;

typedef struct tensors {
    float *q, *k, *v, *k_cache, *v_cache, *out, *lse;
} tensors;

/* Few descriptions, so that few kernels are compiled; any lengths. */
static const struct {
    int kv_heads, group, dim, page, window;
    bool appends;
} descriptions[] = {
    {1, 4, 16, 4, -1, true},  {2, 1, 24, 16, -1, false}, {1, 8, 16, 0, -1, false},
    {2, 2, 16, 0, 20, false}, {1, 3, 24, 5, 9, true},
};
enum { NUM_DESCRIPTIONS = sizeof descriptions / sizeof *descriptions };

static attune_attention_desc describe(int i, bool reproducible) {
    attune_attention_desc d = ATTUNE_ATTENTION_DESC_INIT;
    d.num_kv_heads = descriptions[i].kv_heads;
    d.num_heads = d.num_kv_heads * descriptions[i].group;
    d.head_dim = descriptions[i].dim;
    d.is_causal = 1;
    d.has_lse = 1;
    d.window_left = descriptions[i].window;
    d.kv = descriptions[i].page ? ATTUNE_KV_PAGED : ATTUNE_KV_TENSORS;
    d.page_size = descriptions[i].page;
    d.appends = descriptions[i].appends;
    d.reproducible = reproducible;
    return d;
}

/* Queries of a sequence: none, one, a few, a chunk. */
static int draw_queries(void) {
    const int kind = below(8);
    return kind == 0 ? 0 : kind < 4 ? 1 : kind < 6 ? 2 + below(15) : 17 + below(50);
}

static void draw_lengths(shape *s) {
    s->most_keys = below(4) ? FEW_KEYS : MOST_KEYS;
    s->batch = 1 + below(MOST_BATCH);
    for (int b = 0; b < s->batch; b++) {
        int queries = draw_queries();
        if (s->starts_q[b] + queries > MOST_TOKENS) queries = 0;
        const int keys = queries + below(s->most_keys - queries);
        s->starts_q[b + 1] = s->starts_q[b] + queries;
        s->starts_kv[b + 1] = s->starts_kv[b] + keys;
        s->lens[b] = keys;
    }
}

/* Pages in a random order. */
static void draw_table(shape *s) {
    const int size = (int)s->desc.page_size;
    if (!size) return;
    s->columns = (s->most_keys + size - 1) / size;
    s->pages = s->batch * s->columns;
    s->table = malloc((size_t)s->pages * sizeof *s->table);
    assert_non_null(s->table);
    for (int i = 0; i < s->pages; i++) s->table[i] = i;
    for (int i = s->pages - 1; i > 0; i--) {
        const int j = below(i + 1), kept = s->table[i];
        s->table[i] = s->table[j];
        s->table[j] = kept;
    }
}

/* ---- Tensors ---- */

static float *numbers(size_t count, bool is_random) {
    float *const all = malloc(count * sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i < count; i++) all[i] = is_random ? (float)below(2001) / 1000 - 1 : NAN;
    return all;
}

static tensors make_tensors(const shape *s) {
    const size_t dim = (size_t)s->desc.head_dim, kv = dim * (size_t)s->desc.num_kv_heads;
    const size_t q = dim * (size_t)s->desc.num_heads, tokens = MOST_TOKENS;
    const size_t keys = (size_t)s->batch * (size_t)s->most_keys;
    const size_t fresh = (s->pages ? tokens : keys + tokens) * kv;
    tensors t = {.q = numbers(tokens * q, true), .k = numbers(fresh, true), .v = numbers(fresh, true)};
    t.out = numbers(tokens * q, false), t.lse = numbers(tokens * (size_t)s->desc.num_heads, false);
    if (!s->pages) return t;
    const size_t cache = (size_t)s->pages * (size_t)s->desc.page_size * kv;
    t.k_cache = numbers(cache, true), t.v_cache = numbers(cache, true);
    return t;
}

static void free_tensors(tensors *t) {
    float *const all[] = {t->q, t->k, t->v, t->k_cache, t->v_cache, t->out, t->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static attune_step step_of(const shape *s, const tensors *t) {
    attune_step step = ATTUNE_STEP_INIT;
    step.batch = s->batch;
    step.q.data = t->q, step.k.data = t->k, step.v.data = t->v;
    step.out.data = t->out, step.lse.data = t->lse;
    step.cu_seqlens_q = s->starts_q;
    if (!s->pages) step.cu_seqlens_kv = s->starts_kv;
    if (!s->pages) return step;
    step.k_cache.data = t->k_cache, step.v_cache.data = t->v_cache;
    step.kv_lens = s->lens;
    step.block_table = s->table, step.max_pages = s->columns, step.num_pages = s->pages;
    return step;
}

/* ---- The formula ---- */

/* Row `j` of keys of a sequence: appended ones come from the step. */
static const float *key_of(const shape *s, const tensors *t, bool is_value, int b, int j, int head) {
    const int dim = (int)s->desc.head_dim, heads = (int)s->desc.num_kv_heads, size = (int)s->desc.page_size;
    const int first_new = s->lens[b] - (s->starts_q[b + 1] - s->starts_q[b]);
    const float *const fresh = is_value ? t->v : t->k, *const cache = is_value ? t->v_cache : t->k_cache;
    if (!s->pages) return fresh + ((size_t)(s->starts_kv[b] + j) * (size_t)heads + (size_t)head) * (size_t)dim;
    if (s->desc.appends && j >= first_new)
        return fresh + ((size_t)(s->starts_q[b] + j - first_new) * (size_t)heads + (size_t)head) * (size_t)dim;
    const int slot = s->table[b * s->columns + j / size] * size + j % size;
    return cache + ((size_t)slot * (size_t)heads + (size_t)head) * (size_t)dim;
}

static double dot(const float *x, const float *y, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += (double)x[i] * y[i];
    return sum;
}

static void check_row(const shape *s, const tensors *t, int b, int i, int h) {
    const int dim = (int)s->desc.head_dim, heads = (int)s->desc.num_heads, kv_head = h / s->group;
    const int token = s->starts_q[b] + i, position = i + s->lens[b] - (s->starts_q[b + 1] - s->starts_q[b]);
    const int window = (int)s->desc.window_left, first = window < 0 || position < window ? 0 : position - window;
    const float *const q = t->q + ((size_t)token * (size_t)heads + (size_t)h) * (size_t)dim;
    double scores[LONG_KEYS], sum = 0, want[MOST_DIM] = {0};
    for (int j = first; j <= position; j++) {
        scores[j] = exp(dot(q, key_of(s, t, false, b, j, kv_head), dim) / sqrt(dim));
        sum += scores[j];
        for (int d = 0; d < dim; d++) want[d] += scores[j] * key_of(s, t, true, b, j, kv_head)[d];
    }
    for (int d = 0; d < dim; d++) {
        const double got = t->out[((size_t)token * (size_t)heads + (size_t)h) * (size_t)dim + (size_t)d];
        if (!(fabs(got - want[d] / sum) < 2e-5))
            fail_msg("sequence %d, query %d, head %d, column %d: %g, not %g", b, i, h, d, got, want[d] / sum);
    }
}

static void check_formula(const shape *s, const tensors *t) {
    for (int b = 0; b < s->batch; b++)
        for (int i = 0; i < s->starts_q[b + 1] - s->starts_q[b]; i++)
            for (int h = 0; h < (int)s->desc.num_heads; h++) check_row(s, t, b, i, h);
}

/* ---- Ways ---- */

/* A host that cuts a loop from its end, unevenly, with workers in turns. */
static void cut_otherwise(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    uint32_t worker = 0;
    (void)user;
    for (int64_t end = n; end > 0;) {
        const int64_t begin = end > 2 ? end - 2 : 0;
        fn(argument, begin, end, worker++ % 3);
        end = begin;
    }
}

typedef struct world {
    attune_context *context;
    attune_attention *attentions[NUM_DESCRIPTIONS][2];
} world;

/* Appending writes the same numbers again, so a step may be run several times. */
static void run_in_all_ways(const shape *s, attune_attention *attention, tensors *t) {
    const size_t rows = (size_t)s->starts_q[s->batch] * (size_t)s->desc.num_heads;
    const size_t bytes = rows * (size_t)s->desc.head_dim * sizeof(float);
    float *const first = malloc(bytes + 1);
    attune_step step = step_of(s, t);
    attune_runner runner = {.struct_size = sizeof runner, .parallel_for = cut_otherwise, .max_workers = 3};
    attune_step_plan *plan;
    assert_non_null(first);
    assert_ok(attune_attention_run(attention, &step));
    memcpy(first, t->out, bytes);
    assert_ok(attune_step_plan_create(attention, &step, &plan));
    for (int way = 0; way < 4; way++) {
        step = step_of(s, t);
        memset(t->out, -1, bytes);
        void *workspace = NULL;
        if (way == 0) step.max_threads = 1;
        if (way == 1) step.max_threads = 3;
        if (way == 2) step.runner = &runner;
        if (way == 3) {
            assert_ok(attune_step_plan_workspace_size(plan, &step, &step.workspace_bytes));
            step.workspace = workspace = aligned_alloc(64, (step.workspace_bytes + 63) / 64 * 64 + 64);
        }
        assert_ok(way % 2 ? attune_step_plan_run(plan, &step) : attune_attention_run(attention, &step));
        if (memcmp(first, t->out, bytes)) fail_msg("way %d has other bits", way);
        free(workspace);
    }
    attune_step_plan_destroy(plan);
    free(first);
}

/* Each sequence as a step of its own; the same bits with `reproducible`. */
static void run_one_by_one(const shape *s, attune_attention *attention, tensors *t) {
    const size_t row = (size_t)s->desc.num_heads * (size_t)s->desc.head_dim;
    float *const alone = numbers(MOST_TOKENS * row, false);
    for (int b = 0; b < s->batch; b++) {
        attune_step step = step_of(s, t);
        const int32_t starts[] = {s->starts_q[b], s->starts_q[b + 1]};
        const int32_t starts_kv[] = {s->starts_kv[b], s->starts_kv[b + 1]};
        step.batch = 1;
        step.out.data = alone;
        step.cu_seqlens_q = starts;
        if (!s->pages) step.cu_seqlens_kv = starts_kv;
        if (s->pages) step.kv_lens = &s->lens[b], step.block_table = s->table + b * s->columns;
        assert_ok(attune_attention_run(attention, &step));
    }
    if (memcmp(alone, t->out, (size_t)s->starts_q[s->batch] * row * sizeof *alone)) fail_msg("alone it has other bits");
    free(alone);
}

/* Tokens of so many heads, in pages if there are any. */
static void set_strides(int64_t strides[4], int64_t heads, int64_t dim, int64_t page) {
    strides[0] = page * heads * dim, strides[1] = dim, strides[2] = heads * dim, strides[3] = 1;
}

/* The whole step by the interpreter, with the loop IR for its longest sequence. */
static void interpret(const shape *s, attune_context *context, attune_attention *attention, tensors *t) {
    const int64_t heads = s->desc.num_heads, kv_heads = s->desc.num_kv_heads, dim = s->desc.head_dim;
    const size_t count = (size_t)(s->starts_q[s->batch] * heads * dim);
    const int64_t page = s->desc.page_size;
    char text[1024];
    attune_arguments a;
    float *const out = numbers(count + 1, false), *const lse = numbers(MOST_TOKENS * MOST_HEADS, false);
    attune_attention_problem(attention, text, sizeof text);
    const attune_problem problem = problem_parsed(text);
    assert_ok(attune_arguments_init(&a, &problem));
    a.batch = s->batch, a.total_q = s->starts_q[s->batch];
    a.cu_seqlens_q = s->starts_q;
    a.q.data = t->q, a.out.data = out, a.lse.data = lse;
    a.k.data = page ? t->k_cache : t->k, a.v.data = page ? t->v_cache : t->v;
    a.k_new.data = t->k, a.v_new.data = t->v;
    set_strides(a.q.strides, heads, dim, 0), set_strides(a.out.strides, heads, dim, 0);
    set_strides(a.k.strides, kv_heads, dim, page), set_strides(a.v.strides, kv_heads, dim, page);
    set_strides(a.k_new.strides, kv_heads, dim, 0), set_strides(a.v_new.strides, kv_heads, dim, 0);
    if (page) {
        a.kv_lens = s->lens, a.block_table = s->table, a.max_pages = s->columns, a.num_pages = s->pages;
    } else {
        a.cu_seqlens_kv = s->starts_kv, a.total_kv = s->starts_kv[s->batch];
    }
    assert_ok(attune_run_interpreted(context, &problem, NULL, &a));
    if (memcmp(out, t->out, count * sizeof *out)) fail_msg("the interpreter has other bits");
    free(out);
    free(lse);
}

static void random_step(world *w) {
    const int description = below(NUM_DESCRIPTIONS);
    const bool reproducible = below(2);
    shape s = {.desc = describe(description, reproducible), .group = descriptions[description].group};
    attune_attention **const attention = &w->attentions[description][reproducible];
    if (!*attention) assert_ok(attune_attention_create(w->context, &s.desc, attention));
    draw_lengths(&s);
    draw_table(&s);
    tensors t = make_tensors(&s);
    run_in_all_ways(&s, *attention, &t);
    if (reproducible) run_one_by_one(&s, *attention, &t);
    if (reproducible && s.most_keys == FEW_KEYS) interpret(&s, w->context, *attention, &t);
    check_formula(&s, &t);
    free_tensors(&t);
    free(s.table);
}

/* 130 KV heads have at most two chunks of keys each: those of the long sequences have more than 1024 keys. */
static void long_sequences_of_many_heads(void **state) {
    enum { HEADS = 130, DIM = 8, SIZE = 16 };
    static const int queries[] = {1, 2, 1, 1}, keys[] = {2590, 2100, 700, 1030};
    (void)state;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.max_workers = 3;
    assert_ok(attune_context_create(&options, &context));
    for (int way = 0; way < 2; way++) {
        shape s = {.desc = ATTUNE_ATTENTION_DESC_INIT, .group = 1, .batch = 4, .most_keys = MOST_KEYS};
        attune_attention *attention;
        s.desc.num_heads = s.desc.num_kv_heads = HEADS;
        s.desc.head_dim = DIM;
        s.desc.is_causal = s.desc.has_lse = 1;
        s.desc.window_left = way ? 1400 : -1;
        s.desc.kv = ATTUNE_KV_PAGED;
        s.desc.page_size = SIZE;
        for (int b = 0; b < s.batch; b++) {
            s.starts_q[b + 1] = s.starts_q[b] + queries[b];
            s.lens[b] = keys[b];
        }
        draw_table(&s);
        assert_ok(attune_attention_create(context, &s.desc, &attention));
        tensors t = make_tensors(&s);
        run_in_all_ways(&s, attention, &t);
        for (int b = 0; b < s.batch; b++)
            for (int h = 0; h < HEADS; h += 43) check_row(&s, &t, b, queries[b] - 1, h);
        attune_attention_destroy(attention);
        free_tensors(&t);
        free(s.table);
    }
    attune_context_destroy(context);
}

/* Beside a chunk of a long sequence, tasks of a prompt have more rows than in a step of its own. */
static void a_prompt_and_a_long_sequence(void **state) {
    enum { PROMPT = 3, LONG = 5 };
    (void)state;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    attune_attention *attention;
    shape s = {.desc = describe(3, true), .group = 4, .batch = MOST_BATCH, .most_keys = LONG_KEYS};
    s.desc.num_heads = s.desc.num_kv_heads * s.group;
    s.desc.window_left = -1;
    s.desc.kv = ATTUNE_KV_PAGED;
    s.desc.page_size = 64;
    options.max_workers = 3;
    for (int b = 0; b < s.batch; b++) {
        s.starts_q[b + 1] = s.starts_q[b] + (b == PROMPT ? 700 : b == LONG ? 50 : 1);
        s.lens[b] = b == PROMPT ? 710 : b == LONG ? LONG_KEYS : 10 + b;
    }
    random_state = test_seed();
    assert_ok(attune_context_create(&options, &context));
    assert_ok(attune_attention_create(context, &s.desc, &attention));
    draw_table(&s);
    tensors t = make_tensors(&s);
    run_in_all_ways(&s, attention, &t);
    run_one_by_one(&s, attention, &t);
    interpret(&s, context, attention, &t);
    for (int i = 0; i < 700; i += 11) check_row(&s, &t, PROMPT, i, i % (int)s.desc.num_heads);
    for (int i = 0; i < 50; i += 11) check_row(&s, &t, LONG, i, i % (int)s.desc.num_heads);
    attune_attention_destroy(attention);
    attune_context_destroy(context);
    free_tensors(&t);
    free(s.table);
}

static void random_steps(void **state) {
    (void)state;
    const char *const wanted = getenv("ATTUNE_STEPS");
    const int count = wanted ? atoi(wanted) : 60;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    world w = {0};
    options.max_workers = 3;
    random_state = test_seed();
    assert_ok(attune_context_create(&options, &w.context));
    for (int i = 0; i < count; i++) random_step(&w);
    for (int i = 0; i < NUM_DESCRIPTIONS; i++)
        for (int j = 0; j < 2; j++) attune_attention_destroy(w.attentions[i][j]);
    attune_context_destroy(w.context);
}

/* ---- One plan, many runs ---- */

enum { THREADS = 4, RUNS = 8 };

typedef struct layer {
    const attune_step_plan *plan;
    attune_step step;
    attune_status status;
    pthread_t thread;
} layer;

static void *run_layer(void *user) {
    layer *const l = user;
    for (int i = 0; i < RUNS && !l->status; i++) l->status = attune_step_plan_run(l->plan, &l->step);
    return NULL;
}

/* Also the first run, which makes the list for all. */
static void threads_share_a_plan(void **state) {
    (void)state;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    attune_attention *attention;
    attune_step_plan *plan;
    shape s = {.desc = describe(1, false), .group = descriptions[1].group};
    layer layers[THREADS] = {0};
    options.max_workers = 2;
    random_state = test_seed();
    assert_ok(attune_context_create(&options, &context));
    assert_ok(attune_attention_create(context, &s.desc, &attention));
    draw_lengths(&s);
    draw_table(&s);
    tensors t = make_tensors(&s);
    const size_t floats = (size_t)s.starts_q[s.batch] * (size_t)(s.desc.num_heads * s.desc.head_dim);
    attune_step step = step_of(&s, &t);
    assert_ok(attune_attention_run(attention, &step));
    check_formula(&s, &t);
    assert_ok(attune_step_plan_create(attention, &step, &plan));
    for (int i = 0; i < THREADS; i++) {
        layers[i] = (layer){.plan = plan, .step = step};
        layers[i].step.out.data = numbers(floats + 1, false);
        layers[i].step.lse.data = numbers(MOST_TOKENS * MOST_HEADS, false);
        assert_int_equal(pthread_create(&layers[i].thread, NULL, run_layer, &layers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(layers[i].thread, NULL), 0);
        assert_int_equal(layers[i].status, ATTUNE_OK);
        assert_memory_equal(layers[i].step.out.data, t.out, floats * sizeof(float));
        free(layers[i].step.out.data);
        free(layers[i].step.lse.data);
    }
    attune_step_plan_destroy(plan);
    attune_attention_destroy(attention);
    attune_context_destroy(context);
    free_tensors(&t);
    free(s.table);
}

/* ---- Loops of a host ---- */

static void count_loops(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    ++*(int *)user;
    fn(argument, 0, n, 0);
}

/* Appending a row and merging its chunks are not worth a loop over threads; attending to its keys is. */
static void little_work_stays_on_the_caller(void **state) {
    (void)state;
    shape s = {.desc = describe(0, false), .group = descriptions[0].group, .most_keys = MOST_KEYS, .batch = 6};
    int loops = 0;
    attune_runner runner = {
        .struct_size = sizeof runner, .parallel_for = count_loops, .user = &loops, .max_workers = 3};
    attune_attention *attention;
    attune_step_plan *plan;
    random_state = test_seed();
    for (int b = 0; b < s.batch; b++) s.starts_q[b + 1] = b + 1, s.lens[b] = MOST_KEYS;
    draw_table(&s);
    tensors t = make_tensors(&s);
    attune_step step = step_of(&s, &t);
    step.runner = &runner;
    assert_ok(attune_attention_create(NULL, &s.desc, &attention));
    assert_ok(attune_step_plan_create(attention, &step, &plan));
    assert_ok(attune_step_plan_run(plan, &step));
    assert_int_equal(loops, 1);
    check_formula(&s, &t);
    attune_step_plan_destroy(plan);
    attune_attention_destroy(attention);
    free_tensors(&t);
    free(s.table);
}

/* ---- Hosts that are wrong, and calls that end early ---- */

static void run_nothing(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user, (void)fn, (void)argument, (void)n;
}

static void run_too_far(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n + 1, 0);
}

static void run_as_another(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    (void)user;
    fn(argument, 0, n, 7);
}

static void runners_that_are_wrong(void **state) {
    (void)state;
    static const struct {
        void (*parallel_for)(void *user, attune_range_fn *fn, void *argument, int64_t n);
        const char *message;
    } cases[] = {{run_nothing, "the runner ran 0 of the 3 of its loop"},
                 {run_too_far, "the runner passed a range beyond the 3 of its loop"},
                 {run_as_another, "the runner passed worker 7; max_workers is 3"}};
    shape s = {.desc = describe(2, false), .group = descriptions[2].group, .most_keys = MOST_KEYS, .batch = 6};
    attune_attention *attention;
    const int cancel = 1;
    random_state = test_seed();
    for (int b = 0; b < s.batch; b++) { /* enough work for several threads */
        s.starts_q[b + 1] = s.starts_q[b] + (b % 2 ? 1 : 60);
        s.starts_kv[b + 1] = s.starts_kv[b] + 1000;
        s.lens[b] = 1000;
    }
    tensors t = make_tensors(&s);
    assert_ok(attune_attention_create(NULL, &s.desc, &attention));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_runner runner = {.struct_size = sizeof runner, .max_workers = 3};
        attune_step step = step_of(&s, &t);
        runner.parallel_for = cases[i].parallel_for;
        step.runner = &runner;
        assert_int_equal(attune_attention_run(attention, &step), ATTUNE_INVALID_ARGUMENT);
        if (!strstr(attune_last_message(), cases[i].message)) fail_msg("%s", attune_last_message());
    }
    attune_step step = step_of(&s, &t);
    step.cancel = &cancel;
    assert_int_equal(attune_attention_run(attention, &step), ATTUNE_CANCELLED);
    assert_non_null(strstr(attune_last_message(), "the call was cancelled after 0 of the"));
    step.cancel = NULL;
    assert_ok(attune_attention_run(attention, &step));
    check_formula(&s, &t);
    attune_attention_destroy(attention);
    free_tensors(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_steps),
                                       cmocka_unit_test(long_sequences_of_many_heads),
                                       cmocka_unit_test(a_prompt_and_a_long_sequence),
                                       cmocka_unit_test(threads_share_a_plan),
                                       cmocka_unit_test(little_work_stays_on_the_caller),
                                       cmocka_unit_test(runners_that_are_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
