/* attune: a JIT compiler for multi-head-attention kernels on the CPU.
 *
 * Introduction
 * ------------
 * You describe one attention problem (attune_problem). attune compiles one kernel for exactly that problem
 * (attune_compile). You run the kernel on your pointers (attune_run) as often as you like:
 *
 *     O[b,h,i,:] = sum_j softmax_j(softmax_scale * Q[b,h,i,:] . K[b,h/group,j,:]) * V[b,h/group,j,:]
 *
 * (Vaswani et al., "Attention Is All You Need", 2017, equation 1; group = num_heads / num_kv_heads.)
 * Compiled kernels are cached in memory and on disk under a hash of the problem. Only the first process that needs a
 * kernel compiles it.
 *
 *     attune_context *context = NULL;
 *     attune_kernel *kernel = NULL;
 *     attune_problem problem = ATTUNE_PROBLEM_INIT;
 *     problem.num_heads = 12; problem.seq_q = problem.seq_kv = 512; problem.head_dim = 64;
 *     attune_context_create(NULL, &context);
 *     attune_compile(context, &problem, NULL, &kernel);
 *     attune_arguments arguments;
 *     attune_arguments_init(&arguments, &problem);
 *     arguments.q = q; arguments.k = k; arguments.v = v; arguments.out = out;
 *     attune_run(context, kernel, &arguments);
 *     attune_kernel_release(kernel);
 *     attune_context_destroy(context);
 *
 * A problem with embed_dim is the whole block, projections included: see attune_mha_create.
 *
 * Errors: every function that can fail returns an attune_status. attune_last_message() then holds one sentence about
 * the failure, for the calling thread. The library never exits, never prints, and leaves no half-written file. There
 * is one exception: if memory runs out inside LLVM, LLVM prints and ends the process that compiles. With
 * ATTUNE_COMPILE_WORKER that process is the worker, and the host gets an error.
 *
 * Struct sizes: structs that begin with struct_size grow at their end from version to version. The size tells the
 * library which version a program was compiled with.
 *     - A smaller struct, of an older program, is accepted. The fields that it lacks have their defaults.
 *     - A larger struct, of a newer program, is accepted if all bytes that the library does not know are zero.
 *       Otherwise the call returns ATTUNE_UNSUPPORTED, because the program asks for something unknown.
 *     - A struct that was never initialised (struct_size 0 or above 16384, for example) is ATTUNE_INVALID_ARGUMENT.
 *     - Results are written up to the size that the caller set. Fields that an older library does not know become zero.
 * This begins with version 0.2. Programs compiled with an older header must be compiled again: their smaller structs
 * are refused.
 *
 * Initialise structs with the ATTUNE_…_INIT macros. A binding that has no macros, or must not depend on the layout,
 * calls the attune_…_init functions. In place of the inline attune_arguments_init and attune_mha_weights_init it calls
 * attune_arguments_init_sized and attune_mha_weights_init_sized, with the number of bytes of the struct that it knows.
 * All of them write the same defaults, and never more than those bytes.
 *
 * Units: sizes and strides of tensors are counted in elements, workspaces and caches in bytes. */
#ifndef ATTUNE_H
#define ATTUNE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTUNE_API __attribute__((visibility("default")))
#else
#define ATTUNE_API
#endif

/* ---- Version ---- */

#define ATTUNE_VERSION_MAJOR 0
#define ATTUNE_VERSION_MINOR 2
#define ATTUNE_VERSION_PATCH 0
#define ATTUNE_VERSION_STRING "0.2.0"

/* The version of the library that is loaded, which may be newer than the header. Static storage. */
ATTUNE_API const char *attune_version(void);

/* ---- Status ---- */

typedef enum attune_status {
    ATTUNE_OK = 0,
    ATTUNE_INVALID_ARGUMENT,  /* a pointer, size or option that the call cannot take */
    ATTUNE_INVALID_PROBLEM,   /* a problem whose fields contradict each other or are out of range */
    ATTUNE_INVALID_SCHEDULE,  /* a schedule that is not legal for the problem or the ISA */
    ATTUNE_INVALID_IR,        /* loop IR that does not parse or does not verify */
    ATTUNE_UNSUPPORTED,       /* well formed, but this build or this CPU cannot do it */
    ATTUNE_OUT_OF_MEMORY,
    ATTUNE_WORKSPACE_TOO_SMALL,
    ATTUNE_IO_ERROR,          /* a file or directory could not be read or written */
    ATTUNE_BAD_FILE,          /* a file was read, but is truncated, damaged or of another kind */
    ATTUNE_CODEGEN_MISSING,   /* the code generator could not be loaded or started, or is of another version;
                               * also for lack of descriptors or processes: a later call may succeed */
    ATTUNE_CODEGEN_FAILED,    /* the code generator or its worker process failed */
    ATTUNE_NO_EXEC_MEMORY,    /* the system refused executable memory */
    ATTUNE_CHECK_FAILED,      /* the interpreter found an access out of bounds or a read of unwritten memory */
    ATTUNE_INTERNAL,          /* a bug in attune */
    ATTUNE_NOT_CACHED,        /* ATTUNE_STRICT=1 forbids compiling, and no cache has the kernel */
    ATTUNE_CANCELLED,         /* the call's cancel flag was set: its outputs hold anything */
    ATTUNE_STATUS_COUNT
} attune_status;

#define ATTUNE_MESSAGE_BYTES 512

/* A short name of the status such as "out of memory". Static storage; never NULL. */
ATTUNE_API const char *attune_status_name(attune_status status);

/* One sentence about the last failure on the calling thread, or "" after no failure. Valid until the next attune call
 * on the same thread. */
ATTUNE_API const char *attune_last_message(void);

/* ---- The problem ---- */

/* Element types of tensors. `dtype`, `k_dtype`, `v_dtype`, `bias_dtype` and `w_dtype` may be f32, f16, bf16 or f64.
 * k_dtype and v_dtype may also be i8, f8 or i4 (see attune_scales), w_dtype i8 or i4 (see attune_pack_weights). */
typedef enum attune_dtype {
    ATTUNE_DTYPE_DEFAULT = 0, /* the field's own default */
    ATTUNE_F32,
    ATTUNE_F16,
    ATTUNE_BF16, /* the upper half of an f32: eight bits of exponent, seven of fraction */
    ATTUNE_F64,
    ATTUNE_BOOL, /* one byte; anything but 0 is true */
    ATTUNE_I32,
    ATTUNE_I8,   /* a code: -128 to 127; attune makes codes from -127 */
    ATTUNE_F8,   /* a code of a quantised cache: E4M3 without infinities, up to 448; 0x7f and 0xff are NaN */
    ATTUNE_I4,   /* a code of a quantised cache or of a block's weights: -8 to 7 */
    ATTUNE_DTYPE_COUNT
} attune_dtype;

/* Scales of a quantised cache. An element of k or v of dtype i8, f8 or i4 has the value code * scale. Arithmetic is f32
 * (or f64) as with any other dtype. With scales of heads and tokens the product of q and the codes is multiplied by k's
 * scale, the probability by v's. With the other ones each element is, which rounds it once. */
typedef enum attune_scales {
    ATTUNE_SCALES_DEFAULT = 0, /* head for i8, none for f8, group for i4 */
    ATTUNE_SCALES_NONE,        /* no scale: the codes are the values; f8 only */
    ATTUNE_SCALES_HEAD,        /* one for each KV head */
    ATTUNE_SCALES_TOKEN,       /* one for each KV head of each key */
    ATTUNE_SCALES_GROUP,       /* one for each k_group (v_group) columns of each KV head of each key */
    ATTUNE_SCALES_CHANNEL,     /* one for each column of each KV head */
    ATTUNE_SCALES_INLINE,      /* i8 and i4: an f16 for each 32 columns of a key, which lies before their codes. So ggml
                                * stores rows of q8_0 (i8) and q4_0 (i4) */
    ATTUNE_SCALES_COUNT
} attune_scales;

/* What attention computes in integers, whose sums are exact: the same in any order and on every instruction set.
 *   none    nothing: codes of caches count as the numbers that they stand for
 *   scores  k_dtype = i8: a row of q becomes codes of its own, q[d] ~ code[d] * max|q| / largest, and a score is the
 *           sum of code[d] * k's code[d]. q_planes says how many bytes a code of q has: with one, largest is 127; with
 *           two 16256, which is more exact than bf16. head_dim is at most 1024. weights_mode must be none
 *   all     v_dtype = i8, too: besides, the probabilities of 512 keys in a row become codes of as many bytes, relative
 *           to the largest of them, and values are sums of code * v's code. Each row has the same bits on every
 *           instruction set and by any schedule (docs/numerics.md). A token's negative scale of v makes its rows NaN */
typedef enum attune_integer {
    ATTUNE_INTEGER_NONE = 0,
    ATTUNE_INTEGER_SCORES,
    ATTUNE_INTEGER_ALL,
    ATTUNE_INTEGER_COUNT
} attune_integer;
typedef enum attune_q_planes {
    ATTUNE_Q_PLANES_DEFAULT = 0, /* two; with integer=all, codes of probabilities have as many */
    ATTUNE_Q_PLANES_1,
    ATTUNE_Q_PLANES_2,
    ATTUNE_Q_PLANES_COUNT
} attune_q_planes;

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
    ATTUNE_TOP_LEFT = 0,     /* base = 0 */
    ATTUNE_BOTTOM_RIGHT = 1  /* base = keys - queries of the batch entry, at run time */
} attune_causal_align;

/* Content of the `weights` output, as ONNX Attention's qk_matmul_output_mode 0 to 3. */
typedef enum attune_weights_mode {
    ATTUNE_WEIGHTS_NONE = 0, /* there is no such output */
    ATTUNE_WEIGHTS_SCALED,   /* softmax_scale * Q.K^T, before everything else; of hidden keys too */
    ATTUNE_WEIGHTS_CAPPED,   /* the same after the soft cap */
    ATTUNE_WEIGHTS_MASKED,   /* and after ALiBi, bias and masks: -infinity where a key is hidden */
    ATTUNE_WEIGHTS_SOFTMAX,  /* the probabilities; rows without a key are 0 */
    ATTUNE_WEIGHTS_MODE_COUNT
} attune_weights_mode;

/* A size that is known only at run time: seq_q, seq_kv, seq_new, num_rows, and the last two of a mask's dims. */
#define ATTUNE_DYNAMIC (-1)

