/* Which tensors a problem has, what their dims are, and the scalar parameters that follow from both. */
#include "problem/signature.h"
#include "expr/expr.h"
#include "problem/weights_layout.h"

#include <math.h>
#include <string.h>

/* ---- the table ---- */

/* Where a tensor's element type comes from. */
typedef enum element {
    OF_Q,
    OF_K,
    OF_V,
    OF_W,
    OF_PACKED,
    OF_K_NEW,
    OF_V_NEW,
    OF_BIAS,
    OF_PRECISION,
    OF_BOOL,
    OF_I32,
    OF_F32
} element;

typedef struct row {
    const char *name;
    element type;
    int access;
    int rank;
    mha_size dims[4];
    bool ragged; /* with a ragged batch: one sequence of all tokens */
    size_t pointer, problem_strides;
} row;

#define POINTER(name)       offsetof(attune_arguments, name)
#define VIEW(name, strides) offsetof(attune_arguments, name), offsetof(attune_problem, strides)

static const row table[MHA_USER_TENSORS] = {
    [MHA_Q] = {"q", OF_Q, IR_IN, 4, {MHA_BATCH, MHA_HEADS, MHA_SEQ_Q, MHA_HEAD_DIM}, true, VIEW(q, q_strides)},
    [MHA_K] = {"k", OF_K, IR_IN, 4, {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_KV, MHA_HEAD_DIM}, true, VIEW(k, k_strides)},
    [MHA_V] = {"v", OF_V, IR_IN, 4, {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_KV, MHA_HEAD_DIM_V}, true, VIEW(v, v_strides)},
    [MHA_OUT] =
        {"out", OF_Q, IR_OUT, 4, {MHA_BATCH, MHA_HEADS, MHA_SEQ_Q, MHA_HEAD_DIM_V}, true, VIEW(out, out_strides)},
    [MHA_LSE] = {"lse", OF_PRECISION, IR_OUT, 3, {MHA_BATCH, MHA_HEADS, MHA_SEQ_Q}, true, VIEW(lse, lse_strides)},
    [MHA_ATTN_MASK] = {"attn_mask",
                       OF_BOOL,
                       IR_IN,
                       4,
                       {MHA_BATCH, MHA_HEADS, MHA_SEQ_Q, MHA_MASK_KV},
                       false,
                       VIEW(attn_mask, attn_mask_strides)},
    [MHA_ATTN_BIAS] = {"attn_bias",
                       OF_BIAS,
                       IR_IN,
                       4,
                       {MHA_BATCH, MHA_HEADS, MHA_SEQ_Q, MHA_BIAS_KV},
                       false,
                       VIEW(attn_bias, attn_bias_strides)},
    [MHA_ALIBI_SLOPES] = {"alibi_slopes", OF_F32, IR_IN, 1, {MHA_HEADS}, false, POINTER(alibi_slopes), 0},
    [MHA_SINKS] = {"sinks", OF_F32, IR_IN, 1, {MHA_HEADS}, false, POINTER(sinks), 0},
    [MHA_KV_LENS] = {"kv_lens", OF_I32, IR_IN, 1, {MHA_BATCH}, false, POINTER(kv_lens), 0},
    [MHA_CAUSAL_OFFSETS] = {"causal_offsets", OF_I32, IR_IN, 1, {MHA_BATCH}, false, POINTER(causal_offsets), 0},
    [MHA_CU_SEQLENS_Q] = {"cu_seqlens_q", OF_I32, IR_IN, 1, {MHA_ENTRIES}, false, POINTER(cu_seqlens_q), 0},
    [MHA_CU_SEQLENS_KV] = {"cu_seqlens_kv", OF_I32, IR_IN, 1, {MHA_ENTRIES}, false, POINTER(cu_seqlens_kv), 0},
    [MHA_BLOCK_TABLE] = {"block_table", OF_I32, IR_IN, 2, {MHA_BATCH, MHA_MAX_PAGES}, false, POINTER(block_table), 0},
    [MHA_K_NEW] = {"k_new",
                   OF_K_NEW,
                   IR_IN,
                   4,
                   {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_NEW, MHA_HEAD_DIM},
                   true,
                   VIEW(k_new, k_new_strides)},
    [MHA_V_NEW] = {"v_new",
                   OF_V_NEW,
                   IR_IN,
                   4,
                   {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_NEW, MHA_HEAD_DIM_V},
                   true,
                   VIEW(v_new, v_new_strides)},
    [MHA_K_SCALE] =
        {"k_scale", OF_F32, IR_IN, 3, {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_KV}, true, VIEW(k_scale, k_scale_strides)},
    [MHA_V_SCALE] =
        {"v_scale", OF_F32, IR_IN, 3, {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_KV}, true, VIEW(v_scale, v_scale_strides)},
    [MHA_K_SCALES] = {"k_scale",
                      OF_F32,
                      IR_IN,
                      4,
                      {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_KV, MHA_K_GROUPS},
                      true,
                      VIEW(k_scale, k_group_strides)},
    [MHA_V_SCALES] = {"v_scale",
                      OF_F32,
                      IR_IN,
                      4,
                      {MHA_BATCH, MHA_KV_HEADS, MHA_SEQ_KV, MHA_V_GROUPS},
                      true,
                      VIEW(v_scale, v_group_strides)},
    [MHA_COS] = {"cos", OF_Q, IR_IN, 3, {MHA_BATCH, MHA_ROTARY_POSITIONS, MHA_ROTARY_HALF}, false, POINTER(cos), 0},
    [MHA_SIN] = {"sin", OF_Q, IR_IN, 3, {MHA_BATCH, MHA_ROTARY_POSITIONS, MHA_ROTARY_HALF}, false, POINTER(sin), 0},
    [MHA_Q_NORM] = {"q_norm", OF_Q, IR_IN, 1, {MHA_HEAD_DIM}, false, POINTER(q_norm), 0},
    [MHA_K_NORM] = {"k_norm", OF_Q, IR_IN, 1, {MHA_HEAD_DIM}, false, POINTER(k_norm), 0},
    [MHA_POSITION_IDS] = {"position_ids", OF_I32, IR_IN, 2, {MHA_BATCH, MHA_SEQ_Q}, true, POINTER(position_ids), 0},
    [MHA_ROW_IDS] = {"row_ids", OF_I32, IR_IN, 1, {MHA_NUM_ROWS}, false, POINTER(row_ids), 0},
    [MHA_KV_IDS] = {"kv_ids", OF_I32, IR_IN, 3, {MHA_BATCH, MHA_SEQ_Q, MHA_NUM_IDS}, true, POINTER(kv_ids), 0},
    [MHA_KV_ID_LENS] = {"kv_id_lens", OF_I32, IR_IN, 2, {MHA_BATCH, MHA_SEQ_Q}, true, POINTER(kv_id_lens), 0},
    [MHA_WEIGHTS_OUT] = {"weights",
                         OF_Q,
                         IR_OUT,
                         4,
                         {MHA_BATCH, MHA_HEADS, MHA_SEQ_Q, MHA_SEQ_KV},
                         false,
                         VIEW(weights, weights_strides)},
    [MHA_PARTS] = {"parts", OF_Q, IR_IN, 3, {MHA_NUM_PARTS, MHA_PART_ROWS, MHA_HEAD_DIM_V}, false, POINTER(parts), 0},
    [MHA_PARTS_LSE] =
        {"parts_lse", OF_PRECISION, IR_IN, 2, {MHA_NUM_PARTS, MHA_PART_ROWS}, false, POINTER(parts_lse), 0},
    [MHA_X] = {"x", OF_Q, IR_IN, 3, {MHA_BATCH, MHA_SEQ_Q, MHA_EMBED_DIM}, true, VIEW(x, x_strides)},
    [MHA_X_KV] = {"x_kv", OF_Q, IR_IN, 3, {MHA_BATCH, MHA_SEQ_KV, MHA_KV_EMBED_DIM}, true, VIEW(x_kv, x_kv_strides)},
    [MHA_X_V] = {"x_v", OF_Q, IR_IN, 3, {MHA_BATCH, MHA_SEQ_KV, MHA_V_EMBED_DIM}, true, VIEW(x_v, x_v_strides)},
    [MHA_PACKED_WEIGHTS] = {"packed_weights", OF_PACKED, IR_IN, 1, {MHA_PACKED}, false, POINTER(packed_weights), 0},
    [MHA_KEYS_LOW] =
        {"keys_low", OF_W, IR_IN, 3, {MHA_LOW_RANK_HEADS, MHA_LOW_RANK, MHA_SEQ_KV}, false, POINTER(keys_low), 0},
    [MHA_VALUES_LOW] =
        {"values_low", OF_W, IR_IN, 3, {MHA_LOW_RANK_HEADS, MHA_LOW_RANK, MHA_SEQ_KV}, false, POINTER(values_low), 0},
};

