/* The estimate of key blocks: sizes, heads, types, layouts and causality beside f64; the same bits by the interpreter
 * and for other threads; tables of lists; and a sentence for what is wrong. */
#include <attune/blocks.h>
#include <attune/status.h>

#include "ref_attention.h"

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

/* Multiples of 1/4 from -2 to 2, which every type has. */
static float next_number(void) {
    state_of_numbers = state_of_numbers * 1664525u + 1013904223u;
    return (float)((int)((state_of_numbers >> 8) % 17) - 8) / 4;
}

static size_t bytes_of(attune_dtype dtype) { return dtype == ATTUNE_F32 ? 4 : 2; }

/* ---- A case: contiguous tensors ---- */

typedef struct estimate_case {
    attune_blocks_desc desc;
    int64_t batch, queries, keys, rows, columns;
    void *q, *k;
    float *shares;
} estimate_case;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static size_t shares_of(const estimate_case *c) {
    return (size_t)(c->batch * c->desc.num_heads * c->rows * c->columns);
}

static void *random_numbers(attune_dtype dtype, int64_t count) {
    void *const data = malloc((size_t)count * bytes_of(dtype));
    for (int64_t i = 0; i < count; i++) ref_store(dtype, data, i, next_number());
    return data;
}

static void open_case(estimate_case *c, attune_blocks_desc desc, int64_t batch, int64_t queries, int64_t keys) {
    if (!desc.num_kv_heads) desc.num_kv_heads = desc.num_heads;
    if (!desc.dtype) desc.dtype = ATTUNE_F32;
    *c = (estimate_case){.desc = desc, .batch = batch, .queries = queries, .keys = keys};
    c->rows = ceil_div(queries, desc.block_size), c->columns = ceil_div(keys, desc.block_size);
    state_of_numbers = (uint32_t)(queries * 31 + keys);
    c->q = random_numbers(desc.dtype, batch * desc.num_heads * queries * desc.head_dim);
    c->k = random_numbers(desc.dtype, batch * desc.num_kv_heads * keys * desc.head_dim);
    c->shares = malloc(shares_of(c) * sizeof *c->shares);
    memset(c->shares, 0xff, shares_of(c) * sizeof *c->shares);
}

static void close_case(estimate_case *c) { free(c->q), free(c->k), free(c->shares); }

static attune_blocks_step step_of(const estimate_case *c) {
    attune_blocks_step s = ATTUNE_BLOCKS_STEP_INIT;
    s.batch = c->batch, s.seq_q = c->queries, s.seq_kv = c->keys;
    s.q.data = c->q, s.k.data = c->k, s.shares = c->shares;
    return s;
}

static attune_blocks *make(const attune_blocks_desc *d) {
    attune_blocks *blocks;
    assert_int_equal(attune_blocks_create(NULL, d, &blocks), ATTUNE_OK);
    return blocks;
}

/* ---- The reference ---- */

static double sum_of(const estimate_case *c, int64_t head, int64_t kv_head, int64_t i, int64_t j) {
    const attune_blocks_desc *d = &c->desc;
    double sum = 0;
    for (int64_t u = 0; u < d->stride; u++) {
        const int64_t query = i * d->stride + d->stride - 1 - u, key = j * d->stride + u;
        if (query >= c->queries || key >= c->keys) continue;
        for (int64_t x = 0; x < d->head_dim; x++)
            sum += (double)ref_load(d->dtype, c->q, (head * c->queries + query) * d->head_dim + x) *
                   (double)ref_load(d->dtype, c->k, (kv_head * c->keys + key) * d->head_dim + x);
    }
    const double scale = isnan(d->softmax_scale) ? 1 / sqrt((double)d->head_dim) : d->softmax_scale;
    return sum * scale / (double)d->stride;
}

