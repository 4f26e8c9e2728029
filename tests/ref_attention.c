#include "ref_attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A problem with its defaults filled in. */
typedef struct shape {
    int64_t batch, heads, group, rows, keys, dim, dim_v;
    int64_t q[4], k[4], v[4];
    double scale;
    bool causal;
    int64_t diagonal; /* query i sees keys j <= i + diagonal */
} shape;

static void fill_strides(int64_t out[4], const int64_t given[4], int64_t heads, int64_t rows, int64_t columns) {
    const int64_t dense[4] = {heads * rows * columns, rows * columns, columns, 1};
    const bool is_default = !given[0] && !given[1] && !given[2] && !given[3];
    memcpy(out, is_default ? dense : given, sizeof dense);
}

static shape read_problem(const attune_problem *p) {
    const int64_t kv_heads = p->num_kv_heads ? p->num_kv_heads : p->num_heads;
    shape s = {
        .batch = p->batch,
        .heads = p->num_heads,
        .group = p->num_heads / kv_heads,
        .rows = p->seq_q,
        .keys = p->seq_kv ? p->seq_kv : p->seq_q,
        .dim = p->head_dim,
        .dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim,
        .scale = isnan(p->softmax_scale) ? 1.0 / sqrt((double)p->head_dim) : p->softmax_scale,
        .causal = p->is_causal != 0,
        .diagonal = p->causal_offset,
    };
    if (p->causal_align == ATTUNE_BOTTOM_RIGHT) s.diagonal += s.keys - s.rows;
    fill_strides(s.q, p->q_strides, s.heads, s.rows, s.dim);
    fill_strides(s.k, p->k_strides, kv_heads, s.keys, s.dim);
    fill_strides(s.v, p->v_strides, kv_heads, s.keys, s.dim_v);
    return s;
}

/* How many of the first keys row i sees. */
static int64_t visible_keys(const shape *s, int64_t i) {
    if (!s->causal) return s->keys;
    const int64_t last = i + s->diagonal;
    return last < 0 ? 0 : last >= s->keys ? s->keys : last + 1;
}

bool ref_attention(const attune_problem *problem, const float *q, const float *k, const float *v, double *out,
                   double *lse) {
    const shape s = read_problem(problem);
    double *const weight = malloc((size_t)s.keys * sizeof *weight);
    if (!weight) return false;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t i = 0; i < s.rows; i++) {
                const int64_t keys = visible_keys(&s, i), row = (b * s.heads + h) * s.rows + i;
                const float *const q_row = q + b * s.q[0] + h * s.q[1] + i * s.q[2];
                const float *const k_head = k + b * s.k[0] + h / s.group * s.k[1];
                const float *const v_head = v + b * s.v[0] + h / s.group * s.v[1];
                double largest = -INFINITY, sum = 0;
                for (int64_t j = 0; j < keys; j++) {
                    double dot = 0;
                    for (int64_t c = 0; c < s.dim; c++)
                        dot += (double)q_row[c * s.q[3]] * (double)k_head[j * s.k[2] + c * s.k[3]];
                    weight[j] = dot * s.scale;
                    largest = weight[j] > largest || isnan(weight[j]) ? weight[j] : largest;
                }
                /* A score of -infinity is as good as a hidden key; a row of nothing else sees none. */
                const bool has_weight = keys > 0 && largest != -INFINITY;
                for (int64_t j = 0; j < keys; j++) sum += weight[j] = exp(weight[j] - largest);
                for (int64_t c = 0; c < s.dim_v; c++) {
                    double total = 0;
                    for (int64_t j = 0; j < keys; j++) total += weight[j] * (double)v_head[j * s.v[2] + c * s.v[3]];
                    out[row * s.dim_v + c] = has_weight ? total / sum : 0;
                }
                if (lse) lse[row] = has_weight ? largest + log(sum) : -INFINITY;
            }
    free(weight);
    return true;
}

bool ref_attention_plain(const attune_problem *problem, const float *q, const float *k, const float *v, float *out,
                         float *lse) {
    const shape s = read_problem(problem);
    const float scale = (float)s.scale;
    float *const weight = malloc((size_t)s.keys * sizeof *weight);
    if (!weight) return false;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t i = 0; i < s.rows; i++) {
                const int64_t keys = visible_keys(&s, i), row = (b * s.heads + h) * s.rows + i;
                const float *const q_row = q + b * s.q[0] + h * s.q[1] + i * s.q[2];
                const float *const k_head = k + b * s.k[0] + h / s.group * s.k[1];
                const float *const v_head = v + b * s.v[0] + h / s.group * s.v[1];
                float largest = -INFINITY, sum = 0;
                for (int64_t j = 0; j < keys; j++) {
                    float dot = 0;
                    for (int64_t c = 0; c < s.dim; c++) dot += q_row[c * s.q[3]] * k_head[j * s.k[2] + c * s.k[3]];
                    weight[j] = dot * scale;
                    largest = weight[j] > largest || isnan(weight[j]) ? weight[j] : largest;
                }
                /* A score of -infinity is as good as a hidden key; a row of nothing else sees none. */
                const bool has_weight = keys > 0 && largest != -INFINITY;
                for (int64_t j = 0; j < keys; j++) sum += weight[j] = expf(weight[j] - largest);
                for (int64_t c = 0; c < s.dim_v; c++) {
                    float total = 0;
                    for (int64_t j = 0; j < keys; j++) total += weight[j] * v_head[j * s.v[2] + c * s.v[3]];
                    out[row * s.dim_v + c] = has_weight ? total / sum : 0;
                }
                if (lse) lse[row] = has_weight ? largest + logf(sum) : -INFINITY;
            }
    free(weight);
    return true;
}
