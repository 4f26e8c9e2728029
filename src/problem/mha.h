/* Problems: their canonical form, text and key. signature.h has the tensors and sizes of a call. */
#ifndef ATTUNE_PROBLEM_MHA_H
#define ATTUNE_PROBLEM_MHA_H

#include "base/struct.h"

#include <stdbool.h>
#include <stdint.h>

/* Reads the struct of a caller, which may have the size of another version. mha_canonicalize and the functions on text
 * do that themselves; all others need a complete struct. */
extern const at_struct mha_problem_struct;

/* Fills in every default (num_kv_heads, seq_kv, head_dim_v, softmax_scale, dtypes, strides) and normalises what cannot
 * matter (causal fields of a problem without causal, fields of another op); checks everything. *out is fully
 * initialised, padding too. Strides of a tensor with a dynamic or ragged size stay zero if they were: contiguous at run
 * time. Masks: leading zero dims are 1; strides of dims that are 1 are 0. */
attune_status mha_canonicalize(const attune_problem *problem, attune_problem *out, at_error *err);
/* The same for a complete struct, in place. */
attune_status mha_make_canonical(attune_problem *problem, at_error *err);

attune_status mha_problem_parse(const char *text, attune_problem *problem, at_error *err);
size_t mha_problem_print(const attune_problem *problem, char *text, size_t capacity);
size_t mha_canonical_print(const attune_problem *canonical, char *text, size_t capacity); /* on a smaller stack */
double mha_problem_flops(const attune_problem *canonical);

/* The canonical key: everything that the kernel is specialised for, serialised byte by byte. It has no outer strides,
 * no batch and, at equal group size, no num_heads. The key of a block has num_heads and, if its rows are few, their
 * number (mha_few_rows). Returns its length; the buffer must hold MHA_KEY_BYTES. */
enum { MHA_KEY_BYTES = 4608 };

/* Enough capacity for any problem's text: its fields, and users' functions and tensors. */
enum { MHA_PROBLEM_TEXT = 5120 };
_Static_assert(MHA_PROBLEM_TEXT >= 3 * ATTUNE_FUNCTION_BYTES + 2048, "functions, tensors and all other fields");

size_t mha_key(const attune_problem *canonical, uint8_t key[MHA_KEY_BYTES]);

/* ---- Kinds of problems ---- */

/* Attention with the projections around it. */
static inline bool mha_is_block(const attune_problem *p) { return p->op == ATTUNE_MHA; }
/* Attention, alone or in a block, so there is a V. */
static inline bool mha_attends(const attune_problem *p) { return p->op == ATTUNE_ATTENTION || mha_is_block(p); }
/* The op computes scores. */
static inline bool mha_has_keys(const attune_problem *p) { return mha_attends(p) || p->op == ATTUNE_WEIGHTS; }

/* The problem has users' functions. */
static inline bool mha_has_functions(const attune_problem *p) {
    return p->score_mod[0] || p->mask_mod[0] || p->prob_mod[0];
}

/* ---- The keys of a canonical problem ---- */

/* Whether the caller passes keys in k (and v). For a block, that is a cache, or keys that are projected already. */
static inline bool mha_has_caches(const attune_problem *p) {
    return mha_is_block(p) ? p->seq_new || p->kv_projected : mha_has_keys(p);
}
/* A block that projects its keys from x: as many as queries. With a cache, these are the new keys. */
static inline bool mha_is_self(const attune_problem *p) { return mha_is_block(p) && !p->is_cross && !p->kv_projected; }
static inline bool mha_keys_follow_queries(const attune_problem *p) { return mha_is_self(p) && !p->seq_new; }
/* Whether queries and keys are prepared before their product: normalised, rotated (rotary), multiplied by a Hadamard
 * matrix. Keys that are passed projected, or in a cache, are prepared already. */
