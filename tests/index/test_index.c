/* The index: which keys are chosen, exactly, in every layout and type, by machine code and by the interpreter, however
 * the work is divided; and a sentence for what is wrong. Numbers are small integers, so that scores are exact and many
 * of them equal. */
#include "ref_attention.h"
#include "described/described.h"
#include "index/kernel.h"
#include "support/guarded.h"
#include "support/ir/jit_run.h"
#include "support/tensor_calls.h"

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

/* From -most to most. */
static int next_integer(int most) {
    state_of_numbers = state_of_numbers * 1664525u + 1013904223u;
    return (int)((state_of_numbers >> 8) % (uint32_t)(2 * most + 1)) - most;
}

static bool is_of_bytes(attune_dtype dtype) { return dtype == ATTUNE_I8 || dtype == ATTUNE_F8; }

static size_t bytes_of(attune_dtype dtype) { return dtype == ATTUNE_F32 ? 4 : is_of_bytes(dtype) ? 1 : 2; }

/* ---- A call: dense tensors of one sequence, or of all one after the other ---- */

typedef struct index_case {
    attune_index_desc desc;
    int64_t queries, keys;
    void *q, *k, *w;
    float *q_scale, *k_scale, *scores;
    int32_t *ids, *lens;
} index_case;

static void fill(void *data, attune_dtype dtype, int64_t count, int most) {
    for (int64_t i = 0; i < count; i++) ref_store(dtype, data, i, (float)next_integer(most));
}

static void open_case(index_case *c, attune_index_desc desc, int64_t queries, int64_t keys) {
    if (!desc.dtype) desc.dtype = ATTUNE_F32;
    if (!desc.w_dtype) desc.w_dtype = ATTUNE_F32;
    *c = (index_case){.desc = desc, .queries = queries, .keys = keys};
    const int64_t numbers = queries * desc.num_heads * desc.head_dim, weights = queries * desc.num_heads;
    c->q = calloc((size_t)numbers + 1, bytes_of(desc.dtype));
    c->k = calloc((size_t)(keys * desc.head_dim) + 1, bytes_of(desc.dtype));
    c->w = calloc((size_t)weights + 1, bytes_of(desc.w_dtype));
    c->q_scale = calloc((size_t)weights + 1, sizeof(float));
    c->k_scale = calloc((size_t)keys + 1, sizeof(float));
    c->ids = calloc((size_t)(queries * desc.num_ids) + 1, sizeof(int32_t));
    c->scores = calloc((size_t)(queries * desc.num_ids) + 1, sizeof(float));
    c->lens = calloc((size_t)queries + 1, sizeof(int32_t));
    state_of_numbers = (uint32_t)(queries * 31 + keys);
    fill(c->q, desc.dtype, numbers, 2);
    fill(c->k, desc.dtype, keys * desc.head_dim, 2);
    fill(c->w, desc.w_dtype, weights, 3);
    for (int64_t i = 0; i < weights; i++) c->q_scale[i] = (float)(1 << (i % 3));
    for (int64_t i = 0; i < keys; i++) c->k_scale[i] = 0.5f * (float)(1 << (i % 2));
}

