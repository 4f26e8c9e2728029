/* Builds the problem of a kind field by field, from what all calls of it have in common; what varies from call to call
 * is open or small in it. */
#include "kind.h"

#include <string.h>

static void set_mask(const common_mask *mask, attune_problem *problem, int64_t dims[4]) {
    if (!mask->dtype) return;
    dims[0] = mask->one_batch ? 1 : problem->batch;
    dims[1] = mask->one_head ? 1 : problem->num_heads;
    dims[2] = mask->rows ? ATTUNE_DYNAMIC : 1;
    dims[3] = mask->columns ? ATTUNE_DYNAMIC : 1;
    if (mask->is_short) problem->short_masks = 1;
}

/* A block's keys come from x, and its number of heads is compiled in. */
static void describe_block(const common_kind *kind, attune_problem *problem) {
    problem->num_heads = problem->num_kv_heads = kind->num_heads;
    problem->seq_kv = 0;
    problem->k_dtype = problem->v_dtype = ATTUNE_DTYPE_DEFAULT;
    problem->embed_dim = kind->embed_dim;
    problem->out_dim = kind->out_dim;
    problem->no_out_projection = !kind->out_dim;
}

static void describe_visible(const common_kind *kind, attune_problem *problem) {
    problem->is_causal = kind->is_causal;
    problem->causal_align = kind->bottom_right ? ATTUNE_BOTTOM_RIGHT : ATTUNE_TOP_LEFT;
    problem->has_causal_offsets = kind->has_causal_offsets;
    problem->window_left = kind->window_left;
    problem->window_right = kind->window_right;
    problem->has_kv_lens = kind->has_kv_lens;
    set_mask(&kind->mask, problem, problem->attn_mask_dims);
    set_mask(&kind->bias, problem, problem->attn_bias_dims);
    problem->bias_dtype = kind->bias.dtype;
}

/* A caller's positions apply to queries and new keys, so there are as many of both. */
static void describe_new_keys(const common_kind *kind, attune_problem *problem) {
    if (kind->appends) problem->seq_new = kind->appends_one ? 1 : ATTUNE_DYNAMIC;
    if (kind->appends_one && kind->has_position_ids) problem->seq_q = 1;
    problem->rotary_dim = kind->rotary_dim;
    problem->rotary_interleaved = kind->rotary_interleaved;
    problem->has_position_ids = kind->has_position_ids;
}

static void describe_results(const common_kind *kind, attune_problem *problem) {
    problem->has_lse = kind->lse_stride != 0;
    if (kind->lse_stride > 1)
        memcpy(problem->lse_strides, (int64_t[]){1 << 20, 1, kind->lse_stride}, sizeof problem->lse_strides);
    problem->weights_mode = kind->weights_mode;
    problem->weights_average = kind->weights_average;
    problem->reproducible = kind->reproducible;
    if (kind->is_f64) problem->softmax_precision = ATTUNE_F64;
}

/* The tensors of functions may have dims of batch and heads, so their sizes matter. */
static void describe_functions(const common_kind *kind, const attune_problem *from, attune_problem *problem) {
    problem->batch = kind->batch;
    problem->num_heads = kind->num_heads;
    problem->num_kv_heads = kind->num_heads / kind->group;
    memcpy(problem->tensors, from->tensors, sizeof problem->tensors);
    memcpy(problem->score_mod, from->score_mod, sizeof problem->score_mod);
    memcpy(problem->mask_mod, from->mask_mod, sizeof problem->mask_mod);
    memcpy(problem->prob_mod, from->prob_mod, sizeof problem->prob_mod);
}

static bool is_quantised(attune_dtype dtype) { return dtype == ATTUNE_I8 || dtype == ATTUNE_I4; }

/* Two sequences and two heads, so that no dim of 1 looks like a broadcast. The kernel computes any number. */
static void describe_tensors(const common_kind *kind, attune_problem *problem) {
    problem->batch = 2;
    problem->num_kv_heads = 2;
    problem->num_heads = 2 * (int64_t)kind->group;
    problem->seq_q = ATTUNE_DYNAMIC;
    problem->seq_kv = ATTUNE_DYNAMIC;
    problem->head_dim = kind->head_dim;
    problem->head_dim_v = kind->head_dim_v;
    problem->dtype = kind->dtype;
    problem->k_dtype = kind->k_dtype;
    problem->v_dtype = kind->v_dtype;
    const attune_scales scales = kind->kv_scales ? kind->kv_scales : ATTUNE_SCALES_TOKEN;
    if (is_quantised(kind->k_dtype)) problem->k_scales = scales;
    if (is_quantised(kind->v_dtype)) problem->v_scales = scales;
    problem->qk_norm_eps = kind->qk_norm_eps;
    problem->has_sinks = kind->has_sinks;
}

void common_describe(const common_kind *kind, const attune_problem *functions, attune_problem *problem) {
    describe_tensors(kind, problem);
    if (kind->embed_dim) describe_block(kind, problem);
    problem->softmax_scale = kind->scale;
    problem->has_softmax_scale = kind->has_scale;
    problem->logits_soft_cap = kind->soft_cap;
    describe_new_keys(kind, problem);
    describe_visible(kind, problem);
    describe_results(kind, problem);
    if (functions) describe_functions(kind, functions, problem);
}