/* The output of a block that projects its heads. */
static const row projected_out = {
    "out", OF_Q, IR_OUT, 3, {MHA_BATCH, MHA_SEQ_Q, MHA_OUT_DIM}, true, VIEW(out, out_strides)};

static const row head_k_scale = {"k_scale", OF_F32, IR_IN, 1, {MHA_KV_HEADS}, false, POINTER(k_scale), 0};
static const row head_v_scale = {"v_scale", OF_F32, IR_IN, 1, {MHA_KV_HEADS}, false, POINTER(v_scale), 0};

static const row channel_k_scale = {"k_scale", OF_F32,           IR_IN, 2, {MHA_KV_HEADS, MHA_K_GROUPS},
                                    false,     POINTER(k_scale), 0};
static const row channel_v_scale = {"v_scale", OF_F32,           IR_IN, 2, {MHA_KV_HEADS, MHA_V_GROUPS},
                                    false,     POINTER(v_scale), 0};

static const row *row_of(const attune_problem *p, mha_tensor_id id) {
    if (id == MHA_K_SCALE && p->k_scales == ATTUNE_SCALES_HEAD) return &head_k_scale;
    if (id == MHA_V_SCALE && p->v_scales == ATTUNE_SCALES_HEAD) return &head_v_scale;
    if (id == MHA_K_SCALES && mha_is_by_channel(p->k_scales)) return &channel_k_scale;
    if (id == MHA_V_SCALES && mha_is_by_channel(p->v_scales)) return &channel_v_scale;
    return id == MHA_OUT && mha_is_block(p) && !p->no_out_projection ? &projected_out : &table[id];
}