static void close_case(index_case *c) {
    void *const all[] = {c->q, c->k, c->w, c->q_scale, c->k_scale, c->ids, c->scores, c->lens};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static attune_index_step step_of(index_case *c) {
    attune_index_step s = ATTUNE_INDEX_STEP_INIT;
    s.batch = 1, s.seq_q = c->queries, s.seq_kv = c->keys;
    s.q.data = c->q, s.k.data = c->k, s.w.data = c->w, s.q_scale.data = c->q_scale, s.k_scale.data = c->k_scale;
    s.ids = c->ids, s.lens = c->lens, s.scores = c->desc.has_scores ? c->scores : NULL;
    return s;
}

/* ---- The reference ---- */

static float score_of(const index_case *c, int64_t query, int64_t key) {
    const attune_index_desc *d = &c->desc;
    double score = 0;
    for (int64_t h = 0; h < d->num_heads; h++) {
        double product = 0;
        for (int64_t i = 0; i < d->head_dim; i++)
            product += (double)ref_load(d->dtype, c->q, (query * d->num_heads + h) * d->head_dim + i) *
                       (double)ref_load(d->dtype, c->k, key * d->head_dim + i);
        const float scale = is_of_bytes(d->dtype) ? c->q_scale[query * d->num_heads + h] : 1;
        score += (double)((float)ref_load(d->w_dtype, c->w, query * d->num_heads + h) * scale) * fmax(product, 0);
    }
    return (float)(score * (double)(is_of_bytes(d->dtype) ? c->k_scale[key] : 1));
}

typedef struct candidate {
    float score;
    int32_t key;
} candidate;

/* The better one first. */
static int compare_candidates(const void *a, const void *b) {
    const candidate *const x = a, *const y = b;
    const int nan = isnan(x->score) - isnan(y->score);
    if (nan) return nan;
    if (x->score != y->score && !isnan(x->score)) return x->score > y->score ? -1 : 1;
    return x->key - y->key;
}

static int compare_keys(const void *a, const void *b) {
    return ((const candidate *)a)->key - ((const candidate *)b)->key;
}

/* Compares a query's list with the best of `scores`, of the keys that it sees. */
static void assert_best(const char *name, const index_case *c, int64_t query, const float *scores, int64_t seen) {
    candidate *const all = calloc((size_t)seen + 1, sizeof *all);
    const int32_t *const ids = c->ids + query * c->desc.num_ids;
    const int64_t len = seen < c->desc.num_ids ? seen : c->desc.num_ids;
    for (int64_t i = 0; i < seen; i++) all[i] = (candidate){scores[i], (int32_t)i};
    qsort(all, (size_t)seen, sizeof *all, compare_candidates);
    qsort(all, (size_t)len, sizeof *all, compare_keys);
    if (c->lens[query] != len) fail_msg("%s: lens[%d] is %d, not %d", name, (int)query, c->lens[query], (int)len);
    for (int64_t i = 0; i < c->desc.num_ids; i++) {
        const int32_t want = i < len ? all[i].key : -1;
        if (ids[i] != want) fail_msg("%s: ids[%d, %d] is %d, not %d", name, (int)query, (int)i, ids[i], want);
        if (!c->desc.has_scores) continue;
        const float have = c->scores[query * c->desc.num_ids + i], score = i < len ? all[i].score : -INFINITY;
        if (!(have == score || (isnan(have) && isnan(score))))
            fail_msg("%s: scores[%d, %d] is %g, not %g", name, (int)query, (int)i, (double)have, (double)score);
    }
    free(all);
}

/* The lists of the queries from `first` on, which are the last ones of a sequence of some keys from first_key on. */
static void assert_lists(const char *name, const index_case *c, int64_t first, int64_t queries, int64_t first_key,
                         int64_t keys) {
    float *const scores = calloc((size_t)keys + 1, sizeof *scores);
    for (int64_t i = 0; i < queries; i++) {
        int64_t seen = c->desc.is_causal ? keys - queries + i + 1 : keys;
        if (seen < 0) seen = 0;
        for (int64_t j = 0; j < seen; j++) scores[j] = score_of(c, first + i, first_key + j);
        assert_best(name, c, first + i, scores, seen);
    }
    free(scores);
}

/* ---- What is chosen ---- */

static attune_index *make_in(attune_context *context, const attune_index_desc *desc) {
    attune_index *index;
    if (attune_index_create(context, desc, &index)) fail_msg("%s", attune_last_message());
    return index;
}

static void run(attune_index *index, const attune_index_step *step) {
    if (attune_index_run(index, step)) fail_msg("%s", attune_last_message());
}

static void interpret(attune_index *index, const attune_index_step *step) {
    if (attune_index_run_interpreted(index, step)) fail_msg("%s", attune_last_message());
}

static void compare(const char *name, attune_index_desc desc, int64_t queries, int64_t keys) {
    index_case c;
    open_case(&c, desc, queries, keys);
    attune_index *const index = make_in(NULL, &desc);
    const attune_index_step s = step_of(&c);
    run(index, &s);
    assert_lists(name, &c, 0, queries, 0, keys);
    memset(c.ids, 0x77, (size_t)(queries * desc.num_ids) * sizeof *c.ids);
    memset(c.scores, 0x77, (size_t)(queries * desc.num_ids) * sizeof *c.scores);
    interpret(index, &s);
    assert_lists(name, &c, 0, queries, 0, keys);
    attune_index_destroy(index);
    close_case(&c);
}

static attune_index_desc desc_of(int64_t heads, int64_t dim, int64_t ids) {
    attune_index_desc d = ATTUNE_INDEX_DESC_INIT;
    d.num_heads = heads, d.head_dim = dim, d.num_ids = ids;
    return d;
}

static void sizes(void **state) {
    (void)state;
    static const int64_t sizes[][5] = {/* heads, dim, ids, queries, keys */
                                       {1, 1, 1, 1, 1},     {4, 16, 5, 3, 100},   {3, 5, 1, 6, 60},
                                       {20, 40, 33, 5, 70}, {33, 7, 64, 9, 130},  {64, 32, 20, 2, 200},
                                       {8, 64, 48, 5, 48},  {48, 24, 300, 1, 49}, {80, 9, 16, 4, 97}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *const n = sizes[i];
        attune_index_desc d = desc_of(n[0], n[1], n[2]);
        d.has_scores = 1;
        compare("all keys", d, n[3], n[4]);
        d.is_causal = 1;
        compare("causal", d, n[3], n[4]);
        d.has_scores = 0;
        compare("causal, without scores", d, n[3], n[4]);
    }
}

static void types(void **state) {
    (void)state;
    static const attune_dtype dtypes[] = {ATTUNE_BF16, ATTUNE_F16, ATTUNE_I8, ATTUNE_F8};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        attune_index_desc d = desc_of(6, 32, 9);
        d.dtype = dtypes[i], d.has_scores = 1;
        compare("type", d, 3, 110);
        d.head_dim = 37, d.num_heads = 35, d.w_dtype = i ? ATTUNE_BF16 : ATTUNE_F16;
        compare("type, odd", d, 3, 110);
    }
}

