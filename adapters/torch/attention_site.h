/* Calls of attention by kind, and how tensors of PyTorch become their arguments. Lengths, batch, heads and outer
 * strides vary from call to call. */
#ifndef ATTUNE_TORCH_ATTENTION_SITE_H
#define ATTUNE_TORCH_ATTENTION_SITE_H

#include "site.h"

/* A mask or a bias, [batch, heads, queries, keys], seen as four dims. */
typedef struct attention_mask {
    uint8_t dtype;         /* attune_dtype; 0: absent */
    uint8_t rows, columns; /* 1: it varies along queries, keys */
    uint8_t is_single;     /* one element for all */
} attention_mask;

/* Keys that are appended to k and v: any number, or exactly one. */
enum { ATTENTION_APPENDS = 1, ATTENTION_APPENDS_ONE = 2 };

/* One kind of call. Compared as bytes: begin with all zeros. */
typedef struct attention_key {
    double soft_cap;
    int64_t window_left, window_right;
    int64_t lse_stride; /* of the innermost dim; 0: there is no lse */
    int32_t head_dim, head_dim_v, group;
    uint8_t dtype, kv_dtype; /* attune_dtype */
    uint8_t is_causal, bottom_right, has_sinks, has_kv_lens;
    uint8_t appends; /* 0, ATTENTION_APPENDS or ATTENTION_APPENDS_ONE */
    uint8_t reproducible;
    attention_mask mask, bias;
    uint8_t has_scale; /* each call has its own; otherwise it is 1 / sqrt(head_dim) */
    uint8_t reserved[3];
} attention_key;
_Static_assert(sizeof(attention_key) % 8 == 0 && sizeof(attention_key) <= SITE_KEY_WORDS * 8, "words of a key");

/* The site of a kind of call, by site_find. */
site *attention_site(const attention_key *key);

/* Whether `scale` is 1 / sqrt(head_dim): the scale that is compiled in. All others are arguments of the call, because
 * there may be any number of them. NaN is the default, too. */
bool attention_is_default_scale(double scale, int32_t head_dim);

/* Describes `mask` of a call. strides: of four dims, 0 where it is broadcast. False if it cannot be broadcast to these
 * sizes, or if its innermost stride is neither 0 nor 1. */
bool attention_mask_of(const torch_view *view, const int64_t sizes[4], attention_mask *mask, int64_t strides[4]);

/* Allocates lse, [batch, heads, rows] in the layout [batch, rows, heads] of stock PyTorch, and sets the argument. False
 * if there is no memory. attention_lse_stride: its innermost stride, for the key; of one row it may be any. */
bool attention_make_lse(const int64_t sizes[3], attune_dtype dtype, torch_tensor *lse, attune_arguments *a);
static inline int64_t attention_lse_stride(int64_t heads, int64_t rows) { return rows == 1 ? 1 : heads; }

/* Strides of a tensor for attune, which takes an innermost stride of 1. False if it has another. */
bool attention_strides(const torch_view *view, int64_t strides[4]);

#endif
