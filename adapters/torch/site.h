/* Kernels by the kind of call: all that is compiled in. Lengths, batch, heads and outer strides vary from call to call.
 */
#ifndef ATTUNE_TORCH_SITE_H
#define ATTUNE_TORCH_SITE_H

#include "adapter.h"

/* A mask or a bias, [batch, heads, queries, keys], seen as four dims. */
typedef struct site_mask {
    uint8_t dtype;         /* attune_dtype; 0: absent */
    uint8_t rows, columns; /* 1: it varies along queries, keys */
    uint8_t is_single;     /* one element for all */
} site_mask;

/* Keys that are appended to k and v: any number, or exactly one. */
enum { SITE_APPENDS = 1, SITE_APPENDS_ONE = 2 };

/* One kind of call. Compared as bytes: begin with all zeros. */
typedef struct site_key {
    double soft_cap;
    int64_t window_left, window_right;
    int64_t lse_stride; /* of the innermost dim; 0: there is no lse */
    int32_t head_dim, head_dim_v, group;
    uint8_t dtype, kv_dtype; /* attune_dtype */
    uint8_t is_causal, bottom_right, has_sinks, has_kv_lens;
    uint8_t appends; /* 0, SITE_APPENDS or SITE_APPENDS_ONE */
    uint8_t reproducible;
    site_mask mask, bias;
    uint8_t has_scale; /* each call has its own; otherwise it is 1 / sqrt(head_dim) */
    uint8_t reserved[3];
} site_key;

typedef struct site site;

/* The site of a kind of call, made on the first call; NULL if there are too many or memory is short. Thread-safe, and
 * without a lock. */
site *site_find(const site_key *key);

/* Whether `scale` is 1 / sqrt(head_dim): the scale that is compiled in. All others are arguments of the call, because
 * there may be any number of them. NaN is the default, too. */
bool site_is_default_scale(double scale, int32_t head_dim);

/* Arguments with everything that does not vary set. */
void site_arguments(const site *s, attune_arguments *arguments);

/* Runs the call on PyTorch's threads. After a failure *message is the reason, valid as attune_last_message() is. */
attune_status site_run(site *s, const attune_arguments *arguments, const char **message);

/* attune's number of a type of PyTorch; 0 if it has none. */
attune_dtype site_dtype(int32_t torch_dtype);

/* Describes `mask` of a call. strides: of four dims, 0 where it is broadcast. False if it cannot be broadcast to these
 * sizes, or if its innermost stride is neither 0 nor 1. */
bool site_mask_of(const torch_view *view, const int64_t sizes[4], site_mask *mask, int64_t strides[4]);

/* Strides of a tensor for attune, which takes an innermost stride of 1. False if it has another. */
bool site_strides(const torch_view *view, int64_t strides[4]);

#endif