/* More queries than keys: those before the first key see none. */
static void more_queries_than_keys(void **state) {
    (void)state;
    attune_index_desc d = desc_of(4, 8, 3);
    d.is_causal = 1;
    compare("no keys for some", d, 9, 5);
    compare("no keys", d, 3, 0);
    d.has_scores = 1;
    compare("no keys for some, scores", d, 9, 5);
    d.is_causal = 0;
    compare("no keys, all seen", d, 3, 0);
}

/* Then k may be NULL. */
static void no_keys(void **state) {
    (void)state;
    enum { QUERIES = 3, IDS = 4 };
    static const int32_t nothing[] = {0}, starts[] = {0, 0};
    for (int i = 0; i < 3; i++) {
        attune_index_desc d = desc_of(4, 8, IDS);
        index_case c;
        d.page_size = i == 1 ? 5 : 0, d.dtype = ATTUNE_I8;
        open_case(&c, d, QUERIES, 0);
        attune_index *const index = make_in(NULL, &d);
        attune_index_step s = step_of(&c);
        s.k.data = NULL, s.k_scale.data = NULL;
        if (i == 1) s.kv_lens = s.block_table = nothing;
        if (i == 2) s.cu_seqlens_kv = starts;
        for (int again = 0; again < 2; again++) {
            memset(c.ids, 7, QUERIES * IDS * sizeof *c.ids), memset(c.lens, 7, QUERIES * sizeof *c.lens);
            if (again)
                interpret(index, &s);
            else
                run(index, &s);
            for (int at = 0; at < QUERIES * IDS; at++) assert_int_equal(c.ids[at], -1);
            for (int at = 0; at < QUERIES; at++) assert_int_equal(c.lens[at], 0);
        }
        attune_index_destroy(index);
        close_case(&c);
    }
}

/* One head of one number: the score of a key is the key. */
static void compare_scores(const char *name, const float *scores, int64_t keys, int64_t ids) {
    attune_index_desc d = desc_of(1, 1, ids);
    index_case c;
    d.has_scores = 1;
    open_case(&c, d, 1, keys);
    ((float *)c.q)[0] = ((float *)c.w)[0] = 1;
    memcpy(c.k, scores, (size_t)keys * sizeof *scores);
    attune_index *const index = make_in(NULL, &d);
    const attune_index_step s = step_of(&c);
    run(index, &s);
    assert_best(name, &c, 0, scores, keys);
    attune_index_destroy(index);
    close_case(&c);
}

/* Lists that are full many times over, and not once. */
static void long_lists(void **state) {
    (void)state;
    enum { KEYS = 9000 };
    float scores[KEYS];
    static const int64_t ids[] = {1, 50, 1100, 3000};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        for (int j = 0; j < KEYS; j++) scores[j] = (float)j;
        compare_scores("rising", scores, KEYS, ids[i]);
        for (int j = 0; j < KEYS; j++) scores[j] = (float)(KEYS - j);
        compare_scores("falling", scores, KEYS, ids[i]);
        for (int j = 0; j < KEYS; j++) scores[j] = 7;
        compare_scores("equal", scores, KEYS, ids[i]);
        for (int j = 0; j < KEYS; j++) scores[j] = (float)(j / 700);
        compare_scores("steps", scores, KEYS, ids[i]);
        for (int j = 0; j < KEYS; j++) scores[j] = (float)(next_integer(40) + 40);
        compare_scores("ties", scores, KEYS, ids[i]);
    }
}

/* -0 and 0 are equal, infinity is a number, and NaN comes after all. */
static void special_values(void **state) {
    (void)state;
    enum { KEYS = 60 };
    attune_index_desc d = desc_of(1, 1, 7);
    float scores[KEYS];
    index_case c;
    d.has_scores = 1;
    open_case(&c, d, 2, KEYS);
    ((float *)c.q)[0] = ((float *)c.q)[1] = ((float *)c.w)[0] = 1, ((float *)c.w)[1] = -1;
    for (int j = 0; j < KEYS; j++)
        ((float *)c.k)[j] = j % 3 == 0 ? NAN : j % 7 == 1 ? INFINITY : j % 5 == 0 ? -1.0f : (float)(j % 4);
    attune_index *const index = make_in(NULL, &d);
    const attune_index_step s = step_of(&c);
    for (int engine = 0; engine < 2; engine++) {
        (engine ? interpret : run)(index, &s);
        for (int i = 0; i < 2; i++) {
            for (int j = 0; j < KEYS; j++) {
                const float k = ((float *)c.k)[j];
                scores[j] = (i ? -1.0f : 1.0f) * (k < 0 ? 0.0f : k);
            }
            assert_best("special", &c, i, scores, KEYS);
        }
    }
    attune_index_destroy(index);
    close_case(&c);
    for (int j = 0; j < KEYS; j++) scores[j] = j < 58 ? NAN : 1;
    compare_scores("few numbers", scores, KEYS, 7);
}