/* What an attune_problem describes: what is computed, never how. Start from ATTUNE_PROBLEM_INIT and set the fields that
 * you need.
 *
 * Scores
 * ------
 * Query i of batch entry b has the position p = i + base + causal_offset (+ causal_offsets[b]). base is 0. With
 * causal_align = bottom_right, base is the entry's number of keys minus its number of queries. The scores of the query
 * are computed in this order:
 *     s[j] = softmax_scale * q[i] . k[j]
 *     s[j] = logits_soft_cap * tanh(s[j] / logits_soft_cap)            if logits_soft_cap > 0
 *     s[j] = s[j] - alibi_slopes[h] * |p - j|                          if has_alibi_slopes
 *     s[j] = s[j] + attn_bias[b,h,i,j]                                 if there is an attn_bias
 * Key j is hidden from the query if
 *     j >= kv_lens[b], or
 *     is_causal and j > p, or
 *     j < p - window_left (if window_left >= 0) or j > p + window_right (if window_right >= 0); this rule does not
 *         apply where j or p is below global_tokens, or
 *     attn_mask[b,h,i,j] is false, or attn_bias[b,h,i,j] is -infinity.
 * A hidden key has the score -infinity, and nothing in its K or V can reach the result.
 * A row that sees no key gives 0 in `out` and -infinity in `lse` (with sinks: the sink), even if its q holds NaN. In
 * any other row a NaN in q gives NaN. Values are summed first and then divided by the sum of the exponentials: where
 * |v| exceeds the largest f32 (f64) divided by the number of keys, the result may be infinite.
 *
 * Tensors
 * -------
 * Tensors are row-major unless strides say otherwise. [field] means: present only if the field asks for it.
 * attune_tensors lists the tensors of a problem.
 *     q   [batch, num_heads,    seq_q,  head_dim]    k [batch, num_kv_heads, seq_kv, head_dim]
 *     out [batch, num_heads,    seq_q,  head_dim_v]  v [batch, num_kv_heads, seq_kv, head_dim_v]
 *     [has_lse]            lse [batch, num_heads, seq_q]: natural logarithm of the sum of exponentials; f32, or f64
 *                          if softmax_precision is f64
 *     [attn_mask_dims]     attn_mask, bool: true = keep
 *     [attn_bias_dims]     attn_bias, of bias_dtype
 *     [has_alibi_slopes]   alibi_slopes f32 [num_heads]
 *     [has_sinks]          sinks f32 [num_heads]: the logit of one more key, whose value is 0
 *     [has_kv_lens]        kv_lens i32 [batch]: number of valid keys, at most seq_kv; appended keys (seq_new) count
 *     [has_causal_offsets] causal_offsets i32 [batch]
 *     [is_ragged]          cu_seqlens_q, cu_seqlens_kv i32 [batch + 1]: entry b owns the tokens from cu_seqlens[b] to
 *                          before cu_seqlens[b+1]. q, out and lse then have one batch entry of total_q tokens, k and v
 *                          one of total_kv. Contiguous means [tokens, heads, dim], and [heads, tokens] for lse. seq_q
 *                          and seq_kv are ATTUNE_DYNAMIC; at run time they are the longest lengths. With pages, k and
 *                          v keep their shape. With pages and kv_lens there is no cu_seqlens_kv
 *     [page_size]          k, v [num_pages, num_kv_heads, page_size, …]; block_table i32 [batch, max_pages]: key j of
 *                          entry b is row j % page_size of page block_table[b, j / page_size]. Needs kv_lens or
 *                          cu_seqlens_kv, unless every entry has seq_kv keys
 *     [seq_new]            k_new, v_new [batch, num_kv_heads, seq_new, …]: written over the last seq_new keys in k and
 *                          v before anything is read there. k and v are then outputs, too. A page that is written to
 *                          must belong to one entry only. This is not checked: entries that share such a page
 *                          overwrite each other's keys. Ragged: [total_q tokens], as many as there are queries
 *     [k_dtype, v_dtype]   k, v as bytes where a row is not as many elements: the last dim, and all strides, are in
 *                          bytes, and the last stride is 1. With i4, and with scales of groups, of channels or inline,
 *                          head_dim (head_dim_v) is a multiple of 32
 *                          i4: head_dim / 2 bytes; byte i of each 16 has column i of 32 in its lower half and column
 *                          i + 16 in its upper one, as code + 8. Scales inline: for each 32 columns the scale, an f16,
 *                          and their codes: 34 bytes (i8) or 18 (i4)
 *     [k_scales, v_scales] k_scale, v_scale f32. Scales of heads: [num_kv_heads]. Scales of tokens: the dims of k and
 *                          v without the last one: [batch, num_kv_heads, seq_kv]; ragged [1, num_kv_heads, total_kv],
 *                          contiguous in this order; with pages [num_pages, num_kv_heads, page_size]. Scales of groups:
 *                          the dims of k and v with the last one divided by k_group (v_group), contiguous as k and v
 *                          are. Scales of channels: [num_kv_heads, head_dim or head_dim_v]. Scales of tokens and of
 *                          groups are written where k and v are. Scales inline are no tensor
 *     [rotary_dim]         cos, sin [batch or 1, rotary_positions, rotary_dim / 2] of dtype
 *     [has_position_ids]   position_ids i32 [batch, seq_q], ragged [1, total_q]
 *     [qk_norm_eps]        q_norm, k_norm [head_dim] of dtype; no k_norm with kv_projected
 *     [weights_mode]       weights [batch, num_heads, seq_q, seq_kv] of dtype; with weights_average
 *                          [batch, 1, seq_q, seq_kv]. Not ragged
 *     [tensors]            those that functions read, with the dims that the problem declares
 *     [has_row_ids]        row_ids i32 [num_rows]: the rows of q that are wanted; weights then have num_rows rows
 *     [op = merge]         parts [num_parts, batch * num_heads * seq_q, head_dim_v] of dtype; parts_lse
 *                          [num_parts, batch * num_heads * seq_q] of the type of lse; out and lse as above
 *
 * Appending to a quantised cache
 * ------------------------------
 * With seq_new and a cache of codes, the rows of k_new and v_new (of dtype) are rounded to codes, to nearest even.
 * largest is 127 for i8, 448 for f8 and 7 for i4:
 *     head    code = clamp(x / scale, -largest, largest); all 0 where the scale is 0 or not finite
 *     token   scale = max|x| / largest over the row; the scale is written, and the code is computed as for heads. A row
 *             that holds a NaN or an infinity gets the scale NaN. A row of zeros gets the scale 0 and the codes 0
 *     channel as head, each column by its own scale
 *     group   as token, over the columns of a group; inline as well, where the scale is rounded to f16 first. In i4 the
 *             scale is x / -8 for the element of the largest |x|, a positive one rather than a negative one, and codes
 *             are from -8 to 7
 *     none    code = clamp(x, -448, 448)
 * NaN becomes 0 in i8 and i4 and stays NaN in f8. Keys are rotated before they are rounded.
 *
 * The block
 * ---------
 * With embed_dim > 0 (Vaswani et al., section 3.2.2), Q, K and V are projections of the inputs. Each head attends as
 * above. The heads, one after the other, are projected to the output:
 *     Q = x Wq + bq    K = x_kv Wk + bk    V = x_v Wv + bv    out = concat(heads) Wo + bo
 * A block has no q. It has k and v only where they are caches. Products are summed in the order of the columns and
 * begin with the bias, so a row of the result does not depend on the other rows. Without is_cross and without caches
 * the keys come from x: seq_kv is seq_q, and a ragged batch has neither cu_seqlens_kv nor total_kv.
 *     x   [batch, seq_q, embed_dim]       out [batch, seq_q, out_dim]      ragged: [1, total_q, …]
 *     packed_weights: a blob made by attune_pack_weights, 64-byte aligned; see "Weights of a block"
 *     [is_cross]      x_kv [batch, seq_kv, kv_embed_dim]: input of keys and values, in place of x. Ragged:
 *                     [1, total_kv, …], with seq_new [1, total_q, …]
 *     [v_embed_dim]   x_v [batch, seq_kv, v_embed_dim]: input of values, in place of the keys' input. Ragged: as x_kv
 *     [seq_new]       k and v are caches, written in place. The keys of x become their last keys; with is_cross those
 *                     of x_kv, which is then [batch, seq_new, …]. There are no k_new and v_new. Without is_cross,
 *                     seq_new is seq_q
 *     [kv_projected]  k and v are caches that an earlier call has filled. Only Q and the output are projected
 *     [no_out_projection] out is the output of attention, [batch, num_heads, seq_q, head_dim_v], contiguous meaning
 *                     [batch, seq_q, num_heads, head_dim_v]
 *     [low_rank]      keys_low [low_rank, seq_kv], with low_rank_heads [num_kv_heads, low_rank, seq_kv]; values_low
 *                     alike. With low_rank_shared, keys_low serves as both. K and V of each head are multiplied by them
 *                     from the left, and attention sees low_rank keys (Wang et al., "Linformer", 2020, equation 7).
 *                     `weights` has one column for each of those
 *
 * Strides
 * -------
 * Strides are in elements, one for each dimension in the order above (the projected out of a block has three). An array
 * of zeros means contiguous; with dynamic sizes, contiguous at run time. Output strides must not make two elements
 * coincide. */

/* Sizes of the problem as dims of a user's tensor. */
enum {
    ATTUNE_DIM_BATCH = -2,    /* b */
    ATTUNE_DIM_HEADS = -3,    /* h */
    ATTUNE_DIM_KV_HEADS = -4, /* kv_h */
    ATTUNE_DIM_SEQ_Q = -5,    /* q */
    ATTUNE_DIM_SEQ_KV = -6    /* kv */
};

enum { ATTUNE_MAX_USER_TENSORS = 8, ATTUNE_FUNCTION_BYTES = 1024 };

/* A tensor that functions on scores and masks read. */
typedef struct attune_user_tensor {
    char name[32];     /* a letter, then letters, digits and '_'; "": there is none, nor are there later ones */
    attune_dtype dtype;/* f32, f16, bf16, f64, i32, i8 or bool */
    int32_t rank;      /* 1 to 4 */
    int64_t dims[4];   /* numbers, or ATTUNE_DIM_…; 0 from `rank` on */
} attune_user_tensor;

typedef struct attune_problem {
    size_t struct_size;    /* sizeof(attune_problem): lets the struct grow */
    attune_op op;
    attune_dtype dtype;    /* of q and out; default f32 */
    int64_t batch;         /* >= 1, default 1 */
    int64_t num_heads;     /* >= 1, default 1 */
    int64_t num_kv_heads;  /* divides num_heads; 0 = num_heads. kv head = head / (num_heads / num_kv_heads) */
    int64_t seq_q;         /* >= 1, or ATTUNE_DYNAMIC: from 0 at run time */
    int64_t seq_kv;        /* the same; a dynamic seq_kv is a size of its own. 0 = seq_q, or dynamic with pages and
                            * kv_lens */
    int64_t head_dim;      /* >= 1 */
    int64_t head_dim_v;    /* >= 1; 0 = head_dim */
    double softmax_scale;  /* within +-1e38; ATTUNE_DEFAULT_SCALE = 1 / sqrt(head_dim) */
    double logits_soft_cap;/* 0 = none, else > 0 */
    int is_causal;         /* 0 or 1 */
    attune_causal_align causal_align; /* where positions begin, for causality, windows, ALiBi and rotary alike */
    int64_t causal_offset; /* added to the position of every query; any sign */
    int64_t window_left, window_right; /* keys seen before and after the position; -1 = all */
    int64_t global_tokens; /* the first tokens: every query sees these keys, and these queries see every key, whatever
                            * the window */
    int has_lse;           /* 1: `lse` is written too */
    int has_alibi_slopes, has_sinks, has_kv_lens, has_causal_offsets, is_ragged;
    attune_dtype k_dtype, v_dtype;   /* default dtype. In a block: the caches' types. A block without a cache uses them
                                      * only with reproducible: it rounds K and V as such a cache would, and codes
                                      * are refused */
    attune_scales k_scales, v_scales;/* used only with codes; with v_in_k, v_scales is k_scales */
    attune_dtype bias_dtype;         /* of attn_bias; default dtype */
    attune_dtype softmax_precision;  /* of all arithmetic: f32 or f64; default f32, or f64 where dtype is f64 */
    int64_t page_size;               /* 0 = k and v are not paged */
    int64_t max_seq_q, max_seq_kv;   /* bounds of dynamic sizes; 0 = none */
    int64_t seq_new;                 /* 0 = nothing is appended; ATTUNE_DYNAMIC: from 0 at run time */
    int v_in_k;                      /* 1: v is the first head_dim_v columns of k (multi-head latent attention) */
    int short_masks;                 /* 1: mask and bias may end before seq_kv. Keys beyond their last dim are hidden.
                                      * Columns beyond a dynamic seq_kv are not read */
    int64_t attn_mask_dims[4], attn_bias_dims[4]; /* [batch, num_heads, seq_q, seq_kv], each may be 1: the same for
                                                   * all. Zeros = absent; leading zeros count as 1 */
    int64_t rotary_dim;              /* even, <= head_dim; 0 = none. Rotates q and k. Where keys are
                                      * appended, only k_new is rotated: cached keys, and those of kv_projected, are
                                      * rotated already */
    int rotary_interleaved;          /* 0: pairs (x[d], x[d + rotary_dim/2]); 1: pairs (x[2d], x[2d+1]) */
    int has_position_ids;            /* 1: positions of queries and new keys for rotary. 0: p for queries, j for keys.
                                      * Without seq_new it needs seq_q = seq_kv */
    attune_weights_mode weights_mode;
    int weights_average;             /* 1: the mean over the heads */
    int has_row_ids;                 /* op = weights only */
    int reproducible;                /* 1: a row has the same bits whatever the other sizes, strategy and schedule,
                                      * except for sign and payload of a NaN */
    int64_t num_rows;                /* of row_ids */
    int64_t num_parts;               /* op = merge: >= 1 */
    int64_t q_strides[4], k_strides[4], v_strides[4], out_strides[4], lse_strides[3];
    int64_t attn_mask_strides[4], attn_bias_strides[4]; /* of dims that are 1: taken as 0 */
    int64_t k_new_strides[4], v_new_strides[4], weights_strides[4];
    /* The block. Without embed_dim the fields below are ignored; op = weights, rotary and merge refuse embed_dim.
     * With it, head_dim may be 0: it is then embed_dim / num_heads, which must divide. dtype is that of x, x_kv, x_v
     * and out. Low-rank keys have no order: low_rank goes with no causality, window, ALiBi, mask, kv_lens, rotary,
     * cache, ragged batch or dynamic seq_kv, and not with qk_norm_eps. All widths, num_heads * head_dim among them,
     * are at most 262144. */
    int64_t embed_dim;     /* columns of x; 0 = attention alone */
    int64_t kv_embed_dim;  /* columns of x_kv; 0 = embed_dim; a value other than embed_dim makes is_cross 1 */
    int64_t v_embed_dim;   /* columns of x_v; 0 = there is no x_v */
    int64_t out_dim;       /* 0 = embed_dim */
    int64_t low_rank;      /* rows of keys_low; 0 = none */
    int low_rank_heads, low_rank_shared;
    int is_cross;          /* 1: x_kv is a tensor of its own; seq_kv (or seq_new) is its length */
    int kv_projected, no_out_projection;
    attune_dtype w_dtype;  /* of packed_weights, keys_low and values_low; default dtype. i8, i4: packed_weights holds
                            * codes, with a scale for each output of w_group inputs; the other two are of dtype */
    int64_t x_strides[3], x_kv_strides[3], x_v_strides[3];
    int64_t k_scale_strides[3], v_scale_strides[3]; /* of scales of tokens */
    int has_softmax_scale; /* 1: each call has its own scale, attune_arguments.softmax_scale; the problem's must be
                            * ATTUNE_DEFAULT_SCALE. The kernel computes as one with that scale compiled in */
    int reserved;          /* 0 */
    attune_integer integer;
    attune_q_planes q_planes; /* used only with integer */
    double qk_norm_eps;    /* 0 = none, else from 1e-12 to 1: rows of q and k are normalised before they are rotated, as
                            * in Qwen3 and Gemma 3: x * q_norm / sqrt(mean of x^2 + qk_norm_eps). Where keys are
                            * appended, only k_new is: cached keys, and those of kv_projected, are so already */
    /* Functions on scores, masks and probabilities in the language of docs/functions.md. Text that ends with a NUL;
     * "" = none. The struct holds it, so a problem stays a value that can be copied. */
    attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS]; /* those that the functions name; the first ones are used */
    char score_mod[ATTUNE_FUNCTION_BYTES], mask_mod[ATTUNE_FUNCTION_BYTES];
    char prob_mod[ATTUNE_FUNCTION_BYTES]; /* what the values are multiplied by: a function of each probability */
    int64_t w_group;       /* with w_dtype = i8 or i4: 32, 64 or 128 inputs share a scale; 0 = 32 */
    int64_t x_planes;      /* with w_dtype = i8 or i4: 0, or 1: the inputs of projections become codes of one byte, too,
                            * each w_group of a row with a scale of its own, largest |x| / 127. Sums of products of
                            * codes are exact integers; then they are multiplied by both scales. Faster and less exact.
                            * An input that is NaN or infinite makes its rows of the product NaN */
    int64_t k_group, v_group; /* with scales of groups only: 32, 64 or 128 columns, which divide head_dim (head_dim_v),
                               * share a scale; 0 = 32. With v_in_k, v_group is k_group */
    int64_t k_group_strides[4], v_group_strides[4]; /* of scales of groups */
} attune_problem;

