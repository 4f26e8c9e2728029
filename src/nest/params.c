/* Declares a kernel's parameters in the order of its signature: scalars for run-time sizes and strides, buffers for
 * tensors, and what the prover may assume about the sizes. Whatever the problem fixes becomes a constant. */
#include "nest/params.h"

#include <stdio.h>

static const char *const size_names[MHA_NUM_SIZES] = {
    [MHA_BATCH] = "batch",         [MHA_KV_HEADS] = "num_kv_heads", [MHA_SEQ_Q] = "seq_q",
    [MHA_SEQ_KV] = "seq_kv",       [MHA_SEQ_NEW] = "seq_new",       [MHA_TOTAL_Q] = "total_q",
    [MHA_TOTAL_KV] = "total_kv",   [MHA_NUM_PAGES] = "num_pages",   [MHA_MAX_PAGES] = "max_pages",
    [MHA_MASK_KV] = "mask_seq_kv", [MHA_BIAS_KV] = "bias_seq_kv",   [MHA_ROTARY_POSITIONS] = "rotary_positions",
    [MHA_NUM_ROWS] = "num_rows",   [MHA_PART_ROWS] = "part_rows",   [MHA_NUM_IDS] = "num_ids",
    [MHA_GROUP] = "group",         [MHA_PAGE_SIZE] = "page_size",   [MHA_Q_BATCH] = "q_batch",
    [MHA_STARTS] = "starts",       [MHA_PAGE_SHIFT] = "page_shift", [MHA_WINDOW] = "window",
    [MHA_SOFT_CAP] = "soft_cap",
};

static void assume(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y) {
    ir_kernel_assume(b, ir_apply(b, op, x, y, NULL));
}

/* The columns of a mask whose size is neither a parameter nor a constant: as many as keys. */
static void declare_mask_columns(ir_builder *b, const attune_problem *p, const ir_expr **of, mha_size columns) {
    if (mha_is_parameter(p, columns))
        assume(b, IR_LE, of[columns], of[mha_scored_keys(p)]);
    else if (!of[columns])
        of[columns] = of[mha_scored_keys(p)];
}

static int64_t least_of(const attune_problem *p, mha_size size) {
    if (size == MHA_PAGE_SIZE) return p->page_size;
    return size == MHA_BATCH || size == MHA_KV_HEADS || size == MHA_GROUP || size == MHA_Q_BATCH;
}

static void declare_sizes(ir_builder *b, const attune_problem *p, const ir_expr **of) {
    mha_sizes known;
    mha_compiled_sizes(p, &known);
    for (mha_size size = 0; size < MHA_NUM_SIZES; size++) {
        if (mha_is_parameter(p, size)) {
            of[size] = ir_param_scalar(b, size_names[size], IR_IDX);
            assume(b, IR_GE, of[size], ir_idx(b, least_of(p, size)));
        } else {
            of[size] = known.of[size] >= 0 ? ir_idx(b, known.of[size]) : NULL;
        }
    }
    if (mha_keys_follow_queries(p)) of[MHA_SEQ_KV] = of[MHA_SEQ_Q];
    if (mha_keys_follow_queries(p)) of[MHA_TOTAL_KV] = of[MHA_TOTAL_Q];
    if (mha_is_self(p) && p->seq_new && !p->is_ragged) of[MHA_SEQ_NEW] = of[MHA_SEQ_Q];
    if (mha_has_panels(p)) of[MHA_PANELS] = ir_ceil_div(b, of[MHA_SEQ_KV], ATTUNE_PANEL_TOKENS);
    of[MHA_HEADS] = ir_mul(b, of[MHA_KV_HEADS], of[MHA_GROUP]);
    if (p->is_ragged) of[MHA_ENTRIES] = ir_add(b, of[MHA_BATCH], ir_idx(b, 1));
    if (p->is_ragged && p->is_general) of[MHA_Q_ENTRIES] = ir_max(b, ir_plus(b, of[MHA_STARTS], 1), ir_idx(b, 2));
    if (p->attn_mask_dims[3]) declare_mask_columns(b, p, of, MHA_MASK_KV);
    if (p->attn_bias_dims[3]) declare_mask_columns(b, p, of, MHA_BIAS_KV);
    if (p->max_seq_q && !p->is_general) assume(b, IR_LE, of[MHA_SEQ_Q], ir_idx(b, p->max_seq_q));
    if (p->max_seq_kv && mha_is_parameter(p, MHA_SEQ_KV)) assume(b, IR_LE, of[MHA_SEQ_KV], ir_idx(b, p->max_seq_kv));
}