static inline bool mha_prepares(const attune_problem *p) {
    return p->rotary_dim || p->qk_norm_eps > 0 || p->qk_hadamard;
}
static inline bool mha_prepares_keys(const attune_problem *p) {
    return mha_prepares(p) && mha_has_keys(p) && !p->kv_projected;
}
static inline bool mha_rotates_keys(const attune_problem *p) { return p->rotary_dim && mha_prepares_keys(p); }

/* ---- Positions of a canonical problem ---- */

/* Whether the last query's position is that of the last key. op=rotary has no keys; keys projected from the queries'
 * rows are as many as queries. */
static inline bool mha_is_bottom_right(const attune_problem *p) {
    const bool may_differ = mha_has_keys(p) && (!mha_keys_follow_queries(p) || p->has_kv_lens);
    return may_differ && p->causal_align == ATTUNE_BOTTOM_RIGHT;
}
/* The position of query 0 of a sequence, without causal_offsets. */
static inline int64_t mha_first_position(const attune_problem *p, int64_t queries, int64_t keys) {
    return p->causal_offset + (mha_is_bottom_right(p) ? keys - queries : 0);
}
/* Whether that position is the same in every call: it then follows from seq_q and seq_kv. */
static inline bool mha_is_base_known(const attune_problem *p) {
    const bool has_lengths = p->seq_q >= 0 && p->seq_kv >= 0 && !p->has_kv_lens;
    return !p->has_causal_offsets && (has_lengths || !mha_is_bottom_right(p));
}

/* ---- Quantised caches ---- */

static inline bool mha_is_quantised(attune_dtype dtype) {
    return dtype == ATTUNE_I8 || dtype == ATTUNE_F8 || dtype == ATTUNE_I4;
}
/* Quantised values are relative to a minimum, which is stored with the scales. */
static inline bool mha_has_least(attune_scales scales) { return scales >= ATTUNE_SCALES_INLINE_MIN; }
/* Scales are stored between the quantised values. */
static inline bool mha_is_inline(attune_scales scales) {
    return scales == ATTUNE_SCALES_INLINE || scales == ATTUNE_SCALES_INLINE_MIN;
}
static inline bool mha_is_by_group(attune_scales scales) {
    return scales == ATTUNE_SCALES_GROUP || scales == ATTUNE_SCALES_GROUP_MIN;
}
static inline bool mha_is_by_channel(attune_scales scales) {
    return scales == ATTUNE_SCALES_CHANNEL || scales == ATTUNE_SCALES_CHANNEL_MIN;
}
/* Each key has a row of them. */
static inline bool mha_scales_runs(attune_scales scales) {
    return mha_is_by_group(scales) || scales == ATTUNE_SCALES_TOKEN_MIN;
}
/* A row whose bytes are not its elements: its tensor has bytes. */
static inline bool mha_is_packed(attune_dtype dtype, attune_scales scales) {
    return dtype == ATTUNE_I4 || (mha_is_quantised(dtype) && mha_is_inline(scales));
}
/* Scales that multiply each element, and not a score or a probability. */
static inline bool mha_scales_elements(attune_scales scales) {
    return mha_scales_runs(scales) || mha_is_by_channel(scales) || mha_is_inline(scales);
}
/* Rows of K or V that must be dequantised by such scales, or unpacked. */
static inline bool mha_dequantises_rows(const attune_problem *p) {
    return mha_is_packed(p->k_dtype, p->k_scales) || mha_is_packed(p->v_dtype, p->v_scales) ||
           mha_scales_elements(p->k_scales) || mha_scales_elements(p->v_scales);
}
/* Columns whose quantised values are stored together, with their scale if it is inline. */
enum { MHA_BLOCK_COLUMNS = 32, MHA_INLINE_BYTES = 2 };
/* Scales in a row of scales, of a key or of a head; minima come after them. */
static inline int64_t mha_row_scales(attune_scales scales, int64_t group, int64_t columns) {
    return mha_is_by_group(scales) ? columns / group : mha_is_by_channel(scales) ? columns : 1;
}
/* Integer products of a row of Q and a key: one for each plane of quantised Q. */
static inline int64_t mha_query_planes(const attune_problem *p) {
    return p->integer && p->q_planes == ATTUNE_Q_PLANES_2 ? 2 : 1;
}
/* Whether each call quantises K for integer scores. */
static inline bool mha_quantises_keys(const attune_problem *p) {
    return p->integer && p->k_dtype != ATTUNE_I8 && p->k_dtype != ATTUNE_I4;
}
/* Whether a row's result is the same on every instruction set, bit for bit. A block's is not, as its projections sum
 * floats. */
