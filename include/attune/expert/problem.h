/* Expert tier: most programs need attune/attention.h alone.
 *
 * One attention problem: what is computed, on which tensors; its text; what it costs and which keys its queries attend
 * to; rows of K and V as panels. */
#ifndef ATTUNE_PROBLEM_H
#define ATTUNE_PROBLEM_H

#include "../status.h"
#include "../types.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The problem ---- */

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

/* What an attune_problem describes: what is computed, never how. Start from ATTUNE_PROBLEM_INIT and set the fields that
 * you need.
 *
 * Scores
 * ------
 * Query i of sequence b has the position p = i + base + causal_offset (+ causal_offsets[b]); key j has the position j.
 * base is the sequence's number of keys minus its number of queries: the last query is at the last key, as in decoding
 * with a cache. With causal_align = top_left base is 0: the first query is at the first key, as with PyTorch's
 * is_causal. With as many queries as keys the two are the same. Causality, windows, global tokens, ALiBi and
 * rotary_dim (without position_ids) go by p; q in score_mod, mask_mod and prob_mod is i. op = rotary has no keys, and
 * base is 0. The scores of the query are computed in this order:
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
 * With kv_ids a query attends to the keys of its list, and to no others: j counts places in the list, k[j] and v[j]
 * are those of key kv_ids[.., j], and attn_mask and attn_bias have num_ids columns. A key that is listed twice counts
 * twice. Fields that depend on where a key is in its sequence are refused.
 * A hidden key has the score -infinity, and nothing in its K, its V or their scales can reach the result, not even its
 * last bit. (integer = scores subtracts the mean of all keys of a sequence from unquantised k, hidden ones too.)
 * A row without a visible key gives 0 in `out` and -infinity in `lse` (with sinks: the sink, whatever it is), even if
 * its q holds NaN. A sink of +infinity gives other rows 0 and an `lse` of +infinity, one of NaN makes them NaN. In any
 * row with a visible key a NaN in q gives NaN. Values are summed first and then divided by the sum of the exponentials:
 * where |v| exceeds the largest f32 (f64) divided by the number of keys, the result may be infinite.
 *
 * Tensors
 * -------
 * Tensors are row-major unless strides say otherwise. [field] means: present only if the field asks for it.
 * attune_tensors lists the tensors of a problem.
 *     q   [batch, num_heads,    seq_q,  head_dim]    k [batch, num_kv_heads, seq_kv, head_dim]
 *     out [batch, num_heads,    seq_q,  head_dim_v]  v [batch, num_kv_heads, seq_kv, head_dim_v]
 *     [has_lse]            lse [batch, num_heads, seq_q]: logarithm to base e of the sum of exponentials; f32, or f64
 *                          if softmax_precision is f64
 *     [attn_mask_dims]     attn_mask, bool: true = keep
 *     [attn_bias_dims]     attn_bias, of bias_dtype
 *     [has_alibi_slopes]   alibi_slopes f32 [num_heads]
 *     [has_sinks]          sinks f32 [num_heads]: the logit of one more key, whose value is 0
 *     [has_kv_lens]        kv_lens i32 [batch]: number of valid keys, at most seq_kv; appended keys (seq_new) count
 *     [has_causal_offsets] causal_offsets i32 [batch]
 *     [is_ragged]          cu_seqlens_q, cu_seqlens_kv i32 [batch + 1]: sequence b has the tokens from cu_seqlens[b] to
 *                          before cu_seqlens[b+1]. q, out and lse then have a batch of 1 with total_q tokens, k and v
 *                          one with total_kv. Contiguous means [tokens, heads, dim], and [heads, tokens] for lse. seq_q
 *                          and seq_kv are ATTUNE_DYNAMIC; at run time they are the longest lengths. With pages, k and
 *                          v keep their shape. With pages and kv_lens there is no cu_seqlens_kv
 *     [page_size]          k, v [num_pages, num_kv_heads, page_size, …]; block_table i32 [batch, max_pages]: key j of
 *                          sequence b is row j % page_size of page block_table[b, j / page_size]. Needs kv_lens or
 *                          cu_seqlens_kv, unless every sequence has seq_kv keys
 *     [seq_new]            k_new, v_new [batch, num_kv_heads, seq_new, …]: written over the last seq_new keys in k and
 *                          v before anything is read there. k and v are then outputs, too. A page that is written to
 *                          must belong to one sequence only: sequences that share such a page overwrite each other's
 *                          keys. Only the debug mode (attune/context.h) checks it. Ragged: [total_q tokens], as many as
 *                          there are queries
 *     [k_dtype, v_dtype]   k, v as bytes where a row is not as many elements: the last dim, and all strides, are in
 *                          bytes, and the last stride is 1. With i4, and with scales of groups, of channels or inline,
 *                          head_dim (head_dim_v) is a multiple of 32
 *                          i4: head_dim / 2 bytes; byte i of each 16 has column i of 32 in its lower half and column
 *                          i + 16 in its upper one, as value + 8. Scales inline: for each 32 columns the scale, an f16,
 *                          and their values: 34 bytes (i8) or 18 (i4). inline_min: scale and minimum, each an f16, and
 *                          values from 0: 20 bytes
 *     [k_scales, v_scales] k_scale, v_scale f32. Scales of heads: [num_kv_heads]. Scales of tokens: the dims of k and
 *                          v without the last one: [batch, num_kv_heads, seq_kv]; ragged [1, num_kv_heads, total_kv],
 *                          contiguous in this order; with pages [num_pages, num_kv_heads, page_size]. Scales of groups:
 *                          the dims of k and v with the last one divided by k_group (v_group), contiguous as k and v
 *                          are. Scales of channels: [num_kv_heads, head_dim or head_dim_v]. Scales of tokens and of
 *                          groups are written where k and v are. Scales inline are no tensor. token_min, group_min
 *                          and channel_min have twice as many numbers in the last dim: all scales of the row, then its
 *                          minima in the same order; token_min is [batch, num_kv_heads, seq_kv, 2]
 *     [rotary_dim]         cos, sin [batch or 1, rotary_positions, rotary_dim / 2] of dtype
 *     [has_position_ids]   position_ids i32 [batch, seq_q], ragged [1, total_q]
 *     [qk_norm_eps]        q_norm, k_norm [head_dim] of dtype; no k_norm with kv_projected
 *     [weights_mode]       weights [batch, num_heads, seq_q, seq_kv] of dtype; with weights_average
 *                          [batch, 1, seq_q, seq_kv]. Not ragged
 *     [tensors]            those that functions read, with the dims that the problem declares
 *     [has_row_ids]        row_ids i32 [num_rows]: the rows of q that are wanted; weights then have num_rows rows
 *     [kv_ids]             kv_ids i32: sequence: [batch, 1, num_ids]; query: [batch, seq_q, num_ids], ragged
 *                          [1, total_q, num_ids]. Keys of the sequence from 0 to before its number of keys (kv_lens),
 *                          in any order; with reproducible each above the one before
 *     [has_kv_id_lens]     kv_id_lens i32, the dims of kv_ids without the last: the keys of each list, from 0 to
 *                          num_ids. What kv_ids has after them is not read
 *     [op = merge]         parts [num_parts, batch * num_heads * seq_q, head_dim_v] of dtype; parts_lse
 *                          [num_parts, batch * num_heads * seq_q] of the type of lse; out and lse as above
 *
 * Appending to a quantised cache
 * ------------------------------
 * With seq_new and a quantised cache, the rows of k_new and v_new (of dtype) are quantised, rounding to nearest even.
 * largest is 127 for i8, 448 for f8 and 7 for i4:
 *     head    value = clamp(x / scale, -largest, largest); all 0 where the scale is 0 or not finite
 *     token   scale = max|x| / largest over the row; the scale is written, and values are computed as for heads. A row
 *             that holds a NaN or an infinity gets the scale NaN. A row of zeros gets the scale 0 and the values 0
 *     channel as head, each column by its own scale
 *     group   as token, over the columns of a group; inline as well, where the scale is rounded to f16 first. In i4 the
 *             scale is x / -8 for the element of the largest |x|, a positive one rather than a negative one, and values
 *             are from -8 to 7
 *     inline_min  minimum = min x and scale = (max x - min x) / 15 of 32 columns, both rounded to f16;
 *             value = clamp((x - minimum) / scale, 0, 15). A NaN or an infinity makes both NaN
 *     token_min, group_min  the same of a row or of a group, both rounded to f32
 *     channel_min  value as for inline_min, each column by its own numbers, which are given
 *     none    value = clamp(x, -448, 448)
 * NaN becomes 0 in i8 and i4 and stays NaN in f8. Keys are rotated (rotary_dim, qk_hadamard) before they are rounded.
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
 *     packed_weights: a blob made by attune_pack_weights, 64-byte aligned; see attune/expert/mha.h
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
 *                     from the left, and attention has low_rank keys (Wang et al., "Linformer", 2020, equation 7).
 *                     `weights` has one column for each of those
 *
 * Strides
 * -------
 * Strides are in elements, one for each dimension in the order above (the projected out of a block has three). An array
 * of zeros means contiguous; with dynamic sizes, contiguous at run time. Output strides must not make two elements
 * coincide, and the last stride of rows must not be 0 where others are set.
 *
 * Fields that mean nothing
 * ------------------------
 * A field that cannot matter is refused by name: fields of the block without embed_dim, scales without a quantised
 * cache, parts of a feature that the problem does not have (q_planes without integer, rotary_interleaved without
 * rotary_dim, num_rows without has_row_ids, bias_dtype without attn_bias_dims …). There are four exceptions.
 * op = weights, rotary and merge take the problem of the attention to which they belong, and ignore what they have no
 * use for. A block with kv_projected may be the one that filled its caches: kv_embed_dim, v_embed_dim and is_cross are
 * ignored. Strides of a tensor that the problem does not have are ignored. So are causal_align, causal_offset,
 * has_causal_offsets and global_tokens where no position counts. */
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
    attune_causal_align causal_align; /* where positions begin, for causality, windows, ALiBi and rotary alike;
                                       * default bottom_right */
    int64_t causal_offset; /* added to the position of every query; any sign */
    int64_t window_left, window_right; /* keys before and after the position that a query attends to; -1 = all */
    int64_t global_tokens; /* the first tokens: every query attends to these keys, and these queries attend to every
                            * key, whatever the window */
    int has_lse;           /* 1: `lse` is written too */
    int has_alibi_slopes, has_sinks, has_kv_lens, has_causal_offsets, is_ragged;
    attune_dtype k_dtype, v_dtype;   /* default dtype. In a block: the caches' types. A block without a cache uses them
                                      * only with reproducible: it rounds K and V as such a cache would; quantised types
                                      * are refused */
    attune_scales k_scales, v_scales;/* quantised caches only; with v_in_k, v_scales is k_scales */
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
    /* The block. Without embed_dim the fields below are refused; op = weights, rotary and merge refuse embed_dim.
     * With it, head_dim may be 0: it is then embed_dim / num_heads, which must divide. dtype is that of x, x_kv, x_v
     * and out. Low-rank keys have no order: low_rank cannot be combined with causality, window, ALiBi, mask, kv_lens,
     * rotary, cache, ragged batch, dynamic seq_kv, qk_norm_eps or qk_hadamard. All widths, num_heads *
     * head_dim among them, are at most 262144. */
    int64_t embed_dim;     /* columns of x; 0 = attention alone */
    int64_t kv_embed_dim;  /* columns of x_kv; 0 = embed_dim; a value other than embed_dim makes is_cross 1 */
    int64_t v_embed_dim;   /* columns of x_v; 0 = there is no x_v */
    int64_t out_dim;       /* 0 = embed_dim */
    int64_t low_rank;      /* rows of keys_low; 0 = none */
    int low_rank_heads, low_rank_shared;
    int is_cross;          /* 1: x_kv is a tensor of its own; seq_kv (or seq_new) is its length */
    int kv_projected, no_out_projection;
    attune_dtype w_dtype;  /* of packed_weights, keys_low and values_low; default dtype. i8, i4: packed_weights is
                            * quantised, with a scale for each output of w_group inputs; the other two are of dtype */
    int64_t x_strides[3], x_kv_strides[3], x_v_strides[3];
    int64_t k_scale_strides[3], v_scale_strides[3]; /* of scales of tokens; token_min has k_group_strides */
    int has_softmax_scale; /* 1: each call has its own scale, attune_arguments.softmax_scale; the problem's must be
                            * ATTUNE_DEFAULT_SCALE. The kernel computes as one with that scale compiled in */
    attune_dtype matmul_precision; /* of the factors of both products, q k and p v; sums are f32. bf16: they may be
                            * rounded to bf16, where the CPU multiplies pairs of it. f32: they are not. Default: bf16
                            * if dtype is bf16 and k and v are not quantised, else f32. docs/numerics.md: which problems
                            * round, what that loses */
    attune_integer integer;
    attune_q_planes q_planes; /* with integer only */
    double qk_norm_eps;    /* 0 = none, else from 1e-12 to 1: rows of q and k are normalised before they are rotated, as
                            * in Qwen3 and Gemma 3: x * q_norm / sqrt(mean of x^2 + qk_norm_eps). Where keys are
                            * appended, only k_new is: cached keys, and those of kv_projected, are so already */
    /* Functions on scores, masks and probabilities in the language of docs/functions.md. Text that ends with a NUL;
     * "" = none. The struct holds it, so a problem stays a value that can be copied. */
    attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS]; /* those that the functions name; the first ones are used */
    char score_mod[ATTUNE_FUNCTION_BYTES], mask_mod[ATTUNE_FUNCTION_BYTES];
    char prob_mod[ATTUNE_FUNCTION_BYTES]; /* what the values are multiplied by: a function of each probability */
    int64_t w_group;       /* with w_dtype = i8 or i4: 32, 64 or 128 inputs share a scale; 0 = 32 */
    int64_t x_planes;      /* with w_dtype = i8 or i4: 0, or 1: the inputs of projections are quantised to int8, too,
                            * each w_group of a row with a scale of its own, largest |x| / 127. Sums of products are
                            * exact integers; then they are multiplied by both scales. Faster and less exact. An input
                            * that is NaN or infinite makes its rows of the product NaN */
    int64_t k_group, v_group; /* with scales of groups (group, group_min) only: 32, 64 or 128 columns, which divide
                               * head_dim (head_dim_v), share a scale; 0 = 32. With v_in_k, v_group is k_group */
    int64_t k_group_strides[4], v_group_strides[4]; /* of scales of groups, and of token_min */
    attune_kv_layout k_layout, v_layout; /* of k and v, which are appended to in it; k_new and v_new are rows */
    int qk_hadamard;       /* 1: rows of q and k are multiplied by the Hadamard matrix of head_dim, a power of
                            * two, after norm and rotary: x H, H[i][j] = (-1)^(ones in i & j) / sqrt(head_dim). Products
                            * q . k stay the same, but columns of k that stand out are spread over all of them, so
                            * quantising loses less. Where keys are appended, only k_new is: cached keys, and those of
                            * kv_projected, are so already */
    int is_general;        /* 1: the kernel takes any whole number of query heads for each KV head. Those of the
                            * problem, and max_seq_q, only help to choose a schedule. seq_q must be ATTUNE_DYNAMIC, and
                            * page_size a power of two. Not for blocks, functions, masks, lists of keys, weights,
                            * panels, integer products, and keys that are rotated or normalised */
    attune_kv_ids kv_ids;  /* not none: queries attend to the keys that a tensor kv_ids lists */
    int has_kv_id_lens;    /* 1: kv_id_lens says how many keys each list has; 0: all lists have num_ids */
    int64_t num_ids;       /* of a list in kv_ids: >= 1, or ATTUNE_DYNAMIC: from 0 at run time; 0 = ATTUNE_DYNAMIC */
} attune_problem;