/* A parameter's name in the IR. `out` is a word of the language, and becomes `o`; users' names may be words, and get a
 * prefix. */
static void write_ir_name(const mha_tensor *t, char name[IR_MAX_NAME]) {
    snprintf(name, IR_MAX_NAME, "%s%s", t->id >= MHA_USER_TENSORS ? "user." : "", t->id == MHA_OUT ? "o" : t->name);
}

/* Whether the tensor's second dimension is heads. */
static bool has_heads(const mha_tensor *t) { return t->dims[1] == MHA_HEADS || t->dims[1] == MHA_KV_HEADS; }

/* Names of outer strides: q_sb, q_sh and q_ss for batch, head and sequence; a tensor without heads has no q_sh. Strides
 * of a user's tensor are numbered. */
static void declare_strides(ir_builder *b, const mha_tensor *t, const ir_expr *strides[4]) {
    const char *letters = t->id >= MHA_USER_TENSORS ? "012" : t->rank == 3 && !has_heads(t) ? "bs" : "bhs";
    char tensor[IR_MAX_NAME], name[IR_MAX_NAME + 4];
    write_ir_name(t, tensor);
    for (int i = 0; i < t->rank - 1; i++) {
        snprintf(name, sizeof name, "%s_s%c", tensor, letters[i]);
        strides[i] = ir_param_scalar(b, name, IR_IDX);
    }
    strides[t->rank - 1] = ir_idx(b, t->inner_stride);
}

/* cos and sin share their only stride. */
static void declare_rotary_strides(ir_builder *b, const mha_params *params, const mha_tensor *t,
                                   const ir_expr *strides[4]) {
    strides[0] = t->id == MHA_COS          ? ir_param_scalar(b, "rotary_batch_stride", IR_IDX)
                 : params->tensor[MHA_COS] ? params->tensor[MHA_COS]->strides[0]
                                           : NULL;
    strides[1] = params->size[MHA_ROTARY_HALF];
    strides[2] = ir_idx(b, 1);
}

void mha_declare_params(ir_builder *b, const attune_problem *p, mha_params *params) {
    mha_tensor tensors[MHA_NUM_TENSORS];
    const size_t count = mha_tensors(p, tensors);
    *params = (mha_params){0};
    declare_sizes(b, p, params->size);
    for (size_t n = 0; n < count; n++) {
        const mha_tensor *t = &tensors[n];
        const ir_expr *dims[4], *strides[4];
        char name[IR_MAX_NAME];
        const bool rotary = t->id == MHA_COS || t->id == MHA_SIN;
        for (int i = 0; i < t->rank; i++) dims[i] = params->size[t->dims[i]];
        if (rotary) declare_rotary_strides(b, params, t, strides);
        if (t->has_strides) declare_strides(b, t, strides);
        write_ir_name(t, name);
        params->tensor[t->id] =
            ir_param_buffer(b, name, t->elem, t->rank, dims, rotary || t->has_strides ? strides : NULL, t->access);
    }
    if (p->has_softmax_scale)
        params->softmax_scale =
            ir_param_scalar(b, "softmax_scale", p->softmax_precision == ATTUNE_F64 ? IR_F64 : IR_F32);
    if (p->v_in_k) params->tensor[MHA_V] = params->tensor[MHA_K];
    if (mha_keys_follow_queries(p)) params->tensor[MHA_CU_SEQLENS_KV] = params->tensor[MHA_CU_SEQLENS_Q];
    if (p->v_in_k) params->tensor[MHA_V_NEW] = params->tensor[MHA_K_NEW];
    if (p->v_in_k) params->tensor[MHA_V_SCALE] = params->tensor[MHA_K_SCALE];
    if (p->v_in_k) params->tensor[MHA_V_SCALES] = params->tensor[MHA_K_SCALES];
}
