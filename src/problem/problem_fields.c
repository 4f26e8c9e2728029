#include "problem/problem_fields.h"
#include "problem/problem.h"

static const char *const ops[ATTUNE_OP_COUNT] = {[ATTUNE_ATTENTION] = "attention",
                                                 [ATTUNE_WEIGHTS] = "weights",
                                                 [ATTUNE_ROTARY] = "rotary",
                                                 [ATTUNE_MERGE] = "merge",
                                                 [ATTUNE_MHA] = "mha"};
static const char *const dtypes[ATTUNE_F64 + 1] = {
    [ATTUNE_F32] = "f32", [ATTUNE_F16] = "f16", [ATTUNE_BF16] = "bf16", [ATTUNE_F64] = "f64"};
static const char *const cache_dtypes[ATTUNE_F8 + 1] = {
    [ATTUNE_F32] = "f32", [ATTUNE_F16] = "f16", [ATTUNE_BF16] = "bf16",
    [ATTUNE_F64] = "f64", [ATTUNE_I8] = "i8",   [ATTUNE_F8] = "f8"};
static const char *const scales[ATTUNE_SCALES_COUNT] = {
    [ATTUNE_SCALES_NONE] = "none", [ATTUNE_SCALES_HEAD] = "head", [ATTUNE_SCALES_TOKEN] = "token"};
static const char *const aligns[] = {[ATTUNE_TOP_LEFT] = "top_left", [ATTUNE_BOTTOM_RIGHT] = "bottom_right"};
static const char *const modes[ATTUNE_WEIGHTS_MODE_COUNT] = {[ATTUNE_WEIGHTS_NONE] = "none",
                                                             [ATTUNE_WEIGHTS_SCALED] = "scaled",
                                                             [ATTUNE_WEIGHTS_CAPPED] = "capped",
                                                             [ATTUNE_WEIGHTS_MASKED] = "masked",
                                                             [ATTUNE_WEIGHTS_SOFTMAX] = "softmax"};

#define AT(field)          offsetof(attune_problem, field)
#define INT(field)         {.name = #field, .kind = MHA_FIELD_INT, .offset = AT(field)}
#define INT_ALWAYS(field)  {.name = #field, .kind = MHA_FIELD_INT, .offset = AT(field), .always = true}
#define SIZE(field)        {.name = #field, .kind = MHA_FIELD_SIZE, .offset = AT(field)}
#define SIZE_ALWAYS(field) {.name = #field, .kind = MHA_FIELD_SIZE, .offset = AT(field), .always = true}
#define FLAG(text, field)  {.name = text, .kind = MHA_FIELD_FLAG, .offset = AT(field)}
#define WORD(text, field, list)                                                                                        \
    {.name = text, .kind = MHA_FIELD_WORD, .offset = AT(field), .words = list, .num_words = sizeof list / sizeof *list}
#define NUMBER(field)        {.name = #field, .kind = MHA_FIELD_NUMBER, .offset = AT(field)}
#define DIMS(text, field)    {.name = text, .kind = MHA_FIELD_DIMS, .offset = AT(field), .rank = 4}
#define STRIDES(field, dims) {.name = #field, .kind = MHA_FIELD_STRIDES, .offset = AT(field), .rank = dims}

/* In the order in which they are printed. */
const mha_field mha_fields[MHA_NUM_FIELDS] = {
    WORD("op", op, ops),
    INT(batch),
    INT(embed_dim),
    INT(kv_embed_dim),
    INT(v_embed_dim),
    INT(out_dim),
    FLAG("cross", is_cross),
    INT_ALWAYS(num_heads),
    INT(num_kv_heads),
    SIZE_ALWAYS(seq_q),
    SIZE_ALWAYS(seq_kv),
    INT_ALWAYS(head_dim),
    INT(head_dim_v),
    WORD("dtype", dtype, dtypes),
    WORD("k_dtype", k_dtype, cache_dtypes),
    WORD("v_dtype", v_dtype, cache_dtypes),
    WORD("k_scales", k_scales, scales),
    WORD("v_scales", v_scales, scales),
    WORD("w_dtype", w_dtype, dtypes),
    WORD("bias_dtype", bias_dtype, dtypes),
    WORD("softmax_precision", softmax_precision, dtypes),
    NUMBER(softmax_scale),
    NUMBER(logits_soft_cap),
    FLAG("is_causal", is_causal),
    WORD("causal_align", causal_align, aligns),
    INT(causal_offset),
    INT(window_left),
    INT(window_right),
    INT(global_tokens),
    FLAG("lse", has_lse),
    FLAG("alibi_slopes", has_alibi_slopes),
    FLAG("sinks", has_sinks),
    FLAG("kv_lens", has_kv_lens),
    FLAG("causal_offsets", has_causal_offsets),
    FLAG("ragged", is_ragged),
    INT(page_size),
    INT(max_seq_q),
    INT(max_seq_kv),
    SIZE(seq_new),
    FLAG("kv_projected", kv_projected),
    FLAG("v_in_k", v_in_k),
    FLAG("no_out_projection", no_out_projection),
    INT(low_rank),
    FLAG("low_rank_heads", low_rank_heads),
    FLAG("low_rank_shared", low_rank_shared),
    FLAG("short_masks", short_masks),
    DIMS("attn_mask", attn_mask_dims),
    DIMS("attn_bias", attn_bias_dims),
    INT(rotary_dim),
    FLAG("rotary_interleaved", rotary_interleaved),
    FLAG("position_ids", has_position_ids),
    WORD("weights", weights_mode, modes),
    FLAG("weights_average", weights_average),
    FLAG("row_ids", has_row_ids),
    SIZE(num_rows),
    FLAG("reproducible", reproducible),
    INT(num_parts),
    STRIDES(q_strides, 4),
    STRIDES(k_strides, 4),
    STRIDES(v_strides, 4),
    STRIDES(out_strides, 4),
    STRIDES(lse_strides, 3),
    STRIDES(attn_mask_strides, 4),
    STRIDES(attn_bias_strides, 4),
    STRIDES(k_new_strides, 4),
    STRIDES(v_new_strides, 4),
    STRIDES(weights_strides, 4),
    STRIDES(x_strides, 3),
    STRIDES(x_kv_strides, 3),
    STRIDES(x_v_strides, 3),
    STRIDES(k_scale_strides, 3),
    STRIDES(v_scale_strides, 3),
};

size_t mha_field_bytes(const mha_field *field) {
    switch (field->kind) {
    case MHA_FIELD_FLAG:
    case MHA_FIELD_WORD: return sizeof(int);
    case MHA_FIELD_NUMBER: return sizeof(double);
    case MHA_FIELD_DIMS:
    case MHA_FIELD_STRIDES: return (size_t)field->rank * sizeof(int64_t);
    default: return sizeof(int64_t);
    }
}

int mha_field_rank(const attune_problem *p, const mha_field *field) {
    const bool is_out = field->offset == AT(out_strides);
    return is_out && p->embed_dim && !p->no_out_projection ? 3 : field->rank;
}

const char mha_dim_letters[5] = "bhqk";

void mha_full_dims(const attune_problem *p, int64_t dims[4]) {
    dims[0] = p->batch;
    dims[1] = p->num_heads;
    dims[2] = p->is_ragged ? ATTUNE_DYNAMIC : p->seq_q;
    dims[3] = p->is_ragged ? ATTUNE_DYNAMIC : p->seq_kv ? p->seq_kv : mha_default_keys(p);
}
