/* Types of fields and members: element types, scales of caches, operators, modes and tensors. */
#ifndef ATTUNE_TYPES_H
#define ATTUNE_TYPES_H

#include <stdint.h>

/* ---- Types of fields ---- */

/* Element types of tensors. The fields dtype, k_dtype, v_dtype, bias_dtype and w_dtype may be f32, f16, bf16 or f64.
 * k_dtype and v_dtype may also be i8, f8 or i4 (see attune_scales), w_dtype i8 or i4 (see attune_pack_weights). */
typedef enum attune_dtype {
    ATTUNE_DTYPE_DEFAULT = 0, /* the field's own default */
    ATTUNE_F32,
    ATTUNE_F16,
    ATTUNE_BF16, /* the upper half of an f32: eight bits of exponent, seven of fraction */
    ATTUNE_F64,
    ATTUNE_BOOL, /* one byte; anything but 0 is true */
    ATTUNE_I32,
    ATTUNE_I8,   /* -128 to 127; attune quantises to -127 to 127 */
    ATTUNE_F8,   /* of a quantised cache: E4M3 without infinities, up to 448; 0x7f and 0xff are NaN */
    ATTUNE_I4,   /* of a quantised cache or of a block's weights: -8 to 7 */
    ATTUNE_DTYPE_COUNT
} attune_dtype;

/* Scales of a quantised cache. An element of k or v of dtype i8, f8 or i4 is the quantised value times its scale.
 * Arithmetic is f32 (or f64) as with any other dtype. Scales of heads and tokens multiply the score (k) and the
 * probability (v). The others multiply each element, which rounds it once. */
typedef enum attune_scales {
    ATTUNE_SCALES_DEFAULT = 0, /* head for i8, none for f8, group for i4 */
    ATTUNE_SCALES_NONE,        /* no scale; f8 only */
    ATTUNE_SCALES_HEAD,        /* one for each KV head */
    ATTUNE_SCALES_TOKEN,       /* one for each KV head of each key */
    ATTUNE_SCALES_GROUP,       /* one for each k_group (v_group) columns of each KV head of each key */
    ATTUNE_SCALES_CHANNEL,     /* one for each column of each KV head */
    ATTUNE_SCALES_INLINE,      /* i8 and i4: an f16 for each 32 columns of a key, stored before their values, as in
                                * ggml's rows of q8_0 (i8) and q4_0 (i4) */
    ATTUNE_SCALES_INLINE_MIN,  /* i4: two f16 for each 32 columns of a key, scale and minimum, before their values. An
                                * element is value * scale + minimum, values 0 to 15: ggml's rows of q4_1 */
    /* i4 with scales and minima of the same meaning, but f32 in k_scale and v_scale: a row has all its scales, then all
     * its minima. */
    ATTUNE_SCALES_TOKEN_MIN,   /* one of each for each KV head of each key */
    ATTUNE_SCALES_GROUP_MIN,   /* one of each for each k_group (v_group) columns of each KV head of each key */
    ATTUNE_SCALES_CHANNEL_MIN, /* one of each for each column of each KV head */
    ATTUNE_SCALES_COUNT
} attune_scales;

/* What attention computes in integers, whose sums are exact: the same in any order and on every instruction set.
 *   none    nothing: quantised values are dequantised
 *   scores  k_dtype = i8 or i4: each row of q is quantised, q[d] ~ value[d] * max|q| / largest, and a score is the sum
 *           of value[d] * k's value[d]. q_planes is the width of q's values in bytes: with one, largest is 127; with
 *           two 16256, which is more exact than bf16. head_dim is at most 1024. k_scales is head, token, group,
 *           token_min or group_min; each group has a sum of its own then. weights_mode must be none and prob_mod empty.
 *           k_dtype = f32, f16 or bf16: each call quantises k to int8 with one scale per key; the sequence's mean key
 *           is subtracted first where that reduces the range. Faster prefill, less exact (docs/numerics.md). Everything
 *           else is f32, q_planes is 1, and reproducible must be 0: the mean is of all keys, hidden or not
 *   all     v_dtype = i8 or i4, too, v_scales head or token: the probabilities of 512 keys at a time are quantised to
 *           q_planes bytes, relative to the largest, and multiplied by v's values. A row has the same bits on every
 *           instruction set and by any schedule (docs/numerics.md). With a negative scale of a token of v, rows that
 *           attend to it are NaN */
typedef enum attune_integer {
    ATTUNE_INTEGER_NONE = 0,
    ATTUNE_INTEGER_SCORES,
    ATTUNE_INTEGER_ALL,
    ATTUNE_INTEGER_COUNT
} attune_integer;
typedef enum attune_q_planes {
    ATTUNE_Q_PLANES_DEFAULT = 0, /* 2 for quantised K, otherwise 1. With integer=all also that of probabilities */
    ATTUNE_Q_PLANES_1,
    ATTUNE_Q_PLANES_2,
    ATTUNE_Q_PLANES_COUNT
} attune_q_planes;

