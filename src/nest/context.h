/* The builders of a kernel's phases share this: the problem with its parameters, arithmetic in the problem's
 * precision, what one batch entry is, and where its keys lie. Scores are in score.h, the softmax is in softmax.h, and
 * which keys a row sees is in sight.h.
 *
 * build.c strings the phases together. Each builder has a function that declares what it keeps in shared memory (all of
 * them run before the first phase is opened) and one that builds its phase or phases. */
#ifndef ATTUNE_MHA_CONTEXT_H
#define ATTUNE_MHA_CONTEXT_H

#include "nest/params.h"
#include "target/target.h"

typedef struct mha_context {
    ir_builder *b;
    const attune_problem *p;
    const attune_schedule *s;
    const at_target *target;
    ir_elem elem; /* of all arithmetic, and of scratch: f32 or f64 */
    int lanes;    /* of a vector of elem */
    bool has_fma, has_scalef;
    bool by_pairs; /* mha_attends_by_pairs: q_elem, k_elem and v_elem are bf16, and so are q, k and v */
    bool projects_by_pairs, projects_by_tiles;
    int64_t group; /* query heads of a KV head */
    mha_params params;
    /* Tensors of attention: parameters, or shared memory that an earlier phase has filled. All are indexed
     * [batch, head, token, column] (k and v as mha_kv_row_at says), lse [batch, head, token]. */
    const ir_buffer *q, *k, *v, *out;
    const ir_buffer *lse;                       /* NULL if it is not wanted */
    const ir_buffer *k_new, *v_new;             /* append.c puts these into k and v */
    const ir_buffer *unrotated_q, *unrotated_k; /* rotary.c makes q and k of these */
    /* Results of d-lanes for each chunk of keys, until they are merged; in shared memory, NULL if there is one chunk.
     */
    struct {
        const ir_buffer *max, *sum, *out;
    } parts;
    bool k_is_linear; /* k is paged, and c->k is a copy [batch, kv_head, key, column] */
    /* All keys are rotated by this kernel, into memory of its own: none beyond an entry's keys is there. */
    bool rotates_keys;
    ir_elem q_elem, k_elem, v_elem; /* of q, k and v that this kernel makes: projects, rotates or gathers */
    /* Needs of the scores of this problem. */
    bool is_natural;   /* scores are scaled before the softmax because something is done to them first */
    bool has_first;    /* rows have a first key other than 0 */
    bool has_last;     /* rows have a last key of their own */
    bool has_global;   /* … and see the first keys as well */
    bool has_position; /* positions matter at all */
    /* Of a scale that each call has, in the phase that is being built (mha_scale_open); NULL: constants. */
    const ir_expr *score_scale, *query_sign;
} mha_context;

/* ---- Arithmetic ---- */

static inline const ir_expr *mha_i(const mha_context *c, int64_t value) { return ir_idx(c->b, value); }

/* `lanes` equal numbers of c->elem; lanes 1: a scalar. */
const ir_expr *mha_number(const mha_context *c, double value, int lanes);

/* A scalar in so many lanes; a vector as it is. */
const ir_expr *mha_in_lanes(const mha_context *c, const ir_expr *x, int lanes);

/* x * y + z: fused where the target can, else two roundings. */
const ir_expr *mha_madd(const mha_context *c, const ir_expr *x, const ir_expr *y, const ir_expr *z);

/* A sum of many terms, and the part of it that rounding took away (NULL unless the problem is reproducible). */
typedef struct mha_sum {
    const ir_expr *value, *lost;
} mha_sum;

/* sum * factor + term. The lost part is exact if |sum| is at least |term|, and else wrong by at most one rounding of
 * the term. So the error of a long sum does not grow with the number of terms. */
mha_sum mha_sum_add(const mha_context *c, mha_sum sum, const ir_expr *factor, const ir_expr *term);

/* value + lost. If the value is not finite, its lost part is not either, and is left out. */
const ir_expr *mha_sum_total(const mha_context *c, mha_sum sum);