static bool has_scales_of_elements(attune_scales scales) {
    return mha_scales_elements(scales) && !mha_is_inline(scales);
}

typedef struct tensor_set {
    bool has[MHA_NUM_TENSORS];
} tensor_set;

static tensor_set tensors_of(const attune_problem *p) {
    const bool is_merge = p->op == ATTUNE_MERGE, is_block = mha_is_block(p), has_kv = mha_has_caches(p);
    return (tensor_set){{
        [MHA_Q] = !is_merge && !is_block,
        [MHA_K] = has_kv,
        [MHA_V] = has_kv && p->op != ATTUNE_WEIGHTS && !p->v_in_k,
        [MHA_OUT] = p->op != ATTUNE_WEIGHTS,
        [MHA_LSE] = p->has_lse,
        [MHA_ATTN_MASK] = p->attn_mask_dims[3] != 0,
        [MHA_ATTN_BIAS] = p->attn_bias_dims[3] != 0,
        [MHA_ALIBI_SLOPES] = p->has_alibi_slopes,
        [MHA_SINKS] = p->has_sinks,
        [MHA_KV_LENS] = p->has_kv_lens,
        [MHA_CAUSAL_OFFSETS] = p->has_causal_offsets,
        [MHA_CU_SEQLENS_Q] = p->is_ragged,
        [MHA_CU_SEQLENS_KV] = p->is_ragged && !(p->page_size && p->has_kv_lens) && !mha_keys_follow_queries(p),
        [MHA_BLOCK_TABLE] = p->page_size != 0,
        [MHA_K_NEW] = p->seq_new != 0 && !is_block,
        [MHA_V_NEW] = p->seq_new != 0 && !is_block && !p->v_in_k,
        [MHA_K_SCALE] = mha_has_scales(p->k_scales),
        [MHA_V_SCALE] = mha_has_scales(p->v_scales) && !p->v_in_k,
        [MHA_K_SCALES] = has_scales_of_elements(p->k_scales),
        [MHA_V_SCALES] = has_scales_of_elements(p->v_scales) && !p->v_in_k,
        [MHA_COS] = p->rotary_dim != 0,
        [MHA_SIN] = p->rotary_dim != 0,
        [MHA_Q_NORM] = p->qk_norm_eps > 0,
        [MHA_K_NORM] = p->qk_norm_eps > 0 && mha_prepares_keys(p),
        [MHA_POSITION_IDS] = p->has_position_ids,
        [MHA_ROW_IDS] = p->has_row_ids,
        [MHA_KV_IDS] = p->kv_ids != ATTUNE_KV_IDS_NONE,
        [MHA_KV_ID_LENS] = p->has_kv_id_lens,
        [MHA_WEIGHTS_OUT] = p->weights_mode != ATTUNE_WEIGHTS_NONE,
        [MHA_PARTS] = is_merge,
        [MHA_PARTS_LSE] = is_merge,
        [MHA_X] = is_block,
        [MHA_X_KV] = p->is_cross,
        [MHA_X_V] = p->v_embed_dim != 0,
        [MHA_PACKED_WEIGHTS] = is_block,
        [MHA_KEYS_LOW] = p->low_rank != 0,
        [MHA_VALUES_LOW] = p->low_rank && !p->low_rank_shared,
    }};
}

