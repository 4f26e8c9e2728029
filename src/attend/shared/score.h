/* The score of a query and a key: from the dot product q · k to what the softmax gets. The steps in their order, each
 * only if the problem has it:
 *
 *   z = q.k * k_scale                  caches of quantised values
 *   z = z * softmax_scale              only c->is_natural; otherwise mha_exp multiplies
 *   z = cap * tanh(z / cap)            the soft cap
 *   z = z - slope * |position - key|   ALiBi
 *   z = z + bias                       attn_bias
 *   z = score_mod(z)                   by the callers
 *   z = -inf                           of a hidden key (mha_sees in sight.h, mha_hide)
 *
 * Values have any number of lanes, which run along rows or along keys. Each operand is a scalar, or a vector along the
 * lanes. */
#ifndef ATTUNE_ATTEND_SHARED_SCORE_H
#define ATTUNE_ATTEND_SHARED_SCORE_H

#include "nest/context.h"

/* NULL: the problem does not have it. One lane stands for all. */
typedef struct mha_score_operands {
    const ir_expr *k_scale;  /* mha_k_scale */
    const ir_expr *slope;    /* alibi_slopes[head], as c->elem; needs position and key */
    const ir_expr *position; /* of the query, as c->elem */
    const ir_expr *key;      /* its number, as c->elem */
    const ir_expr *bias;     /* as c->elem */
} mha_score_operands;

/* All steps except the last. For outputs of scores, `shown` ends the steps early: SCALED before the cap, CAPPED after
 * it. */
const ir_expr *mha_score(const mha_context *c, const mha_score_operands *operands, const ir_expr *dot,
                         attune_weights_mode shown);

/* The last step: `hidden` in lanes where sees is false. sees NULL: no key is hidden. */
const ir_expr *mha_hide(const mha_context *c, const ir_expr *sees, const ir_expr *z, double hidden);

/* ---- softmax_scale ---- */

/* Whether scores must be unscaled base-e scores ("natural": multiplied by softmax_scale before the softmax), because a
 * later step needs them so. */
bool mha_has_natural_scores(const attune_problem *p);

/* The factor from scores to base-e exponents; 1 for unscaled base-e scores, ln 2 with in_log2. Otherwise it is
 * |softmax_scale|: Q was multiplied by its sign (mha_query_sign), so that the largest score has the largest
 * probability. */
const ir_expr *mha_score_scale(const mha_context *c);
/* mha_score_scale times log2(e), for exp2. */
const ir_expr *mha_score_log2e(const mha_context *c);
/* The factor of Q: the sign of softmax_scale, or 0 if that is 0 in c->elem. It is only the sign, so that Q is not
 * rounded again. NULL: 1, also for unscaled base-e scores. */
const ir_expr *mha_query_sign(const mha_context *c);
/* Opens scale and sign in a phase, before anything uses them, if the call passes the scale; and the soft cap of a
 * general kernel. */
void mha_scale_open(mha_context *c);

#endif
