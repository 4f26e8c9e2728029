/* The whole block: which of its fields mean something, their defaults, and what they contradict. */
#include "problem/problem.h"

#include <stdio.h>

/* ---- fields that mean nothing ---- */

attune_status mha_keep_block(attune_problem *p, at_error *err) {
    if (!p->embed_dim && !mha_is_block(p)) return ATTUNE_OK;
    if (!mha_attends(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "embed_dim is %lld, but op=%s has no projections",
                       (long long)p->embed_dim, mha_op_name(p->op));
    p->op = ATTUNE_MHA;
    if (p->kv_projected) p->kv_embed_dim = p->v_embed_dim = p->is_cross = 0;
    /* Without a cache, keys and values are rounded as in a cache only if bits must not depend on one. */
    if (mha_has_caches(p) || p->reproducible) return ATTUNE_OK;
    p->k_dtype = p->v_dtype = ATTUNE_DTYPE_DEFAULT;
    p->k_scales = p->v_scales = ATTUNE_SCALES_DEFAULT;
    return ATTUNE_OK;
}

/* ---- defaults ---- */

enum { USUAL_GROUP = 32 }; /* inputs that share a scale: those of ggml's blocks */

/* Values out of range stay as they are: mha_check_ranges refuses them. */
attune_status mha_fill_block(attune_problem *p, at_error *err) {
    if (!mha_is_block(p)) return ATTUNE_OK;
    if (!p->head_dim && p->embed_dim > 0 && p->num_heads > 0) {
        if (p->embed_dim % p->num_heads)
            return at_fail(err, ATTUNE_INVALID_PROBLEM,
                           "num_heads is %lld, which does not divide embed_dim = %lld: set head_dim",
                           (long long)p->num_heads, (long long)p->embed_dim);
        p->head_dim = p->embed_dim / p->num_heads;
    }
    if (!p->kv_embed_dim) p->kv_embed_dim = p->embed_dim;
    if (p->kv_embed_dim != p->embed_dim) p->is_cross = 1;
    if (!p->w_dtype) p->w_dtype = p->dtype;
    if (mha_has_quantised_weights(p) && !p->w_group) p->w_group = USUAL_GROUP;
    if (!p->out_dim && !p->no_out_projection) p->out_dim = p->embed_dim;
    return ATTUNE_OK;
}

void mha_settle_block(attune_problem *p) {
    if (p->no_out_projection) p->out_dim = p->num_heads * p->head_dim_v;
    if (!mha_keys_follow_queries(p)) return;
    const int64_t q = p->max_seq_q, kv = p->max_seq_kv;
    p->max_seq_q = p->max_seq_kv = q && (!kv || q < kv) ? q : kv;
}

/* ---- fields that contradict each other ---- */

/* A size as text says it. */
typedef struct size_text {
    char of[24];
} size_text;

static size_text size_of(int64_t size) {
    size_text text = {"dynamic"};
    if (size != ATTUNE_DYNAMIC) snprintf(text.of, sizeof text.of, "%lld", (long long)size);
    return text;
}

static attune_status check_columns(const attune_problem *p, const char *name, int64_t dim, at_error *err) {
    const int64_t columns = p->num_heads * dim;
    if (columns <= MHA_MAX_WIDTH) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "num_heads = %lld times %s = %lld are %lld columns; a projection has at most %d",
                   (long long)p->num_heads, name, (long long)dim, (long long)columns, MHA_MAX_WIDTH);
}

static attune_status check_output(const attune_problem *p, at_error *err) {
    const int64_t columns = p->num_heads * p->head_dim_v;
    if (!p->no_out_projection || !p->out_dim || p->out_dim == columns) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "out_dim is %lld, but with no_out_projection the output has num_heads * head_dim_v = %lld columns",
                   (long long)p->out_dim, (long long)columns);
}

