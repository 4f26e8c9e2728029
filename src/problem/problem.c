/* A problem made canonical: defaults filled in, what cannot matter normalised, everything checked. */
#include "problem/problem.h"

#include <math.h>
#include <string.h>

/* ---- fields that mean nothing ---- */

/* Only the rotary embedding of q: what is said of keys means nothing. */
static void keep_rotary(attune_problem *p) {
    attune_problem kept = ATTUNE_PROBLEM_INIT;
    kept.op = p->op;
    kept.dtype = p->dtype;
    kept.softmax_precision = p->softmax_precision;
    kept.batch = p->batch;
    kept.num_heads = p->num_heads;
    kept.seq_q = p->seq_q;
    kept.max_seq_q = p->max_seq_q;
    kept.head_dim = p->head_dim;
    kept.causal_offset = p->causal_offset;
    kept.has_causal_offsets = p->has_causal_offsets;
    kept.rotary_dim = p->rotary_dim;
    kept.rotary_interleaved = p->rotary_interleaved;
    kept.has_position_ids = p->has_position_ids;
    memcpy(kept.q_strides, p->q_strides, sizeof kept.q_strides);
    memcpy(kept.out_strides, p->out_strides, sizeof kept.out_strides);
    *p = kept;
}

/* Only rows of head_dim_v columns; head_dim serves as that too. */
static void keep_merge(attune_problem *p) {
    attune_problem kept = ATTUNE_PROBLEM_INIT;
    kept.op = p->op;
    kept.dtype = p->dtype;
    kept.softmax_precision = p->softmax_precision;
    kept.batch = p->batch;
    kept.num_heads = p->num_heads;
    kept.seq_q = p->seq_q;
    kept.max_seq_q = p->max_seq_q;
    kept.head_dim = kept.head_dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    kept.has_lse = p->has_lse;
    kept.num_parts = p->num_parts;
    memcpy(kept.out_strides, p->out_strides, sizeof kept.out_strides);
    memcpy(kept.lse_strides, p->lse_strides, sizeof kept.lse_strides);
    *p = kept;
}

/* No values, no output but the weights. The lse holds what the sinks add already. */
static void keep_weights(attune_problem *p) {
    if (p->weights_mode == ATTUNE_WEIGHTS_NONE) p->weights_mode = ATTUNE_WEIGHTS_SOFTMAX;
    p->has_lse = p->weights_mode == ATTUNE_WEIGHTS_SOFTMAX;
    p->has_sinks = 0;
    p->v_in_k = 0;
    p->v_dtype = ATTUNE_DTYPE_DEFAULT;
    p->v_scales = ATTUNE_SCALES_DEFAULT;
    p->head_dim_v = 0;
    memset(p->v_strides, 0, sizeof p->v_strides);
    memset(p->out_strides, 0, sizeof p->out_strides);
}

static void keep_fields_of_op(attune_problem *p) {
    switch (p->op) {
    case ATTUNE_ROTARY: keep_rotary(p); break;
    case ATTUNE_MERGE: keep_merge(p); break;
    case ATTUNE_WEIGHTS: keep_weights(p); break;
    default: break;
    }
    if (p->op != ATTUNE_MERGE) p->num_parts = 0;
    if (!p->has_row_ids) p->num_rows = 0;
    if (!p->weights_mode) p->weights_average = 0;
    if (!p->rotary_dim) p->rotary_interleaved = 0;
    if (!mha_has_dims(p->attn_bias_dims)) p->bias_dtype = ATTUNE_DTYPE_DEFAULT;
    if (p->logits_soft_cap == 0) p->logits_soft_cap = 0; /* not -0 */
}

/* The weights before the softmax do not depend on what comes after them. Called once all has been checked. */
static void forget_later_steps(attune_problem *p) {
    if (p->op != ATTUNE_WEIGHTS || p->weights_mode > ATTUNE_WEIGHTS_CAPPED) return;
    if (p->weights_mode == ATTUNE_WEIGHTS_SCALED) p->logits_soft_cap = 0;
    p->is_causal = p->has_alibi_slopes = 0;
    p->window_left = p->window_right = -1;
    memset(p->attn_mask_dims, 0, sizeof p->attn_mask_dims);
    memset(p->attn_bias_dims, 0, sizeof p->attn_bias_dims);
    p->short_masks = 0;
    p->bias_dtype = p->dtype;
}

/* ---- defaults ---- */

static bool is_f64(const attune_problem *p) {
    return p->dtype == ATTUNE_F64 || p->k_dtype == ATTUNE_F64 || p->v_dtype == ATTUNE_F64 ||
           p->bias_dtype == ATTUNE_F64 || p->w_dtype == ATTUNE_F64;
}

