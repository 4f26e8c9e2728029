#include "ref_linear.h"

#include "ref_attention.h"

#include <math.h>

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

static void update(const ref_linear *r, int64_t token, int64_t head, double *s) {
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
        for (int64_t i = 0; i < rows; i++)
            s[i * columns + j] += beta * number(d->dtype, r->k, k_row * rows + i) * norm * right;
    }
}

/* RMS norm and gate. */
static void finish(const ref_linear *r, int64_t row, double *out) {
    const attune_linear_desc *d = r->desc;
    double squares = 0;
    for (int64_t j = 0; j < d->head_dim_v; j++) squares += out[j] * out[j];
    const double root = sqrt(squares / (double)d->head_dim_v + d->out_norm_eps);
    for (int64_t j = 0; j < d->head_dim_v; j++) {
        if (d->out_norm_eps > 0) out[j] *= number(d->dtype, r->norm_weights, j) / root;
        if (!d->gate) continue;
        const double g = number(d->dtype, r->gate, row * d->head_dim_v + j);
        out[j] *= (d->gate == ATTUNE_GATE_SILU ? g : 1) / (1 + exp(-g));
    }
}

/* The rows of out of the heads of q that share a state. */
static void read_state(const ref_linear *r, int64_t token, int64_t head, const double *s, double *out) {
    const attune_linear_desc *d = r->desc;
    const int64_t rows = d->head_dim, columns = d->head_dim_v;
    const int64_t group = d->num_heads > d->num_kv_heads ? d->num_heads / d->num_kv_heads : 1;
    const double scale = isnan(d->scale) ? 1 / sqrt((double)rows) : d->scale;
    for (int64_t g = 0; g < group; g++) {
        const int64_t q_head = group > 1 ? head * group + g : head / (d->num_kv_heads / d->num_heads);
        const int64_t q_row = token * d->num_heads + q_head, out_row = token * out_heads(d) + head * group + g;
        const double norm = norm_of(r, r->q, q_row);
        for (int64_t j = 0; j < columns; j++) {
            double o = 0;
            for (int64_t i = 0; i < rows; i++)
                o += s[i * columns + j] * number(d->dtype, r->q, q_row * rows + i) * norm;
            out[out_row * columns + j] = scale * o;
        }
        finish(r, out_row, out + out_row * columns);
    }
}

void ref_linear_compute(const ref_linear *r, double *state, double *out) {
    const attune_linear_desc *d = r->desc;
    for (int64_t token = 0; token < r->tokens; token++)
        for (int64_t head = 0; head < d->num_kv_heads; head++) {
            double *const s = state + head * d->head_dim * d->head_dim_v;
            update(r, token, head, s);
            read_state(r, token, head, s, out);
        }
}
