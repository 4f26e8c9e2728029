/* Expert tier: most programs need attune/attention.h alone.
 *
 * The multi-head-attention block: its weights, packing them, and one handle for a kernel with its weights. */
#ifndef ATTUNE_MHA_H
#define ATTUNE_MHA_H

#include "call.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Weights of a block ---- */

/* The weights of a block, all row-major and contiguous. A projection has in_dim inputs (embed_dim, kv_embed_dim …; the
 * output projection num_heads * head_dim_v) and out_dim outputs (num_heads * head_dim …, head by head). */
typedef enum attune_weight_id {
    ATTUNE_Q_WEIGHT = 0, ATTUNE_K_WEIGHT, ATTUNE_V_WEIGHT, ATTUNE_OUT_WEIGHT, /* a matrix each: see the layout */
    ATTUNE_Q_BIAS, ATTUNE_K_BIAS, ATTUNE_V_BIAS, ATTUNE_OUT_BIAS,             /* [out_dim]; absent: 0 */
    ATTUNE_QKV_WEIGHT,    /* in place of the first three: their outputs one after the other (in_proj_weight, c_attn) */
    ATTUNE_QKV_BIAS,      /* in place of their biases */
    ATTUNE_NUM_WEIGHTS
} attune_weight_id;

typedef enum attune_weight_layout {
    ATTUNE_OUT_IN = 0, /* [out_dim, in_dim]: y = x W^T + b, as PyTorch's Linear and MultiheadAttention */
    ATTUNE_IN_OUT      /* [in_dim, out_dim]: y = x W + b, as Keras, JAX and GPT-2's Conv1D */
} attune_weight_layout;

/* One weight. Dims may be split, as Keras does in [embed_dim, num_heads, head_dim] or [num_heads, head_dim, out_dim]:
 * neighbouring dims must multiply to the matrix's dims. */
typedef struct attune_weight {
    const void *data;    /* NULL: absent. Need not be aligned */
    attune_dtype dtype;  /* must be the problem's w_dtype; where that is i8 or i4, f32, f16, bf16 and f64, too, and a
                          * bias is one of these */
    int rank;            /* 1 to 4 */
    int64_t dims[4];
} attune_weight;

/* All weights of a block; start from attune_mha_weights_init. */
typedef struct attune_mha_weights {
    size_t struct_size;
    attune_weight_layout layout; /* of all matrices */
    attune_weight tensor[ATTUNE_NUM_WEIGHTS]; /* indexed by attune_weight_id */
} attune_mha_weights;

/* "q_weight", "qkv_bias" …; NULL if there is no such weight. Static storage. */
ATTUNE_API const char *attune_weight_name(attune_weight_id id);

/* Sets dtype, rank and dims to those of the problem's weights and biases in a layout, and data to NULL. Set the
 * pointers next; leave those of biases that the model lacks. Weights that the problem does not have get rank 0: those
 * of missing projections; qkv_weight and qkv_bias unless q, k and v are all projected; and qkv_weight if their numbers
 * of inputs differ (qkv_bias may be combined with separate weights). Writes struct_size bytes. */
ATTUNE_API attune_status attune_mha_weights_init_sized(attune_mha_weights *weights, size_t struct_size,
                                                       const attune_problem *problem, attune_weight_layout layout);

/* The same for the struct of this header. */
static inline attune_status attune_mha_weights_init(attune_mha_weights *weights, const attune_problem *problem,
                                                    attune_weight_layout layout) {
    return attune_mha_weights_init_sized(weights, sizeof *weights, problem, layout);
}

/* Bytes of the blob that attune_pack_weights makes. It depends on embed_dim, kv_embed_dim, v_embed_dim, out_dim,
 * num_heads, num_kv_heads, head_dim, head_dim_v, w_dtype, w_group and on which projections there are. It does not
 * depend on lengths, masks, schedule or instruction set. So prefill and decoding share a blob, and it may be saved and
 * loaded on another machine of the same byte order. A problem with kv_projected also takes the blob of one without, if
 * the projections of queries and output are the same. */
ATTUNE_CHECKED attune_status attune_packed_weights_size(const attune_problem *problem, size_t *bytes);