static attune_dtype dtype_of(const attune_problem *p, element type) {
    switch (type) {
    case OF_Q: return p->dtype;
    case OF_K: return mha_is_packed(p->k_dtype, p->k_scales) ? ATTUNE_I8 : p->k_dtype;
    case OF_V: return mha_is_packed(p->v_dtype, p->v_scales) ? ATTUNE_I8 : p->v_dtype;
    case OF_K_NEW: return mha_is_quantised(p->k_dtype) ? p->dtype : p->k_dtype;
    case OF_V_NEW: return mha_is_quantised(p->v_dtype) ? p->dtype : p->v_dtype;
    case OF_W: return mha_has_quantised_weights(p) ? p->dtype : p->w_dtype;
    case OF_PACKED: return mha_has_quantised_weights(p) ? ATTUNE_I32 : p->w_dtype;
    case OF_BIAS: return p->bias_dtype;
    case OF_PRECISION: return p->softmax_precision;
    case OF_BOOL: return ATTUNE_BOOL;
    case OF_I32: return ATTUNE_I32;
    default: return ATTUNE_F32;
    }
}

static ir_elem elem_of(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F64: return IR_F64;
    case ATTUNE_F16: return IR_F16;
    case ATTUNE_BF16: return IR_BF16;
    case ATTUNE_BOOL:
    case ATTUNE_I8: return IR_I8;
    case ATTUNE_F8: return IR_F8;
    case ATTUNE_I32: return IR_I32;
    default: return IR_F32;
    }
}

/* Caches and the scales of their tokens. */
static bool is_cached(mha_tensor_id id) {
    return id == MHA_K || id == MHA_V || (id >= MHA_K_SCALE && id <= MHA_V_SCALES);
}

static bool is_list(mha_tensor_id id) { return id == MHA_KV_IDS || id == MHA_KV_ID_LENS; }

static bool is_packed(const attune_problem *p, mha_tensor_id id) {
    return (id == MHA_K && mha_is_packed(p->k_dtype, p->k_scales)) ||
           (id == MHA_V && mha_is_packed(p->v_dtype, p->v_scales));
}

static bool is_paneled(const attune_problem *p, mha_tensor_id id) {
    return (id == MHA_K && p->k_layout == ATTUNE_LAYOUT_PANELS) || (id == MHA_V && p->v_layout == ATTUNE_LAYOUT_PANELS);
}

/* The dims of panels instead of those of rows. */
static mha_size dim_of_panels(const attune_problem *p, mha_tensor_id id, mha_size dim) {
    if (dim == MHA_BATCH) return p->page_size ? MHA_NUM_PAGES : dim;
    if (dim == MHA_SEQ_KV) return p->page_size ? MHA_PAGE_PANELS : MHA_PANELS;
    return dim != MHA_HEAD_DIM && dim != MHA_HEAD_DIM_V ? dim : id == MHA_K ? MHA_K_PANEL : MHA_V_PANEL;
}

