/* Beside each state it keeps how far a column may be off, so that the allowed error follows from the data and is no
 * constant. */
#include "ref_linear.h"

#include "ref_attention.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static double number(attune_dtype dtype, const void *data, int64_t i) { return (double)ref_load(dtype, data, i); }

/* 1 over the length of a row, if the description has norms. */
static double norm_of(const ref_linear *r, const void *rows, int64_t row) {
    const attune_linear_desc *d = r->desc;
    double squares = 0;
    if (d->qk_norm_eps == 0) return 1;
    for (int64_t i = 0; i < d->head_dim; i++) squares += pow(number(d->dtype, rows, row * d->head_dim + i), 2);
    return 1 / sqrt(squares + d->qk_norm_eps);
}

static int64_t out_heads(const attune_linear_desc *d) {
    return d->num_heads > d->num_kv_heads ? d->num_heads : d->num_kv_heads;
}

/* What is known of a column of a state: how far it may be off, as a Euclidean length, a length that no sum of its
 * chunk exceeds, and the largest factor that a row of Q may be multiplied by. */
typedef struct column {
    double error, size, factor;
} column;

/* Rounding errors of a sum of products of a row of Q or K, its norm and its decay. */
static double share_of(const attune_linear_desc *d, double decay) {
    return ((double)d->head_dim / 2 + 16 + 2 * fabs(decay)) * (double)FLT_EPSILON;
}

static double length_of(const double *s, int64_t rows, int64_t columns, int64_t j) {
    double squares = 0;
    for (int64_t i = 0; i < rows; i++) squares += s[i * columns + j] * s[i * columns + j];
    return sqrt(squares);
}

/* A column after S = a S + b k r, if a product with 1 - b k k^T does not lengthen more than `keeps`. A chunk adds to
 * what was there at its beginning, so sums within it may be larger than the state. What may have overflowed in f32 is
 * not known from then on. */
static void age(const attune_linear_desc *d, column *c, double decay, double b, double key, double right) {
    enum { FORGETS = -1000 }; /* exp of it is 0, as of -infinity */
    const double kept = fmax(decay, FORGETS), a = exp(kept), step = fabs(b) * key;
    const double keeps = d->rule >= ATTUNE_DELTA ? fmax(1, fabs(1 - b * key * key)) : 1;
    const double before = isinf(c->error) ? c->error : a * keeps * c->error;
    c->error = before + share_of(d, kept) * a * c->size * (1 + step * key) + share_of(d, 0) * step * fabs(right);
    c->size = a * c->size + step * fabs(right);
    c->factor = fmax(c->factor, fmax(step, c->size));
    if (c->size > (double)FLT_MAX) c->error = INFINITY;
}

static double largest_decay(const ref_linear *r, int64_t of_head) {
    const attune_linear_desc *d = r->desc;
    const int64_t count = d->decay == ATTUNE_DECAY_KEY ? d->head_dim : d->decay ? 1 : 0;
    double largest = count ? -INFINITY : 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, number(d->decay_dtype, r->decay, of_head * count + i));
    return largest;
}

static double length_of_row(const ref_linear *r, const void *rows, int64_t row) {
    const attune_linear_desc *d = r->desc;
    double squares = 0;
    for (int64_t i = 0; i < d->head_dim; i++) squares += pow(number(d->dtype, rows, row * d->head_dim + i), 2);
    return sqrt(squares);
}

static void update(const ref_linear *r, int64_t token, int64_t head, double *s, column *known) {
    const attune_linear_desc *d = r->desc;
    const int64_t rows = d->head_dim, columns = d->head_dim_v, of_head = token * d->num_kv_heads + head;
    const int64_t k_row = token * d->num_k_heads + head / (d->num_kv_heads / d->num_k_heads);
    const double beta = d->has_beta ? number(d->beta_dtype, r->beta, of_head) : 1, norm = norm_of(r, r->k, k_row);
    for (int64_t j = 0; j < columns; j++) {
        double u = 0;
        for (int64_t i = 0; i < rows; i++) {
            const int64_t place = d->decay == ATTUNE_DECAY_KEY ? of_head * rows + i : of_head;
            if (d->decay) s[i * columns + j] *= exp(number(d->decay_dtype, r->decay, place));
            u += s[i * columns + j] * number(d->dtype, r->k, k_row * rows + i) * norm;
        }
        const double right = number(d->dtype, r->v, of_head * columns + j) - (d->rule >= ATTUNE_DELTA ? u : 0);
        if (known) age(d, &known[j], largest_decay(r, of_head), beta, length_of_row(r, r->k, k_row) * norm, right);
        for (int64_t i = 0; i < rows; i++)
            s[i * columns + j] += beta * number(d->dtype, r->k, k_row * rows + i) * norm * right;
    }
}

/* The largest relative error of a number that is stored. */
static double epsilon_of(attune_dtype dtype) {
    return dtype == ATTUNE_BF16 ? 0x1p-8 : dtype == ATTUNE_F16 ? 0x1p-11 : (double)FLT_EPSILON;
}

/* The distance of its numbers next to 0. */
static double tiniest_of(attune_dtype dtype) { return dtype == ATTUNE_F16 ? 0x1p-24 : (double)FLT_MIN; }

