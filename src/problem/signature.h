/* The tensors and run-time sizes of a problem: the one table behind the kernel's parameters, the checks of a call and
 * attune_tensors.
 *
 * A kernel's scalar parameters are, in this order: every size of mha_size that a tensor of the problem uses and that is
 * not known when compiling (in the order of the enum); then, for each tensor that has strides, all but the innermost.
 * With has_softmax_scale the scale is the last one.
 * Its buffer parameters are the tensors, in the order of mha_tensor_id. */
#ifndef ATTUNE_PROBLEM_SIGNATURE_H
#define ATTUNE_PROBLEM_SIGNATURE_H

#include "ir/ir.h"
#include "problem/mha.h"

typedef enum mha_size {
    MHA_ONE,
    MHA_BATCH,     /* always a run-time size */
    MHA_KV_HEADS,  /* a run-time size, except in a block */
    MHA_GROUP,     /* query heads of a KV head; a run-time size of a general problem */
    MHA_HEADS,     /* not a parameter: MHA_KV_HEADS * MHA_GROUP */
    MHA_PANELS,    /* not a parameter: MHA_SEQ_KV in panels, rounded up */
    MHA_Q_BATCH,   /* of a general ragged problem a run-time size: tensors of tokens have one batch or, called for a
                    * batch that is not ragged, those of MHA_BATCH sequences */
    MHA_STARTS,    /* the same: MHA_BATCH, or 0; then cu_seqlens_q has the one length of all sequences */
    MHA_Q_ENTRIES, /* not a parameter: instead of the next one for cu_seqlens_q of such a problem */
    MHA_ENTRIES,   /* not a parameter: MHA_BATCH + 1, the length of cu_seqlens */
    MHA_SEQ_Q,     /* ragged: the longest */
    MHA_SEQ_KV, /* ragged or paged with run-time lengths: the longest. Where keys follow queries it is MHA_SEQ_Q and no
                 * parameter; the same holds for the next one and for totals */
    MHA_SEQ_NEW,
    MHA_TOTAL_Q,
    MHA_TOTAL_KV,
    MHA_NUM_PAGES,
    MHA_MAX_PAGES,
    MHA_MASK_KV, /* columns of attn_mask: MHA_SEQ_KV, or with short_masks less; a broadcast dim counts as full */
    MHA_BIAS_KV,
    MHA_ROTARY_POSITIONS,
    MHA_NUM_ROWS,
    MHA_NUM_IDS,    /* columns of kv_ids */
    MHA_PART_ROWS,  /* op = merge: batch * num_heads * seq_q; always a run-time size */
    MHA_PAGE_SIZE,  /* of a general problem a run-time size: a power of two, from its page_size on */
    MHA_PAGE_SHIFT, /* of a general problem: its logarithm; else not used */
    MHA_WINDOW,     /* of a general problem with one: its window_left, a run-time size */
    MHA_SOFT_CAP,   /* the same: the bits of its logits_soft_cap in f64 */
    /* From here on always known when compiling. */
    MHA_PAGE_PANELS,
    MHA_K_PANEL, /* elements of a panel, instead of head_dim */
    MHA_V_PANEL,
    MHA_HEAD_DIM,
    MHA_HEAD_DIM_V,
    MHA_K_ROW_BYTES, /* of a packed cache, instead of head_dim */
    MHA_V_ROW_BYTES,
    MHA_K_GROUPS, /* scales of a row of K, and minima */
    MHA_V_GROUPS,
    MHA_ROTARY_HALF, /* rotary_dim / 2 */
    MHA_NUM_PARTS,
    MHA_EMBED_DIM, /* these of a block */
    MHA_KV_EMBED_DIM,
    MHA_V_EMBED_DIM,
    MHA_OUT_DIM,
    MHA_LOW_RANK,
    MHA_LOW_RANK_HEADS, /* 1 or num_kv_heads */
    MHA_PACKED,         /* elements of the blob, header included */
    MHA_USER_DIMS,      /* numbers among the dims of the user's tensors, four for each */
    MHA_LAST_USER_DIM = MHA_USER_DIMS + 4 * ATTUNE_MAX_USER_TENSORS - 1,
    MHA_NUM_SIZES
} mha_size;