/* Heads that fill up a vector add nothing, whatever the keys are. */
static void infinite_keys(void **state) {
    (void)state;
    attune_index_desc d = desc_of(3, 2, 4);
    index_case c;
    float scores[50];
    d.has_scores = 1;
    open_case(&c, d, 1, 50);
    for (int i = 0; i < 6; i++) ((float *)c.q)[i] = 1;
    for (int i = 0; i < 3; i++) ((float *)c.w)[i] = 1;
    for (int j = 0; j < 50; j++) {
        ((float *)c.k)[2 * j] = j == 31 ? INFINITY : (float)(j % 9), ((float *)c.k)[2 * j + 1] = 1;
        scores[j] = 3 * (((float *)c.k)[2 * j] + 1);
    }
    attune_index *const index = make_in(NULL, &d);
    const attune_index_step s = step_of(&c);
    run(index, &s);
    assert_best("infinite", &c, 0, scores, 50);
    attune_index_destroy(index);
    close_case(&c);
}

/* ---- Layouts ---- */

static void ragged_batches(void **state) {
    (void)state;
    static const int32_t starts[] = {0, 5, 5, 6, 17}, starts_kv[] = {0, 70, 90, 90, 140};
    attune_index_desc d = desc_of(5, 12, 11);
    index_case c;
    d.is_causal = 1;
    open_case(&c, d, 17, 140);
    attune_index *const index = make_in(NULL, &d);
    attune_index_step s = step_of(&c);
    s.batch = 4, s.cu_seqlens_q = starts, s.cu_seqlens_kv = starts_kv, s.seq_q = s.seq_kv = 0;
    for (int engine = 0; engine < 2; engine++) {
        (engine ? interpret : run)(index, &s);
        for (int b = 0; b < 4; b++)
            assert_lists("ragged", &c, starts[b], starts[b + 1] - starts[b], starts_kv[b],
                         starts_kv[b + 1] - starts_kv[b]);
    }
    attune_index_destroy(index);
    close_case(&c);
}

static void lengths_of_keys(void **state) {
    (void)state;
    static const int32_t lens[] = {60, 0, 33};
    attune_index_desc d = desc_of(5, 12, 11);
    index_case c;
    d.is_causal = 1, d.has_scores = 1;
    open_case(&c, d, 3 * 4, 3 * 60);
    attune_index *const index = make_in(NULL, &d);
    attune_index_step s = step_of(&c);
    s.batch = 3, s.seq_q = 4, s.seq_kv = 60, s.kv_lens = lens;
    run(index, &s);
    for (int b = 0; b < 3; b++) assert_lists("kv_lens", &c, 4 * b, 4, 60 * b, lens[b]);
    attune_index_destroy(index);
    close_case(&c);
}

/* Pages out of order hold the keys of two sequences, one after the other in c.k. */
static void compare_pages(attune_dtype dtype, int64_t page) {
    enum { PAGES = 16, COLUMNS = 9, FIRST = 101, SECOND = 33 };
    static const int32_t starts[] = {0, 3, 4}, lens[] = {FIRST, SECOND};
    attune_index_desc d = desc_of(5, 12, 11);
    int32_t table[2][COLUMNS];
    index_case c, paged;
    d.dtype = dtype, d.is_causal = 1, d.page_size = page, d.has_scores = 1;
    open_case(&c, d, 4, FIRST + SECOND);
    open_case(&paged, d, 4, PAGES * page);
    for (int b = 0, next = 5; b < 2; b++)
        for (int i = 0; i < COLUMNS; i++) table[b][i] = i * page < lens[b] ? (next = (next + 7) % PAGES) : -5;
    const size_t bytes = (size_t)d.head_dim * bytes_of(dtype);
    for (int64_t j = 0; j < FIRST + SECOND; j++) {
        const int b = j >= FIRST;
        const int64_t number = b ? j - FIRST : j, place = table[b][number / page] * page + number % page;
        memcpy((char *)paged.k + (size_t)place * bytes, (char *)c.k + (size_t)j * bytes, bytes);
        paged.k_scale[place] = c.k_scale[j];
    }
    attune_index *const index = make_in(NULL, &d);
    attune_index_step s = step_of(&c);
    s.k.data = paged.k, s.k_scale.data = paged.k_scale;
    s.batch = 2, s.cu_seqlens_q = starts, s.kv_lens = lens;
    s.block_table = table[0], s.block_table_stride = COLUMNS, s.max_pages = COLUMNS - 1, s.num_pages = PAGES;
    for (int engine = 0; engine < 2; engine++) {
        (engine ? interpret : run)(index, &s);
        assert_lists("pages", &c, 0, 3, 0, FIRST);
        assert_lists("pages", &c, 3, 1, FIRST, SECOND);
    }
    attune_index_destroy(index);
    close_case(&c);
    close_case(&paged);
}