/* Adds the probabilities of square i of a head's queries to the shares of its row block. */
static void add_square(const estimate_case *c, int64_t head, int64_t kv_head, int64_t i, double *p, double *shares) {
    const attune_blocks_desc *d = &c->desc;
    const int64_t squares = ceil_div(c->queries, d->stride), groups = ceil_div(c->keys, d->stride);
    const int64_t in_block = d->block_size / d->stride, row = i / in_block;
    const int64_t end = d->is_causal ? i + groups - squares + 1 : groups;
    const int64_t rest = squares - row * in_block, count = rest < in_block ? rest : in_block;
    double most = -INFINITY, total = 0;
    for (int64_t j = 0; j < end; j++) most = fmax(most, p[j] = sum_of(c, head, kv_head, i, j));
    for (int64_t j = 0; j < end; j++) total += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < end; j++) shares[row * c->columns + j / in_block] += p[j] / total / (double)count;
}

static void check_case(estimate_case *c, double tolerance) {
    const attune_blocks_desc *d = &c->desc;
    const int64_t squares = ceil_div(c->queries, d->stride), each = c->rows * c->columns;
    double *const p = malloc((size_t)ceil_div(c->keys, d->stride) * sizeof *p);
    double *const wanted = calloc((size_t)each, sizeof *wanted);
    for (int64_t head = 0; head < c->batch * d->num_heads; head++) {
        memset(wanted, 0, (size_t)each * sizeof *wanted);
        for (int64_t i = 0; i < squares; i++)
            add_square(c, head, head / (d->num_heads / d->num_kv_heads), i, p, wanted);
        for (int64_t i = 0; i < each; i++) {
            const double got = (double)c->shares[head * each + i];
            if (!(fabs(got - wanted[i]) <= tolerance)) fail_msg("share %d is %g, not %g", (int)i, got, wanted[i]);
        }
    }
    free(p), free(wanted);
}

/* Runs a step by machine code, beside f64, and by the interpreter, bit by bit. */
static void run_case(attune_blocks_desc desc, int64_t batch, int64_t queries, int64_t keys, double tolerance) {
    estimate_case c;
    open_case(&c, desc, batch, queries, keys);
    attune_blocks *const blocks = make(&desc);
    attune_blocks_step s = step_of(&c);
    assert_int_equal(attune_blocks_run(blocks, &s), ATTUNE_OK);
    check_case(&c, tolerance);
    s.shares = malloc(shares_of(&c) * sizeof *s.shares);
    s.max_threads = 1;
    assert_int_equal(attune_blocks_run_interpreted(blocks, &s), ATTUNE_OK);
    assert_memory_equal(s.shares, c.shares, shares_of(&c) * sizeof *s.shares);
    free(s.shares);
    attune_blocks_destroy(blocks);
    close_case(&c);
}

static attune_blocks_desc desc_of(int64_t heads, int64_t kv_heads, int64_t dim, int64_t block_size, int64_t stride) {
    attune_blocks_desc d = ATTUNE_BLOCKS_DESC_INIT;
    d.num_heads = heads, d.num_kv_heads = kv_heads, d.head_dim = dim;
    d.block_size = block_size, d.stride = stride;
    return d;
}

/* ---- The tests ---- */

static void sizes(void **state) {
    (void)state;
    run_case(desc_of(1, 1, 16, 32, 4), 1, 200, 300, 2e-6);
    run_case(desc_of(1, 1, 8, 12, 4), 1, 90, 61, 2e-6);    /* three squares a block */
    run_case(desc_of(1, 1, 20, 11, 1), 1, 40, 130, 2e-6);  /* a prime number of squares */
    run_case(desc_of(1, 1, 8, 8, 8), 1, 70, 90, 2e-6);     /* one square a block */
    run_case(desc_of(1, 1, 8, 100, 1), 1, 230, 150, 2e-6); /* more squares than lanes */
    run_case(desc_of(1, 1, 3, 64, 2), 1, 1, 1, 2e-6);
}

static void causality(void **state) {
    (void)state;
    attune_blocks_desc d = desc_of(2, 1, 12, 16, 4);
    d.is_causal = 1;
    run_case(d, 1, 150, 150, 2e-6);
    run_case(d, 1, 61, 201, 2e-6);
    run_case(d, 1, 201, 61, 2e-6); /* the first queries see nothing */
    d = desc_of(1, 1, 8, 100, 1), d.is_causal = 1;
    run_case(d, 1, 170, 205, 2e-6);
}

