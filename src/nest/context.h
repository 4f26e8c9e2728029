/* The builders of all phases of a kernel share this: the problem with its parameters, and arithmetic in the problem's
 * precision. The phases are in attend/around/around.h and layer/block.h; operator/build.c puts them together. */
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
    bool is_pinned; /* arithmetic that every target has (integer=all): no fma, no scalef, no order of float sums */
    int64_t group;  /* query heads of a KV head; of a general problem those for which the schedule is chosen */
    mha_params params;
    /* Tensors of attention: parameters, or shared memory that an earlier phase has filled. All are indexed
     * [batch, head, token, column] (k and v as attend/shared/sequence.h says), lse [batch, head, token]. */
    const ir_buffer *q, *k, *v, *out;
    const ir_buffer *lse;               /* NULL if it is not wanted */
    const ir_buffer *k_new, *v_new;     /* append.c puts these into k and v */
    const ir_buffer *given_q, *given_k; /* rotary.c makes q and k of these */
    /* Results of d-lanes for each chunk of keys, until they are merged; in shared memory, NULL if there is one chunk.
     */
    struct {
        const ir_buffer *max, *sum, *out;
    } parts;
    /* Quantised K (attend/prefill/quantised_keys.h), shared; NULL where scores are no integers, or K is quantised. */
    struct {
        const ir_buffer *values;          /* i8 [batch, kv_head, key, padded columns] */
        const ir_buffer *scales, *starts; /* elem and i32 [batch, kv_head, key] */
        const ir_buffer *takes;           /* i32 [batch, kv_head, key]: -1 where the mean was subtracted, else 0 */
        const ir_buffer *mean;            /* elem [sequence, kv_head, padded columns] */
    } quantised_k;
    const ir_buffer *v_pairs; /* kv_copy=once: V in pairs [batch, kv_head, pair, 2 * column], shared; else NULL */
    bool k_is_linear;         /* k is paged, and c->k is a copy [batch, kv_head, key, column] */
    /* This kernel prepares all keys in memory of its own, which holds no keys beyond those of a sequence. */
    bool prepares_keys;
    ir_elem q_elem, k_elem, v_elem; /* of q, k and v that this kernel makes: projects, prepares or gathers */
    /* Needs of the scores of this problem. */
    bool in_log2;      /* scores come times log2(e), for exp2: of codes that a row's scale is multiplied with anyway */
    bool is_natural;   /* scores are scaled before the softmax, because a step before it needs that (score.h) */
    bool has_first;    /* rows have a first key other than 0 */
    bool has_last;     /* rows have a last key of their own */
    bool has_global;   /* … and see the first keys as well */
    bool has_position; /* positions matter at all */
    const ex_program *functions; /* on scores and masks; NULL: there are none */
    const ir_buffer *mask_table; /* which keys mask_mod hides, in shared memory (attend/shared/mask_table.h); or NULL */
    /* Of a scale that each call has, in the phase that is being built (mha_scale_open); NULL: constants. */
    const ir_expr *score_scale, *query_sign;
    const ir_expr *cap, *inverse_cap; /* the same of the soft cap of a general problem */
} mha_context;

/* ---- Arithmetic ---- */

/* `lanes` equal numbers of c->elem; lanes 1: a scalar. */
const ir_expr *mha_number(const mha_context *c, double value, int lanes);

/* A scalar in so many lanes; a vector as it is. */
const ir_expr *mha_in_lanes(const mha_context *c, const ir_expr *x, int lanes);

/* x * y + z: fused if the target can do that, else two roundings. */
const ir_expr *mha_madd(const mha_context *c, const ir_expr *x, const ir_expr *y, const ir_expr *z);

/* exp2, log2 or tanh of x; c->is_pinned: as arithmetic that is the same on every target. */
const ir_expr *mha_math(const mha_context *c, ir_op op, const ir_expr *x);

/* A sum of many terms, and the part of it that rounding took away (NULL unless the problem is reproducible). */
typedef struct mha_sum {
    const ir_expr *value, *lost;
} mha_sum;

/* sum * factor + term. The lost part is exact if |sum| is at least |term|, and else wrong by at most one rounding of
 * the term. So the error of a long sum does not grow with the number of terms. */
mha_sum mha_sum_add(const mha_context *c, mha_sum sum, const ir_expr *factor, const ir_expr *term);

/* value + lost. If the value is not finite, its lost part is not either, and is left out. */
const ir_expr *mha_sum_total(const mha_context *c, mha_sum sum);

/* An f32 as c->elem. */
const ir_expr *mha_widened(const mha_context *c, const ir_expr *x);
/* c->elem as an f32. */
const ir_expr *mha_narrowed(const mha_context *c, const ir_expr *x);

/* A load as c->elem, whatever the tensor's element; and a store of c->elem. */
const ir_expr *mha_load(const mha_context *c, const ir_access *access);
void mha_store(const mha_context *c, const ir_access *access, const ir_expr *value);

#endif
