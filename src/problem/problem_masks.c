/* The dims of attn_mask and attn_bias. */
#include "problem/problem.h"

#include <stdio.h>

const char mha_dim_letters[5] = "bhqk";

void mha_full_dims(const attune_problem *p, int64_t dims[4]) {
    dims[0] = p->batch;
    dims[1] = p->num_heads;
    dims[2] = p->is_ragged ? ATTUNE_DYNAMIC : p->seq_q;
    if (p->kv_ids) dims[3] = p->num_ids ? p->num_ids : ATTUNE_DYNAMIC;
    if (p->kv_ids) return;
    dims[3] = p->is_ragged ? ATTUNE_DYNAMIC : p->seq_kv ? p->seq_kv : mha_default_keys(p);
}

static const char *const dim_names[4] = {"batch", "num_heads", "seq_q", "seq_kv"};

static attune_status refuse(const attune_problem *p, const char *mask, int dim, int64_t found, int64_t expected,
                            bool at_most, at_error *err) {
    char size[32] = "dynamic";
    if (expected >= 0) snprintf(size, sizeof size, "%lld", (long long)expected);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s[%d] is %lld; it must be 1 or %s%s = %s", mask, dim,
                   (long long)found, at_most ? "at most " : "", dim == 3 && p->kv_ids ? "num_ids" : dim_names[dim],
                   size);
}

static attune_status settle_mask(const attune_problem *p, const char *name, int64_t dims[4], at_error *err) {
    const int64_t full[4] = {p->batch, p->num_heads, p->seq_q, p->kv_ids ? p->num_ids : p->seq_kv};
    if (!mha_has_dims(dims)) return ATTUNE_OK;
    for (int i = 0; !dims[i]; i++) dims[i] = 1;
    for (int i = 0; i < 4; i++) {
        const bool may_be_short = i == 3 && p->short_masks;
        /* Short masks with a dynamic number of columns are the only ones whose size is not the problem's. */
        if (i >= 2 && dims[i] == ATTUNE_DYNAMIC && !may_be_short) dims[i] = full[i];
        if (dims[i] == 1 || dims[i] == full[i]) continue;
        if (may_be_short && dims[i] == ATTUNE_DYNAMIC) continue;
        if (may_be_short && dims[i] > 1 && dims[i] <= mha_most_scored(p)) continue;
        return refuse(p, name, i, dims[i], full[i], may_be_short, err);
    }
    return ATTUNE_OK;
}

static bool is_short(const attune_problem *p, const int64_t dims[4]) {
    return mha_has_dims(dims) && dims[3] != 1 && (dims[3] < 0 || dims[3] != (p->kv_ids ? p->num_ids : p->seq_kv));
}

attune_status mha_settle_masks(attune_problem *p, at_error *err) {
    attune_status status = settle_mask(p, "attn_mask_dims", p->attn_mask_dims, err);
    if (!status) status = settle_mask(p, "attn_bias_dims", p->attn_bias_dims, err);
    if (!is_short(p, p->attn_mask_dims) && !is_short(p, p->attn_bias_dims)) p->short_masks = 0;
    return status;
}