/* Values of all sizes. -1: not known when compiling, or without meaning for this problem. */
typedef struct mha_sizes {
    int64_t of[MHA_NUM_SIZES];
} mha_sizes;

typedef enum mha_tensor_id {
    MHA_Q,
    MHA_K,   /* of a block: caches only */
    MHA_V,   /* absent if v_in_k */
    MHA_OUT, /* of a block that projects it rank 3 */
    MHA_LSE,
    MHA_ATTN_MASK,
    MHA_ATTN_BIAS,
    MHA_ALIBI_SLOPES,
    MHA_SINKS,
    MHA_KV_LENS,
    MHA_CAUSAL_OFFSETS,
    MHA_CU_SEQLENS_Q,
    MHA_CU_SEQLENS_KV, /* absent where keys follow queries */
    MHA_BLOCK_TABLE,
    MHA_K_NEW,
    MHA_V_NEW,    /* absent if v_in_k */
    MHA_K_SCALE,  /* rank 1 for heads, 3 for tokens */
    MHA_V_SCALE,  /* absent if v_in_k */
    MHA_K_SCALES, /* by the names of the same tensors: rank 4 for groups, 2 for channels */
    MHA_V_SCALES, /* absent if v_in_k */
    MHA_COS,
    MHA_SIN,
    MHA_Q_NORM,
    MHA_K_NORM, /* absent where this call normalises no keys */
    MHA_POSITION_IDS,
    MHA_ROW_IDS,
    MHA_KV_IDS,
    MHA_KV_ID_LENS,
    MHA_WEIGHTS_OUT,
    MHA_PARTS,
    MHA_PARTS_LSE,
    MHA_X,
    MHA_X_KV,
    MHA_X_V,
    MHA_PACKED_WEIGHTS,
    MHA_KEYS_LOW, /* always rank 3: one for all heads, or one for each KV head */
    MHA_VALUES_LOW,
    MHA_USER_TENSORS, /* those that functions read */
    MHA_LAST_USER_TENSOR = MHA_USER_TENSORS + ATTUNE_MAX_USER_TENSORS - 1,
    MHA_NUM_TENSORS
} mha_tensor_id;

typedef struct mha_tensor {
    mha_tensor_id id;
    const char
        *name; /* as the field of attune_arguments, and of the IR's parameter. Of a user's tensor: in the problem */
    attune_dtype dtype;
    ir_elem elem;   /* bool tensors are I8 in the IR: any byte but 0 is true */
    bool is_packed; /* rows are bytes, with quantised values that are no elements; dtype is i8 then */
    int rank;
    mha_size dims[4];       /* of a broadcast dim of a mask: the full size, its stride being 0 */
    int access;             /* IR_IN, IR_OUT or both: k and v with seq_new are both */
    int64_t inner_stride;   /* as compiled; 0: broadcast */
    bool has_strides;       /* the outer ones are scalar parameters; else contiguous */
    size_t problem_strides; /* offset of the array; 0: has none (cos and sin: rotary_batch_stride; those of a user's
                             * tensor stand in the arguments alone) */
    size_t pointer;         /* offset in attune_arguments: of an attune_view if the tensor has strides */
} mha_tensor;

/* The strides in a call's arguments of a tensor that has some. */
static inline int64_t *mha_strides_in(const attune_arguments *arguments, const mha_tensor *t) {
    return ((attune_view *)(void *)((char *)(uintptr_t)arguments + t->pointer))->strides;
}

/* The tensors that a canonical problem has, in order; returns how many. */
size_t mha_tensors(const attune_problem *canonical, mha_tensor tensors[MHA_NUM_TENSORS]);

