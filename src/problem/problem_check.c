/* What a problem may say: choices, ranges, and which fields do not go together. */
#include "problem/problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_HEAD_DIM = 8192, MAX_PARTS = 65536 };
static const double MIN_CAP = 1e-30; /* scores are divided by it */

static attune_status refuse(at_error *err, const char *sentence) {
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s", sentence);
}

/* ---- choices ---- */

static attune_status check_flags(const attune_problem *p, at_error *err) {
    const struct {
        const char *name;
        int value;
    } flags[] = {
        {"is_causal", p->is_causal},
        {"has_lse", p->has_lse},
        {"has_alibi_slopes", p->has_alibi_slopes},
        {"has_sinks", p->has_sinks},
        {"has_kv_lens", p->has_kv_lens},
        {"has_causal_offsets", p->has_causal_offsets},
        {"is_ragged", p->is_ragged},
        {"v_in_k", p->v_in_k},
        {"short_masks", p->short_masks},
        {"rotary_interleaved", p->rotary_interleaved},
        {"has_position_ids", p->has_position_ids},
        {"weights_average", p->weights_average},
        {"has_row_ids", p->has_row_ids},
        {"reproducible", p->reproducible},
        {"is_cross", p->is_cross},
        {"kv_projected", p->kv_projected},
        {"no_out_projection", p->no_out_projection},
        {"low_rank_heads", p->low_rank_heads},
        {"low_rank_shared", p->low_rank_shared},
        {"has_softmax_scale", p->has_softmax_scale},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].value != 0 && flags[i].value != 1)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %d; it must be 0 or 1", flags[i].name, flags[i].value);
    if (p->reserved) return at_fail(err, ATTUNE_INVALID_PROBLEM, "reserved is %d; it must be 0", p->reserved);
    return ATTUNE_OK;
}

static const char *const dtype_names[ATTUNE_DTYPE_COUNT] = {"default", "f32", "f16", "bf16", "f64",
                                                            "bool",    "i32", "i8",  "f8"};

static attune_status check_dtypes(const attune_problem *p, at_error *err) {
    const struct {
        const char *name;
        attune_dtype value;
        bool quantised; /* may be */
    } dtypes[] = {
        {"dtype", p->dtype, false},           {"k_dtype", p->k_dtype, true},  {"v_dtype", p->v_dtype, true},
        {"bias_dtype", p->bias_dtype, false}, {"w_dtype", p->w_dtype, false},
    };
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if ((unsigned)dtypes[i].value >= ATTUNE_DTYPE_COUNT)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %d, which is no attune_dtype", dtypes[i].name,
                           (int)dtypes[i].value);
        if (dtypes[i].value <= ATTUNE_F64 || (dtypes[i].quantised && mha_is_quantised(dtypes[i].value))) continue;
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %s; it must be %s", dtypes[i].name,
                       dtype_names[dtypes[i].value],
                       dtypes[i].quantised ? "f32, f16, bf16, f64, i8 or f8" : "f32, f16, bf16 or f64");
    }
    const attune_dtype precision = p->softmax_precision;
    if ((unsigned)precision >= ATTUNE_DTYPE_COUNT)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_precision is %d, which is no attune_dtype",
                       (int)precision);
    if (precision != ATTUNE_DTYPE_DEFAULT && precision != ATTUNE_F32 && precision != ATTUNE_F64)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_precision is %s; it must be f32 or f64",
                       dtype_names[precision]);
    return ATTUNE_OK;
}

static attune_status check_scales(const attune_problem *p, at_error *err) {
    const bool is_k = (unsigned)p->k_scales >= ATTUNE_SCALES_COUNT;
    if (!is_k && (unsigned)p->v_scales < ATTUNE_SCALES_COUNT) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %d, which is no attune_scales", is_k ? "k_scales" : "v_scales",
                   (int)(is_k ? p->k_scales : p->v_scales));
}

attune_status mha_check_choices(const attune_problem *p, at_error *err) {
    if ((unsigned)p->op >= ATTUNE_OP_COUNT)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "op is %d, which is no attune_op", (int)p->op);
    if (p->causal_align != ATTUNE_TOP_LEFT && p->causal_align != ATTUNE_BOTTOM_RIGHT)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "causal_align is %d, which is no attune_causal_align",
                       (int)p->causal_align);
    if ((unsigned)p->weights_mode >= ATTUNE_WEIGHTS_MODE_COUNT)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "weights_mode is %d, which is no attune_weights_mode",
                       (int)p->weights_mode);
    attune_status status = check_flags(p, err);
    if (!status) status = check_scales(p, err);
    if (status) return status;
    if (p->is_ragged && !mha_has_keys(p))
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "op=%s takes no ragged batch: its rows do not depend on each other, so give all tokens as one",
                       p->op == ATTUNE_ROTARY ? "rotary" : "merge");
    return check_dtypes(p, err);
}

/* ---- ranges ---- */