/* The dim in which tokens lie, if the tensor is not [batch, …, seq, …]. */
static mha_size dim_of(const attune_problem *p, mha_tensor_id id, mha_size dim) {
    if (is_paneled(p, id)) return dim_of_panels(p, id, dim);
    if (dim == MHA_HEAD_DIM && id == MHA_K && is_packed(p, id)) return MHA_K_ROW_BYTES;
    if (dim == MHA_HEAD_DIM_V && id == MHA_V && is_packed(p, id)) return MHA_V_ROW_BYTES;
    if (p->seq_new && (id == MHA_X_KV || id == MHA_X_V) && dim == MHA_SEQ_KV) dim = MHA_SEQ_NEW;
    if (id == MHA_CU_SEQLENS_Q && p->is_general) return MHA_Q_ENTRIES;
    if (is_list(id) && p->kv_ids == ATTUNE_KV_IDS_SEQUENCE) return dim == MHA_SEQ_Q ? MHA_ONE : dim;
    if (p->page_size && is_cached(id))
        return dim == MHA_BATCH ? MHA_NUM_PAGES : dim == MHA_SEQ_KV ? MHA_PAGE_SIZE : dim;
    if (p->is_ragged && table[id].ragged) switch (dim) {
        case MHA_BATCH: return p->is_general ? MHA_Q_BATCH : MHA_ONE;
        case MHA_SEQ_KV: return MHA_TOTAL_KV;
        case MHA_SEQ_Q:
        case MHA_SEQ_NEW: return MHA_TOTAL_Q;
        default: return dim;
        }
    if (id == MHA_WEIGHTS_OUT && dim == MHA_HEADS && p->weights_average) return MHA_ONE;
    if (id == MHA_WEIGHTS_OUT && dim == MHA_SEQ_Q && p->has_row_ids) return MHA_NUM_ROWS;
    if (id == MHA_WEIGHTS_OUT && dim == MHA_SEQ_KV && p->low_rank) return MHA_LOW_RANK;
    return dim;
}

static int access_of(const attune_problem *p, mha_tensor_id id) {
    if (id == MHA_LSE && p->op == ATTUNE_WEIGHTS) return IR_IN;
    const bool has_keys = row_of(p, id)->rank > 2; /* scales of heads and of channels do not */
    if (p->seq_new && is_cached(id) && has_keys) return IR_IN | IR_OUT;
    return table[id].access;
}

/* The innermost stride as compiled: that of the problem, or 1 by default. */
static int64_t inner_stride_of(const attune_problem *p, const mha_tensor *t) {
    const int64_t *strides = (const int64_t *)(const void *)((const char *)p + t->problem_strides);
    if (mha_is_broadcast(p, t, t->rank - 1)) return 0;
    for (int i = 0; i < t->rank; i++)
        if (strides[i]) return strides[t->rank - 1];
    return 1;
}

bool mha_is_tensor_name(const char *name) {
    for (int id = 0; id < MHA_USER_TENSORS; id++)
        if (!strcmp(table[id].name, name)) return true;
    return false;
}

/* A dim of a user's tensor: a size of the problem, or a number. */
static mha_size user_dim(const attune_problem *p, int number, int dim) {
    switch (p->tensors[number].dims[dim]) {
    case ATTUNE_DIM_BATCH: return MHA_BATCH;
    case ATTUNE_DIM_HEADS: return MHA_HEADS;
    case ATTUNE_DIM_KV_HEADS: return MHA_KV_HEADS;
    case ATTUNE_DIM_SEQ_Q: return MHA_SEQ_Q;
    case ATTUNE_DIM_SEQ_KV: return MHA_SEQ_KV;
    default: return (mha_size)(MHA_USER_DIMS + EX_MAX_RANK * number + dim);
    }
}