/* Whether a tensor of attention has this name. */
bool mha_is_tensor_name(const char *name);

/* The sizes that are known when compiling. */
void mha_compiled_sizes(const attune_problem *canonical, mha_sizes *sizes);

/* Whether a ragged problem has the tokens of all sequences in this tensor, one after the other. */
static inline bool mha_is_of_tokens(const mha_tensor *t) { return t->dims[0] == MHA_ONE || t->dims[0] == MHA_Q_BATCH; }

/* Fills in the sizes that follow from others: MHA_ONE, MHA_HEADS, MHA_ENTRIES, MHA_PART_ROWS, and the columns of masks
 * that are not short. -1 where those are not known. */
void mha_derive_sizes(const attune_problem *canonical, mha_sizes *sizes);

/* Which sizes are scalar parameters of the problem's kernel; and whether one is. */
typedef struct mha_parameters {
    bool has[MHA_NUM_SIZES];
    bool has_scale; /* the softmax scale */
} mha_parameters;
mha_parameters mha_parameters_of(const attune_problem *canonical);
bool mha_is_parameter(const attune_problem *canonical, mha_size size);

/* The size that says how many keys a row scores: those of its list, or of its sequence. */
static inline mha_size mha_scored_keys(const attune_problem *canonical) {
    return canonical->kv_ids ? MHA_NUM_IDS : MHA_SEQ_KV;
}

/* Whether all slices along a dim of a mask are the same: its stride is 0. Never true of other tensors. */
static inline bool mha_is_broadcast(const attune_problem *canonical, const mha_tensor *t, int dim) {
    if (t->id == MHA_ATTN_MASK) return canonical->attn_mask_dims[dim] == 1;
    return t->id == MHA_ATTN_BIAS && canonical->attn_bias_dims[dim] == 1;
}

/* Whether the tensor is a matrix that all heads share: callers know it without a dimension for them. */
static inline bool mha_is_headless(const attune_problem *canonical, const mha_tensor *t) {
    return t->dims[0] == MHA_LOW_RANK_HEADS && !canonical->low_rank_heads;
}

/* Strides of one tensor whose dims are all known (0 is fine): zeros become contiguous ones ([tokens, heads, dim] where
 * ragged), those of broadcast dims 0. Checks ranges, that no offset overflows, and that no two elements of an output
 * coincide. */
attune_status mha_settle_strides(const attune_problem *canonical, const mha_tensor *tensor, const int64_t dims[4],
                                 int64_t strides[4], at_error *err);

/* How many elements lie from the first to the end of the last, those between them included; 0 if there is none. Refuses
 * what no address could reach. */
attune_status mha_extent(const mha_tensor *tensor, const int64_t dims[4], const int64_t strides[4], int64_t *elements,
                         at_error *err);

static const int64_t MHA_MAX_STRIDE = INT64_C(1) << 40;

/* Floating-point operations of a call: mha_problem_flops with the sizes of the call. Sizes that are not known count as
 * 0, ragged batches as if all keys were as many as the longest sequence has. */
double mha_call_flops(const attune_problem *canonical, const mha_sizes *sizes);

/* The scalar arguments of a call: sizes settled, strides[i] those of tensors[i] (of cos: [0] is rotary_batch_stride,
 * the one parameter that cos and sin have). `taken`: what the kernel takes, at least the parameters of the problem.
 * Returns how many. */
enum { MHA_MAX_SCALARS = 120 };
size_t mha_scalars(const attune_problem *canonical, const mha_parameters *taken, const mha_sizes *sizes,
                   const mha_tensor *tensors, size_t count, const int64_t strides[][4],
                   int64_t scalars[MHA_MAX_SCALARS]);

/* The last scalar of a problem with has_softmax_scale: the bits of a number of the arithmetic's precision. NaN: the
 * default. */
int64_t mha_scale_scalar(const attune_problem *canonical, double softmax_scale);

#endif