static void heads_and_batches(void **state) {
    (void)state;
    run_case(desc_of(6, 2, 24, 32, 8), 3, 70, 100, 2e-6);
    attune_blocks_desc d = desc_of(4, 0, 16, 32, 8);
    d.softmax_scale = 0.5;
    run_case(d, 2, 70, 100, 2e-6);
}

static void types(void **state) {
    (void)state;
    for (int dim = 15; dim <= 16; dim++) {
        attune_blocks_desc d = desc_of(2, 1, dim, 32, 8);
        d.dtype = ATTUNE_BF16;
        run_case(d, 1, 70, 100, 2e-6);
        d.dtype = ATTUNE_F16;
        run_case(d, 1, 70, 100, 2e-6);
    }
}

/* Large scores do not overflow, and many key blocks take another kernel. */
static void large_scores_and_many_blocks(void **state) {
    (void)state;
    attune_blocks_desc d = desc_of(1, 1, 16, 4, 2);
    d.softmax_scale = 1e4;
    run_case(d, 1, 40, 300, 1e-3);
    run_case(desc_of(1, 1, 4, 1, 1), 1, 3, 700, 2e-6);
}

/* Tokens first, then heads. */
static void strides(void **state) {
    (void)state;
    estimate_case c;
    attune_blocks_desc d = desc_of(3, 3, 16, 32, 8);
    open_case(&c, d, 1, 70, 100);
    float *const q = malloc(sizeof(float) * 70 * 3 * 20), *const k = malloc(sizeof(float) * 100 * 3 * 20);
    for (int64_t h = 0; h < 3; h++) {
        for (int64_t t = 0; t < 70; t++) memcpy(q + (t * 3 + h) * 20, (float *)c.q + (h * 70 + t) * 16, 64);
        for (int64_t t = 0; t < 100; t++) memcpy(k + (t * 3 + h) * 20, (float *)c.k + (h * 100 + t) * 16, 64);
    }
    attune_blocks_step s = step_of(&c);
    s.q.data = q, s.q.head = 20, s.q.token = 60;
    s.k.data = k, s.k.head = 20, s.k.token = 60;
    attune_blocks *const blocks = make(&d);
    assert_int_equal(attune_blocks_prepare(blocks, 100), ATTUNE_OK);
    assert_int_equal(attune_blocks_run(blocks, &s), ATTUNE_OK);
    check_case(&c, 2e-6);
    attune_blocks_destroy(blocks);
    free(q), free(k);
    close_case(&c);
}

static void tables(void **state) {
    (void)state;
    static const int32_t lists[] = {2, 0, -1, -1, -1, -1, 3, 3, 1}, indptr[] = {0, 2, 2, 4}, indices[] = {0, 2, 3, 1};
    static const uint8_t wanted[] = {1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1};
    uint8_t table[12];
    memset(table, 7, sizeof table);
    assert_int_equal(attune_blocks_from_lists(lists, 3, 3, 4, table), ATTUNE_OK);
    assert_memory_equal(table, wanted, sizeof wanted);
    memset(table, 7, sizeof table);
    assert_int_equal(attune_blocks_from_csr(indptr, indices, 3, 4, table), ATTUNE_OK);
    assert_memory_equal(table, wanted, sizeof wanted);

    memset(table, 7, sizeof table);
    assert_int_equal(attune_blocks_from_lists(lists, 3, 3, 3, table), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "lists[6] is the key block 3; it must be at least 0 and below 3");
    assert_int_equal(attune_blocks_from_csr(indptr, indices, 3, 3, table), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "indices[2] is the key block 3; it must be at least 0 and below 3");
    assert_int_equal(attune_blocks_from_csr(lists, indices, 2, 4, table), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "indptr[0] is 2; it must rise from 0");
    assert_int_equal(attune_blocks_from_csr(indptr, NULL, 3, 4, table), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "indices is NULL");
    assert_int_equal(attune_blocks_from_csr(indptr, indices, -3, 4, table), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "rows is -3; it must be from 0 to 2147483647");
    assert_int_equal(attune_blocks_from_lists(lists, 3, -1, 4, table), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "places is -1; it must be from 0 to 2147483647");
    for (size_t i = 0; i < sizeof table; i++) assert_int_equal(table[i], 7);
}