/* Keys that come from x are as many as the queries. */
static attune_status check_self(const attune_problem *p, at_error *err) {
    if (!mha_is_self(p)) return ATTUNE_OK;
    const size_text queries = size_of(p->seq_q);
    if (p->seq_new && p->seq_new != p->seq_q)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "seq_new is %s, but without is_cross the new keys are those of x, and seq_q is %s",
                       size_of(p->seq_new).of, queries.of);
    if (!p->seq_new && p->seq_kv != p->seq_q)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "seq_kv is %s, but without is_cross, seq_new and kv_projected the keys are those of x, and "
                       "seq_q is %s",
                       size_of(p->seq_kv).of, queries.of);
    return ATTUNE_OK;
}

static attune_status check_caches(const attune_problem *p, at_error *err) {
    if (p->kv_projected && p->seq_new)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "seq_new is %s, but with kv_projected all keys are in k already, and nothing is appended",
                       size_of(p->seq_new).of);
    if (p->page_size && !mha_has_caches(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "page_size is %lld, but pages are of caches, and the block has none without seq_new or "
                       "kv_projected",
                       (long long)p->page_size);
    if (p->v_in_k && p->v_embed_dim)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "v_in_k takes v from k, but v_embed_dim is %lld: values have an input of their own",
                       (long long)p->v_embed_dim);
    return ATTUNE_OK;
}

/* ---- low rank ---- */

static attune_status refuse_low_rank(const attune_problem *p, const char *what, at_error *err) {
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "low_rank is %lld, and such keys are mixtures that have no order: %s",
                   (long long)p->low_rank, what);
}

/* Refuses each field that tells one key from another. */
static attune_status check_order(const attune_problem *p, at_error *err) {
    char what[64];
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        if (!field->is_order || mha_field_is_initial(p, field)) continue;
        if (field->kind == MHA_FIELD_DIMS)
            snprintf(what, sizeof what, "%s cannot be set", field->name);
        else
            snprintf(what, sizeof what, "%s cannot be %s", field->name, size_of(mha_field_value(p, field)).of);
        return refuse_low_rank(p, what, err);
    }
    return ATTUNE_OK;
}

static attune_status check_low_rank(const attune_problem *p, at_error *err) {
    if (!p->low_rank) return ATTUNE_OK;
    if (p->seq_kv == ATTUNE_DYNAMIC && !p->is_ragged)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "low_rank is %lld, but seq_kv is dynamic: keys_low has a column for each key",
                       (long long)p->low_rank);
    if (p->seq_kv > MHA_MAX_WIDTH)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "low_rank is %lld and seq_kv %lld; keys_low has at most %d columns",
                       (long long)p->low_rank, (long long)p->seq_kv, MHA_MAX_WIDTH);
    if (p->v_in_k && !p->low_rank_shared)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "low_rank is %lld and v_in_k is 1: values that are columns of the keys need low_rank_shared",
                       (long long)p->low_rank);
    if (p->qk_norm_eps > 0)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "low_rank is %lld and qk_norm_eps %g; keys that are mixtures are not normalised",
                       (long long)p->low_rank, p->qk_norm_eps);
    if (p->qk_hadamard)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "low_rank is %lld and qk_hadamard 1; keys that are mixtures are not rotated",
                       (long long)p->low_rank);
    return check_order(p, err);
}

static attune_status check_group(const attune_problem *p, at_error *err) {
    const int64_t group = p->w_group;
    if (p->x_planes && !mha_has_quantised_weights(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "x_planes is %lld, but it is for quantised weights: w_dtype is %s",
                       (long long)p->x_planes, mha_dtype_name(p->w_dtype));
    if (group && !mha_has_quantised_weights(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "w_group is %lld, but only quantised weights have groups: w_dtype is %s", (long long)group,
                       mha_dtype_name(p->w_dtype));
    if (!group || group == 32 || group == 64 || group == 128) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "w_group is %lld; it must be 32, 64 or 128", (long long)group);
}

attune_status mha_check_block(const attune_problem *p, at_error *err) {
    if (!mha_is_block(p)) return ATTUNE_OK;
    attune_status status = check_columns(p, "head_dim", p->head_dim, err);
    if (!status) status = check_columns(p, "head_dim_v", p->head_dim_v, err);
    if (!status) status = check_output(p, err);
    if (!status) status = check_caches(p, err);
    if (!status) status = check_low_rank(p, err);
    if (!status) status = check_self(p, err);
    if (!status) status = check_group(p, err);
    return status;
}
