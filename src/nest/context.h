/* What the builders of all phases of a kernel share: the problem with its parameters, and arithmetic in the problem's
 * precision. The phases are in attend/around/around.h and layer/block.h; operator/build.c assembles kernels from them.
 */
#ifndef ATTUNE_NEST_CONTEXT_H
#define ATTUNE_NEST_CONTEXT_H

#include "expr/expr.h"
#include "nest/params.h"
#include "schedule/variant.h"
#include "target/target.h"

typedef struct mha_context {
    ir_builder *b;
    const attune_problem *p;
    const mha_schedule *s;
    const at_target *target;
    /* How this kernel computes. by_pairs: q_elem, k_elem and v_elem are bf16, and so are q, k and v; or k, v f8. */
    mha_variant variant;
    ir_elem elem; /* of all arithmetic, and of scratch: f32 or f64 */
    int lanes;    /* of a vector of elem */
    bool has_fma, has_scalef;
    bool is_pinned; /* only arithmetic with the same bits on every target (integer=all): no fma, no scalef, no float
                       sums in lanes */
    int64_t group;  /* query heads of a KV head; in general kernels the number for which the schedule was chosen */
    mha_params params;
    /* Tensors of attention: parameters, or shared memory that an earlier phase has filled. All are indexed
     * [batch, head, token, column] (k and v as attend/shared/sequence.h says), lse [batch, head, token]. */
    const ir_buffer *q, *k, *v, *out;
    const ir_buffer *lse;               /* NULL if it is not wanted */
    const ir_buffer *k_new, *v_new;     /* append.c copies these to k and v */
    const ir_buffer *given_q, *given_k; /* rotary.c computes q and k from these */
    /* Decoding: results of each chunk of keys, which are merged later; in shared memory, NULL if there is one chunk. */
    struct {
        const ir_buffer *max, *sum, *out;
    } parts;
    /* Shared memory for quantised K (attend/prefill/quantised_keys.h); NULL unless scores are integers and K is not
     * quantised. */
    struct {
        const ir_buffer *values;          /* i8 [batch, kv_head, key, padded columns] */
        const ir_buffer *scales, *starts; /* elem and i32 [batch, kv_head, key] */
        const ir_buffer *takes;           /* i32 [batch, kv_head, key]: -1 where the mean was subtracted, else 0 */
        const ir_buffer *mean;            /* elem [sequence, kv_head, padded columns] */
    } quantised_k;
    const ir_buffer *v_pairs; /* kv_copy=once: V in pairs [batch, kv_head, pair, 2 * column], shared; else NULL */
    bool k_is_linear;         /* k is paged, and c->k is a copy [batch, kv_head, key, column] */
    /* This kernel prepares all keys in its own memory, which has no keys beyond those of a sequence. */
    bool prepares_keys;
    ir_elem q_elem, k_elem, v_elem; /* of q, k and v if this kernel computes them: projects, prepares or gathers */
    /* Properties of the problem's scores. */
    bool in_log2; /* scores are multiplied by log2(e) for exp2, at no cost: integer products are multiplied by a row's
                     scale anyway */
    bool is_natural;   /* scores are multiplied by softmax_scale before the softmax, as an earlier step needs that
                          (score.h) */
    bool has_first;    /* rows have a first key other than 0 */
    bool has_last;     /* rows have their own last key */
    bool has_global;   /* … and attend to the first keys, too (global_tokens) */
    bool has_position; /* positions matter at all */
    const ex_program *functions; /* users' functions; NULL: there are none */
    const ir_buffer *mask_table; /* which keys mask_mod hides, in shared memory (attend/shared/mask_table.h); or NULL */
    /* If each call passes softmax_scale: its parts, in the phase that is being built (mha_scale_open). NULL: constants.
     */
    const ir_expr *score_scale, *query_sign;
    const ir_expr *cap, *inverse_cap; /* the same for the soft cap in general kernels */
} mha_context;

/* ---- Arithmetic ---- */

/* A constant of c->elem in `lanes` lanes. */
const ir_expr *mha_number(const mha_context *c, double value, int lanes);

/* A scalar in all of `lanes` lanes; a vector as it is. */
const ir_expr *mha_in_lanes(const mha_context *c, const ir_expr *x, int lanes);

/* x * y + z: fused if the target has it, else with two roundings. */
const ir_expr *mha_madd(const mha_context *c, const ir_expr *x, const ir_expr *y, const ir_expr *z);

/* exp2, log2 or tanh of x. With c->is_pinned it is expanded here, to arithmetic that is the same on every target. */
const ir_expr *mha_math(const mha_context *c, ir_op op, const ir_expr *x);

/* A sum of many terms, and its low-order part that rounding has lost (NULL unless the problem is reproducible). */
typedef struct mha_sum {
    const ir_expr *value, *lost;
} mha_sum;

/* sum * factor + term. The lost part is exact if |sum| >= |term|; otherwise its error is at most one rounding of the
 * term. So the error of a long sum does not grow with the number of terms. */
mha_sum mha_sum_add(const mha_context *c, mha_sum sum, const ir_expr *factor, const ir_expr *term);

/* value + lost. If the value is not finite, its lost part is not either, and is ignored. */
const ir_expr *mha_sum_total(const mha_context *c, mha_sum sum);

/* An f32 as c->elem. */
const ir_expr *mha_widened(const mha_context *c, const ir_expr *x);
/* c->elem as an f32. */
const ir_expr *mha_narrowed(const mha_context *c, const ir_expr *x);

/* A load, converted to c->elem from any element; and a store, converted from c->elem. */
const ir_expr *mha_load(const mha_context *c, const ir_access *access);
void mha_store(const mha_context *c, const ir_access *access, const ir_expr *value);

#endif
