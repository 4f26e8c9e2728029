/* The causal convolution in f64. */
#include "ref_attention.h"
#include "ref_described.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void token(const ref_conv *r, const double *past, int64_t t, int64_t channel, double *out, double *limit) {
    const attune_conv_desc *const d = r->desc;
    const int64_t kept = (d->taps - 1) * d->dilation;
    double sum = d->has_bias ? (double)ref_load(d->dtype, r->bias, channel) : 0, size = fabs(sum);
    for (int64_t i = 0; i < d->taps; i++) {
        const int64_t at = t + i * d->dilation;
        const double x = at < kept ? past[at * d->channels + channel]
                                   : (double)ref_load(d->dtype, r->x, (at - kept) * d->channels + channel);
        const double product = (double)ref_load(d->dtype, r->weights, channel * d->taps + i) * x;
        sum += product, size += fabs(product);
    }
    /* The slope of SiLU is at most 1.1. */
    *out = d->has_silu ? sum / (1 + exp(-sum)) : sum;
    *limit = (double)(d->taps + 1) * (double)FLT_EPSILON * size;
    if (d->has_silu) *limit = 1.1 * *limit + (16 + 2 * fmin(fabs(sum), 100)) * (double)FLT_EPSILON * fabs(*out);
    if (size > (double)FLT_MAX) *limit = INFINITY;
}

bool ref_conv_compute(const ref_conv *r, double *state, double *out, double *limits) {
    const int64_t channels = r->desc->channels, kept = (r->desc->taps - 1) * r->desc->dilation;
    double *const past = malloc((size_t)(kept * channels + 1) * sizeof *past);
    if (!past) return false;
    memcpy(past, state, (size_t)(kept * channels) * sizeof *past);
    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t c = 0; c < channels; c++) token(r, past, t, c, &out[t * channels + c], &limits[t * channels + c]);
    for (int64_t i = 0; i < kept * channels; i++) {
        const int64_t at = i + r->tokens * channels;
        state[i] = at < kept * channels ? past[at] : (double)ref_load(r->desc->dtype, r->x, at - kept * channels);
    }
    free(past);
    return true;
}