static inline bool mha_is_pinned(const attune_problem *p) {
    return p->integer == ATTUNE_INTEGER_ALL && !mha_is_block(p);
}
/* Whether appended keys or values must be quantised. */
static inline bool mha_appends_quantised(const attune_problem *p) {
    return p->seq_new && (mha_is_quantised(p->k_dtype) || mha_is_quantised(p->v_dtype));
}
static inline bool mha_has_scales(attune_scales scales) {
    return scales == ATTUNE_SCALES_HEAD || scales == ATTUNE_SCALES_TOKEN;
}

/* ---- Caches in panels ---- */

static inline bool mha_has_panels(const attune_problem *p) {
    return p->k_layout == ATTUNE_LAYOUT_PANELS || p->v_layout == ATTUNE_LAYOUT_PANELS;
}
/* Elements in four bytes; rows of int4 have bytes as elements. */
static inline int64_t mha_unit_of_dtype(attune_dtype dtype) {
    return dtype == ATTUNE_I8 || dtype == ATTUNE_I4 ? 4 : dtype == ATTUNE_BF16 ? 2 : 1;
}
/* The number of panels for `tokens` tokens. */
static inline int64_t mha_panels(int64_t tokens) { return (tokens + ATTUNE_PANEL_TOKENS - 1) / ATTUNE_PANEL_TOKENS; }

/* ---- Quantised weights of a block ---- */

static inline bool mha_has_quantised_weights(const attune_problem *p) {
    return p->w_dtype == ATTUNE_I8 || p->w_dtype == ATTUNE_I4;
}

/* Bytes of an element. */
static inline int64_t mha_dtype_bytes(attune_dtype dtype) {
    switch (dtype) {
    case ATTUNE_F64: return 8;
    case ATTUNE_F16:
    case ATTUNE_BF16: return 2;
    case ATTUNE_I8:
    case ATTUNE_F8: return 1;
    default: return 4;
    }
}

/* Bytes of a block before its quantised values. */
static inline int64_t mha_inline_bytes(attune_scales scales) {
    if (!mha_is_inline(scales)) return 0;
    return mha_has_least(scales) ? 2 * MHA_INLINE_BYTES : MHA_INLINE_BYTES;
}

/* Bytes of a row of K or V with `columns` columns. */
static inline int64_t mha_row_bytes(attune_dtype dtype, attune_scales scales, int64_t columns) {
    const int64_t values = dtype == ATTUNE_I4 ? columns / 2 : columns * mha_dtype_bytes(dtype);
    return values + (mha_is_packed(dtype, scales) ? columns / MHA_BLOCK_COLUMNS * mha_inline_bytes(scales) : 0);
}
static inline int64_t mha_k_row_bytes(const attune_problem *p) {
    return mha_row_bytes(p->k_dtype, p->k_scales, p->head_dim);
}
static inline int64_t mha_v_row_bytes(const attune_problem *p) {
    return mha_row_bytes(p->v_dtype, p->v_scales, p->head_dim_v);
}

/* ---- Rows of a block's products: tokens of all sequences, of the longer input ---- */

/* At most 2^20. A length that is known at run time only counts as its bound, or as `usual` if it has none. */
int64_t mha_product_rows(const attune_problem *canonical, int64_t usual);
/* The number of rows if it is at most 32: schedule and kernel are then for that number only. 0: more, or no block. */
int64_t mha_few_rows(const attune_problem *canonical);

#endif
