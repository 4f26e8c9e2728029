/* Scores of an index in f64. */
#include "ref_attention.h"
#include "ref_described.h"

#include <float.h>
#include <math.h>

void ref_index_compute(const ref_index *r, int64_t keys, double *scores, double *limits) {
    const attune_index_desc *const d = r->desc;
    const bool is_scaled = d->dtype == ATTUNE_I8 || d->dtype == ATTUNE_F8;
    for (int64_t key = 0; key < keys; key++) {
        const int64_t page = d->page_size, at = page ? r->pages[key / page] * page + key % page : key;
        double score = 0, size = 0;
        for (int64_t h = 0; h < d->num_heads; h++) {
            double product = 0, of_head = 0;
            for (int64_t i = 0; i < d->head_dim; i++) {
                const double one = (double)ref_load(d->dtype, r->q, h * d->head_dim + i) *
                                   (double)ref_load(d->dtype, r->k, at * d->head_dim + i);
                product += one, of_head += fabs(one);
            }
            const double w = (double)ref_load(d->w_dtype, r->w, h) * (is_scaled ? (double)r->q_scale[h] : 1);
            score += w * (isnan(product) ? product : fmax(product, 0));
            size += fabs(w) * of_head;
        }
        const double scale = is_scaled ? (double)r->k_scale[at] : 1;
        scores[key] = score * scale;
        limits[key] = (double)(d->head_dim + d->num_heads + 8) * (double)FLT_EPSILON * size * scale;
    }
}