/* A number that may be off by *limit, as its type stores it. */
static double stored(attune_dtype dtype, double number, double *limit) {
    const double at = (double)ref_rounded(dtype, number), off = limit ? *limit : 0;
    const double above = (double)ref_rounded(dtype, number + off), below = (double)ref_rounded(dtype, number - off);
    if (limit) *limit = fmax(above == at ? 0 : above - at, below == at ? 0 : at - below);
    return at;
}

/* RMS norm and gate of a row of out, which has been rounded to its type. */
static void finish(const ref_linear *r, int64_t row, double *out, double *limits) {
    const attune_linear_desc *d = r->desc;
    double squares = 0, off = 0;
    for (int64_t j = 0; j < d->head_dim_v && (d->gate || d->out_norm_eps > 0); j++)
        out[j] = stored(d->dtype, out[j], limits ? &limits[j] : NULL);
    for (int64_t j = 0; j < d->head_dim_v; j++) squares += out[j] * out[j], off += limits ? limits[j] * limits[j] : 0;
    const double mean = (double)d->head_dim_v, root = sqrt(squares / mean + d->out_norm_eps);
    for (int64_t j = 0; j < d->head_dim_v; j++) {
        const double g = d->gate ? number(d->dtype, r->gate, row * d->head_dim_v + j) : 0;
        const double weight = d->out_norm_eps > 0 ? number(d->dtype, r->norm_weights, j) / root : 1;
        const double gate = !d->gate ? 1 : (d->gate == ATTUNE_GATE_SILU ? g : 1) / (1 + exp(-g));
        const bool is_unknown = limits && isinf(limits[j]);
        if (limits && d->out_norm_eps > 0) limits[j] += fabs(out[j]) / root * sqrt(off / mean);
        out[j] *= weight * gate;
        if (!limits) continue;
        limits[j] = limits[j] * fabs(weight * gate) + (mean + 32 + 2 * fabs(g)) * (double)FLT_EPSILON * fabs(out[j]);
        limits[j] += epsilon_of(d->dtype) * fabs(out[j]) + tiniest_of(d->dtype);
        if (is_unknown || (d->out_norm_eps > 0 && isinf(off))) limits[j] = INFINITY;
    }
}

/* The rows of out of the heads of q that share a state. */
static void read_state(const ref_linear *r, int64_t token, int64_t head, const double *s, const column *known,
                       double *out, double *limits) {
    const attune_linear_desc *d = r->desc;
    const int64_t rows = d->head_dim, columns = d->head_dim_v;
    const int64_t group = d->num_heads > d->num_kv_heads ? d->num_heads / d->num_kv_heads : 1;
    const double scale = isnan(d->scale) ? 1 / sqrt((double)rows) : d->scale;
    for (int64_t g = 0; g < group; g++) {
        const int64_t q_head = group > 1 ? head * group + g : head / (d->num_kv_heads / d->num_heads);
        const int64_t q_row = token * d->num_heads + q_head, out_row = token * out_heads(d) + head * group + g;
        const double norm = norm_of(r, r->q, q_row);
        const double length = fabs(scale) * (known ? length_of_row(r, r->q, q_row) * norm : 0);
        for (int64_t j = 0; j < columns; j++) {
            double o = 0;
            for (int64_t i = 0; i < rows; i++)
                o += s[i * columns + j] * number(d->dtype, r->q, q_row * rows + i) * norm;
            out[out_row * columns + j] = scale * o;
            if (known) {
                const bool overflows = fmax(1, 1 / fabs(scale)) * length * known[j].factor > (double)FLT_MAX;
                const double sums = length * (known[j].error + share_of(d, 0) * known[j].size);
                limits[out_row * columns + j] =
                    overflows || isinf(known[j].error) ? INFINITY : sums + tiniest_of(d->dtype);
            }
        }
        finish(r, out_row, out + out_row * columns, known ? limits + out_row * columns : NULL);
    }
}

/* A chunk begins: its sums are of the state and of what it adds. */
static void begin_chunk(const attune_linear_desc *d, const double *s, column *known) {
    for (int64_t j = 0; j < d->head_dim_v; j++)
        known[j].size = length_of(s, d->head_dim, d->head_dim_v, j), known[j].factor = fmax(1, known[j].size);
}

bool ref_linear_compute(const ref_linear *r, double *state, double *out, double *limits, double *state_limits) {
    enum { CHUNK = 8 };
    const attune_linear_desc *d = r->desc;
    column *const known = limits ? calloc((size_t)(d->num_kv_heads * d->head_dim_v), sizeof *known) : NULL;
    if (limits && !known) return false;
    for (int64_t token = 0; token < r->tokens; token++)
        for (int64_t head = 0; head < d->num_kv_heads; head++) {
            double *const s = state + head * d->head_dim * d->head_dim_v;
            column *const of_head = known ? known + head * d->head_dim_v : NULL;
            if (known && token % CHUNK == 0) begin_chunk(d, s, of_head);
            update(r, token, head, s, of_head);
            read_state(r, token, head, s, of_head, out, limits);
        }
    for (int64_t i = 0; known && state_limits && i < d->num_kv_heads * d->head_dim_v; i++)
        state_limits[i] = known[i].error;
    free(known);
    return true;
}
