/* The MLA block in f64. Each number has the expected square of its rounding error beside it, which follows the number
 * through products, norms and the softmax. */
#include "ref_attention.h"
#include "ref_described.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct num {
    double is, var;
} num;

typedef struct block {
    const ref_mla *r;
    const attune_mla_desc *d;
    int64_t nope, rope, v, rank, heads, width;
    num *q, *k, *values, *latents; /* [heads, nope + rope], [keys, heads, nope], [keys, heads, v], [keys, width] */
    num *mixed, *row;              /* [heads, v]; what comes between two products */
    double *p, *off;               /* [keys]: probabilities, and errors of scores */
} block;

static double at(const block *b, const void *data, int64_t i) { return (double)ref_load(b->d->dtype, data, i); }

static double sq(double x) { return x * x; }

/* The relative error of a number that is stored. */
static double unit(const block *b) {
    return b->d->dtype == ATTUNE_BF16 ? 0x1p-9 : b->d->dtype == ATTUNE_F16 ? 0x1p-12 : 0x1p-24;
}

static num stored(const block *b, num x) { return (num){x.is, x.var + sq(unit(b) * x.is)}; }

/* y[output] = weights[first + output, input] x[input] + bias */
static void multiply(const block *b, const void *weights, const void *bias, int64_t first, int64_t outputs,
                     int64_t inputs, const num *x, num *y) {
    for (int64_t o = 0; o < outputs; o++) {
        double sum = bias ? at(b, bias, o) : 0, var = 0, squares = 0;
        for (int64_t i = 0; i < inputs; i++) {
            const double w = at(b, weights, (first + o) * inputs + i);
            sum += w * x[i].is, var += sq(w) * x[i].var, squares += sq(w * x[i].is);
        }
        y[o] = stored(b, (num){sum, var + (double)inputs * sq((double)FLT_EPSILON) * squares});
    }
}

static void normalise(const block *b, const void *norm, int64_t columns, num *x) {
    double squares = 0, var = 0;
    for (int64_t i = 0; i < columns; i++) squares += sq(x[i].is), var += sq(x[i].is) * x[i].var;
    const double sum = squares + b->d->norm_eps * (double)columns, factor = sqrt((double)columns / sum);
    for (int64_t i = 0; i < columns; i++) {
        const double by = factor * at(b, norm, i), is = x[i].is * by;
        x[i] = stored(b, (num){is, sq(by) * x[i].var + sq(is) * (var / sq(sum) + sq(16 * (double)FLT_EPSILON))});
    }
}

static void rotate(const block *b, int64_t position, num *x) {
    const int64_t half = b->rope / 2;
    for (int64_t i = 0; i < half; i++) {
        const double c = (double)b->r->cos[position * half + i], s = (double)b->r->sin[position * half + i];
        num *const one = x + (b->d->rope_interleaved ? 2 * i : i), *const two =
                                                                       one + (b->d->rope_interleaved ? 1 : half);
        const num first = *one, second = *two;
        *one = stored(b, (num){first.is * c - second.is * s, sq(c) * first.var + sq(s) * second.var});
        *two = stored(b, (num){second.is * c + first.is * s, sq(c) * second.var + sq(s) * first.var});
    }
}

static int64_t position_of(const block *b, int64_t token) {
    return b->r->positions ? b->r->positions[token] : b->r->keys - b->r->tokens + token;
}

/* A token's row of the cache. */
static void make_row(block *b, int64_t token) {
    num *const to = b->latents + (b->r->keys - b->r->tokens + token) * b->width;
    for (int64_t i = 0; i < b->d->embed_dim; i++) b->row[i] = (num){at(b, b->r->x, token * b->d->embed_dim + i), 0};
    multiply(b, b->r->weights->kv_a_proj, b->r->weights->kv_a_bias, 0, b->width, b->d->embed_dim, b->row, to);
    normalise(b, b->r->weights->kv_a_layernorm, b->rank, to);
    rotate(b, position_of(b, token), to + b->rank);
}