static void pages(void **state) {
    (void)state;
    compare_pages(ATTUNE_F32, 16);
    compare_pages(ATTUNE_BF16, 13);
    compare_pages(ATTUNE_I8, 48);
    compare_pages(ATTUNE_F8, 15);
}

/* Rows of q and k far apart, and q by heads first. */
static void strides(void **state) {
    (void)state;
    enum { HEADS = 3, DIM = 10, QUERIES = 4, KEYS = 77, BETWEEN = 24 };
    attune_index_desc d = desc_of(HEADS, DIM, 11);
    float turned[HEADS * QUERIES * DIM], far[KEYS * BETWEEN];
    index_case c;
    open_case(&c, d, QUERIES, KEYS);
    for (int t = 0; t < QUERIES; t++)
        for (int h = 0; h < HEADS; h++)
            memcpy(turned + (h * QUERIES + t) * DIM, (float *)c.q + (t * HEADS + h) * DIM, DIM * sizeof(float));
    for (int j = 0; j < KEYS; j++) memcpy(far + j * BETWEEN, (float *)c.k + j * DIM, DIM * sizeof(float));
    attune_index *const index = make_in(NULL, &d);
    attune_index_step s = step_of(&c);
    s.q.data = turned, s.q.token = DIM, s.q.head = QUERIES * DIM;
    s.k.data = far, s.k.token = BETWEEN;
    run(index, &s);
    assert_lists("strides", &c, 0, QUERIES, 0, KEYS);
    attune_index_destroy(index);
    close_case(&c);
}

/* Nothing is read or written beyond the tensors, which end where memory does. */
static void ends_of_tensors(void **state) {
    (void)state;
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_I8, ATTUNE_F8};
    enum { HEADS = 5, DIM = 13, QUERIES = 3, KEYS = 50, IDS = 7 };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        attune_index_desc d = desc_of(HEADS, DIM, IDS);
        index_case c;
        d.dtype = dtypes[i], d.is_causal = 1, d.has_scores = 1;
        open_case(&c, d, QUERIES, KEYS);
        const struct {
            void **data;
            size_t bytes;
        } all[] = {{&c.q, QUERIES * HEADS * DIM * bytes_of(d.dtype)},
                   {&c.k, KEYS * DIM * bytes_of(d.dtype)},
                   {&c.w, QUERIES * HEADS * sizeof(float)},
                   {(void **)&c.q_scale, QUERIES * HEADS * sizeof(float)},
                   {(void **)&c.k_scale, KEYS * sizeof(float)},
                   {(void **)&c.ids, QUERIES * IDS * sizeof(int32_t)},
                   {(void **)&c.scores, QUERIES * IDS * sizeof(float)},
                   {(void **)&c.lens, QUERIES * sizeof(int32_t)}};
        enum { TENSORS = sizeof all / sizeof *all };
        guarded copies[TENSORS];
        void *own[TENSORS];
        for (int t = 0; t < TENSORS; t++) {
            copies[t] = guard(all[t].bytes);
            memcpy(copies[t].data, *all[t].data, all[t].bytes);
            own[t] = *all[t].data, *all[t].data = copies[t].data;
        }
        attune_index *const index = make_in(NULL, &d);
        const attune_index_step s = step_of(&c);
        run(index, &s);
        assert_lists("ends", &c, 0, QUERIES, 0, KEYS);
        attune_index_destroy(index);
        for (int t = 0; t < TENSORS; t++) {
            *all[t].data = own[t];
            unguard(&copies[t]);
        }
        close_case(&c);
    }
}

/* ---- The same for every division of the work ---- */

static void run_in_one(void *user, attune_range_fn *fn, void *argument, int64_t n) {
    int64_t *const most = user;
    if (n > *most) *most = n;
    for (int64_t i = 0; i < n; i++) fn(argument, i, i + 1, (uint32_t)(i % 8));
}