/* A NaN: "use 1 / sqrt(head_dim)". */
#define ATTUNE_DEFAULT_SCALE (__builtin_nan(""))

#define ATTUNE_PROBLEM_INIT                                                                             \
    { .struct_size = sizeof(attune_problem), .batch = 1, .num_heads = 1, .softmax_scale = ATTUNE_DEFAULT_SCALE, \
      .window_left = -1, .window_right = -1 }

/* Writes the values of ATTUNE_PROBLEM_INIT into the first struct_size bytes. */
ATTUNE_API attune_status attune_problem_init(attune_problem *problem, size_t struct_size);

/* Reads a problem from text: `key=value` pairs separated by commas, the keys being the field names of attune_problem:
 *     batch=1,num_heads=12,seq_q=512,head_dim=64,is_causal=1,causal_align=bottom_right
 * Text may also say
 *     seq_q=dynamic
 *     softmax_scale=dynamic                  has_softmax_scale
 *     is_causal=true                         a flag is 0, 1, false or true
 *     lse=1, sinks=1, ragged=1, cross=1 …    flags without has_ or is_ (is_causal keeps its name)
 *     kv_dtype=i8                            k_dtype=i8,v_dtype=i8
 *     kv_scales=token, kv_group=64           k_scales=token,v_scales=token, k_group=64,v_group=64
 *     q_strides=65536:4096:64:1              strides
 *     layout=bhsd or layout=bshd             the contiguous strides of q, k, v and out in that order (no blocks)
 *     attn_mask=1:1:512:512                  dims of attn_mask or attn_bias; fewer are the last ones
 *     attn_mask=qk                           letters for the dims that are not 1: qk, bqk, bhqk, bk, k …
 *     mask_mod="q >= kv"                     functions, and tensor="doc:i32[b, q], slope:f32[h]"; in quotation marks
 * Blanks and line ends around keys and values are ignored. With embed_dim, head_dim may be left out. `*problem` must be
 * initialised; fields not named keep their values. An unknown key and a malformed or repeated value are
 * ATTUNE_INVALID_PROBLEM and leave *problem as it was; the message suggests similar names. The result is not checked as
 * a whole: attune_problem_check does that. */
ATTUNE_API attune_status attune_problem_parse(const char *text, attune_problem *problem);

/* Writes the canonical text: defaults filled in, fields with their default value left out. A NUL ends it. Returns the
 * length without the NUL, as snprintf does; text may be NULL when capacity is 0. */
ATTUNE_API size_t attune_problem_print(const attune_problem *problem, char *text, size_t capacity);

/* Checks whether a problem can be compiled: ranges, divisibility, overflow of size products, strides. */
ATTUNE_API attune_status attune_problem_check(const attune_problem *problem);

/* Floating-point operations of the two products: 2 * (head_dim + head_dim_v) for each pair of a query and a key that it
 * sees. A block adds 2 for each row and element of a projection's weights. */
ATTUNE_API double attune_problem_flops(const attune_problem *problem);

/* The keys that some queries of a batch entry see by causality, window, global tokens and length. Masks and biases are
 * not looked at. Keys begin … end - 1; begin and end are 0 if there is no such key. */
typedef struct attune_sight {
    size_t struct_size;
    int64_t some_begin, some_end; /* what single queries see apart from global keys lies in here */
    int64_t all_begin, all_end;   /* all of the queries see these */
    int64_t global_end;           /* the keys before are seen as well, because they are global */
    int64_t keys;                 /* how many that are: from some_begin on, and global ones */
    double pairs;                 /* of a query and a key that it sees */
} attune_sight;

#define ATTUNE_SIGHT_INIT { .struct_size = sizeof(attune_sight) }

/* Of queries begin … end - 1 of an entry with seq_q queries and seq_kv keys that count, whatever lengths the problem
 * has. causal_offset: the entry's element of causal_offsets, or 0. Queries out of range, and lengths that are negative
 * or above 2^31 - 1, are ATTUNE_INVALID_ARGUMENT. */
ATTUNE_API attune_status attune_sight_of(const attune_problem *problem, int64_t seq_q, int64_t seq_kv,
                                         int64_t causal_offset, int64_t begin, int64_t end, attune_sight *sight);

/* ---- Context ---- */

/* Memory callbacks. `align` is a power of two; alloc returns NULL when it refuses. Must be thread-safe. */
typedef struct attune_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *pointer);
    void *user;
} attune_allocator;

typedef enum attune_log_level { ATTUNE_LOG_ERROR = 0, ATTUNE_LOG_WARNING = 1, ATTUNE_LOG_INFO = 2 } attune_log_level;
typedef void attune_log_fn(void *user, attune_log_level level, const char *message);

/* The work of a call: executes the tasks from `begin` to before `end` as worker number `worker`. */
typedef void attune_range_fn(void *argument, int64_t begin, int64_t end, uint32_t worker);

/* A task that attune gives to a host's pool: run it once, on any thread. */
typedef void attune_task_fn(void *argument);

/* The host's threads. Set exactly one of parallel_for and submit. Several threads may call these functions at once, and
 * they must not fork. The bits of a result are the same with every runner, and with none. */
typedef struct attune_runner {
    size_t struct_size;

    /* Runs fn(argument, begin, end, worker) over disjoint ranges that cover [0, n), in any order and on any threads,
     * and returns when all have returned. Equals the serial loop fn(argument, 0, n, 0). Ranges that run at the same
     * time must have different `worker` numbers, all below max_workers.
     *
     * attune detects a worker number out of range, a range that reaches beyond [0, n), and ranges that do not add up to
     * n: the call fails with ATTUNE_INVALID_ARGUMENT. It cannot detect two ranges with one worker number at the same
     * time, or a range that runs twice in place of another of the same size: the result is then wrong. */
    void (*parallel_for)(void *user, attune_range_fn *fn, void *argument, int64_t n);

    /* Queues task(argument), to run once, on any thread, at any time. Returns 0; any other value means that it will
     * never run. The caller of attune_run works itself. It waits only for tasks that have already begun.
     *
     * A task that begins after the call has returned finds nothing to do. It frees a few hundred bytes by the context's
     * allocator, which must still work; the context itself may be gone. A task that never runs leaks those bytes. A
     * task that runs twice is an error that attune cannot detect. */
    int (*submit)(void *user, attune_task_fn *task, void *argument);

    void *user;
    uint32_t max_workers; /* 1 to 65536. With submit: the most threads that work for one call, its caller included */
} attune_runner;

#define ATTUNE_RUNNER_INIT { .struct_size = sizeof(attune_runner) }

ATTUNE_API attune_status attune_runner_init(attune_runner *runner, size_t struct_size);

/* Kinds of events. */
typedef enum attune_event_kind {
    ATTUNE_EVENT_MISS = 0,      /* no cache has the kernel: it is compiled next; with ATTUNE_STRICT=1 the call fails */
    ATTUNE_EVENT_DISK_HIT,      /* the kernel came from the disk cache; `message` tells whether it lay in the base or in
                                 * the pack, or is one for another tuning class, which stands in after a MISS */
    ATTUNE_EVENT_COMPILE_BEGIN,
    ATTUNE_EVENT_COMPILE_END,   /* `status` is the outcome */
    ATTUNE_EVENT_EVICTED,       /* it left the memory cache to make room; users of the kernel keep it */
    ATTUNE_EVENT_DAMAGED,       /* an entry of the disk cache is damaged: `message` says how */
    ATTUNE_EVENT_SWAPPED,       /* a plan has a better kernel, and uses it from the next such call on */
    ATTUNE_EVENT_BUNDLE_HIT,    /* the kernel came from a registered bundle */
    ATTUNE_EVENT_TIER0_HIT,     /* tier 0 computes the problem: `message` says by what, and why nothing else does */
    ATTUNE_EVENT_COUNT
} attune_event_kind;

typedef struct attune_event {
    size_t struct_size;
    attune_event_kind kind;
    attune_status status; /* COMPILE_END: the outcome; otherwise ATTUNE_OK */
    const char *key;      /* the entry's name: 32 hex digits */
    const char *problem;  /* canonical text; "" with EVICTED and DAMAGED */
    const char *message;  /* "" if there is no message */
    double milliseconds;  /* COMPILE_END: of the compile; DISK_HIT: of reading and loading; otherwise 0 */
} attune_event;

/* Called while the event happens, on the thread where it happens, perhaps on several threads at once. attune holds no
 * lock. `event` and its strings are valid during the call only. The function may call attune, except
 * attune_context_destroy, and may fork. It must not compile the kernel that is being made (ATTUNE_INVALID_ARGUMENT), or
 * one that another thread is making, if that thread's callback waits for this one. Candidates of attune_tune cause no
 * events. */
typedef void attune_event_fn(void *user, const attune_event *event);

typedef enum attune_compile_mode {
    ATTUNE_COMPILE_DEFAULT = 0, /* as ATTUNE_COMPILE says, otherwise in process */
    ATTUNE_COMPILE_IN_PROCESS,  /* LLVM is loaded into this process on the first miss */
    ATTUNE_COMPILE_WORKER,      /* a worker process compiles; a crash of LLVM cannot reach this process */
    ATTUNE_COMPILE_NEVER        /* nothing is compiled: the virtual machine runs what no cache has */
} attune_compile_mode;

typedef struct attune_context_options {
    size_t struct_size;
    const attune_allocator *allocator;    /* NULL: malloc; copied */
    attune_log_fn *log;                   /* NULL: silent */
    void *log_user;
    const attune_runner *runner;          /* NULL: attune's own thread pool; copied */
    uint32_t max_workers;                 /* threads of that pool, the caller of a call included; 0: as many as the
                                           * process may use CPUs. Ignored with a runner, which has its own */
    const char *isa;                      /* NULL: ATTUNE_ISA, else the best of this CPU */
    const char *cache_dir;                /* NULL: ATTUNE_CACHE_DIR, XDG_CACHE_HOME, ~/.cache; "": no disk cache */
    uint64_t memory_cache_bytes;          /* code kept in memory; 0: 256 MiB */
    uint64_t disk_cache_bytes;            /* 0: 1 GiB */
    attune_compile_mode compile_mode;
    int allow_interpreter;                /* 1: where there is no machine code, the interpreter runs kernels, a
                                           * hundred times slower, and not the virtual machine */
    const char *target;                   /* NULL, or an ISA that this CPU may lack, e.g. "aarch64": for emitting code
                                           * and interpreting; attune_compile then returns ATTUNE_UNSUPPORTED */
    const char *cache_base;               /* a second, read-only directory of the disk cache; NULL: ATTUNE_CACHE_BASE,
                                           * else none; "": none */
    attune_event_fn *event;               /* NULL: no events */
    void *event_user;
    const char *machine;                  /* the tuning class that kernels are made for, e.g. "zen4"; or numbers that
                                           * describe a machine, "fma=2,width=64,l2=2M", after a class or alone; NULL:
                                           * ATTUNE_MACHINE, else by the CPU's family and model. See
                                           * attune_machine_info */
    uint32_t compile_timeout_ms;          /* with ATTUNE_COMPILE_WORKER: a worker that needs more milliseconds for a
                                           * kernel is killed, and the call returns ATTUNE_CODEGEN_FAILED. 0:
                                           * ATTUNE_COMPILE_TIMEOUT_MS, else 30,000. Waiting for a free worker does
                                           * not count. A worker that does not even start in this time is
                                           * ATTUNE_CODEGEN_MISSING */
    uint32_t compile_processes;           /* the most worker processes at a time, at most 64; other compiles wait for
                                           * their turn: where n compiles before them hang, up to n times the timeout
                                           * divided by the processes. 0: as many as the process may use CPUs, at
                                           * most 4 */
    const char *cache_pack;               /* a signed file of many entries, which is read after the base; NULL:
                                           * ATTUNE_CACHE_PACK, else none; "": none. See attune_cache_pack */
    const char *cache_keys;               /* the directory of public keys (*.pub of minisign) that may have signed a
                                           * pack; it and they must belong to root or this user. NULL:
                                           * ATTUNE_CACHE_KEYS, else /etc/attune/keys */
    uint32_t machine_code_only;           /* 1: the virtual machine does not run what cannot be compiled. attune_compile
                                           * then returns ATTUNE_CODEGEN_MISSING or ATTUNE_NO_EXEC_MEMORY. For hosts
                                           * that have kernels of their own. It still computes for a plan with a
                                           * deadline until the plan's kernel is there */
    uint32_t reserved;                    /* 0 */
} attune_context_options;

#define ATTUNE_CONTEXT_OPTIONS_INIT { .struct_size = sizeof(attune_context_options) }