static void fill_dtypes(attune_problem *p) {
    if (!p->dtype) p->dtype = ATTUNE_F32;
    if (!p->k_dtype) p->k_dtype = p->dtype;
    if (!p->v_dtype) p->v_dtype = p->v_in_k ? p->k_dtype : p->dtype;
    if (!p->bias_dtype) p->bias_dtype = p->dtype;
    if (!p->softmax_precision) p->softmax_precision = is_f64(p) ? ATTUNE_F64 : ATTUNE_F32;
}

static void fill_scales(attune_dtype dtype, attune_scales *scales) {
    if (!mha_is_quantised(dtype))
        *scales = ATTUNE_SCALES_NONE;
    else if (!*scales)
        *scales = dtype == ATTUNE_I8 ? ATTUNE_SCALES_HEAD : ATTUNE_SCALES_NONE;
}

static void fill_all_scales(attune_problem *p) {
    fill_scales(p->k_dtype, &p->k_scales);
    if (p->v_in_k && !p->v_scales) p->v_scales = p->k_scales;
    fill_scales(p->v_dtype, &p->v_scales);
}

/* Entries of a ragged batch have lengths of their own; a size that is given bounds them. */
static void fill_ragged_size(int64_t *size, int64_t *most) {
    if (*size > 0 && (!*most || *size < *most)) *most = *size;
    if (*size >= 0) *size = ATTUNE_DYNAMIC;
}

static void fill_sizes(attune_problem *p) {
    if (!p->num_kv_heads) p->num_kv_heads = p->num_heads;
    if (!p->head_dim_v) p->head_dim_v = p->head_dim;
    if (p->is_ragged) {
        fill_ragged_size(&p->seq_q, &p->max_seq_q);
        fill_ragged_size(&p->seq_kv, &p->max_seq_kv);
        if (p->seq_new > 0) p->seq_new = ATTUNE_DYNAMIC; /* as many as there are queries */
    }
    if (!p->seq_kv) p->seq_kv = mha_default_keys(p);
}

/* A scale that the kernel would round to the default one is the default. */
static void fill_scale(attune_problem *p) {
    const double usual = 1.0 / sqrt((double)p->head_dim);
    if (p->has_softmax_scale) p->softmax_scale = usual; /* for calls that set none */
    const bool rounds = p->softmax_precision == ATTUNE_F32 && (float)p->softmax_scale == (float)usual;
    if (isnan(p->softmax_scale) || rounds) p->softmax_scale = usual;
}

int64_t mha_most_queries(const attune_problem *p) {
    return p->seq_q >= 0 ? p->seq_q : p->max_seq_q ? p->max_seq_q : MHA_MAX_SIZE;
}

int64_t mha_most_keys(const attune_problem *p) {
    return p->seq_kv >= 0 ? p->seq_kv : p->max_seq_kv ? p->max_seq_kv : MHA_MAX_SIZE;
}

/* ---- all of it ---- */

static const attune_problem initial = ATTUNE_PROBLEM_INIT;
const at_struct mha_problem_struct = {"attune_problem", "start from ATTUNE_PROBLEM_INIT", sizeof(attune_problem),
                                      &initial, 832};

attune_status mha_canonicalize(const attune_problem *problem, attune_problem *out, at_error *err) {
    attune_status status = at_copy_in(&mha_problem_struct, problem, out, err);
    if (status) return status;
    status = mha_check_choices(out, err);
    if (!status) status = mha_keep_block(out, err);
    if (status) return status;
    keep_fields_of_op(out);
    if (out->page_size > 0 && !out->is_ragged && !out->has_kv_lens && !out->seq_kv)
        return at_fail(err, ATTUNE_INVALID_PROBLEM,
                       "page_size is %lld, but nothing says how many keys there are: set kv_lens, is_ragged or seq_kv",
                       (long long)out->page_size);
    fill_dtypes(out);
    fill_all_scales(out);
    status = mha_fill_block(out, err);
    if (status) return status;
    fill_sizes(out);
    status = mha_check_ranges(out, err);
    if (!status) status = mha_check_fields(out, err);
    if (!status) status = mha_check_block(out, err);
    if (status) return status;
    mha_settle_block(out);
    status = mha_settle_masks(out, err);
    if (status) return status;
    if (out->seq_q >= 0) out->max_seq_q = 0;
    if (out->seq_kv >= 0) out->max_seq_kv = 0;
    fill_scale(out);
    forget_later_steps(out);
    status = mha_settle_positions(out, err);
    return status ? status : mha_settle_problem_strides(out, err);
}
