/* Plans of a node by the kind of call: everything that is compiled in. Sizes and outer strides vary from call to call.
 */
#ifndef ATTUNE_ORT_PLANS_H
#define ATTUNE_ORT_PLANS_H

#include "attune.h"
#include "common/list.h"

/* A mask or a bias, seen as [batch, heads, queries, keys]. */
typedef struct plan_mask {
    uint8_t dtype;         /* attune_dtype; 0: absent */
    uint8_t rows, columns; /* 1: it varies along queries, keys */
    uint8_t is_short;      /* it may end before the last key */
} plan_mask;

/* One kind of call. Compared as bytes: begin with all zeros. */
typedef struct plan_key {
    double scale, soft_cap; /* scale NaN: 1 / sqrt(head_dim) */
    int64_t window_left, window_right;
    int32_t head_dim, head_dim_v, group, rotary_dim;
    int32_t embed_dim, out_dim; /* of a block, else 0; out_dim 0: no product after attention */
    int32_t num_heads;          /* of a block and with functions, else 0 */
    int32_t batch;              /* with functions, else 0 */
    uint8_t dtype, v_dtype;     /* attune_dtype */
    uint8_t is_causal, bottom_right, has_causal_offsets, has_kv_lens, has_sinks;
    uint8_t appends, appends_one; /* keys are appended to k and v: any number, or exactly one */
    uint8_t rotary_interleaved, has_position_ids;
    uint8_t weights_mode, is_f64;
    uint8_t reserved[3];
    plan_mask mask, bias;
} plan_key;
_Static_assert(sizeof(plan_key) % 8 == 0, "words of a key");

typedef struct plan plan;

/* All kinds of calls of one node. */
typedef struct plans {
    attune_context *context;         /* NULL until it could be made */
    const attune_problem *functions; /* NULL, or a problem that has the functions of all calls, and their tensors */
    common_list list;
    atomic_uint count;
} plans;

/* The plan of a kind of call, made on the first one. NULL after a failure, with a sentence. Thread-safe, and without a
 * lock. */
plan *plans_find(plans *all, const plan_key *key, char message[ATTUNE_MESSAGE_BYTES]);
void plans_free(plans *all);

/* Arguments with everything that does not vary set. */
void plan_arguments(const plan *p, attune_arguments *arguments);
attune_status plan_run(const plans *all, plan *p, const attune_arguments *arguments, const attune_runner *runner);

#endif