/* A load as c->elem, whatever the tensor's element; and a store of c->elem. */
const ir_expr *mha_load(const mha_context *c, const ir_access *access);
void mha_store(const mha_context *c, const ir_access *access, const ir_expr *value);

/* ---- Batch entries ---- */

typedef struct mha_entry {
    const ir_expr *number;             /* of the entry: indexes masks and tables */
    const ir_expr *batch, *kv_batch;   /* first index of q, out, lse / of unpaged k, v: the number, or 0 if ragged */
    const ir_expr *first_q, *first_kv; /* token of its query 0, of its key 0; 0 unless ragged */
    const ir_expr *seq_q, *seq_kv;     /* its queries, its keys that count; constants where static */
    const ir_expr *base;               /* position of its query 0; NULL unless c->has_position */
    bool positions_are_keys;           /* set by who knows it (mha_positions_are_keys): sights end at the position */
} mha_entry;

/* Reads the tables and states what the runtime has checked of them. Inside a task. */
mha_entry mha_entry_open(const mha_context *c, const ir_expr *number);

/* The first three indices of key j (0 <= j < seq_kv, and the caller's code proves it) in k and v; the column follows.
 * Paged: reads the block table. */
typedef struct mha_kv_row {
    const ir_expr *index[3];
    const ir_expr *linear[3]; /* the same in c->k where c->k_is_linear */
} mha_kv_row;
mha_kv_row mha_kv_row_at(const mha_context *c, const mha_entry *e, const ir_expr *kv_head, const ir_expr *j);

/* Accesses of `lanes` columns from `column` on. */
const ir_access *mha_kv_access(const mha_context *c, const ir_buffer *k_or_v, const mha_kv_row *row,
                               const ir_expr *column, int lanes);

/* ---- Quantised caches ---- */

/* A code of the key at `row` stands for code * scale; the scale is a scalar of c->elem. mha_score multiplies the
 * product of q and K's codes by the scale of K. A probability is multiplied by the scale of V before it is by V's
 * codes. That order is part of what `reproducible` promises. NULL: there is none. A hidden key's scale may be NaN or
 * infinite. */
const ir_expr *mha_k_scale(const mha_context *c, const mha_kv_row *row);
const ir_expr *mha_v_scale(const mha_context *c, const mha_kv_row *row);
/* Where it is: MHA_K_SCALE or MHA_V_SCALE. */
const ir_access *mha_scale_access(const mha_context *c, mha_tensor_id id, const mha_kv_row *row);

/* ---- The builders ---- */

/* The two strategies of attention, q_lanes.c and d_lanes.c: O, and LSE where c->lse is set. */
void mha_q_lanes(mha_context *c);
void mha_d_lanes_shared(mha_context *c);
void mha_d_lanes(mha_context *c);

/* append.c: c->k_new and c->v_new (rotated, if the problem has rotary) into k and v. */
void mha_append(mha_context *c);
/* The key that new token `token` of an entry becomes, of `count` that it gets. */
const ir_expr *mha_new_key(const mha_context *c, const mha_entry *e, const ir_expr *token, const ir_expr *count);

/* rotary.c: q, and k where c->rotates_keys, rotated into shared memory; c->q and c->k then mean those. */
void mha_rotary_shared(mha_context *c);
void mha_rotary(mha_context *c);
/* The op: q rotated into out. */
void mha_rotary_op(mha_context *c);
/* A row of a buffer: its last dimension, from column `first` on if that is not NULL. */
typedef struct mha_row {
    const ir_buffer *buffer;
    const ir_expr *index[3]; /* of the other dimensions */
    const ir_expr *first;
} mha_row;
/* One row of head_dim columns, from source to target, rotated by row `position` of the caches of entry `number`. */
void mha_rotate_row(mha_context *c, const ir_expr *number, const ir_expr *position, const mha_row *source,
                    const mha_row *target);

/* weights.c: the weights output, from c->q, c->k and, for probabilities, c->lse. Op and phase alike. */
void mha_weights(mha_context *c);

/* merge.c: the op. The same arithmetic serves d_lanes.c for its chunks. */
void mha_merge_op(mha_context *c);

#endif