static void refuse_desc(attune_blocks_desc d, const char *sentence) {
    attune_blocks *blocks;
    assert_int_not_equal(attune_blocks_create(NULL, &d, &blocks), ATTUNE_OK);
    assert_null(blocks);
    assert_string_equal(attune_last_message(), sentence);
}

static void wrong_descriptions(void **state) {
    (void)state;
    attune_blocks_desc d = ATTUNE_BLOCKS_DESC_INIT;
    refuse_desc(d, "num_heads is 0; it must be from 1 to 1024");
    refuse_desc(desc_of(3, 2, 16, 32, 8), "num_kv_heads is 2, which does not divide num_heads, 3");
    refuse_desc(desc_of(1, 1, 600, 32, 8), "head_dim is 600; it must be from 1 to 512");
    refuse_desc(desc_of(1, 1, 16, 32, 5), "stride is 5; it must divide block_size, 32");
    refuse_desc(desc_of(1, 1, 16, 32, 33), "stride is 33; it must be from 1 to 32");
    refuse_desc(desc_of(1, 1, 512, 128, 128), "stride is 128 and head_dim 512; their product must be at most 32768");
    d = desc_of(1, 1, 16, 32, 8), d.dtype = ATTUNE_I8;
    refuse_desc(d, "dtype is i8; it must be f32, bf16 or f16");
    d = desc_of(1, 1, 16, 32, 8), d.softmax_scale = INFINITY;
    refuse_desc(d, "softmax_scale is inf; it must be within +-1e38");
}

static void refuse_step(attune_blocks *blocks, attune_blocks_step s, const char *sentence) {
    assert_int_equal(attune_blocks_run(blocks, &s), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), sentence);
}

static void wrong_steps(void **state) {
    (void)state;
    estimate_case c;
    attune_blocks_desc d = desc_of(1, 1, 16, 32, 8);
    d.is_causal = 1;
    open_case(&c, d, 1, 64, 64);
    attune_blocks *const blocks = make(&d);
    const attune_blocks_step good = step_of(&c);
    attune_blocks_step s = good;
    s.q.data = NULL;
    refuse_step(blocks, s, "q is NULL");
    s = good, s.shares = NULL;
    refuse_step(blocks, s, "shares is NULL");
    s = good, s.k.token = -1;
    refuse_step(blocks, s, "k has a negative stride");
    s = good, s.k.column = 2;
    refuse_step(blocks, s, "k.column is 2; it must be 0 or 1");
    s = good, s.seq_q = 61;
    refuse_step(blocks, s,
                "seq_q is 61 and seq_kv 64, which differ by 3; with is_causal that must be a multiple of stride, 8");
    s = good, s.batch = -1;
    refuse_step(blocks, s, "batch is -1; it must be from 0 to 2147483647");
    s = good, s.seq_q = s.seq_kv = 32 * 32769;
    refuse_step(blocks, s, "1048608 keys are 32769 key blocks; there may be 32768");
    s = good, s.seq_q = 0;
    assert_int_equal(attune_blocks_run(blocks, &s), ATTUNE_OK); /* nothing to do */
    assert_int_equal(attune_blocks_run(NULL, &s), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "attune_blocks_run was given no estimator");
    attune_blocks_destroy(blocks);
    attune_blocks_destroy(NULL);
    close_case(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(causality),
        cmocka_unit_test(heads_and_batches),
        cmocka_unit_test(types),
        cmocka_unit_test(large_scores_and_many_blocks),
        cmocka_unit_test(strides),
        cmocka_unit_test(tables),
        cmocka_unit_test(wrong_descriptions),
        cmocka_unit_test(wrong_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