static mha_tensor user_tensor(const attune_problem *p, int number) {
    const attune_user_tensor *user = &p->tensors[number];
    mha_tensor t = {.id = (mha_tensor_id)(MHA_USER_TENSORS + number),
                    .name = user->name,
                    .dtype = user->dtype,
                    .elem = elem_of(user->dtype),
                    .rank = user->rank,
                    .access = IR_IN,
                    .inner_stride = 1,
                    .has_strides = true,
                    .pointer = offsetof(attune_arguments, tensors) + (size_t)number * sizeof(attune_view)};
    for (int i = 0; i < user->rank; i++) t.dims[i] = user_dim(p, number, i);
    return t;
}

size_t mha_tensors(const attune_problem *p, mha_tensor tensors[MHA_NUM_TENSORS]) {
    const tensor_set set = tensors_of(p);
    size_t count = 0;
    for (mha_tensor_id id = 0; id < MHA_USER_TENSORS; id++) {
        if (!set.has[id]) continue;
        const row *r = row_of(p, id);
        mha_tensor *t = &tensors[count++];
        *t = (mha_tensor){.id = id,
                          .name = r->name,
                          .dtype = dtype_of(p, r->type),
                          .rank = r->rank,
                          .access = access_of(p, id),
                          .inner_stride = 1,
                          .has_strides = r->problem_strides != 0,
                          .problem_strides = r->problem_strides,
                          .pointer = r->pointer};
        t->elem = elem_of(t->dtype);
        t->is_packed = is_packed(p, id);
        for (int i = 0; i < r->rank; i++) t->dims[i] = dim_of(p, id, r->dims[i]);
        if (t->has_strides) t->inner_stride = inner_stride_of(p, t);
    }
    const int users = ex_count_tensors(p->tensors);
    for (int i = 0; i < users; i++) tensors[count++] = user_tensor(p, i);
    return count;
}

/* ---- sizes ---- */

/* Columns of a mask: its own number only if masks are short and it is not broadcast. */
static int64_t mask_columns(const attune_problem *p, const int64_t dims[4], int64_t seq_kv, int64_t own) {
    if (!dims[3]) return -1;
    if (!p->short_masks || dims[3] == 1) return seq_kv;
    return dims[3] > 0 ? dims[3] : own;
}

void mha_derive_sizes(const attune_problem *p, mha_sizes *sizes) {
    int64_t *of = sizes->of;
    if (!p->is_general || of[MHA_GROUP] < 0) of[MHA_GROUP] = p->num_heads / p->num_kv_heads;
    of[MHA_ONE] = 1;
    of[MHA_HEADS] = of[MHA_KV_HEADS] < 0 ? -1 : of[MHA_KV_HEADS] * of[MHA_GROUP];
    if (mha_keys_follow_queries(p)) of[MHA_SEQ_KV] = of[MHA_SEQ_Q];
    if (mha_is_self(p) && p->seq_new && !p->is_ragged) of[MHA_SEQ_NEW] = of[MHA_SEQ_Q];
    if (mha_keys_follow_queries(p) && p->is_ragged) of[MHA_TOTAL_KV] = of[MHA_TOTAL_Q];
    of[MHA_PANELS] = of[MHA_SEQ_KV] < 0 ? -1 : mha_panels(of[MHA_SEQ_KV]);
    if (p->is_general && p->is_ragged) of[MHA_Q_BATCH] = 1;
    if (p->is_general && p->is_ragged) of[MHA_STARTS] = of[MHA_BATCH];
    of[MHA_ENTRIES] = of[MHA_BATCH] < 0 ? -1 : of[MHA_BATCH] + 1;
    of[MHA_Q_ENTRIES] = of[MHA_ENTRIES];
    const int64_t keys = of[mha_scored_keys(p)];
    of[MHA_MASK_KV] = mask_columns(p, p->attn_mask_dims, keys, of[MHA_MASK_KV]);
    of[MHA_BIAS_KV] = mask_columns(p, p->attn_bias_dims, keys, of[MHA_BIAS_KV]);
    of[MHA_PART_ROWS] = -1;
    int64_t rows;
    const bool known = p->op == ATTUNE_MERGE && of[MHA_BATCH] >= 0 && of[MHA_HEADS] >= 0 && of[MHA_SEQ_Q] >= 0;
    if (known && !__builtin_mul_overflow(of[MHA_BATCH], of[MHA_HEADS], &rows) &&
        !__builtin_mul_overflow(rows, of[MHA_SEQ_Q], &rows))
        of[MHA_PART_ROWS] = rows;
}

