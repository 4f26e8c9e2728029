/* OpenBLAS behind the protocol of docs/bench.md: attention written round its sgemm. usage: openblas_driver THREADS
 *
 * Tasks are blocks of query rows of one head. Each goes through the keys block by block, keeping the maximum and the
 * sum of each row (or once, if the block holds all keys, which then needs no rescaling); blocks beyond a causal
 * diagonal are skipped. The sizes of the blocks are those that are fastest on trial. The threads are OpenMP's, with
 * OpenBLAS itself on one, because its own threads share out each product and meet after it. */
#define _GNU_SOURCE
#include "driver.h"

#include <cblas.h>
#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#ifdef BLAS_PREFIX
#define BLAS(name) PASTE(BLAS_PREFIX, name)
#else
#define BLAS(name) name
#endif

enum { MAX_BLOCK_ROWS = 256, MAX_BLOCK_KEYS = 1024 };

static int all_threads = 1, threads = 1; /* threads: of the problem that is prepared */

/* Where the heads of one operand lie. */
typedef struct heads {
    const float *data;
    int64_t batch_step, head_step, row_step;
} heads;

static struct {
    driver_problem problem;
    float *inputs[8]; /* what is to be freed */
    int num_inputs;
    float *out, *rows_in, *rows_out; /* rows_in: x W + b; rows_out: the heads, one after the other */
    float *scratch[64];
    heads q, k, v;
    float *attention_out;
    int64_t out_batch_step, out_head_step, out_row_step;
    int64_t block_rows, block_keys;
    const float *weight[2], *bias[2];
} now;

/* ---- Softmax ---- */

/* 2^x for x <= 0, by a polynomial of degree 5 on [-1/2, 1/2]: its error is 2 ULP. A loop over it becomes vector code.
 */
