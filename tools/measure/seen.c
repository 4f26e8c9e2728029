/* A kernel counts them. With every score 0, the LSE of a row is the logarithm of how many keys it sees: that takes
 * lengths, tables and tensors as they are. */
#include "measure/seen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The problem with scores of 0, of the mask_mod alone. A score_mod stays, because tensors that are declared must be
 * used. false if it is too long. */
static bool with_counted_keys(const attune_problem *from, attune_problem *p) {
    *p = *from;
    p->has_lse = 1;
    p->has_sinks = p->has_alibi_slopes = 0;
    p->logits_soft_cap = 0;
    p->weights_mode = ATTUNE_WEIGHTS_NONE;
    p->weights_average = 0;
    memset(p->attn_mask_dims, 0, sizeof p->attn_mask_dims);
    memset(p->attn_bias_dims, 0, sizeof p->attn_bias_dims);
    p->bias_dtype = ATTUNE_DTYPE_DEFAULT;
    memset(p->lse_strides, 0, sizeof p->lse_strides);
    const char *const was = *from->score_mod ? from->score_mod : "0.0";
    const int length = snprintf(p->score_mod, sizeof p->score_mod, "select(true, 0.0, %s)", was);
    return length < (int)sizeof p->score_mod;
}

/* The tensor lse of a call; false: there is none. */
static bool find_lse(const attune_problem *p, const attune_arguments *a, attune_tensor *lse) {
    attune_tensor list[REF_MAX_TENSORS];
    size_t count = 0;
    if (attune_tensors(p, a, list, REF_MAX_TENSORS, &count) != ATTUNE_OK) return false;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i].name, "lse")) {
            *lse = list[i];
            return true;
        }
    return false;
}

static double sum_of(const void *lse, attune_dtype dtype, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += rint(exp(dtype == ATTUNE_F64 ? ((const double *)lse)[i] : (double)((const float *)lse)[i]));
    return sum;
}

/* -1: they cannot be counted. */
static double count_pairs(attune_context *context, const attune_problem *p, attune_arguments *a) {
    attune_kernel *kernel = NULL;
    attune_tensor lse;
    double pairs = -1;
    size_t count = 1;
    if (attune_compile(context, p, NULL, &kernel) != ATTUNE_OK) return -1;
    if (find_lse(p, a, &lse)) {
        for (int d = 0; d < lse.rank; d++) count *= (size_t)lse.dims[d];
        if ((a->lse.data = calloc(count + 1, sizeof(double))) && attune_run(context, kernel, a) == ATTUNE_OK)
            pairs = sum_of(a->lse.data, lse.dtype, count);
        free(a->lse.data);
    }
    attune_kernel_release(kernel);
    return pairs;
}

void seen_count(attune_context *context, const tensors *t, call_work *work) {
    attune_problem p;
    attune_arguments a;
    if (t->problem.op != ATTUNE_ATTENTION || ref_is_block(&t->problem) || !*t->problem.mask_mod) return;
    if (!with_counted_keys(&t->problem, &p)) return;
    tensors_arguments(t, &a);
    a.attn_mask.data = a.attn_bias.data = NULL;
    a.sinks = NULL;
    a.alibi_slopes = NULL;
    a.weights.data = NULL;
    memset(a.lse.strides, 0, sizeof a.lse.strides);
    const double pairs = count_pairs(context, &p, &a);
    if (pairs < 0) return;
    work->flops += 2.0 * (double)(p.head_dim + p.head_dim_v) * (pairs - work->pairs);
    work->pairs = pairs;
}