/* Many workers and few queries: keys are divided, and lists merged. */
static void divided_keys(void **state) {
    (void)state;
    enum { KEYS = 16000 };
    static const int64_t ids[] = {3, 700, 1500};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        attune_index_desc d = desc_of(2, 4, ids[i]);
        index_case c;
        int64_t most = 0;
        attune_runner runner = ATTUNE_RUNNER_INIT;
        runner.parallel_for = run_in_one, runner.user = &most, runner.max_workers = 8;
        d.is_causal = 1, d.has_scores = i == 1;
        open_case(&c, d, 3, KEYS);
        attune_index *const index = make_in(NULL, &d);
        attune_index_step s = step_of(&c);
        s.runner = &runner;
        run(index, &s);
        assert_true(most > 1); /* tasks of the first phase, of one task for all three queries */
        assert_lists("divided", &c, 0, 3, 0, KEYS);
        attune_index_destroy(index);
        close_case(&c);
    }
}

/* The loop IR of a description for a target, which is verified. */
static void build_for(attune_context *context, const attune_index_desc *desc) {
    char problem[AT_DESCRIBED_TEXT];
    attune_operator *op;
    at_built built;
    at_arena arena;
    at_error err = {0};
    at_arena_init(&arena, NULL);
    at_described_print(&idx_table, desc, 0, problem);
    assert_int_equal(at_operator_of(context, &idx_described.options, NULL, &op, &err), ATTUNE_OK);
    if (at_build(context, &arena, at_own_operation(&op->own, problem), NULL, &built, &err)) fail_msg("%s", err.message);
    at_arena_free(&arena);
}

/* All targets choose the same keys where scores are exact. */
static void targets(void **state) {
    (void)state;
    static const attune_dtype dtypes[] = {ATTUNE_F32, ATTUNE_BF16, ATTUNE_I8, ATTUNE_F8};
    for (const at_target *target = at_targets(); target->name; target++) {
        attune_context *const context = tensors_context_for(target);
        for (int t = 0; t < 8; t++) {
            attune_index_desc d = desc_of(t < 4 ? 19 : 40, 10, 9);
            d.dtype = dtypes[t % 4], d.w_dtype = ATTUNE_F32, d.has_scores = t < 4, d.page_size = t < 4 ? 0 : 5;
            build_for(context, &d);
        }
        attune_context_destroy(context);
        if (!target_can_run(target)) continue;
        attune_context *const runs = tensors_context(target->name, 1);
        for (int t = 0; t < 4; t++) {
            attune_index_desc d = desc_of(19, 10, 9);
            index_case c;
            d.dtype = dtypes[t], d.has_scores = 1;
            open_case(&c, d, 2, 70);
            attune_index *const index = make_in(runs, &d);
            const attune_index_step s = step_of(&c);
            run(index, &s);
            assert_lists(target->name, &c, 0, 2, 0, 70);
            interpret(index, &s);
            assert_lists(target->name, &c, 0, 2, 0, 70);
            attune_index_destroy(index);
            close_case(&c);
        }
        attune_context_destroy(runs);
    }
}

/* ---- The index, and attention to what it chooses ---- */