/* Keys and values of all heads from a row of the cache. */
static void expand(block *b, int64_t key) {
    for (int64_t h = 0; h < b->heads; h++) {
        const int64_t first = h * (b->nope + b->v), place = key * b->heads + h;
        const num *const row = b->latents + key * b->width;
        multiply(b, b->r->weights->kv_b_proj, NULL, first, b->nope, b->rank, row, b->k + place * b->nope);
        multiply(b, b->r->weights->kv_b_proj, NULL, first + b->nope, b->v, b->rank, row, b->values + place * b->v);
    }
}

static void make_queries(block *b, int64_t token) {
    const attune_mla_weights *const w = b->r->weights;
    const int64_t embed = b->d->embed_dim, low = b->d->q_lora_rank, dim = b->nope + b->rope;
    num *const x = b->row, *const of_low = x + embed;
    for (int64_t i = 0; i < embed; i++) x[i] = (num){at(b, b->r->x, token * embed + i), 0};
    if (low) {
        multiply(b, w->q_a_proj, w->q_a_bias, 0, low, embed, x, of_low);
        normalise(b, w->q_a_layernorm, low, of_low);
    }
    multiply(b, low ? w->q_b_proj : w->q_proj, NULL, 0, b->heads * dim, low ? low : embed, low ? of_low : x, b->q);
    for (int64_t h = 0; h < b->heads; h++) rotate(b, position_of(b, token), b->q + h * dim + b->nope);
}

static void add_product(num one, num other, double *sum, double *var, double *squares) {
    *sum += one.is * other.is, *squares += sq(one.is * other.is);
    *var += sq(one.is) * other.var + sq(other.is) * one.var;
}

/* The largest element of the absorbed query, which is rounded in that form. */
static double absorbed(const block *b, int64_t h) {
    double most = 0;
    for (int64_t j = 0; j < b->rank; j++) {
        double sum = 0;
        for (int64_t i = 0; i < b->nope; i++)
            sum += b->q[h * (b->nope + b->rope) + i].is *
                   at(b, b->r->weights->kv_b_proj, (h * (b->nope + b->v) + i) * b->rank + j);
        most = fmax(most, fabs(sum));
    }
    return most;
}

/* A head's probabilities of the first `keys` keys, and how far its scores may be off. */
static void attend(block *b, int64_t h, int64_t keys) {
    const num *const q = b->q + h * (b->nope + b->rope);
    const double most_absorbed = absorbed(b, h);
    double most = -INFINITY, total = 0;
    for (int64_t j = 0; j < keys; j++) {
        const num *const k = b->k + (j * b->heads + h) * b->nope, *const row = b->latents + j * b->width;
        double sum = 0, var = 0, squares = 0, length = 0;
        for (int64_t i = 0; i < b->nope; i++) add_product(q[i], k[i], &sum, &var, &squares);
        for (int64_t i = 0; i < b->rope; i++) add_product(q[b->nope + i], row[b->rank + i], &sum, &var, &squares);
        for (int64_t i = 0; i < b->rank; i++) length += sq(row[i].is);
        var += (double)b->width * sq((double)FLT_EPSILON) * squares + sq(unit(b) * most_absorbed) * length;
        b->p[j] = sum * b->d->softmax_scale, b->off[j] = fabs(b->d->softmax_scale) * sqrt(var);
        most = fmax(most, b->p[j]);
    }
    for (int64_t j = 0; j < keys; j++) total += b->p[j] = exp(b->p[j] - most);
    for (int64_t j = 0; j < keys; j++) b->p[j] /= total;
}

/* The error of the mean of the cache's rows, which is rounded in the absorbed form, in a column of values. */
static double mean_error(const block *b, const double *mean, int64_t row) {
    double squares = 0;
    for (int64_t i = 0; i < b->rank; i++) squares += sq(mean[i] * at(b, b->r->weights->kv_b_proj, row * b->rank + i));
    return sq(unit(b)) * squares;
}