ATTUNE_API attune_status attune_context_options_init(attune_context_options *options, size_t struct_size);

typedef struct attune_context attune_context;

/* Creates a context; options may be NULL. Any number of threads may use a context at once.
 *
 * Threads: attune's own pool starts threads when a call can use them. They take none of the host's signals, sleep when
 * there is nothing to do (after spinning for at most 50 microseconds), and end with the context. Calls that are too
 * short to gain from more threads stay on the caller's thread: always if they take a few microseconds; under about 200
 * microseconds unless another call follows at once. After other processes have taken a helper's CPU in the middle of
 * its work, all calls stay on their caller's thread for a while.
 *
 * fork(): a child may use the context and its kernels. Calls that other threads had begun do not exist there, and the
 * pool is made anew. Other threads may be anywhere in attune when one of them forks. fork() waits for
 * a compile in this process to end (usually some milliseconds) and for tuning.db to be free. With ATTUNE_COMPILE_WORKER
 * it does not wait for compiles. exit() waits for a compile, too, and compiling fails from then on. */
ATTUNE_API attune_status attune_context_create(const attune_context_options *options, attune_context **context);

/* Destroys a context. Its kernels must have been released, and no call may be under way. NULL is fine. */
ATTUNE_API void attune_context_destroy(attune_context *context);

/* ---- Kernels ---- */

typedef struct attune_kernel attune_kernel;

/* How a kernel computes; see "Schedules" below. */
typedef struct attune_schedule attune_schedule;

/* Gives a kernel for the problem: from memory, else from disk, else newly compiled. With schedule NULL attune chooses
 * one, or takes the kernel that the cache holds. An explicit schedule is part of the cache key.
 *
 * Problems share a kernel if they differ only in batch, in the number of heads at equal group size, or in strides other
 * than the innermost: those are arguments of the kernel. A block's number of heads is compiled in, and so is the batch
 * of a block of few tokens (batch * seq_q at most 32), whose products are tiled for it.
 *
 * Threads that ask for the same new kernel at once compile it once. The caller owns one reference and gives it back
 * with attune_kernel_release. The calling thread needs 64 KiB of stack. pthread_cancel takes effect after the
 * compile. */
ATTUNE_API attune_status attune_compile(attune_context *context, const attune_problem *problem,
                                        const attune_schedule *schedule, attune_kernel **kernel);

/* Gives a reference back; no call under this reference may be running. NULL is fine. Thread-safe. */
ATTUNE_API void attune_kernel_release(attune_kernel *kernel);

/* Which keys mask_mod lets which queries see, tile by tile; see attune_block_mask_create. */
typedef struct attune_block_mask attune_block_mask;

/* A size in attune_arguments, from seq_q to rotary_positions, that is not set. 0 is a size: empty. */
#define ATTUNE_NOT_SET (-1)

/* Pointers and run-time sizes of one call. Fill it with attune_arguments_init. Then set the pointers, and the sizes
 * that the problem leaves open: a call names and refuses such a size while it is ATTUNE_NOT_SET. A size that the
 * problem fixes must have that value or be ATTUNE_NOT_SET. Fields that the problem does not use are ignored. */
typedef struct attune_arguments {
    size_t struct_size;
    const void *q;
    void *k, *v;                 /* written to only if the problem has seq_new */
    float *k_scale, *v_scale;    /* written to only if the problem has seq_new and scales of tokens or groups */
    void *out;
    void *lse;                   /* read by op = weights */
    int64_t batch, num_heads, num_kv_heads; /* num_heads / num_kv_heads must be as compiled; in a block, both */
    int64_t q_strides[4], k_strides[4], v_strides[4], out_strides[4], lse_strides[3]; /* innermost as compiled */
    int64_t attn_mask_strides[4], attn_bias_strides[4], k_new_strides[4], v_new_strides[4], weights_strides[4];
    int64_t k_scale_strides[3], v_scale_strides[3];
    int64_t seq_q, seq_kv;       /* if dynamic: at most their bounds. If cu_seqlens, or kv_lens with pages, give the
                                  * lengths: an upper bound of them; ATTUNE_NOT_SET is the longest, provided no mask
                                  * and no weights have such a dim. Keys projected from x: seq_kv need not be set */
    int64_t seq_new, num_rows;   /* if dynamic. Ragged, or keys of x: as many new keys as there are queries */
    int64_t total_q, total_kv;   /* ragged: tokens in q and in k, v; at least the last of cu_seqlens */
    int64_t num_pages, max_pages;/* paged: pages in k and v, columns of block_table */
    int64_t mask_seq_kv, bias_seq_kv; /* columns of attn_mask, attn_bias. With short_masks and ATTUNE_DYNAMIC as last
                                       * dim: from 0 to seq_kv; otherwise those of the problem. ATTUNE_NOT_SET:
                                       * seq_kv */
    int64_t rotary_positions;    /* rows of cos and sin */
    int64_t rotary_batch_stride; /* elements between two entries of cos and sin; 0: the same for all */
    const void *attn_mask, *attn_bias;
    const float *alibi_slopes, *sinks;
    const int32_t *kv_lens, *causal_offsets, *cu_seqlens_q, *cu_seqlens_kv, *block_table;
    const void *k_new, *v_new, *cos, *sin;
    const int32_t *position_ids, *row_ids;
    void *weights;
    const void *parts, *parts_lse;
    const void *x, *x_kv, *x_v;  /* the block: is_cross, v_embed_dim */
    int64_t x_strides[3], x_kv_strides[3], x_v_strides[3];
    const void *packed_weights;
    const void *keys_low, *values_low;
    void *workspace;             /* 64-byte aligned, or NULL: attune allocates it for the call */
    size_t workspace_bytes;
    double softmax_scale;        /* with has_softmax_scale: within +-1e38; ATTUNE_DEFAULT_SCALE, as initialised, is
                                  * 1 / sqrt(head_dim) */
    const void *q_norm, *k_norm; /* with qk_norm_eps: the factors themselves; where a model stores w and means 1 + w, as
                                  * Gemma does, add 1 */
    /* Those that functions read, in the order of attune_problem.tensors; the innermost stride is 1. */
    const void *tensors[ATTUNE_MAX_USER_TENSORS];
    int64_t tensor_strides[ATTUNE_MAX_USER_TENSORS][4];
    const attune_block_mask *block_mask; /* NULL, or what attune_block_mask_create made of mask_mod */
    int64_t k_group_strides[4], v_group_strides[4]; /* of k_scale and v_scale, if these are scales of groups */
} attune_arguments;

/* Sets sizes and strides to those of `problem`, and pointers to NULL. Sizes that the problem leaves open or does not
 * have become ATTUNE_NOT_SET. Writes struct_size bytes. */
ATTUNE_API attune_status attune_arguments_init_sized(attune_arguments *arguments, size_t struct_size,
                                                     const attune_problem *problem);

/* The same for the struct of this header. */
static inline attune_status attune_arguments_init(attune_arguments *arguments, const attune_problem *problem) {
    return attune_arguments_init_sized(arguments, sizeof *arguments, problem);
}

/* One tensor of a call, which attune_run reads or writes. */
typedef struct attune_tensor {
    const char *name;            /* of its field in attune_arguments; static storage. Of a user's tensor: its name, in
                                  * the caller's problem */
    attune_dtype dtype;
    int rank;                    /* at most 4 */
    int64_t dims[4], strides[4]; /* as used: contiguous strides filled in, 0 where broadcast */
    int is_input, is_output;
    size_t pointer_offset;       /* of the pointer in attune_arguments, in bytes */
} attune_tensor;

/* Lists the tensors of a problem in the order of the kernel's parameters. Writes at most `capacity` of them, and to
 * *count their number, which may be larger. tensors may be NULL if capacity is 0. The sizes are those of `arguments`;
 * its pointers are not read. With arguments NULL, dims that the problem leaves open are -1, and the strides of such a
 * tensor are the problem's, zeros meaning contiguous at run time. A failure sets *count to 0. The layout of
 * attune_tensor does not change within a major version: it comes in arrays and so has no struct_size. */
ATTUNE_API attune_status attune_tensors(const attune_problem *problem, const attune_arguments *arguments,
                                        attune_tensor *tensors, size_t capacity, size_t *count);

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

/* Makes a DLPack tensor the argument `name` (a name that attune_tensors gives). Sets its pointer, its strides, and
 * those of its dims that are sizes of the call and ATTUNE_NOT_SET so far. Copies and keeps nothing: the memory must
 * stay until the call is done. The caller knows whether it may be written to.
 *
 * The tensor must be in CPU memory. Its dtype must be the argument's (for bool also unsigned bytes). Its dims must be
 * those of attune_tensors, in number and order: permute a tensor [batch, seq, heads, dim] first, and view one of three
 * dimensions as four. A dim that differs from the compiled or set size is refused with both numbers. Bind the used part
 * of a cache that has room for more keys.
 *
 * batch, num_heads and num_kv_heads are never filled in, because attune_arguments_init has set them. If the call has
 * others, set them first. Arguments without strides in attune_arguments (cu_seqlens, kv_lens, block_table …) must be
 * contiguous. cos and sin are [batch or 1, positions, half], each entry contiguous. A tensor that repeats one element
 * along all dims is refused, because strides of 0 mean contiguous. A failure leaves *arguments as it was. */
ATTUNE_API attune_status attune_bind_dlpack(attune_arguments *arguments, const attune_kernel *kernel, const char *name,
                                            const attune_dltensor *tensor);

/* Bytes of workspace that attune_run needs for these arguments; their pointers are not read. */
ATTUNE_API attune_status attune_workspace_size(const attune_context *context, const attune_kernel *kernel,
                                               const attune_arguments *arguments, size_t *bytes);

/* Computes the outputs. Inputs are never written. Outputs must not overlap inputs or each other. The check takes the
 * whole range from a tensor's first to its last element, except that tensors may interleave as columns of one packed
 * buffer (for example rows of q, k, v and out one after the other). The bits of the result do not depend on the number
 * of threads. Thread-safe: a kernel may run in many threads at once, each with its own workspace. A call of a few
 * microseconds stays on the caller's thread. */
ATTUNE_API attune_status attune_run(attune_context *context, const attune_kernel *kernel,
                                    const attune_arguments *arguments);

/* ---- Block masks ---- */

/* A call with a mask_mod first makes a table of which keys some rows of a tile see, and which all of them do (where
 * there are many queries). This makes the table once, for all calls that have it as arguments.block_mask: of one layer
 * or of all, as long as mask_mod gives the same. Outputs have the same bits with and without it.
 *
 * `arguments` are those of such a call. They are checked as attune_run does; only the tensors that mask_mod reads, and
 * lengths, are read, and nothing is written. The table is [entries, KV heads, tiles of rows, tiles of keys] of 20 bytes
 * each, with one entry and one head unless mask_mod depends on them; tiles are those of the kernel's schedule. A kernel
 * that needs no table (few queries or keys, a mask_mod that is causality or a window, the interpreter) gives a mask
 * without one, which is fine as well.
 *
 * A call refuses a mask that was made for another mask_mod, other lengths, another batch or number of heads that
 * mask_mod depends on, or by a kernel with another schedule. It cannot know whether the tensors of mask_mod still hold
 * what they did: make a new mask if they changed, or if lengths in cu_seqlens and kv_lens did and mask_mod has b, seq_q
 * or seq_kv. A plan leaves it aside, as it may change its kernels.
 *
 * The mask is the caller's: it must outlive the calls that have it, and is ended by attune_block_mask_destroy, also
 * after kernel and context have ended, provided that the context's allocator lives. Any number of threads may run calls
 * with it at once. A failure sets *mask to NULL. */
ATTUNE_API attune_status attune_block_mask_create(attune_context *context, const attune_kernel *kernel,
                                                  const attune_arguments *arguments, attune_block_mask **mask);

/* NULL is fine. */
ATTUNE_API void attune_block_mask_destroy(attune_block_mask *mask);

/* ---- Threads and cancelling, call by call ---- */

/* Options of one call. */
typedef struct attune_run_options {
    size_t struct_size;
    const attune_runner *runner; /* NULL: the context's, or its pool */
    uint32_t max_threads;        /* of attune's pool or of a runner with submit, the caller included; 0: all. A number
                                  * above theirs means all. Must be 0 with parallel_for, which decides itself */
    const int *cancel;           /* NULL, or a flag that any thread may set (atomically, to a value other than 0) while
                                  * the call runs. attune looks at it before each task, finishes the tasks that have
                                  * begun, and returns ATTUNE_CANCELLED. A call without tasks left succeeds. The
                                  * interpreter looks once, at the beginning */
} attune_run_options;

#define ATTUNE_RUN_OPTIONS_INIT { .struct_size = sizeof(attune_run_options) }

ATTUNE_API attune_status attune_run_options_init(attune_run_options *options, size_t struct_size);

/* attune_run with options, which may be NULL. */
ATTUNE_API attune_status attune_run_with(attune_context *context, const attune_kernel *kernel,
                                         const attune_arguments *arguments, const attune_run_options *options);

/* Bytes of workspace that attune_run_with needs; they depend on the number of workers that may take part. */
ATTUNE_API attune_status attune_workspace_size_with(const attune_context *context, const attune_kernel *kernel,
                                                    const attune_arguments *arguments,
                                                    const attune_run_options *options, size_t *bytes);