/* Two sequences on pages: the same as one call after the other, with lists of the caller's or of the call's. */
static void attend_to_the_best(void **state) {
    (void)state;
    enum { PAGE = 8, PAGES = 20, COLUMNS = 10, QUERIES = 4, DIM = 16, HEADS = 2, IDS = 12 };
    static const int32_t starts[] = {0, 3, 4}, lens[] = {77, 9};
    attune_index_desc d = desc_of(4, 8, IDS);
    attune_attention_desc of = ATTUNE_ATTENTION_DESC_INIT;
    int32_t table[2][COLUMNS], ids[QUERIES * IDS], id_lens[QUERIES];
    float q[QUERIES * HEADS * DIM], caches[2][PAGES * PAGE * DIM], out[3][QUERIES * HEADS * DIM],
        slopes[HEADS] = {0.5f, 2};
    attune_attention *attention;
    index_case c;
    d.is_causal = 1, d.page_size = PAGE;
    of.num_heads = HEADS, of.num_kv_heads = 1, of.head_dim = DIM, of.kv = ATTUNE_KV_PAGED, of.page_size = PAGE;
    of.extra = "kv_ids=query,has_kv_id_lens=1,has_sinks=1";
    open_case(&c, d, QUERIES, PAGES * PAGE);
    for (int i = 0; i < 2 * COLUMNS; i++) table[i / COLUMNS][i % COLUMNS] = (i * 7 + 3) % PAGES;
    fill(q, ATTUNE_F32, QUERIES * HEADS * DIM, 5);
    for (int i = 0; i < 2; i++) fill(caches[i], ATTUNE_F32, PAGES * PAGE * DIM, 5);
    attune_index *const index = make_in(NULL, &d);
    if (attune_attention_create(NULL, &of, &attention)) fail_msg("%s", attune_last_message());
    attune_index_step s = step_of(&c);
    s.batch = 2, s.cu_seqlens_q = starts, s.kv_lens = lens;
    s.block_table = table[0], s.max_pages = COLUMNS, s.num_pages = PAGES;
    attune_step its = ATTUNE_STEP_INIT;
    its.batch = 2, its.cu_seqlens_q = starts, its.kv_lens = lens;
    its.block_table = table[0], its.max_pages = COLUMNS, its.num_pages = PAGES;
    its.q.data = q, its.k_cache.data = caches[0], its.v_cache.data = caches[1];
    int64_t dims[] = {HEADS}, list_dims[] = {1, QUERIES, IDS};
    const attune_dltensor sinks = {slopes, 1, 0, 1, 2, 32, 1, dims, NULL, 0},
                          kv_ids = {ids, 1, 0, 3, 0, 32, 1, list_dims, NULL, 0},
                          kv_id_lens = {id_lens, 1, 0, 2, 0, 32, 1, list_dims, NULL, 0};
    const attune_binding bindings[] = {{"sinks", &sinks}, {"kv_ids", &kv_ids}, {"kv_id_lens", &kv_id_lens}};

    its.bindings = bindings, its.num_bindings = 1, its.out.data = out[0];
    s.ids = ids, s.lens = id_lens;
    if (attune_index_attend(index, &s, attention, &its)) fail_msg("%s", attune_last_message());
    s.ids = c.ids, s.lens = c.lens;
    run(index, &s);
    assert_memory_equal(ids, c.ids, sizeof ids);
    assert_memory_equal(id_lens, c.lens, sizeof id_lens);
    its.num_bindings = 3, its.out.data = out[1];
    if (attune_attention_run(attention, &its)) fail_msg("%s", attune_last_message());
    s.ids = s.lens = NULL;
    its.num_bindings = 1, its.out.data = out[2];
    if (attune_index_attend(index, &s, attention, &its)) fail_msg("%s", attune_last_message());
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_memory_equal(out[0], out[2], sizeof out[0]);

    attune_step_plan *plan;
    memset(out[2], 0, sizeof out[2]);
    if (attune_step_plan_create(attention, &its, &plan)) fail_msg("%s", attune_last_message());
    if (attune_index_attend_plan(index, &s, plan, &its)) fail_msg("%s", attune_last_message());
    assert_memory_equal(out[0], out[2], sizeof out[0]);
    attune_step_plan_destroy(plan);
    assert_int_equal(attune_index_attend_plan(index, &s, NULL, &its), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "attune_index_attend_plan was given no attention or plan");

    static const int32_t short_lens[] = {40, 9};
    its.kv_lens = short_lens;
    assert_int_equal(attune_index_attend(index, &s, attention, &its), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "kv_ids has key "));
    assert_int_equal(attune_index_attend(index, &s, NULL, &its), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "attune_index_attend was given no attention or plan");
    assert_int_equal(attune_index_attend(index, NULL, attention, &its), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "attune_index_attend was given no step of it");
    attune_attention_destroy(attention);
    attune_index_destroy(index);
    close_case(&c);
}

static void nothing_to_do(void **state) {
    (void)state;
    attune_index_desc d = desc_of(4, 8, 3);
    index_case c;
    open_case(&c, d, 2, 20);
    attune_index *const index = make_in(NULL, &d);
    attune_index_step s = step_of(&c);
    c.ids[0] = 99;
    s.seq_q = 0;
    run(index, &s);
    s.batch = 0;
    run(index, &s);
    assert_int_equal(c.ids[0], 99);
    assert_int_equal(attune_index_prepare(index), ATTUNE_OK);
    s = step_of(&c), s.lens = NULL;
    run(index, &s);
    assert_int_not_equal(c.ids[0], 99);
    s.k.data = NULL, s.seq_kv = 0;
    run(index, &s);
    assert_int_equal(c.ids[0], -1);
    attune_index_destroy(index);
    attune_index_destroy(NULL);
    close_case(&c);
}

/* ---- What is refused ---- */

static void refuse_desc(attune_index_desc d, const char *sentence) {
    attune_index *index = (attune_index *)&d;
    assert_int_not_equal(attune_index_create(NULL, &d, &index), ATTUNE_OK);
    assert_null(index);
    assert_string_equal(attune_last_message(), sentence);
}

static void wrong_descriptions(void **state) {
    (void)state;
    const attune_index_desc good = desc_of(4, 8, 3);
    attune_index_desc d = good;
    d.num_heads = 0;
    refuse_desc(d, "num_heads is 0; it must be from 1 to 256");
    d = good, d.head_dim = 513;
    refuse_desc(d, "head_dim is 513; it must be from 1 to 512");
    d = good, d.num_ids = 0;
    refuse_desc(d, "num_ids is 0; it must be from 1 to 65536");
    d = good, d.dtype = ATTUNE_F64;
    refuse_desc(d, "dtype is f64; it must be f32, bf16, f16, i8 or f8");
    d = good, d.w_dtype = ATTUNE_I8;
    refuse_desc(d, "w_dtype is i8; it must be f32, bf16 or f16");
    d = good, d.is_causal = 2;
    refuse_desc(d, "is_causal is 2; it must be from 0 to 1");
    d = good, d.page_size = -1;
    refuse_desc(d, "page_size is -1; it must be from 0 to 65536");
    d = good, d.has_scores = 7;
    refuse_desc(d, "has_scores is 7; it must be from 0 to 1");
}