/* Sizes that start as 0 were most likely never set; batch and num_heads start as 1. */
static attune_status out_of_range(const char *name, int64_t value, int64_t min, int64_t max, bool may_be_dynamic,
                                  at_error *err) {
    const bool starts_as_one = strcmp(name, "batch") == 0 || strcmp(name, "num_heads") == 0;
    char is[32] = "is not given, or 0";
    if (value || starts_as_one) snprintf(is, sizeof is, "is %lld", (long long)value);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s %s; it must be from %lld to %lld%s", name, is, (long long)min,
                   (long long)max, may_be_dynamic ? ", or dynamic" : "");
}

static attune_status check_sizes(const attune_problem *p, at_error *err) {
    const bool is_block = mha_is_block(p);
    const struct {
        const char *name;
        int64_t value, min, max;
        bool dynamic; /* may be ATTUNE_DYNAMIC */
    } sizes[] = {
        {"batch", p->batch, 1, MHA_MAX_SIZE, false},
        {"embed_dim", p->embed_dim, is_block, MHA_MAX_WIDTH, false},
        {"kv_embed_dim", p->kv_embed_dim, is_block, MHA_MAX_WIDTH, false},
        {"v_embed_dim", p->v_embed_dim, 0, MHA_MAX_WIDTH, false},
        {"low_rank", p->low_rank, 0, MHA_MAX_WIDTH, false},
        {"num_heads", p->num_heads, 1, MHA_MAX_SIZE, false},
        {"num_kv_heads", p->num_kv_heads, 1, MHA_MAX_SIZE, false},
        {"seq_q", p->seq_q, 1, MHA_MAX_SIZE, true},
        {"seq_kv", p->seq_kv, 1, MHA_MAX_SIZE, true},
        {"head_dim", p->head_dim, 1, MAX_HEAD_DIM, false},
        {"head_dim_v", p->head_dim_v, 1, MAX_HEAD_DIM, false},
        {"out_dim", p->out_dim, is_block && !p->no_out_projection, MHA_MAX_WIDTH, false},
        {"max_seq_q", p->max_seq_q, 0, MHA_MAX_SIZE, false},
        {"max_seq_kv", p->max_seq_kv, 0, MHA_MAX_SIZE, false},
        {"page_size", p->page_size, 0, MHA_MAX_SIZE, false},
        {"seq_new", p->seq_new, 0, MHA_MAX_SIZE, true},
        {"num_rows", p->num_rows, p->has_row_ids, MHA_MAX_SIZE, true},
        {"num_parts", p->num_parts, p->op == ATTUNE_MERGE, MAX_PARTS, false},
        {"global_tokens", p->global_tokens, 0, MHA_MAX_SIZE, false},
        {"window_left", p->window_left, -1, MHA_MAX_SIZE, false},
        {"window_right", p->window_right, -1, MHA_MAX_SIZE, false},
        {"causal_offset", p->causal_offset, -(int64_t)MHA_MAX_SIZE, MHA_MAX_SIZE, false},
        {"rotary_dim", p->rotary_dim, p->op == ATTUNE_ROTARY ? 2 : 0, p->head_dim, false},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= sizes[i].min && sizes[i].value <= sizes[i].max) continue;
        if (sizes[i].dynamic && sizes[i].value == ATTUNE_DYNAMIC) continue;
        return out_of_range(sizes[i].name, sizes[i].value, sizes[i].min, sizes[i].max, sizes[i].dynamic, err);
    }
    if (p->num_heads % p->num_kv_heads)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "num_kv_heads is %lld, which does not divide num_heads = %lld",
                       (long long)p->num_kv_heads, (long long)p->num_heads);
    if (p->rotary_dim % 2)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "rotary_dim is %lld; it must be even", (long long)p->rotary_dim);
    return ATTUNE_OK;
}

attune_status mha_check_ranges(const attune_problem *p, at_error *err) {
    if (!isnan(p->softmax_scale) && !(fabs(p->softmax_scale) <= MHA_MAX_SCALE))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_scale is %g; it must be from -%g to %g", p->softmax_scale,
                       MHA_MAX_SCALE, MHA_MAX_SCALE);
    if (p->has_softmax_scale && !isnan(p->softmax_scale) && p->softmax_scale != 1.0 / sqrt((double)p->head_dim))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_scale is %g, but has_softmax_scale leaves it to the calls",
                       p->softmax_scale);
    if (p->logits_soft_cap != 0 && !(p->logits_soft_cap >= MIN_CAP && p->logits_soft_cap <= MHA_MAX_SCALE))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "logits_soft_cap is %g; it must be 0, or from %g to %g",
                       p->logits_soft_cap, MIN_CAP, MHA_MAX_SCALE);
    return check_sizes(p, err);
}

/* ---- fields that contradict each other ---- */