/* A call in parts, for engines whose threads already run and all execute the same program. One thread begins the call.
 * Then any threads execute ranges of the tasks of phase 0; when all of these are done, those of phase 1; and so on.
 * Equals attune_run:
 *
 *     attune_call_begin(context, kernel, &arguments, num_threads, &call);
 *     for (phase = 0; phase < attune_call_num_phases(call); phase++) {
 *         [all threads] attune_call_execute(call, phase, begin, end, thread);  ranges that cover 0 to num_tasks
 *         [barrier]
 *     }
 *     attune_call_end(call); */
typedef struct attune_call attune_call;

/* Checks the arguments as attune_run does, and prepares the call. Context, kernel and the memory that the arguments
 * point to must stay until the call has ended; the struct itself need not. `max_workers`, 1 to 65536, is the number of
 * worker numbers. A runner with as many workers needs the same workspace (attune_workspace_size_with). A failure sets
 * *call to NULL. */
ATTUNE_API attune_status attune_call_begin(attune_context *context, const attune_kernel *kernel,
                                           const attune_arguments *arguments, uint32_t max_workers, attune_call **call);

/* Number of phases; 0 if there is nothing to compute. */
ATTUNE_API uint32_t attune_call_num_phases(const attune_call *call);

/* Number of tasks of a phase; may be 0, and is 0 for a phase that does not exist. Tasks of one phase take about the
 * same time, unless rows see different numbers of keys. */
ATTUNE_API int64_t attune_call_num_tasks(const attune_call *call, uint32_t phase);

/* Executes the tasks from `begin` to before `end` of one phase, on the calling thread. Thread-safe with different
 * worker numbers. Executes nothing and returns ATTUNE_INVALID_ARGUMENT for a phase, range or worker that does not
 * exist, and for a phase before all tasks of the previous one are done. */
ATTUNE_API attune_status attune_call_execute(attune_call *call, uint32_t phase, int64_t begin, int64_t end,
                                             uint32_t worker);

/* Frees the call; no thread may be executing it. ATTUNE_INVALID_ARGUMENT means that the tasks of some phase were not
 * executed as often as there are tasks: the outputs are then wrong. NULL is fine. */
ATTUNE_API attune_status attune_call_end(attune_call *call);

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
 * of inputs differ (qkv_bias also goes with separate weights). Writes struct_size bytes. */
ATTUNE_API attune_status attune_mha_weights_init_sized(const attune_problem *problem, attune_weight_layout layout,
                                                       attune_mha_weights *weights, size_t struct_size);

/* The same for the struct of this header. */
static inline attune_status attune_mha_weights_init(const attune_problem *problem, attune_weight_layout layout,
                                                    attune_mha_weights *weights) {
    return attune_mha_weights_init_sized(problem, layout, weights, sizeof *weights);
}

/* Bytes of the blob that attune_pack_weights makes. It depends on embed_dim, kv_embed_dim, v_embed_dim, out_dim,
 * num_heads, num_kv_heads, head_dim, head_dim_v, w_dtype, w_group and on which projections there are. It does not
 * depend on lengths, masks, schedule or instruction set. So prefill and decoding share a blob, and it may be saved and
 * loaded on another machine of the same byte order. A problem with kv_projected also takes the blob of one without, if
 * the projections of queries and output are the same. */
ATTUNE_API attune_status attune_packed_weights_size(const attune_problem *problem, size_t *bytes);

/* With w_dtype = i8 or i4 the blob holds codes, and products are computed with code * scale in the place of a weight:
 * the bits are those of w_dtype = f32 (f64, if that is the precision) with these products as weights. The inputs of an
 * output are cut into groups of w_group, the last of which may be shorter. Each group has a scale of f16, the nearest
 * one to
 *     i8   largest |weight| / 127;   codes from -127 to 127
 *     i4   weight / -8 for the first weight of the largest |weight|;   codes from -8 to 7
 * and a code is weight / scale, rounded to the nearest integer (even ones in the middle). All of this is computed in
 * f32, and weights of f64 are rounded to it first. A group whose scale is rounded to 0 has codes of 0. A weight that
 * is NaN or infinite, or so large that its scale is no f16, is ATTUNE_INVALID_ARGUMENT: the message names it, and
 * nothing is written. Biases become f32.
 *
 * A matrix may also be given as codes, of the dtype w_dtype, as ggml stores rows of q8_0 (i8) and q4_0 (i4). Then the
 * codes and scales are copied. It needs w_group = 32, ATTUNE_OUT_IN and a multiple of 32 inputs. Its dims are those of
 * the matrix. An output takes for each 32 inputs a scale of f16, and after it
 *     i8   32 codes, from -128 to 127: 34 bytes in all
 *     i4   16 bytes. Byte i has input i in its lower half and input i + 16 in its upper one, as code + 8: 18 bytes
 * A scale that is NaN or infinite is ATTUNE_INVALID_ARGUMENT: the message names it, and nothing is written. */

/* Copies weights into the order in which kernels read them. `packed` is 64-byte aligned, has `bytes` bytes, and
 * overlaps no weight. It becomes a blob, with a header that names the layout and holds a checksum; bytes beyond the
 * blob are left alone. A weight that is missing, not expected, or of the wrong shape or dtype is
 * ATTUNE_INVALID_ARGUMENT: the message names it, and nothing is written. Values are not inspected: a NaN takes part in
 * the computation. */
ATTUNE_API attune_status attune_pack_weights(const attune_problem *problem, const attune_mha_weights *weights,
                                             void *packed, size_t bytes);

/* Checks whether bytes that were read back (64-byte aligned) begin with an undamaged blob for this problem. If not, the
 * result is ATTUNE_BAD_FILE, and the message says why. Bytes after the blob are ignored. attune_run checks only the
 * header. */
ATTUNE_API attune_status attune_packed_weights_check(const attune_problem *problem, const void *packed, size_t bytes);

/* A block with its weights: one kernel and one blob. Destroy it before its context. */
typedef struct attune_mha attune_mha;

/* Compiles the problem (which must have embed_dim) as attune_compile does, and packs the weights, which are not needed
 * afterwards. A failure sets *mha to NULL. Thread-safe. */
ATTUNE_API attune_status attune_mha_create(attune_context *context, const attune_problem *problem,
                                           const attune_schedule *schedule, const attune_mha_weights *weights,
                                           attune_mha **mha);

/* The same with a blob. It is checked as attune_packed_weights_check does (with `bytes` 0 only the header), not copied,
 * and must outlive the block. So several blocks (prefill and decoding) share one blob. */
ATTUNE_API attune_status attune_mha_create_packed(attune_context *context, const attune_problem *problem,
                                                  const attune_schedule *schedule, const void *packed, size_t bytes,
                                                  attune_mha **mha);

/* attune_run and attune_run_with, with arguments->packed_weights set to the block's own. Thread-safe as those are. For
 * a call in parts use attune_call_begin with attune_mha_kernel and attune_mha_packed_weights. */
ATTUNE_API attune_status attune_mha_run(attune_context *context, const attune_mha *mha,
                                        const attune_arguments *arguments);
ATTUNE_API attune_status attune_mha_run_with(attune_context *context, const attune_mha *mha,
                                             const attune_arguments *arguments, const attune_run_options *options);

/* The block's kernel, which must not be released, and its blob. Both live as long as the block (or the blob's owner).
 * *bytes is the size of the whole blob, ready to be saved; `bytes` may be NULL. */
ATTUNE_API const attune_kernel *attune_mha_kernel(const attune_mha *mha);
ATTUNE_API const void *attune_mha_packed_weights(const attune_mha *mha, size_t *bytes);

/* Destroys a block, which must not be running; `context` is the one that made it. NULL is fine. */
ATTUNE_API void attune_mha_destroy(attune_context *context, attune_mha *mha);

/* ---- Plans ---- */

/* One handle for calls whose sizes vary. A kernel is made for many queries or for few: its strategy is chosen when it
 * is compiled. A plan has kernels for both, and runs each call by the one that suits it:
 *
 *     attune_problem_parse("num_heads=9,num_kv_heads=3,seq_q=dynamic,seq_kv=dynamic,head_dim=64,is_causal=1,"
 *                          "causal_align=bottom_right", &problem);
 *     attune_plan_create(context, &problem, NULL, &plan);
 *     attune_plan_arguments_init(plan, &arguments);
 *     arguments.seq_q = 1; arguments.seq_kv = 700; arguments.q = q; ...
 *     attune_plan_run(context, plan, &arguments, NULL);
 *
 * Few rows: calls of one query, and of up to attune_plan_info.few_rows queries, have kernels of their own. A kernel is
 * compiled when the first call needs it.
 *
 * A ragged batch is cut into runs of neighbouring entries of one kind, and each run is computed by its kernel. Where
 * entries of both kinds alternate so often that the runs would be short, one kernel computes the whole batch. That of a
 * ragged block is never cut: its projections gain more by staying together.
 *
 * Lengths that come back: after `repeats` calls in a row with the same lengths the plan compiles a kernel for them,
 * before the last of these calls returns, and uses it from the next call on. Only calls without such a kernel count.
 * With `background` no call waits for that: a thread of low priority (niceness 19) compiles, one kernel at a time. It
 * also compiles the kernels for few queries, while the one for many, which takes any number, computes their calls. So
 * only the first kernel of a plan is waited for, and not even that after attune_plan_prepare. What waits for a compile
 * of that thread that is under way: attune_plan_destroy of its plan, attune_context_destroy, calls of other plans that
 * need that kernel, and, as for all compiles in this process, fork() and exit(). With `least_gain` lengths get a kernel
 * only if the model of schedules expects so much of it.
 *
 * With `has_deadline` no call waits for a compile longer than deadline_us, not even the first. A kernel that is there
 * at once computes: of a bundle, the cache, another tuning class, or tier 0, which has one for each usual problem. The
 * thread of `background` compiles the plan's own kernels, and after them those for lengths, by default only if 10
 * percent are to be gained (least_gain 0). A compile that fails is told by ATTUNE_EVENT_COMPILE_END and not tried
 * again. Bits may change with each kernel unless the problem is reproducible. With ATTUNE_STRICT=1 a missing kernel
 * fails the call. Plans without has_deadline take the one of the environment variable ATTUNE_DEADLINE_US, if it is
 * set.
 *
 * The first max_specialised lengths get one and keep it, so a plan compiles at most max_specialised + 3 kernels in its
 * life. Calls of few queries with another number of keys are not specialised, because decoding has new lengths at
 * every step. Nor are ragged batches, calls in which a dynamic length is ATTUNE_NOT_SET or 0, and problems with
 * short_masks. The batch of a block counts as a length while the block has few tokens, because its kernel is for so
 * many. If such a kernel cannot be had (ATTUNE_STRICT=1, for example), the call succeeds all the same.
 *
 * With reproducible=1 the bits of a result do not depend on which kernel ran. Otherwise they may, as they may for
 * attune_compile of different problems. */
typedef struct attune_plan attune_plan;

typedef struct attune_plan_options {
    size_t struct_size;
    uint32_t max_specialised; /* kernels for lengths that come back: 0 (none) to 8 */
    uint32_t repeats;         /* calls in a row with the same lengths before such a kernel is compiled: 1 to 1000 */
    uint32_t background;      /* 1: calls do not wait for kernels that another one can stand in for */
    uint32_t least_gain;      /* percent by which a kernel for lengths is expected to be faster: 0 to 1000 */
    uint32_t has_deadline;    /* 1: no call waits longer for a compile than deadline_us; docs/plans.md */
    uint32_t deadline_us;     /* microseconds, up to 60,000,000; 0: never */
} attune_plan_options;

#define ATTUNE_PLAN_OPTIONS_INIT { .struct_size = sizeof(attune_plan_options), .max_specialised = 8, .repeats = 3 }

ATTUNE_API attune_status attune_plan_options_init(attune_plan_options *options, size_t struct_size);

/* Makes a plan for the problem, whose seq_q, seq_kv, seq_new and num_rows may be ATTUNE_DYNAMIC. Compiles nothing.
 * options may be NULL. A failure sets *plan to NULL. A plan may also be that of a block: the caller then sets
 * arguments->packed_weights (attune_pack_weights with the same problem). */
ATTUNE_API attune_status attune_plan_create(attune_context *context, const attune_problem *problem,
                                            const attune_plan_options *options, attune_plan **plan);

/* Makes the kernels for few and for many queries now, for a program that must not wait for them later. */
ATTUNE_API attune_status attune_plan_prepare(attune_context *context, attune_plan *plan);

/* attune_arguments_init for the plan's problem, without the time to check the problem again. */
ATTUNE_API attune_status attune_plan_arguments_init_sized(const attune_plan *plan, attune_arguments *arguments,
                                                          size_t struct_size);
static inline attune_status attune_plan_arguments_init(const attune_plan *plan, attune_arguments *arguments) {
    return attune_plan_arguments_init_sized(plan, arguments, sizeof *arguments);
}

/* attune_bind_dlpack for a plan. */
ATTUNE_API attune_status attune_plan_bind(const attune_plan *plan, attune_arguments *arguments, const char *name,
                                          const attune_dltensor *tensor);

/* Sets a size of the call by the name of its member in attune_arguments: batch, num_heads, num_kv_heads, seq_q, seq_kv,
 * seq_new, num_rows, total_q, total_kv, num_pages, max_pages, mask_seq_kv, bias_seq_kv or rotary_positions. The call
 * checks the value. ATTUNE_INVALID_ARGUMENT: there is no such size. */
ATTUNE_API attune_status attune_plan_set_size(const attune_plan *plan, attune_arguments *arguments, const char *name,
                                              int64_t value);