static void refuse_step(attune_index *index, const attune_index_step *s, const char *sentence) {
    assert_int_equal(attune_index_run(index, s), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), sentence);
}

static void wrong_steps(void **state) {
    (void)state;
    static const int32_t falling[] = {0, 2, 1}, late[] = {1, 2, 3}, starts[] = {0, 1, 2}, long_lens[] = {10, 11};
    attune_index_desc d = desc_of(4, 8, 3);
    index_case c;
    d.has_scores = 1;
    open_case(&c, d, 2, 20);
    attune_index *const index = make_in(NULL, &d);
    const attune_index_step good = step_of(&c);
    attune_index_step s = good;
    c.ids[0] = c.lens[0] = 99;
    s.q.data = NULL;
    refuse_step(index, &s, "q is NULL");
    s = good, s.k.token = -8;
    refuse_step(index, &s, "k has a negative stride");
    s = good, s.q.column = 2;
    refuse_step(index, &s, "q.column is 2; it must be 0 or 1");
    s = good, s.batch = 1 << 16, s.seq_q = 1 << 15;
    refuse_step(index, &s, "the number of queries is 2147483648; it must be from 0 to 2147483647");
    s = good, s.ids = NULL;
    refuse_step(index, &s, "ids is NULL");
    s = good, s.scores = NULL;
    refuse_step(index, &s, "scores is NULL");
    s = good, s.seq_kv = -1;
    refuse_step(index, &s, "seq_kv is -1; it must be from 0 to 2147483647");
    s.seq_kv = (1 << 30) + 1;
    refuse_step(index, &s, "sequence 0 has 1073741825 keys; it may have 1073741824");
    s = good, s.batch = 2, s.cu_seqlens_q = falling;
    refuse_step(index, &s, "cu_seqlens_q[1] is 2 and cu_seqlens_q[2] 1; it must rise from 0");
    s.cu_seqlens_q = late;
    refuse_step(index, &s, "cu_seqlens_q[0] is 1 and cu_seqlens_q[1] 2; it must rise from 0");
    s.cu_seqlens_q = starts, s.cu_seqlens_kv = falling;
    refuse_step(index, &s, "cu_seqlens_kv[1] is 2 and cu_seqlens_kv[2] 1; it must rise from 0");
    s.kv_lens = long_lens;
    refuse_step(index, &s, "cu_seqlens_kv and kv_lens are both given");
    s.cu_seqlens_kv = NULL, s.seq_kv = 10;
    refuse_step(index, &s, "kv_lens[1] is 11; there is room for 0 to 10 keys");
    s = good, s.block_table = starts;
    refuse_step(index, &s, "there is a block_table, but page_size of the index is 0");
    assert_int_equal(c.ids[0], 99);
    assert_int_equal(c.lens[0], 99);
    attune_index_destroy(index);
    close_case(&c);
}

static void wrong_pages(void **state) {
    (void)state;
    static const int32_t table[] = {0, 4, 2}, lens[] = {18};
    attune_index_desc d = desc_of(4, 8, 3);
    index_case c;
    d.page_size = 8;
    open_case(&c, d, 2, 4 * 8);
    attune_index *const index = make_in(NULL, &d);
    attune_index_step s = step_of(&c);
    s.num_pages = 4, s.max_pages = 3, s.block_table = table;
    refuse_step(index, &s, "kv_lens is NULL; pages need it");
    s.kv_lens = lens;
    refuse_step(index, &s, "block_table[0, 1] is 4; there are pages from 0 to 3");
    s.max_pages = 2;
    refuse_step(index, &s, "kv_lens[0] is 18; there is room for 0 to 16 keys");
    s.block_table_stride = 1;
    refuse_step(index, &s, "block_table_stride is 1; rows have 2 pages");
    s.block_table_stride = 0, s.block_table = NULL;
    refuse_step(index, &s, "block_table is NULL; pages need it");
    attune_index_destroy(index);
    close_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(types),
        cmocka_unit_test(more_queries_than_keys),
        cmocka_unit_test(no_keys),
        cmocka_unit_test(long_lists),
        cmocka_unit_test(special_values),
        cmocka_unit_test(infinite_keys),
        cmocka_unit_test(ragged_batches),
        cmocka_unit_test(lengths_of_keys),
        cmocka_unit_test(pages),
        cmocka_unit_test(strides),
        cmocka_unit_test(ends_of_tensors),
        cmocka_unit_test(divided_keys),
        cmocka_unit_test(targets),
        cmocka_unit_test(attend_to_the_best),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(wrong_descriptions),
        cmocka_unit_test(wrong_steps),
        cmocka_unit_test(wrong_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