/* Copies weights into the order in which kernels read them. `packed` is 64-byte aligned, has `bytes` bytes, and
 * overlaps no weight. It becomes a blob, with a header that names the layout and holds a checksum; bytes beyond the
 * blob are left alone. A weight that is missing, not expected, or of the wrong shape or dtype is
 * ATTUNE_INVALID_ARGUMENT: the message names it, and nothing is written. Values are not inspected: a NaN takes part in
 * the computation.
 *
 * With w_dtype = i8 or i4 the blob is quantised, and products are computed with value * scale in place of a weight:
 * the bits are those of w_dtype = f32 (f64, if that is the precision) with these products as weights. The inputs of an
 * output are cut into groups of w_group, the last of which may be shorter. Each group has a scale of f16, the nearest
 * one to
 *     i8   largest |weight| / 127;   values from -127 to 127
 *     i4   weight / -8 for the first weight of the largest |weight|;   values from -8 to 7
 * and a value is weight / scale, rounded to the nearest integer (even ones in the middle). All of this is computed in
 * f32, and weights of f64 are rounded to it first. A group whose scale is rounded to 0 has values of 0. A weight that
 * is NaN or infinite, or so large that its scale is no f16, is ATTUNE_INVALID_ARGUMENT: the message names it, and
 * nothing is written. Biases become f32.
 *
 * A matrix may also be quantised already, of dtype w_dtype, as ggml stores rows of q8_0 (i8) and q4_0 (i4). Then the
 * values and scales are copied. It needs w_group = 32, ATTUNE_OUT_IN and a multiple of 32 inputs. Its dims are those of
 * the matrix. An output takes for each 32 inputs a scale of f16, and after it
 *     i8   32 values, from -128 to 127: 34 bytes in all
 *     i4   16 bytes. Byte i has input i in its lower half and input i + 16 in its upper one, as value + 8: 18 bytes
 * A scale that is NaN or infinite is ATTUNE_INVALID_ARGUMENT: the message names it, and nothing is written. */
ATTUNE_CHECKED attune_status attune_pack_weights(const attune_problem *problem, const attune_mha_weights *weights,
                                                 void *packed, size_t bytes);

/* Checks whether bytes that were read back (64-byte aligned) begin with an undamaged blob for this problem. If not, the
 * result is ATTUNE_BAD_FILE, and the message says why. Bytes after the blob are ignored. attune_run checks only the
 * header. */
ATTUNE_CHECKED attune_status attune_packed_weights_check(const attune_problem *problem, const void *packed,
                                                         size_t bytes);

/* A block with its weights: one kernel and one blob. Destroy it before its context. */
typedef struct attune_mha attune_mha;

/* Compiles the problem (which must have embed_dim) as attune_compile does, and packs the weights, which are not needed
 * afterwards. A failure sets *mha to NULL. Thread-safe. */
ATTUNE_CHECKED attune_status attune_mha_create(attune_context *context, const attune_problem *problem,
                                               const char *schedule, const attune_mha_weights *weights,
                                               attune_mha **mha);

/* The same with a blob. It is checked as attune_packed_weights_check does (with `bytes` 0 only the header), not copied,
 * and must outlive the block. So several blocks (prefill and decoding) share one blob. */
ATTUNE_CHECKED attune_status attune_mha_create_packed(attune_context *context, const attune_problem *problem,
                                                      const char *schedule, const void *packed, size_t bytes,
                                                      attune_mha **mha);

/* attune_run_with, with arguments->packed_weights set to the block's own; options may be NULL. Thread-safe as that is.
 * For a call in parts use attune_call_begin with attune_mha_kernel and attune_mha_packed_weights. */
ATTUNE_CHECKED attune_status attune_mha_run(const attune_mha *mha, const attune_arguments *arguments,
                                            const attune_run_options *options);

/* The block's kernel, which must not be released, and its blob. Both live as long as the block (or the blob's owner).
 * *bytes is the size of the whole blob, ready to be saved; `bytes` may be NULL. */
ATTUNE_API const attune_kernel *attune_mha_kernel(const attune_mha *mha);
ATTUNE_API const void *attune_mha_packed_weights(const attune_mha *mha, size_t *bytes);

/* Destroys a block, which must not be running. NULL is fine. */
ATTUNE_API void attune_mha_destroy(attune_mha *mha);

#ifdef __cplusplus
}
#endif

#endif