static inline float exp2_of(float x) {
    x = x < -126.0f ? -126.0f : x;
    const float whole = __builtin_rintf(x), f = x - whole;
    float p = 1.3398874e-3f;
    p = p * f + 9.6184373e-3f;
    p = p * f + 5.5503324e-2f;
    p = p * f + 2.4022648e-1f;
    p = p * f + 6.9314720e-1f;
    p = p * f + 1.0f;
    const int32_t bits = ((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static float greatest(const float *row, int64_t count) {
    float most = -FLT_MAX;
    for (int64_t j = 0; j < count; j++) most = row[j] > most ? row[j] : most;
    return most;
}

/* row[j] = 2^(row[j] - most); their sum. */
static float exponentials(float *row, int64_t count, float most) {
    float sum = 0;
    for (int64_t j = 0; j < count; j++) {
        row[j] = exp2_of(row[j] - most);
        sum += row[j];
    }
    return sum;
}

static void scale_row(float *row, int64_t count, float factor) {
    for (int64_t d = 0; d < count; d++) row[d] *= factor;
}

/* ---- Attention ---- */

/* C[rows, columns] = factor * A B^T (or A B) + keep * C. One row is a product with a vector. */
static void product(bool is_transposed, int64_t rows, int64_t columns, int64_t depth, float factor, const float *a,
                    int64_t a_step, const float *b, int64_t b_step, float keep, float *c, int64_t c_step) {
    if (rows == 1) {
        const int64_t m = is_transposed ? columns : depth, n = is_transposed ? depth : columns;
        BLAS(cblas_sgemv)(CblasRowMajor, is_transposed ? CblasNoTrans : CblasTrans, (int)m, (int)n, factor, b,
                          (int)b_step, a, 1, keep, c, 1);
        return;
    }
    BLAS(cblas_sgemm)(CblasRowMajor, CblasNoTrans, is_transposed ? CblasTrans : CblasNoTrans, (int)rows, (int)columns,
                      (int)depth, factor, a, (int)a_step, b, (int)b_step, keep, c, (int)c_step);
}

typedef struct rows_state {
    float most[MAX_BLOCK_ROWS], sum[MAX_BLOCK_ROWS];
} rows_state;

/* Softmax of the scores of one block, in base 2; the rows of `out` so far are scaled to the new maxima. `seen` keys are
 * seen by row 0, each next row sees `more` more. */
static void softmax_block(float *scores, int64_t rows, int64_t keys, int64_t seen, int64_t more, bool is_first,
                          rows_state *state, float *out, int64_t out_step, int64_t dim) {
    for (int64_t i = 0; i < rows; i++) {
        float *const row = scores + i * keys;
        int64_t count = seen + i * more;
        count = count < 0 ? 0 : count > keys ? keys : count;
        const float block_most = count ? greatest(row, count) : -FLT_MAX;
        const float most = is_first || block_most > state->most[i] ? block_most : state->most[i];
        const float sum = count ? exponentials(row, count, most) : 0;
        memset(row + count, 0, (size_t)(keys - count) * sizeof *row);
        if (is_first) {
            state->sum[i] = sum;
        } else {
            const float factor = exp2_of(state->most[i] - most);
            state->sum[i] = state->sum[i] * factor + sum;
            if (factor != 1.0f) scale_row(out + i * out_step, dim, factor);
        }
        state->most[i] = most;
    }
}

/* `rows` query rows against all keys of one KV head. position: of the first row, if causal. */
static void attend_rows(const float *q, int64_t q_step, int64_t rows, const float *k, const float *v, int64_t kv_step,
                        float *out, int64_t out_step, int64_t position, int64_t block_keys, float *scores) {
    const driver_problem *const p = &now.problem;
    const float factor = (float)(driver_scale(p) * M_LOG2E);
    const int64_t limit = p->is_causal && position + rows < p->keys ? position + rows : p->keys;
    rows_state state;
    for (int64_t begin = 0; begin < limit; begin += block_keys) {
        const int64_t keys = limit - begin < block_keys ? limit - begin : block_keys;
        const int64_t seen = p->is_causal ? position + 1 - begin : keys;
        product(true, rows, keys, p->dim, factor, q, q_step, k + begin * kv_step, kv_step, 0, scores, keys);
        softmax_block(scores, rows, keys, seen, p->is_causal, begin == 0, &state, out, out_step, p->dim);
        product(false, rows, p->dim, keys, 1, scores, keys, v + begin * kv_step, kv_step, begin ? 1 : 0, out, out_step);
    }
    for (int64_t i = 0; i < rows; i++) scale_row(out + i * out_step, p->dim, 1 / state.sum[i]);
}

/* Tasks [0, limit) at most, for trials. */
static void attend(int64_t block_rows, int64_t block_keys, int64_t limit) {
    const driver_problem *const p = &now.problem;
    const int64_t group = p->heads / p->kv_heads;
    /* One row of each head: the heads of a group are rows of one matrix. */
    const bool is_grouped = p->rows == 1 && group > 1;
    const int64_t rows = is_grouped ? group : p->rows, num_heads = is_grouped ? p->kv_heads : p->heads;
    const int64_t blocks = (rows + block_rows - 1) / block_rows, tasks = p->batch * num_heads * blocks;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < (tasks < limit ? tasks : limit); task++) {
        /* Of causal ones the long ones first. */
        const int64_t block = blocks - 1 - task % blocks, head = task / blocks % num_heads,
                      b = task / blocks / num_heads;
        const int64_t first = block * block_rows, count = rows - first < block_rows ? rows - first : block_rows;
        const int64_t kv_head = is_grouped ? head : head / group, q_head = is_grouped ? head * group : head;
        const int64_t q_step = is_grouped ? now.q.head_step : now.q.row_step;
        const int64_t out_step = is_grouped ? now.out_head_step : now.out_row_step;
        attend_rows(now.q.data + b * now.q.batch_step + q_head * now.q.head_step + first * q_step, q_step, count,
                    now.k.data + b * now.k.batch_step + kv_head * now.k.head_step,
                    now.v.data + b * now.v.batch_step + kv_head * now.v.head_step, now.k.row_step,
                    now.attention_out + b * now.out_batch_step + q_head * now.out_head_step + first * out_step,
                    out_step, first + p->keys - p->rows, block_keys, now.scratch[omp_get_thread_num()]);
    }
}

/* ---- Projections ---- */

/* out = x W^T + b, W [outputs, inputs]: each thread computes some of the columns, or where those are few for the rows,
 * some rows. */
static void project(const float *x, int64_t rows, int64_t inputs, int64_t outputs, const float *weight,
                    const float *bias, float *out) {
#pragma omp parallel num_threads(threads)
    {
        const int64_t begin = outputs * omp_get_thread_num() / threads,
                      end = outputs * (omp_get_thread_num() + 1) / threads;
        for (int64_t i = 0; i < rows; i++)
            memcpy(out + i * outputs + begin, bias + begin, (size_t)(end - begin) * sizeof *out);
        product(true, rows, end - begin, inputs, 1, x, inputs, weight + begin * inputs, inputs, 1, out + begin,
                outputs);
    }
}

/* ---- The driver ---- */

static bool call(char text[DRIVER_TEXT]) {
    const driver_problem *const p = &now.problem;
    const int64_t tokens = p->batch * p->rows;
    (void)text;
    if (p->kind == DRIVER_PRODUCTS) {
        project(now.inputs[0], tokens, p->embed, p->embed, now.weight[0], now.bias[0], now.rows_in);
        project(now.rows_in, tokens, p->embed, p->embed, now.weight[1], now.bias[1], now.out);
        return true;
    }
    if (p->kind == DRIVER_BLOCK)
        project(now.inputs[0], tokens, p->embed, 3 * p->embed, now.weight[0], now.bias[0], now.rows_in);
    attend(now.block_rows, now.block_keys, INT64_MAX);
    if (p->kind == DRIVER_BLOCK) project(now.rows_out, tokens, p->embed, p->embed, now.weight[1], now.bias[1], now.out);
    return true;
}

/* Blocks of all sensible sizes, on a part of the heads. */
static void choose_blocks(void) {
    const driver_problem *const p = &now.problem;
    double fastest = INFINITY;
    for (int64_t rows = 32; rows <= MAX_BLOCK_ROWS; rows *= 2)
        for (int64_t keys = 64; keys <= MAX_BLOCK_KEYS; keys *= 2) {
            const bool is_new = (rows == 32 || rows / 2 < p->rows) && (keys == 64 || keys / 2 < p->keys);
            const int64_t blocks = (p->rows + rows - 1) / rows;
            if (!is_new) continue;
            for (int try = 0; try < 3; try++) {
                const double start = omp_get_wtime();
                attend(rows, keys, 2 * threads * blocks);
                const double seconds = omp_get_wtime() - start;
                if (seconds >= fastest) continue;
                fastest = seconds;
                now.block_rows = rows;
                now.block_keys = keys;
            }
        }
}

static float *keep(float *input) {
    if (input) now.inputs[now.num_inputs++] = input;
    return input;
}

static bool open_heads(char text[DRIVER_TEXT]) {
    const driver_problem *const p = &now.problem;
    const int64_t q_size = p->rows * p->dim, kv_size = p->keys * p->dim;
    now.q = (heads){keep(driver_read(p, "q", p->batch * p->heads * q_size, text)), p->heads * q_size, q_size, p->dim};
    now.k = now.v = (heads){NULL, p->kv_heads * kv_size, kv_size, p->dim};
    now.k.data = keep(driver_read(p, "k", p->batch * p->kv_heads * kv_size, text));
    now.v.data = keep(driver_read(p, "v", p->batch * p->kv_heads * kv_size, text));
    now.attention_out = now.out;
    now.out_batch_step = now.q.batch_step;
    now.out_head_step = now.q.head_step;
    now.out_row_step = p->dim;
    return now.q.data && now.k.data && now.v.data;
}

static bool open_projections(char text[DRIVER_TEXT]) {
    const driver_problem *const p = &now.problem;
    const bool is_block = p->kind == DRIVER_BLOCK;
    const int64_t e = p->embed, tokens = p->batch * p->rows, columns = is_block ? 3 * e : e;
    if (!keep(driver_read(p, "x", tokens * e, text))) return false;
    now.weight[0] = keep(driver_read(p, is_block ? "qkv_weight" : "q_weight", columns * e, text));
    now.bias[0] = keep(driver_read(p, is_block ? "qkv_bias" : "q_bias", columns, text));
    now.weight[1] = keep(driver_read(p, "out_weight", e * e, text));
    now.bias[1] = keep(driver_read(p, "out_bias", e, text));
    now.rows_in = driver_alloc((size_t)(tokens * columns) * sizeof(float), text);
    now.rows_out = driver_alloc((size_t)(tokens * e) * sizeof(float), text);
    if (!now.rows_in || !now.rows_out) return false;
    now.q = (heads){now.rows_in, p->rows * columns, p->dim, columns};
    now.k = (heads){now.rows_in + e, p->rows * columns, p->dim, columns};
    now.v = (heads){now.rows_in + 2 * e, p->rows * columns, p->dim, columns};
    now.attention_out = now.rows_out;
    now.out_batch_step = p->rows * e;
    now.out_head_step = p->dim;
    now.out_row_step = e;
    return now.weight[0] && now.bias[0] && now.weight[1] && now.bias[1];
}

static bool prepare(const driver_problem *p, char text[DRIVER_TEXT]) {
    const size_t scores = (size_t)MAX_BLOCK_ROWS * MAX_BLOCK_KEYS * sizeof(float);
    memset(&now, 0, sizeof now);
    now.problem = *p;
    threads = p->threads ? (int)p->threads : all_threads;
    if (p->is_bf16 || *p->kv) {
        snprintf(text, DRIVER_TEXT, "sgemm is for f32");
        return false;
    }
    if (!(now.out = driver_alloc((size_t)driver_out_count(p) * sizeof(float), text))) return false;
    for (int i = 0; i < threads; i++)
        if (!(now.scratch[i] = driver_alloc(scores, text))) return false;
    if (!(p->kind == DRIVER_ATTENTION ? open_heads(text) : open_projections(text))) return false;
    if (p->kind == DRIVER_PRODUCTS) return true;
    if (p->kind == DRIVER_BLOCK) { /* for sensible numbers on trial */
        now.block_rows = now.block_keys = 64;
        call(text);
    }
    choose_blocks();
    return true;
}

static void output(float *out) { memcpy(out, now.out, (size_t)driver_out_count(&now.problem) * sizeof *out); }

static void drop(void) {
    for (int i = 0; i < now.num_inputs; i++) free(now.inputs[i]);
    for (int i = 0; i < all_threads; i++) free(now.scratch[i]);
    free(now.out);
    free(now.rows_in);
    free(now.rows_out);
    memset(&now, 0, sizeof now);
}

int main(int argc, char **argv) {
    char version[DRIVER_TEXT];
    if (argc == 2) all_threads = atoi(argv[1]);
    if (all_threads < 1 || all_threads > (int)(sizeof now.scratch / sizeof *now.scratch)) {
        fprintf(stderr, "usage: openblas_driver THREADS (1 to 64)\n");
        return 2;
    }
    BLAS(openblas_set_num_threads)(1);
    snprintf(version, sizeof version, "%s (%s)", BLAS(openblas_get_config)(), BLAS(openblas_get_corename)());
    return driver_serve(&(driver){"openblas", version, prepare, call, output, drop, NULL});
}