/* A NaN: "use 1 / sqrt(head_dim)". */
#define ATTUNE_DEFAULT_SCALE (__builtin_nan(""))

#ifdef __cplusplus
#define ATTUNE_PROBLEM_INIT attune_initial(attune_problem_init)
#else
#define ATTUNE_PROBLEM_INIT                                                                             \
    { .struct_size = sizeof(attune_problem), .batch = 1, .num_heads = 1, .softmax_scale = ATTUNE_DEFAULT_SCALE, \
      .window_left = -1, .window_right = -1 }
#endif

/* Writes the values of ATTUNE_PROBLEM_INIT into the first struct_size bytes. */
ATTUNE_API attune_status attune_problem_init(attune_problem *problem, size_t struct_size);

/* Reads a problem from text: `key=value` pairs separated by commas, the keys being the members of attune_problem:
 *     batch=1,num_heads=12,seq_q=512,head_dim=64,is_causal=1,causal_align=top_left
 * Text may also say
 *     seq_q=dynamic
 *     softmax_scale=dynamic                  has_softmax_scale
 *     is_causal=true                         a flag is 0, 1, false or true
 *     kv_dtype=i8                            k_dtype=i8,v_dtype=i8
 *     kv_scales=token, kv_group=64           k_scales=token,v_scales=token, k_group=64,v_group=64
 *     kv_layout=panels                       k_layout=panels,v_layout=panels
 *     q_strides=65536:4096:64:1              strides
 *     layout=bhsd or layout=bshd             the contiguous strides of q, k, v and out in that order (no blocks)
 *     attn_mask_dims=1:1:512:512             dims of attn_mask or attn_bias; fewer are the last ones
 *     attn_mask_dims=qk                      letters for the dims that are not 1: qk, bqk, bhqk, bk, k …
 *     mask_mod="q >= kv"                     functions, and tensors="doc:i32[b, q], slope:f32[h]"; in quotation marks
 * Blanks and line ends around keys and values are ignored. With embed_dim, head_dim may be left out. `*problem` must be
 * initialised; fields not named keep their values. An unknown key and a malformed or repeated value are
 * ATTUNE_INVALID_PROBLEM and leave *problem as it was; the message suggests similar names. The result is not checked as
 * a whole: attune_problem_check does that. */