/* Whether a tensor kv_ids lists the keys that queries attend to, and what has a list of its own. */
typedef enum attune_kv_ids {
    ATTUNE_KV_IDS_NONE = 0,
    ATTUNE_KV_IDS_SEQUENCE, /* each sequence: its queries share the list */
    ATTUNE_KV_IDS_QUERY,    /* each query */
    ATTUNE_KV_IDS_COUNT
} attune_kv_ids;

/* How k or v is stored. A panel is ATTUNE_PANEL_TOKENS tokens of a KV head, from a multiple of that number on,
 * interleaved as docs/panels.md says. A tensor of panels has the dims [batch or pages, num_kv_heads, panels, elements
 * of a panel], and the innermost stride is 1. Elements of tokens beyond the length may have any value. */
typedef enum attune_kv_layout {
    ATTUNE_LAYOUT_ROWS = 0, /* the columns of a token are contiguous: [batch or pages, num_kv_heads, tokens, columns] */
    ATTUNE_LAYOUT_PANELS,   /* elements in the order in which products load them. For f32, bf16, and i8 and i4 with
                             * scales of heads or tokens, of attention alone. Not with v_in_k, a ragged batch without
                             * pages, or keys that are prepared in each call. page_size is a multiple of 16, and
                             * head_dim is even where k is bf16, a multiple of 4 where k is i8 */
    ATTUNE_LAYOUT_COUNT
} attune_kv_layout;
enum { ATTUNE_PANEL_TOKENS = 16 };

typedef enum attune_op {
    ATTUNE_ATTENTION = 0, /* q, k, v -> out, and lse and weights if the problem has them */
    ATTUNE_WEIGHTS,       /* q, k, lse -> weights: recomputed after attention, for all rows or chosen ones. A row
                           * whose lse is -infinity has the weights 0 */
    ATTUNE_ROTARY,        /* q, cos, sin -> out: the rotary embedding alone (ignores num_kv_heads, seq_kv …) */
    ATTUNE_MERGE,         /* parts, parts_lse -> out, lse: merges partial results over disjoint keys */
    ATTUNE_MHA,           /* x, packed_weights -> out: the whole block. ATTUNE_ATTENTION with embed_dim becomes this */
    ATTUNE_OP_COUNT
} attune_op;

typedef enum attune_causal_align {
    ATTUNE_BOTTOM_RIGHT = 0, /* the last query is at the last key: base = keys - queries of the sequence, at run time */
    ATTUNE_TOP_LEFT = 2      /* the first query is at the first key: base = 0. 1 was ATTUNE_BOTTOM_RIGHT in 0.2, where
                              * top left was the default; it is refused */
} attune_causal_align;

/* What the `weights` output has: qk_matmul_output_mode 0 to 3 of ONNX Attention, as ONNX 1.22 orders them. */
typedef enum attune_weights_mode {
    ATTUNE_WEIGHTS_NONE = 0, /* there is no such output */
    ATTUNE_WEIGHTS_SCALED,   /* softmax_scale * Q.K^T, before everything else; of hidden keys too, but undefined
                              * for those beyond kv_lens */
    ATTUNE_WEIGHTS_CAPPED,   /* the same after the soft cap */
    ATTUNE_WEIGHTS_MASKED,   /* and after ALiBi, bias and masks: -infinity where a key is hidden */
    ATTUNE_WEIGHTS_SOFTMAX,  /* the probabilities; rows without a key are 0 */
    ATTUNE_WEIGHTS_MODE_COUNT
} attune_weights_mode;

/* A size that is known only at run time: seq_q, seq_kv, seq_new, num_rows, and the last two of a mask's dims. */
#define ATTUNE_DYNAMIC (-1)

/* ---- Tensors ---- */

/* A tensor: its first element, and for each dim the elements (of some tensors bytes) from one index to the next. If all
 * strides are 0, it is contiguous. The order of strides is always [batch or page, head, token, column], whatever the
 * order in memory; tensors with fewer or other dims use the first of `strides` in the order of their dims. Memory need
 * only be aligned to the tensor's elements. */
typedef struct attune_view {
    const void *data;
    __extension__ union {
        int64_t strides[4];
        __extension__ struct {
            int64_t batch, head, token, column;
        };
    };
} attune_view;

/* A tensor that is written. It has the layout of attune_view. */
typedef struct attune_mutable_view {
    void *data;
    __extension__ union {
        int64_t strides[4];
        __extension__ struct {
            int64_t batch, head, token, column;
        };
    };
} attune_mutable_view;

/* A tensor in DLPack's terms (version 1). It has the layout of DLTensor: a pointer to a DLTensor, in a DLManagedTensor
 * or a capsule, may be cast to a pointer to this. */
typedef struct attune_dltensor {
    void *data;
    int32_t device_type;  /* 1: CPU */
    int32_t device_id;
    int32_t ndim;
    uint8_t dtype_code;   /* 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool, 10 float8_e4m3fn */
    uint8_t dtype_bits;
    uint16_t dtype_lanes; /* 1 */
    int64_t *shape;
    int64_t *strides;     /* in elements; NULL: contiguous, the last dimension innermost */
    uint64_t byte_offset; /* from data to the first element */
} attune_dltensor;

#endif