/* Bytes of workspace that attune_plan_run needs for these arguments with the kernels that the plan has now; compiles
 * those that are missing. Pointers are not read. Of a ragged batch: enough for each way to cut it. A kernel that is
 * specialised later and needs more is not used in that workspace. */
ATTUNE_API attune_status attune_plan_workspace_size(attune_context *context, attune_plan *plan,
                                                    const attune_arguments *arguments,
                                                    const attune_run_options *options, size_t *bytes);

/* Sets a number of the call by name: softmax_scale. ATTUNE_INVALID_ARGUMENT: there is no such number, or the problem
 * does not leave it to the call. */
ATTUNE_API attune_status attune_plan_set_number(const attune_plan *plan, attune_arguments *arguments, const char *name,
                                                double value);

/* Computes the outputs as attune_run_with does; options may be NULL. `context` is the one that made the plan.
 * Thread-safe: any number of threads may run a plan at once, and no call waits for another one, unless both need a
 * kernel that is being compiled. Of a ragged batch that is cut, everything is checked before anything is computed. */
ATTUNE_API attune_status attune_plan_run(attune_context *context, attune_plan *plan, const attune_arguments *arguments,
                                         const attune_run_options *options);

typedef struct attune_plan_info {
    size_t struct_size;
    int64_t few_rows;            /* calls with up to so many queries are of the few kind; 0: there is one kind */
    uint32_t few_kernels;        /* compiled (or found in a cache) so far: 0 to 2 */
    uint32_t many_kernels;       /* 0 or 1 */
    uint32_t specialised_kernels;/* 0 to max_specialised */
    uint32_t reserved;
    uint64_t few_calls, many_calls, specialised_calls; /* by the kind of kernel; each run of a cut batch counts */
    uint64_t cut_calls;          /* ragged batches that were cut */
    uint64_t stopgap_calls;      /* among few and many: with a deadline, those by a kernel that stands in */
} attune_plan_info;

/* What the plan has done so far. Thread-safe. */
ATTUNE_API attune_status attune_plan_get_info(const attune_plan *plan, attune_plan_info *info);

/* Destroys a plan, which must not be running, before its context. NULL is fine. */
ATTUNE_API void attune_plan_destroy(attune_context *context, attune_plan *plan);

/* ---- Schedules ---- */

typedef enum attune_strategy { ATTUNE_Q_LANES = 0, ATTUNE_D_LANES, ATTUNE_STRATEGY_COUNT } attune_strategy;

/* Choices. Those of a schedule that attune has chosen, or printed, are settled. AUTO, 0, leaves one to attune: it takes
 * what it would choose for the schedule's numbers. */

/* The lanes of the values' product in q_lanes: query rows, one column of V after the other; or the columns of V as they
 * lie, one query row after the other, which is for problems that hide no key. */
typedef enum attune_value_by { ATTUNE_VALUE_AUTO = 0, ATTUNE_VALUE_BY_COLUMNS, ATTUNE_VALUE_BY_ROWS } attune_value_by;

/* What of K and V a task of q_lanes copies, tile by tile, in the type of the arithmetic: nothing, what has another
 * type, or all. Values by rows read V as it lies, unless products are of pairs of bf16: V is put in pairs by each task
 * (converted); or once, in the workspace, for all tasks of a KV head. */
typedef enum attune_kv_copy {
    ATTUNE_COPY_AUTO = 0,
    ATTUNE_COPY_NONE,
    ATTUNE_COPY_CONVERTED,
    ATTUNE_COPY_ALL,
    ATTUNE_COPY_ONCE
} attune_kv_copy;

/* What a task of q_lanes prefetches while it computes: nothing; or the next head, of which a batch of short sequences
 * finds little in a near cache. */
typedef enum attune_task_prefetch {
    ATTUNE_PREFETCH_AUTO = 0,
    ATTUNE_PREFETCH_NONE,
    ATTUNE_PREFETCH_HEAD
} attune_task_prefetch;

/* The instructions of a block's products: those on vectors; or on hardware tiles (AMX), for all products whose depth
 * has whole ones. */
typedef enum attune_gemm_by { ATTUNE_GEMM_AUTO = 0, ATTUNE_GEMM_BY_VECTORS, ATTUNE_GEMM_BY_TILES } attune_gemm_by;

/* Columns in a task of a block's products: a column group of the packed weights; or the fewest that are whole heads and
 * whole register tiles, for more tasks. */
typedef enum attune_gemm_groups {
    ATTUNE_GROUPS_AUTO = 0,
    ATTUNE_GROUPS_WHOLE,
    ATTUNE_GROUPS_NARROW
} attune_gemm_groups;

/* Rows that fill no register tile of a block's products: the last row is computed several times to fill it; or they get
 * a smaller register tile, if their number is known and that saves a fiftieth of the rows. */
typedef enum attune_gemm_rest { ATTUNE_REST_AUTO = 0, ATTUNE_REST_FILLED, ATTUNE_REST_OWN } attune_gemm_rest;

/* How a kernel computes. Programs read and write it as text (attune_schedule_parse, attune_schedule_print), copy it and
 * pass it on. Its size never changes, but the fields may change with every version: today they are what the autotuner
 * searches. docs/tuning.md has them in a table.
 *
 * Strategy q_lanes (many query rows): vector lanes run along query rows. Strategy d_lanes (few query rows): lanes run
 * along head_dim, and the keys are cut into tasks of kv_chunk, whose results are merged in order. The query rows of a
 * KV head are those of all heads of its group. Fields of the other strategy are 0. attune_schedule_check says which
 * values are legal. A register tile is what a product has in registers at a time; a turn is one of its inner loop. */
struct attune_schedule {
    size_t struct_size;
    attune_strategy strategy;
    int32_t lanes;                /* elements of a vector */
    /* The scores, Q.K^T. */
    int32_t score_rows;           /* d_lanes: query rows in a register tile */
    int32_t score_row_vectors;    /* q_lanes: vectors of query rows in it */
    int32_t score_keys;           /* keys in it */
    int32_t score_columns;        /* q_lanes: elements of head_dim in a turn, divides head_dim */
    int32_t score_column_vectors; /* d_lanes: vectors of head_dim in a turn */
    int32_t score_streams;        /* d_lanes: places of a tile that keys are read from at once, 1 or 4; 0: auto */
    /* The values, P.V. */
    attune_value_by value_by;     /* q_lanes */
    int32_t value_rows;           /* d_lanes: query rows in a register tile */
    int32_t value_row_vectors;    /* q_lanes: vectors of query rows in it, divides score_row_vectors */
    int32_t value_columns;        /* q_lanes: columns of V in it. By rows it has as many sums, value_row_vectors *
                                   * value_columns, of query rows and vectors of columns */
    int32_t value_column_vectors; /* d_lanes: vectors of columns of V in a turn */
    int32_t value_keys;           /* keys, or pairs of keys, in a turn; d_lanes: in a register tile */
    int32_t value_streams;        /* d_lanes: places that they come from, divides value_keys; 0: auto */
    /* Tasks, and K and V. */
    int32_t task_row_vectors;     /* q_lanes: vectors of query rows in a task, a multiple of score_row_vectors */
    int32_t kv_tile;              /* keys between two rescalings, a multiple of score_keys */
    int32_t kv_chunk;             /* d_lanes: keys in a task, a multiple of kv_tile */
    attune_kv_copy kv_copy;       /* q_lanes */
    attune_task_prefetch task_prefetch; /* q_lanes */
    int32_t kv_prefetch;          /* d_lanes: bytes of a stream that are prefetched ahead; -1: none; 0: auto */
    /* A block's projections; all 0 where there is no embed_dim. */
    int32_t gemm_rows;            /* rows in a register tile */
    int32_t gemm_column_vectors;  /* vectors of columns in it: gemm_column_vectors * lanes divides 64 */
    int32_t gemm_task_rows;       /* rows in a task, at most; a multiple of gemm_rows */
    int32_t gemm_depth;           /* columns of the left factor after which a register tile is stored; 0: all */
    attune_gemm_by gemm_by;
    int32_t gemm_prefetch;        /* turns by which weights are prefetched ahead; -1: none; 0: auto */
    attune_gemm_groups gemm_groups;
    attune_gemm_rest gemm_rest;
    int32_t reserved[33];         /* 0 */
};

#define ATTUNE_SCHEDULE_INIT { .struct_size = sizeof(attune_schedule) }

ATTUNE_API attune_status attune_schedule_init(attune_schedule *schedule, size_t struct_size);

/* Chooses a good schedule without measuring, for the context's ISA. */
ATTUNE_API attune_status attune_schedule_choose(const attune_context *context, const attune_problem *problem,
                                                attune_schedule *schedule);

/* Checks whether a schedule is legal for the problem and the context's ISA; the message says why not. */
ATTUNE_API attune_status attune_schedule_check(const attune_context *context, const attune_problem *problem,
                                               const attune_schedule *schedule);

/* Text form, as for problems: "strategy=q_lanes,lanes=8,score_keys=6,…". Parsing keeps numbers that are not named.
 * Choices that are not named become auto, since good ones depend on the numbers, and fields of the other strategy
 * become 0. A struct that cannot be read prints as "". Text that names a field for which the caller's struct has no
 * room is ATTUNE_INVALID_ARGUMENT. */
ATTUNE_API attune_status attune_schedule_parse(const char *text, attune_schedule *schedule);
ATTUNE_API size_t attune_schedule_print(const attune_schedule *schedule, char *text, size_t capacity);

/* ---- Tuning ---- */

/* The state of a search. */
typedef struct attune_tune_progress {
    size_t struct_size;
    uint64_t space;    /* schedules that the model proposes */
    uint64_t measured; /* schedules timed so far */
    double best_ratio; /* time of the best so far / time of the first schedule */
    double seconds, budget_seconds;
} attune_tune_progress;

/* Called between measurements, on the thread that called attune_tune. A non-zero return ends the search as if its time
 * were up; its results are kept. */
typedef int attune_tune_progress_fn(void *user, const attune_tune_progress *progress);

typedef struct attune_tune_options {
    size_t struct_size;
    double budget_seconds; /* duration of the search: 0.05 to 1000000 */
    attune_tune_progress_fn *progress; /* may be NULL */
    void *progress_user;
} attune_tune_options;

#define ATTUNE_TUNE_OPTIONS_INIT { .struct_size = sizeof(attune_tune_options), .budget_seconds = 5 }

ATTUNE_API attune_status attune_tune_options_init(attune_tune_options *options, size_t struct_size);

typedef struct attune_tune_result {
    size_t struct_size;
    attune_schedule schedule;  /* the best one: the first one unless is_faster */
    int is_faster;             /* 1: faster than the first one beyond doubt: the whole interval below is less than 1 */
    double ratio;              /* time of the best one found / time of the first one */
    double ratio_low, ratio_high;
    uint64_t space, measured;  /* as in the progress */
    uint64_t failed;           /* schedules that did not compile */
    uint64_t wrong;            /* schedules whose bits were not the interpreter's: a bug in attune, or in an operator
                                * of the user. Never adopted */
    char wrong_schedule[512];  /* the first of these */
    double seconds;            /* that the search took */
    uint32_t threads;          /* that were measured with: the context's workers */
    uint32_t reserved;
    double seconds_before, seconds_after; /* of a call with the schedule that the search began with, and with
                                * `schedule`: medians. 0: there was no time to measure them. A long call is measured
                                * in parts, and this is the sum of them */
    double spread_before, spread_after; /* half of these measurements lie within this part of the median: 0.01 for
                                * 1 % more or less */
    double noise;              /* standard deviation of the ratio of two times that were measured one after the other;
                                * 0: too few were compared to tell */
    double detectable;         /* a schedule that takes less time by this part (0.05 for 5 %) wins nine times in ten,
                                * with this noise and budget; smaller gains are often missed. 1: nothing can be said */
    double interrupted;        /* the part of the measurements during which another program took a CPU away; they were
                                * repeated. More than 0.05: the machine was busy */
} attune_tune_result;

/* Searches for a faster schedule by measuring, on this machine, with as many threads as the context has workers, on the
 * caller's tensors. `arguments` are as for attune_run, with representative sizes and tables. All outputs are
 * overwritten with partial results. Candidates are compiled on all CPUs between measurements, never during one. Every
 * winner has the interpreter's bits. The search begins with the best schedule known so far, or with attune's own
 * choice.
 *
 * All timings are kept in tuning.db in the directory of the disk cache. The resulting kernel replaces the cached one,
 * even one that was tuned with another number of threads: a warning then says so. From then on attune_compile without a
 * schedule gives it, in other processes too. A kernel that was not tuned takes, when it is compiled, the winner of a
 * problem of nearly the same lengths if that suits, before attune's own choice.
 *
 * Without a disk cache only *result tells. If the results cannot be kept, the call fails with *result filled in.
 * options may be NULL. Other threads may use the context meanwhile, but they disturb the measurements. */
ATTUNE_API attune_status attune_tune(attune_context *context, const attune_problem *problem,
                                     const attune_arguments *arguments, const attune_tune_options *options,
                                     attune_tune_result *result);

/* The tuner's model of a schedule, for one thread, in cycles. It is rough and meant to compare schedules of one
 * problem. Cycles are those of the context's machine (attune_machine_info). */
typedef struct attune_prediction {
    size_t struct_size;
    double scores, softmax, values; /* of attention */
    double tasks;                   /* beginning tasks, bringing Q in and O out, merging chunks */
    double products;                /* projections of a block */
    double flops_per_cycle;         /* at the peak, with the machine's widest vectors */
    int is_tuned;                   /* with schedule NULL: it comes from tuning, not from attune's rules */
} attune_prediction;