ATTUNE_CHECKED attune_status attune_problem_parse(attune_problem *problem, const char *text);

/* Writes the canonical text: defaults filled in, fields with their default value left out. A NUL ends it. Returns the
 * length without the NUL, as snprintf does; text may be NULL when capacity is 0. */
ATTUNE_API size_t attune_problem_print(const attune_problem *problem, char *text, size_t capacity);

/* Checks whether a problem can be compiled: ranges, divisibility, overflow of size products, strides. */
ATTUNE_CHECKED attune_status attune_problem_check(const attune_problem *problem);

/* Floating-point operations of the two products: 2 * (head_dim + head_dim_v) for each visible pair of query and key. A
 * block adds 2 for each row and element of a projection's weights. */
ATTUNE_API double attune_problem_flops(const attune_problem *problem);

/* The visible range of some queries of a sequence, by causality, window, global tokens and length. Masks and biases are
 * not looked at. Keys begin … end - 1; begin and end are 0 if there is no such key. */
typedef struct attune_sight {
    size_t struct_size;
    int64_t some_begin, some_end; /* holds the visible range of each query, apart from global keys */
    int64_t all_begin, all_end;   /* all of the queries attend to these */
    int64_t global_end;           /* the keys before are visible as well, because they are global */
    int64_t keys;                 /* how many that are: from some_begin on, and global ones */
    double pairs;                 /* visible pairs of query and key */
} attune_sight;