static void block_sizes(const attune_problem *p, int64_t of[MHA_NUM_SIZES]) {
    mha_packed_layout layout;
    mha_packed_layout_of(p, &layout);
    of[MHA_PACKED] = layout.elements;
    of[MHA_KV_HEADS] = p->num_kv_heads;
    of[MHA_EMBED_DIM] = p->embed_dim;
    if (p->is_cross) of[MHA_KV_EMBED_DIM] = p->kv_embed_dim;
    if (p->v_embed_dim) of[MHA_V_EMBED_DIM] = p->v_embed_dim;
    if (!p->no_out_projection) of[MHA_OUT_DIM] = p->out_dim;
    if (!p->low_rank) return;
    of[MHA_LOW_RANK] = p->low_rank;
    of[MHA_LOW_RANK_HEADS] = p->low_rank_heads ? p->num_kv_heads : 1;
}

static int64_t elements_of_panel(attune_dtype dtype, int64_t columns) {
    return ATTUNE_PANEL_TOKENS * (dtype == ATTUNE_I4 ? columns / 2 : columns);
}

/* In a row of k_scale or v_scale; -1: it has none, or one. */
static int64_t numbers_of_scales(attune_scales scales, int64_t group, int64_t columns) {
    if (!has_scales_of_elements(scales)) return -1;
    return mha_row_scales(scales, group, columns) * (mha_has_least(scales) ? 2 : 1);
}

void mha_compiled_sizes(const attune_problem *p, mha_sizes *sizes) {
    for (int i = 0; i < MHA_NUM_SIZES; i++) sizes->of[i] = -1;
    sizes->of[MHA_SEQ_Q] = p->seq_q;
    if (mha_has_keys(p)) sizes->of[MHA_SEQ_KV] = p->seq_kv;
    if (p->seq_new) sizes->of[MHA_SEQ_NEW] = p->seq_new;
    if (p->has_row_ids) sizes->of[MHA_NUM_ROWS] = p->num_rows;
    if (p->kv_ids) sizes->of[MHA_NUM_IDS] = p->num_ids;
    if (p->page_size) sizes->of[MHA_PAGE_SIZE] = p->page_size;
    if (p->page_size) sizes->of[MHA_PAGE_SHIFT] = 63 - __builtin_clzll((uint64_t)p->page_size);
    if (p->page_size) sizes->of[MHA_PAGE_PANELS] = mha_panels(p->page_size);
    memcpy(&sizes->of[MHA_SOFT_CAP], &p->logits_soft_cap, sizeof p->logits_soft_cap);
    sizes->of[MHA_WINDOW] = p->window_left >= 0 ? p->window_left : INT32_MAX;
    sizes->of[MHA_K_PANEL] = elements_of_panel(p->k_dtype, p->head_dim);
    sizes->of[MHA_V_PANEL] = elements_of_panel(p->v_dtype, p->head_dim_v);
    sizes->of[MHA_HEAD_DIM] = p->head_dim;
    sizes->of[MHA_HEAD_DIM_V] = p->head_dim_v;
    if (mha_is_packed(p->k_dtype, p->k_scales)) sizes->of[MHA_K_ROW_BYTES] = mha_k_row_bytes(p);
    if (mha_is_packed(p->v_dtype, p->v_scales)) sizes->of[MHA_V_ROW_BYTES] = mha_v_row_bytes(p);
    sizes->of[MHA_K_GROUPS] = numbers_of_scales(p->k_scales, p->k_group, p->head_dim);
    sizes->of[MHA_V_GROUPS] = numbers_of_scales(p->v_scales, p->v_group, p->head_dim_v);
    if (p->rotary_dim) sizes->of[MHA_ROTARY_HALF] = p->rotary_dim / 2;
    if (p->num_parts) sizes->of[MHA_NUM_PARTS] = p->num_parts;
    for (int i = 0; i < EX_MAX_RANK * ex_count_tensors(p->tensors); i++)
        if (p->tensors[i / EX_MAX_RANK].dims[i % EX_MAX_RANK] > 0)
            sizes->of[MHA_USER_DIMS + i] = p->tensors[i / EX_MAX_RANK].dims[i % EX_MAX_RANK];
    if (mha_is_block(p)) block_sizes(p, sizes->of);
    mha_derive_sizes(p, sizes);
}

