/* The estimate of which key blocks matter, in f64. */
#include "ref_attention.h"
#include "ref_described.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The scaled sum of the antidiagonal of a square, and how far rounding may take it. */
static double sum_of(const ref_blocks *r, int64_t i, int64_t j, double *limit) {
    const attune_blocks_desc *const d = r->desc;
    const double scale = d->softmax_scale / (double)d->stride;
    double sum = 0, size = 0;
    for (int64_t u = 0; u < d->stride; u++) {
        const int64_t query = i * d->stride + d->stride - 1 - u, key = j * d->stride + u;
        if (query >= r->seq_q || key >= r->seq_kv) continue;
        for (int64_t x = 0; x < d->head_dim; x++) {
            const double product = (double)ref_load(d->dtype, r->q, query * d->head_dim + x) *
                                   (double)ref_load(d->dtype, r->k, key * d->head_dim + x);
            sum += product, size += fabs(product);
        }
    }
    *limit = (double)(d->stride * d->head_dim + 8) * (double)FLT_EPSILON * size * fabs(scale);
    return sum * scale;
}

/* Adds the probabilities of a square of queries to the shares of its row block; `errors` are those of the sums. */
static void add_square(const ref_blocks *r, int64_t i, double *p, double *errors, double *shares, double *limits) {
    const attune_blocks_desc *const d = r->desc;
    const int64_t squares = ceil_div(r->seq_q, d->stride), groups = ceil_div(r->seq_kv, d->stride);
    const int64_t in_block = d->block_size / d->stride, row = i / in_block;
    const int64_t end = d->is_causal ? i + groups - squares + 1 : groups;
    const int64_t rest = squares - row * in_block, count = rest < in_block ? rest : in_block;
    const int64_t columns = ceil_div(r->seq_kv, d->block_size);
    double most = -INFINITY, total = 0, mean = 0;
    for (int64_t j = 0; j < end; j++) most = fmax(most, p[j] = sum_of(r, i, j, &errors[j]));
    for (int64_t j = 0; j < end; j++) total += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < end; j++) mean += p[j] / total * errors[j];
    for (int64_t j = 0; j < end; j++) {
        const double share = p[j] / total / (double)count;
        const double off = errors[j] + mean + (double)(groups + 16) * (double)FLT_EPSILON;
        shares[row * columns + j / in_block] += share;
        limits[row * columns + j / in_block] += share * expm1(fmin(off, 50));
    }
}

bool ref_blocks_compute(const ref_blocks *r, double *shares, double *limits) {
    const attune_blocks_desc *const d = r->desc;
    const int64_t squares = ceil_div(r->seq_q, d->stride), groups = ceil_div(r->seq_kv, d->stride);
    const int64_t all = ceil_div(r->seq_q, d->block_size) * ceil_div(r->seq_kv, d->block_size);
    double *const p = malloc((size_t)(2 * groups + 1) * sizeof *p);
    if (!p) return false;
    for (int64_t i = 0; i < all; i++) shares[i] = limits[i] = 0;
    for (int64_t i = 0; i < squares; i++) add_square(r, i, p, p + groups, shares, limits);
    free(p);
    return true;
}