#define ATTUNE_SIGHT_INIT ATTUNE_RESULT_INIT(attune_sight)

/* Of queries begin … end - 1 of a sequence with seq_q queries and seq_kv keys, whatever lengths the problem has.
 * causal_offset: the sequence's element of causal_offsets, or 0. Queries out of range, and lengths that are negative or
 * above 2^31 - 1, are ATTUNE_INVALID_ARGUMENT. */
ATTUNE_CHECKED attune_status attune_sight_of(const attune_problem *problem, int64_t seq_q, int64_t seq_kv,
                                             int64_t causal_offset, int64_t begin, int64_t end, attune_sight *sight);

/* Rows of k or v, and the same in panels. */
typedef struct attune_panels {
    size_t struct_size;
    attune_dtype dtype;       /* of both: f32, bf16, i8 or i4, whose strides are in bytes */
    int is_value;             /* 0: k, 1: v */
    int64_t heads;            /* at equal distances: KV heads, or these times sequences or pages */
    int64_t tokens, columns;  /* of a head; of a token */
    void *rows, *panels;
    /* In elements. 0: contiguous, [heads, tokens, columns] and [heads, panels, elements of a panel]. */
    int64_t row_head_stride, row_stride, panel_head_stride, panel_stride;
} attune_panels;

#define ATTUNE_PANELS_INIT ATTUNE_RESULT_INIT(attune_panels)

/* Copies rows into panels, and pads the last one with zeros; and back. The order of
 * elements changes, and nothing else. The two must not overlap. */
ATTUNE_CHECKED attune_status attune_panels_from_rows(const attune_panels *panels);
ATTUNE_CHECKED attune_status attune_panels_to_rows(const attune_panels *panels);

#ifdef __cplusplus
}
#endif

#endif