/* schedule NULL: the one that attune_compile would choose for a kernel that is not cached. *chosen is the predicted
 * schedule; `chosen` may be NULL. */
ATTUNE_API attune_status attune_schedule_predict(attune_context *context, const attune_problem *problem,
                                                 const attune_schedule *schedule, attune_schedule *chosen,
                                                 attune_prediction *prediction);

/* Export writes all results to a new file, for other machines of the same kind. Import takes in such a file: `taken`
 * counts searches that were new, `of_here` those of this tuning class and ISA; both may be NULL. ATTUNE_BAD_FILE: the
 * file is of another kind or version. */
ATTUNE_API attune_status attune_tuning_export(attune_context *context, const char *path);
ATTUNE_API attune_status attune_tuning_import(attune_context *context, const char *path, uint64_t *taken,
                                              uint64_t *of_here);

/* ---- What happened ---- */

typedef enum attune_origin {
    ATTUNE_FROM_MEMORY = 0,
    ATTUNE_FROM_DISK = 1,
    ATTUNE_FROM_COMPILER = 2,
    ATTUNE_FROM_PACK = 3,
    ATTUNE_FROM_BUNDLE = 4,
    ATTUNE_FROM_VM = 5,   /* tier 0 without machine code: the virtual machine runs it: the same bits, more slowly */
    ATTUNE_FROM_TIER0 = 6 /* machine code that was compiled when attune was built, for sizes of any call */
} attune_origin;

typedef enum attune_engine {
    ATTUNE_ENGINE_JIT = 0,
    ATTUNE_ENGINE_INTERPRETER = 1,
    ATTUNE_ENGINE_VM = 2
} attune_engine;

typedef struct attune_kernel_info {
    size_t struct_size;
    attune_engine engine;
    attune_origin origin;         /* of the first acquisition in this process */
    attune_schedule schedule;
    const char *isa;              /* static storage */
    uint32_t num_phases;
    uint64_t code_bytes;
    uint64_t scratch_bytes;       /* of workspace, for each worker */
    double compile_ms;            /* 0 unless compiled by this process */
    attune_dtype arithmetic;      /* of most multiplications: f32, f64, or bf16 for dot products of bf16. f32 for
                                   * kernels of attune_ir_compile */
    char key[33];                 /* the entry's name: 32 hex digits */
    const char *machine;          /* the tuning class that it is for: the context's, unless a kernel for another class
                                   * stands in because nothing can be compiled. Static; the context's if "custom-…" */
} attune_kernel_info;

ATTUNE_API attune_status attune_kernel_get_info(const attune_kernel *kernel, attune_kernel_info *info);

typedef struct attune_statistics {
    size_t struct_size;
    uint64_t memory_hits, disk_hits, compiles, compile_failures;
    uint64_t memory_evictions, disk_evictions, damaged_entries, disk_write_failures, worker_restarts;
    uint64_t memory_kernels, memory_code_bytes;
    uint64_t stand_ins; /* disk hits with a kernel for another tuning class */
    uint64_t pack_hits; /* disk hits with a kernel of the pack */
    uint64_t bundle_hits; /* kernels that were taken from registered bundles */
    uint64_t tier0_hits;  /* problems that tier 0 has computed, because nothing could be compiled or waited for */
} attune_statistics;

ATTUNE_API attune_status attune_get_statistics(const attune_context *context, attune_statistics *statistics);

/* Drops kernels from memory (kernels in use live until they are released). */
ATTUNE_API void attune_drop_memory_cache(attune_context *context);

/* The machine and the build. Strings live as long as the context.
 *
 * A tuning class groups CPUs for which the same schedules are best: "zen4", "sapphire-rapids", "neoverse-n1", and
 * "generic" for CPUs that attune does not know. It is part of the key of kernels and of tuning results. It is found by
 * CPUID's family and model (MIDR on Arm), never by measuring. Each class has a description: numbers about a core and
 * its caches, by which schedules are chosen. Numbers that were given by hand make a class of their own, "custom-" and a
 * hash of all numbers, whose kernels and tuning results are used for no other class. Where nothing can be compiled
 * (ATTUNE_STRICT=1, no code generator), an entry of the cache for another class of the same instruction set, but no
 * custom one, is used rather than failing. */
typedef struct attune_machine_info {
    size_t struct_size;
    const char *cpu;              /* as the CPU names itself */
    const char *isa;              /* in use, e.g. "avx2" */
    const char *isas;             /* all that this CPU can run, separated by spaces, best first */
    const char *llvm;             /* the LLVM version of this build's code generator */
    const char *cache_dir;        /* "" when off */
    const char *codegen_path, *worker_path;
    const char *generator_id;
    uint32_t max_workers;
    const char *cache_base;       /* "" when there is none */
    const char *cpu_description;  /* distinguishes CPUs of one name: "AMD EPYC (family 25, model 17, stepping 1)" */
    uint32_t cpu_family, cpu_model, cpu_stepping; /* of CPUID; of MIDR: implementer, part, variant */
    const char *machine;          /* the tuning class in use */
    const char *machine_source;   /* how it was found: "option", "ATTUNE_MACHINE", "cpu", "probe" */
    const char *cache_refusal, *cache_base_refusal; /* why cache_dir or cache_base is "" although a directory was named
                                   * (by an option or the environment): a sentence, as in the log; otherwise "". As
                                   * found when the context was made */
    const char *machine_description; /* of the class: "width=32,fma=2,load=2,...", all numbers, in the form that
                                   * ATTUNE_MACHINE takes. docs/platforms.md says what they mean */
    const char *cache_pack, *cache_pack_refusal; /* as cache_base and cache_base_refusal */
} attune_machine_info;

ATTUNE_API attune_status attune_get_machine_info(const attune_context *context, attune_machine_info *info);

/* Measurements of a core, as ratios, so that the clock does not matter. */
typedef struct attune_machine_probe {
    size_t struct_size;
    double fma;      /* time of a 256-bit multiply-add that waits for the one before / of an independent one */
    double fma_wide; /* the same of 512 bits; 0: the CPU has none */
    double add;      /* time of an addition that waits / of a multiply-add that waits */
    const char *machine; /* the resulting class. As the next string, valid until this thread probes again */
    int is_kept;     /* 1: stored beside the cache, for later contexts */
    const char *description; /* of the class: as machine_description above */
} attune_machine_probe;

/* Measures this CPU, for at most 50 ms. The result is the newest tuning class of the same maker whose known values are
 * all within a tenth of the measured ones, three times in succession; if there is none, a description of what was
 * measured, rounded, which is a class of its own. It is stored beside the cache.
 * Contexts that are created later on such a CPU use it if family and model are not known. No other function measures
 * for a class. ATTUNE_UNSUPPORTED: the CPU is not an x86-64 CPU with fused multiply-add. ATTUNE_IO_ERROR: the result
 * could not be stored; *probe is filled in all the same. */
ATTUNE_API attune_status attune_probe_machine(attune_context *context, attune_machine_probe *probe);

/* ---- Disk cache ---- */

typedef struct attune_cache_entry {
    size_t struct_size;
    const char *file;     /* name inside the cache directory */
    uint64_t bytes;
    attune_status status; /* ATTUNE_OK, or the kind of damage */
    const char *message;
    const char *problem;  /* canonical text; "@NAME" of a kernel in loop IR; "" if unreadable */
    const char *schedule;
    const char *isa;
    int64_t used_at;      /* seconds since the epoch */
    const char *directory;
    int is_base;          /* it lies in the read-only base */
    int is_usable;        /* made by this build, for an instruction set that this CPU has (any of them). An entry for
                           * another tuning class is used only where nothing can be compiled */
    const char *machine, *llvm, *generator; /* the tuning class it was made for, and its makers; "" if unreadable */
    const void *image;    /* as attune_emit gives it at ATTUNE_STAGE_IMAGE; NULL if unreadable */
    size_t image_bytes;
    const void *key;      /* the full key; its hash without the tuning class is the name; NULL if unreadable */
    size_t key_bytes;
    const char *ir;       /* of a kernel that was written in loop IR: its canonical text. "" for all others */
    const char *pack;     /* the pack that it lies in, which is `directory`, too; NULL: it is a file by itself */
} attune_cache_entry;

/* Calls visit for each entry of the cache directory, then of the base and of the pack. The entry is valid during the
 * call only. A non-zero return stops the walk. */
typedef int attune_cache_visit_fn(void *user, const attune_cache_entry *entry);
ATTUNE_API attune_status attune_cache_visit(attune_context *context, attune_cache_visit_fn *visit, void *user);

/* Removes every entry, except those of base and pack; `removed` may be NULL. */
ATTUNE_API attune_status attune_cache_clear(attune_context *context, uint64_t *removed);

/* One part of the key in which an entry differs from the request: a field of the problem by its name in text, or
 * operator (attention, ir, or the name of one of the user's; nothing else is compared then), problem, ir, schedule,
 * isa, machine (the tuning class), llvm, image_version, generator (built from another version of attune's sources),
 * cpu_features (its code needs features that this CPU lacks). */
typedef struct attune_cache_difference {
    const char *field;
    const char *there, *here; /* as text: of the entry, and of the request */
} attune_cache_difference;

typedef struct attune_cache_answer {
    size_t struct_size;
    int is_cached;        /* in the disk cache, its base or the pack */
    const char *key;      /* 32 hex digits */
    uint64_t compared;    /* number of entries that were compared */
    const attune_cache_entry *nearest; /* the entry itself if cached; its damaged file; otherwise the one that differs
                                        * least. NULL if there are no entries */
    const attune_cache_difference *differences; /* of the nearest */
    size_t num_differences;
    const char *stand_in; /* the tuning class whose entry would be used where nothing can be compiled; NULL: none, or
                           * the kernel is cached */
} attune_cache_answer;

/* Tells whether attune_compile would find the kernel in the disk cache, and if not, why it is a miss. Calls `answer`
 * once; its argument is valid during the call only. Compiles nothing. schedule as for attune_compile. */
typedef void attune_cache_answer_fn(void *user, const attune_cache_answer *answer);
ATTUNE_API attune_status attune_cache_why(attune_context *context, const attune_problem *problem,
                                          const attune_schedule *schedule, attune_cache_answer_fn *answer, void *user);

typedef struct attune_cache_collected {
    size_t struct_size;
    uint64_t removed, removed_bytes; /* entries, the least recently used first */
    uint64_t orphans, orphan_bytes;  /* files of writers that crashed more than an hour ago */
    uint64_t left, left_bytes;
} attune_cache_collected;

/* Removes now what a writer would remove in time: orphans, and the least recently used entries while all take more than
 * max_bytes. UINT64_MAX: disk_cache_bytes of the context. `collected` may be NULL. */
ATTUNE_API attune_status attune_cache_gc(attune_context *context, uint64_t max_bytes,
                                         attune_cache_collected *collected);

typedef struct attune_cache_copied {
    size_t struct_size;
    uint64_t added, added_bytes;
    uint64_t known;   /* were there already, undamaged */
    uint64_t damaged; /* damaged, and not copied */
    uint64_t foreign; /* of another version of attune, or for a CPU with other features; exported, but not imported */
    uint64_t other_class; /* of those added and known: for a tuning class other than the context's */
} attune_cache_copied;

/* Export copies all valid entries, those of the base too, into another directory, which is made if necessary. Import
 * copies from such a directory the entries that can be found here. Every entry is verified, and is copied whole or not
 * at all. A directory to import from must belong to root or this user, and others must not be able to write to it:
 * entries are code. After a failure *copied says what was copied before it; `copied` may be NULL. */
ATTUNE_API attune_status attune_cache_export(attune_context *context, const char *directory,
                                             attune_cache_copied *copied);
ATTUNE_API attune_status attune_cache_import(attune_context *context, const char *directory,
                                             attune_cache_copied *copied);

/* Packs: many entries in one file, for a fleet of machines. A pack has a hash for each entry, and one signature over
 * its header and index, which minisign makes. Contexts use one where it lies (`cache_pack`), if a key of theirs has
 * signed it. An entry's hash is compared with a copy of it, and that copy runs. docs/packs.md has the format.
 *
 * Pack writes all valid entries of the cache directory and the base into a new file, whole or not at all, without a
 * signature; if `keys` is not NULL only those with one of these num_keys names (32 hex digits, as in
 * attune_kernel_info), for every tuning class. A name without an entry fails the whole. Seal puts the signature that
 * minisign has made of the signed part into a pack, if one of the context's keys made it. Add copies the entries of a
 * signed pack that can be found here into the cache directory, as attune_cache_import does. `copied` may be NULL.
 *
 * ATTUNE_BAD_FILE: the file is no pack, is not signed, or is signed by none of the keys; the message says which. */
ATTUNE_API attune_status attune_cache_pack(attune_context *context, const char *path, const char *const *keys,
                                           size_t num_keys, attune_cache_copied *copied);
ATTUNE_API attune_status attune_cache_seal(attune_context *context, const char *path, const char *signature_path);
ATTUNE_API attune_status attune_cache_add(attune_context *context, const char *path, attune_cache_copied *copied);

/* Gives the parts of a pack, signed by anyone or not: its header and index, which minisign signs, and the signature's
 * text, "" if there is none. Both end with a NUL that does not count; free them with attune_free. */
ATTUNE_API attune_status attune_cache_pack_parts(attune_context *context, const char *path, void **signed_part,
                                                 size_t *bytes, char **signature);

/* ---- Bundles: kernels compiled ahead of time, for programs without attune ---- */