/* A head's mean of values. Errors of its scores are of one query: they add up. */
static void mix(block *b, int64_t h, int64_t keys, double *mean) {
    for (int64_t i = 0; i < b->rank; i++) {
        mean[i] = 0;
        for (int64_t j = 0; j < keys; j++) mean[i] += b->p[j] * b->latents[j * b->width + i].is;
    }
    for (int64_t i = 0; i < b->v; i++) {
        double sum = 0, var = 0, moved = 0;
        for (int64_t j = 0; j < keys; j++) {
            const num v = b->values[(j * b->heads + h) * b->v + i];
            sum += b->p[j] * v.is;
            var += sq(b->p[j]) * (v.var + sq((unit(b) + 16 * (double)FLT_EPSILON) * v.is));
        }
        for (int64_t j = 0; j < keys; j++)
            moved += b->p[j] * b->off[j] * fabs(b->values[(j * b->heads + h) * b->v + i].is - sum);
        var += sq(moved) + mean_error(b, mean, h * (b->nope + b->v) + b->nope + i);
        b->mixed[h * b->v + i] = stored(b, (num){sum, var + sq(16 * (double)FLT_EPSILON * sum)});
    }
}

static bool open_block(block *b, const ref_mla *r) {
    const attune_mla_desc *const d = r->desc;
    *b = (block){.r = r,
                 .d = d,
                 .nope = d->qk_nope_head_dim,
                 .rope = d->qk_rope_head_dim,
                 .v = d->v_head_dim,
                 .rank = d->kv_lora_rank,
                 .heads = d->num_heads,
                 .width = d->kv_lora_rank + d->qk_rope_head_dim};
    const int64_t counts[] = {b->heads * (b->nope + b->rope),
                              r->keys * b->heads * b->nope,
                              r->keys * b->heads * b->v,
                              r->keys * b->width,
                              b->heads * b->v,
                              d->embed_dim + d->q_lora_rank + d->out_dim};
    num **const places[] = {&b->q, &b->k, &b->values, &b->latents, &b->mixed, &b->row};
    bool good = true;
    for (int i = 0; i < 6; i++) good &= (*places[i] = malloc((size_t)(counts[i] + 1) * sizeof **places[i])) != NULL;
    b->p = malloc((size_t)(2 * r->keys + b->rank + 1) * sizeof *b->p);
    b->off = b->p + r->keys;
    return good && b->p;
}

static void close_block(block *b) {
    free(b->q), free(b->k), free(b->values), free(b->latents), free(b->mixed), free(b->row), free(b->p);
}

bool ref_mla_compute(const ref_mla *r, double *rows, double *row_limits, double *out, double *limits) {
    enum { SAFETY = 8 };
    block b;
    const bool good = open_block(&b, r);
    const int64_t old = r->keys - r->tokens, out_dim = r->desc->out_dim;
    for (int64_t i = 0; good && i < old * b.width; i++) b.latents[i] = (num){rows[i], 0};
    for (int64_t t = 0; good && t < r->tokens; t++) make_row(&b, t);
    for (int64_t j = 0; good && j < r->keys; j++) expand(&b, j);
    for (int64_t i = 0; good && i < r->keys * b.width; i++)
        rows[i] = b.latents[i].is, row_limits[i] = SAFETY * sqrt(b.latents[i].var);
    for (int64_t t = 0; good && t < r->tokens; t++) {
        make_queries(&b, t);
        for (int64_t h = 0; h < b.heads; h++) {
            attend(&b, h, old + t + 1);
            mix(&b, h, old + t + 1, b.off + r->keys);
        }
        multiply(&b, r->weights->o_proj, r->weights->o_bias, 0, out_dim, b.heads * b.v, b.mixed, b.row);
        for (int64_t i = 0; i < out_dim; i++)
            out[t * out_dim + i] = b.row[i].is, limits[t * out_dim + i] = SAFETY * sqrt(b.row[i].var);
    }
    close_block(&b);
    return good;
}