static attune_status check_precision(const attune_problem *p, at_error *err) {
    if (p->softmax_precision == ATTUNE_F64) return ATTUNE_OK;
    const char *f64 = p->dtype == ATTUNE_F64        ? "dtype"
                      : p->k_dtype == ATTUNE_F64    ? "k_dtype"
                      : p->v_dtype == ATTUNE_F64    ? "v_dtype"
                      : p->bias_dtype == ATTUNE_F64 ? "bias_dtype"
                      : p->w_dtype == ATTUNE_F64    ? "w_dtype"
                                                    : NULL;
    if (!f64) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_precision is f32, but %s is f64", f64);
}

static attune_status check_bound(const char *name, int64_t size, const char *bound_name, int64_t bound, at_error *err) {
    if (!bound || size <= bound) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld, more than %s = %lld", name, (long long)size, bound_name,
                   (long long)bound);
}

static attune_status check_bounds(const attune_problem *p, at_error *err) {
    attune_status status = check_bound("seq_q", p->seq_q, "max_seq_q", p->max_seq_q, err);
    if (!status) status = check_bound("seq_kv", p->seq_kv, "max_seq_kv", p->max_seq_kv, err);
    if (!status) status = check_bound("seq_new", p->seq_new, "seq_kv", p->seq_kv > 0 ? p->seq_kv : 0, err);
    if (!status) status = check_bound("seq_new", p->seq_new, "max_seq_kv", p->max_seq_kv, err);
    return status;
}

/* Query i and key i, or new key i, share an id. */
static attune_status check_position_ids(const attune_problem *p, at_error *err) {
    if (!p->has_position_ids) return ATTUNE_OK;
    if (!p->rotary_dim) return refuse(err, "position_ids are for the rotary embedding, but rotary_dim is 0");
    if (!mha_rotates_keys(p) || p->is_ragged) return ATTUNE_OK;
    const int64_t keys = p->seq_new ? p->seq_new : p->seq_kv;
    if (keys == p->seq_q) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "position_ids are those of queries and of %s keys alike, but seq_q is %lld and %s %lld",
                   p->seq_new ? "new" : "all", (long long)p->seq_q, p->seq_new ? "seq_new" : "seq_kv", (long long)keys);
}

static attune_status check_v_in_k(const attune_problem *p, at_error *err) {
    if (!p->v_in_k) return ATTUNE_OK;
    if (p->head_dim_v > p->head_dim)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "v_in_k takes the first head_dim_v columns of k, but head_dim_v is %lld and head_dim %lld",
                       (long long)p->head_dim_v, (long long)p->head_dim);
    if (p->v_dtype != p->k_dtype)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "v_in_k takes v from k, but v_dtype is %s and k_dtype %s",
                       dtype_names[p->v_dtype], dtype_names[p->k_dtype]);
    if (p->rotary_dim)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "v_in_k and rotary_dim = %lld do not go together: columns of k that are rotated are no values",
                       (long long)p->rotary_dim);
    return ATTUNE_OK;
}

static attune_status check_weights(const attune_problem *p, at_error *err) {
    if (p->weights_mode && p->is_ragged)
        return refuse(err, "weights are for batches of equal lengths; is_ragged has none");
    if (p->has_row_ids && p->op != ATTUNE_WEIGHTS)
        return refuse(err, "row_ids choose rows of the weights afterwards: they need op=weights");
    if (p->op == ATTUNE_WEIGHTS && p->seq_new)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "seq_new is %lld, but op=weights appends nothing: the new keys are in k already",
                       (long long)p->seq_new);
    return ATTUNE_OK;
}

/* Codes of i8 are whole numbers: without a scale they would stand for nothing that occurs. */
static attune_status check_codes(const attune_problem *p, at_error *err) {
    const bool is_k = p->k_dtype == ATTUNE_I8 && p->k_scales == ATTUNE_SCALES_NONE;
    const bool is_v = p->v_dtype == ATTUNE_I8 && p->v_scales == ATTUNE_SCALES_NONE;
    if (p->v_in_k && p->v_scales != p->k_scales)
        return refuse(err, "v_in_k takes v from k, but v_scales is not k_scales");
    if (is_k || is_v)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is i8, but %s is none; it must be head or token",
                       is_k ? "k_dtype" : "v_dtype", is_k ? "k_scales" : "v_scales");
    const bool codes = mha_is_quantised(p->k_dtype) || mha_is_quantised(p->v_dtype);
    if (!codes || mha_has_caches(p)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "%s is %s, but codes are those of a cache, and the block has none without seq_new or kv_projected",
                   mha_is_quantised(p->k_dtype) ? "k_dtype" : "v_dtype",
                   dtype_names[mha_is_quantised(p->k_dtype) ? p->k_dtype : p->v_dtype]);
}

attune_status mha_check_fields(const attune_problem *p, at_error *err) {
    attune_status status = check_precision(p, err);
    if (!status) status = check_bounds(p, err);
    if (!status) status = check_position_ids(p, err);
    if (!status) status = check_v_in_k(p, err);
    if (!status) status = check_codes(p, err);
    if (!status) status = check_weights(p, err);
    return status;
}