/* One kernel of a bundle. The layout does not change within a major version: it comes in arrays. */
typedef struct attune_bundle_kernel {
    const char *name;              /* a C identifier of at most 63 letters: "attn" */
    const attune_problem *problem;
    const char *schedule;          /* text that changes the chosen schedule; NULL: attune chooses for each target */
} attune_bundle_kernel;

typedef struct attune_bundle_options {
    size_t struct_size;
    const char *name;    /* begins the names of all functions: a C identifier of at most 63 letters: "model" */
    const char *targets; /* instruction sets of one architecture, each perhaps with a tuning class: "avx512,avx2:zen4".
                          * Without a class it is "generic" */
    uint32_t kernels_only; /* 1: for attune_context_add_bundle alone, so without functions and header: smaller */
    uint32_t reserved;
} attune_bundle_options;

#define ATTUNE_BUNDLE_OPTIONS_INIT { .struct_size = sizeof(attune_bundle_options) }

ATTUNE_API attune_status attune_bundle_options_init(attune_bundle_options *options, size_t struct_size);

/* What becomes the files libmodel.a and model.h. Free both with attune_free. Fixed layout. */
typedef struct attune_bundle_files {
    void *library;
    size_t library_bytes;
    void *header;
    size_t header_bytes;
} attune_bundle_files;

/* Compiles kernels for all targets, and makes of them a static library and its C header. A program that is linked to it
 * needs neither attune nor a compiler, and of the C library memcpy alone; see docs/bundles.md. The library has for each
 * kernel a function NAME_KERNEL, whose arguments are what the problem leaves open. Its bits are those of attune_run
 * with the same target and schedule. Equal input gives equal bytes. The code is that of the context's code generator,
 * in memory: no cache is read or written, except that results of tuning count. With kernels_only there is no header:
 * files->header is NULL, and NAME_bundle is declared as `extern const struct at_bundle NAME_bundle`. */
ATTUNE_API attune_status attune_bundle_make(attune_context *context, const attune_bundle_options *options,
                                            const attune_bundle_kernel *kernels, size_t num_kernels,
                                            attune_bundle_files *files);

/* Lets a context take kernels from a bundle that is part of the program, NAME_bundle of its header: after its own
 * memory, and before the cache on disk. Their code is used where it lies. The kernel must be of the context's
 * instruction set; without an explicit schedule it may be of another tuning class, and the nearest is taken. Bundles
 * that are added later are asked first, and none can be removed. ATTUNE_UNSUPPORTED: another version of attune made
 * it. */
struct at_bundle;
ATTUNE_API attune_status attune_context_add_bundle(attune_context *context, const struct at_bundle *bundle);

/* ---- Advanced: looking inside, and kernels of your own ---- */

typedef enum attune_stage {
    ATTUNE_STAGE_IR = 0,  /* scheduled loop IR */
    ATTUNE_STAGE_LOWERED, /* the IR that the code generator receives */
    ATTUNE_STAGE_LLVM,
    ATTUNE_STAGE_ASM,
    ATTUNE_STAGE_OBJECT,
    ATTUNE_STAGE_IMAGE
} attune_stage;

/* Gives the kernel at one stage. *data is allocated by the context's allocator; free it with attune_free. Text has a
 * NUL after its last byte, which *bytes does not count. schedule NULL: that of the cached kernel, else as
 * attune_compile chooses. A stand-in of another tuning class counts only while it is in memory: pass its schedule
 * (attune_kernel_info) to be sure. */
ATTUNE_API attune_status attune_emit(attune_context *context, const attune_problem *problem,
                                     const attune_schedule *schedule, attune_stage stage, void **data, size_t *bytes);
ATTUNE_API void attune_free(attune_context *context, void *data);

/* The loop IR (docs/ir.md) as an input language. `text` is scheduled IR. */
ATTUNE_API attune_status attune_ir_emit(attune_context *context, const char *text, attune_stage stage, void **data,
                                        size_t *bytes);

/* Calls observe with the kernel's text after each lowering pass ("parse" first). */
typedef void attune_pass_fn(void *user, const char *pass, const char *text);
ATTUNE_API attune_status attune_ir_dump_passes(attune_context *context, const char *text, attune_pass_fn *observe,
                                               void *user);

typedef struct attune_ir_parameter {
    const char *name;
    const char *elem;      /* "f32", "idx", … */
    int is_buffer;
    int is_input, is_output; /* of buffers */
} attune_ir_parameter;

/* A compiled kernel written in loop IR: from memory, else from disk, else newly compiled, as with attune_compile. Its
 * key is the canonical text (comments, blanks and folded constants do not matter) and the machine. A text of more than
 * a MiB is cached in memory only. Release with attune_kernel_release. */
ATTUNE_API attune_status attune_ir_compile(attune_context *context, const char *text, attune_kernel **kernel);
/* Its parameters in order; strings live as long as the kernel. */
ATTUNE_API attune_status attune_ir_parameters(const attune_kernel *kernel, const attune_ir_parameter **parameters,
                                              size_t *count);
/* The shape that parameter `index` must have with these scalar values (dims: room for 8). */
ATTUNE_API attune_status attune_ir_shape(const attune_kernel *kernel, size_t index, const int64_t *scalars,
                                         int64_t *dims, size_t *rank);
/* As attune_cache_why. A difference in the text is the field "ir", with the first line that differs. */
ATTUNE_API attune_status attune_ir_cache_why(attune_context *context, const char *text, attune_cache_answer_fn *answer,
                                             void *user);
/* Runs it. buffers[] and scalars[] are in the order of the parameters of their sort. A scalar is the int64 itself, or
 * the bits of the float (low 32) or double. With engine INTERPRETER every access is checked. JIT is the
 * kernel as it was made; VM is the same, and refuses machine code. */
ATTUNE_API attune_status attune_ir_run(attune_context *context, const attune_kernel *kernel, attune_engine engine,
                                       void *const *buffers, const int64_t *scalars);
/* A call in parts: as attune_call_begin, with the buffers and scalars of attune_ir_run. Their arrays need not stay. */
ATTUNE_API attune_status attune_ir_call_begin(attune_context *context, const attune_kernel *kernel,
                                              void *const *buffers, const int64_t *scalars, uint32_t max_workers,
                                              attune_call **call);

/* ---- Operators of your own ----
 *
 * An operator is a function that writes the loop IR of a kernel for a problem and a schedule. The problem is a line of
 * text, such as "rows=64,columns=48", that the operator alone understands. The schedule is a few numbers, each one of
 * several values: sizes of tiles, for example. Kernels are cached like those of attune_compile, in memory and on disk;
 * the key is the operator's name, version and choices, the problem, the schedule if one is given, and the machine.
 * All programs that use one cache share the names in it: two programs whose operators have the same name, version and
 * choices get each other's kernels. So give an operator a name that nobody else has, with your project's for example.
 * attune_ir_parameters, attune_ir_shape and attune_ir_run take these kernels. docs/operators.md has the rules, and
 * examples/matmul.c and examples/layer_norm.c are two such operators. */

/* One number of a schedule. */
typedef struct attune_choice {
    const char *name;      /* letters, digits and '_', no digit first */
    const int32_t *values; /* that it may have, each once; 256 at most */
    size_t num_values;
    int32_t usual;         /* one of them: the number where nothing was tuned */
    int32_t reserved;      /* 0 */
} attune_choice;

/* The kernel that is wanted. Valid during the call of an attune_build_fn. */
typedef struct attune_build_request {
    size_t struct_size;
    const char *problem;
    const int32_t *schedule; /* a number for each choice, in their order */
    const char *isa;         /* of the target; static storage */
    int32_t vector_bytes;    /* of its widest vectors */
    int32_t has_fma;         /* 1: the IR may use fma */
} attune_build_request;

typedef struct attune_ir_writer attune_ir_writer;

/* Appends text, as printf does. Only within an attune_build_fn, with its writer. */
ATTUNE_API void attune_ir_print(attune_ir_writer *writer, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Writes one kernel in loop IR (docs/ir.md) and returns 0. It refuses a problem or a schedule by any other result; the
 * text that it has written is then the reason, for people. The same request must always give the same text: otherwise
 * give the operator another version. Different schedules must give the same bits. Called on the thread that compiles;
 * while a problem is tuned, by several threads at once. It must not compile with this context, and it must return: no
 * longjmp and no exception may leave it. */
typedef int attune_build_fn(void *user, const attune_build_request *request, attune_ir_writer *writer);

typedef struct attune_operator_options {
    size_t struct_size;
    const char *name;             /* letters, digits and '_', no digit first; 47 at most. Not "attention" or "ir" */
    attune_build_fn *build;
    void *user;                   /* is passed to build */
    const attune_choice *choices; /* 12 at most */
    size_t num_choices;
    uint32_t version;             /* of build, from 1 on: raise it when build writes other text for the same request.
                                   * Otherwise kernels that other programs, or this one before, have cached stay in
                                   * use, and they may take other buffers */
    uint32_t reserved;            /* 0 */
} attune_operator_options;

#define ATTUNE_OPERATOR_OPTIONS_INIT { .struct_size = sizeof(attune_operator_options) }

ATTUNE_API attune_status attune_operator_options_init(attune_operator_options *options, size_t struct_size);

typedef struct attune_operator attune_operator;

/* Makes an operator known to a context, which copies the options and keeps the operator until it is destroyed. Any
 * number of threads may add operators and use them. ATTUNE_INVALID_ARGUMENT: the name is in use by another operator of
 * this context, or an option cannot be as it is. */
ATTUNE_API attune_status attune_operator_add(attune_context *context, const attune_operator_options *options,
                                             attune_operator **op);

/* Gives a kernel for the problem: from memory, else from disk, else newly compiled. `problem` is UTF-8 of
 * 511 bytes at most, without control characters. schedule: a number for each choice, or NULL for the kernel that the
 * cache holds, else the tuned numbers, else the usual ones, which must be legal for the problem. Release the kernel
 * with attune_kernel_release. ATTUNE_INVALID_PROBLEM: build refuses the request. ATTUNE_INVALID_IR: its text is no
 * kernel. The message says which request and why. */
ATTUNE_API attune_status attune_operator_compile(attune_operator *op, const char *problem, const int32_t *schedule,
                                                 attune_kernel **kernel);

/* The numbers of a kernel of attune_operator_compile; they live as long as the kernel. */
ATTUNE_API attune_status attune_operator_numbers(const attune_kernel *kernel, const int32_t **numbers, size_t *count);

/* As attune_cache_why: whether attune_operator_compile would find the kernel in the disk cache. */
ATTUNE_API attune_status attune_operator_cache_why(attune_operator *op, const char *problem, const int32_t *schedule,
                                                   attune_cache_answer_fn *answer, void *user);

/* Searches for faster numbers by measuring, as attune_tune does, with the call that attune_ir_run would make of these
 * buffers and scalars. Outputs are overwritten; buffers that are read and written are so again and again, and do not
 * get their contents back. Kernels must have the interpreter's bits, the same parameters as with the usual numbers, and
 * outputs of the same bits: others are dropped, counted in result->wrong, and the first is named there. From then on
 * attune_operator_compile without a schedule gives the winner's kernel. *numbers (NULL, or room for a number for each
 * choice) receives the winner, or the numbers that the search began with. result->schedule stays empty. The usual
 * numbers must be legal for the problem. ATTUNE_CHECK_FAILED: their own kernel has not the interpreter's bits. */
ATTUNE_API attune_status attune_operator_tune(attune_operator *op, const char *problem, void *const *buffers,
                                              const int64_t *scalars, const attune_tune_options *options,
                                              int32_t *numbers, attune_tune_result *result);

/* Runs a problem by the interpreter of its own IR: slow, checks every access, gives the bits of the machine code.
 * schedule NULL: as for attune_emit. */
ATTUNE_API attune_status attune_run_interpreted(attune_context *context, const attune_problem *problem,
                                                const attune_schedule *schedule, const attune_arguments *arguments);

#ifdef __cplusplus
}

/* C++ has no designated initialisers before C++20, so there the ATTUNE_…_INIT macros are calls with the same result.
 * The linkage is named because a program may include this header within extern "C". */
extern "C++" {
template <typename type> inline type attune_initial(attune_status (*init)(type *, size_t)) {
    type initial;
    init(&initial, sizeof initial);
    return initial;
}
}
#undef ATTUNE_PROBLEM_INIT
#undef ATTUNE_RUNNER_INIT
#undef ATTUNE_CONTEXT_OPTIONS_INIT
#undef ATTUNE_RUN_OPTIONS_INIT
#undef ATTUNE_PLAN_OPTIONS_INIT
#undef ATTUNE_SCHEDULE_INIT
#undef ATTUNE_TUNE_OPTIONS_INIT
#undef ATTUNE_OPERATOR_OPTIONS_INIT
#define ATTUNE_PROBLEM_INIT            attune_initial(attune_problem_init)
#define ATTUNE_RUNNER_INIT             attune_initial(attune_runner_init)
#define ATTUNE_CONTEXT_OPTIONS_INIT    attune_initial(attune_context_options_init)
#define ATTUNE_RUN_OPTIONS_INIT        attune_initial(attune_run_options_init)
#define ATTUNE_PLAN_OPTIONS_INIT       attune_initial(attune_plan_options_init)
#define ATTUNE_SCHEDULE_INIT           attune_initial(attune_schedule_init)
#define ATTUNE_TUNE_OPTIONS_INIT       attune_initial(attune_tune_options_init)
#define ATTUNE_OPERATOR_OPTIONS_INIT   attune_initial(attune_operator_options_init)
#endif

#endif