static bool is_short_and_dynamic(const attune_problem *p, const int64_t dims[4]) {
    return p->short_masks && dims[3] == ATTUNE_DYNAMIC;
}

mha_parameters mha_parameters_of(const attune_problem *p) {
    const bool follows = mha_keys_follow_queries(p);
    return (mha_parameters){
        .has_scale = p->has_softmax_scale,
        .has = {
            [MHA_BATCH] = true,
            [MHA_KV_HEADS] = !mha_is_block(p),
            [MHA_GROUP] = p->is_general,
            [MHA_Q_BATCH] = p->is_general && p->is_ragged,
            [MHA_STARTS] = p->is_general && p->is_ragged,
            [MHA_PAGE_SIZE] = p->is_general && p->page_size,
            [MHA_PAGE_SHIFT] = p->is_general && p->page_size,
            [MHA_WINDOW] = p->is_general && p->window_left >= 0,
            [MHA_SOFT_CAP] = p->is_general && p->logits_soft_cap > 0,
            [MHA_SEQ_Q] = p->seq_q == ATTUNE_DYNAMIC,
            [MHA_SEQ_KV] = p->seq_kv == ATTUNE_DYNAMIC && mha_has_keys(p) && !follows,
            [MHA_SEQ_NEW] = p->seq_new == ATTUNE_DYNAMIC && !mha_is_self(p) && (!p->is_ragged || p->is_general),
            [MHA_TOTAL_Q] = p->is_ragged,
            [MHA_TOTAL_KV] = p->is_ragged && !p->page_size && !follows,
            [MHA_NUM_PAGES] = p->page_size != 0,
            [MHA_MAX_PAGES] = p->page_size != 0,
            [MHA_MASK_KV] = is_short_and_dynamic(p, p->attn_mask_dims),
            [MHA_BIAS_KV] = is_short_and_dynamic(p, p->attn_bias_dims),
            [MHA_ROTARY_POSITIONS] = p->rotary_dim != 0,
            [MHA_NUM_ROWS] = p->has_row_ids && p->num_rows == ATTUNE_DYNAMIC,
            [MHA_NUM_IDS] = p->kv_ids && p->num_ids == ATTUNE_DYNAMIC,
            [MHA_PART_ROWS] = p->op == ATTUNE_MERGE,
        }};
}

bool mha_is_parameter(const attune_problem *p, mha_size size) { return mha_parameters_of(p).has[size]; }

size_t mha_scalars(const attune_problem *p, const mha_parameters *taken, const mha_sizes *sizes,
                   const mha_tensor *tensors, size_t count, const int64_t strides[][4],
                   int64_t scalars[MHA_MAX_SCALARS]) {
    size_t n = 0;
    for (mha_size size = 0; size < MHA_NUM_SIZES; size++)
        if (taken->has[size]) scalars[n++] = sizes->of[size];
    for (size_t t = 0; t < count; t++) {
        const int outer = tensors[t].has_strides ? tensors[t].rank - 1 : tensors[t].id == MHA_COS;
        for (int i = 0; i < outer; i++) scalars[n++] = strides[t][i];
    }
    if (taken->has_scale) scalars[n++] = mha_scale_scalar(p, ATTUNE_DEFAULT_SCALE);
    return n;
}

int64_t mha_scale_scalar(const attune_problem *p, double softmax_scale) {
    const double scale = isnan(softmax_scale) ? p->softmax_scale : softmax_scale;
    const float rounded = (float)scale;
    uint32_t low;
    int64_t bits;
    memcpy(&low, &rounded, sizeof low);
    memcpy(&bits, &scale, sizeof bits);
    return p->softmax_precision == ATTUNE_F64 ? bits : (int64_t)low;
}
