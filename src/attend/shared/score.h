/* The score of a query and a key, made of the product q.k before the softmax. The steps, in their order, each only
 * where the problem has it:
 *
 *   z = q.k * k_scale                  caches of quantised values
 *   z = z * softmax_scale              natural scores only (scaled here; for others mha_exp multiplies)
 *   z = cap * tanh(z / cap)            the soft cap
 *   z = z - slope * |position - key|   ALiBi
 *   z = z + bias                       attn_bias
 *   z = -inf                           of a hidden key (mha_sees in sight.h, mha_hide)
 *
 * Values have any number of lanes, which run along rows or along keys. The caller gives each operand as a scalar or as
 * a vector along its lanes. */
#ifndef ATTUNE_ATTEND_SHARED_SCORE_H
#define ATTUNE_ATTEND_SHARED_SCORE_H

#include "nest/context.h"

/* NULL where the problem does not have it. One lane stands for all. */
typedef struct mha_score_operands {
    const ir_expr *k_scale;  /* mha_k_scale */
    const ir_expr *slope;    /* alibi_slopes[head], as c->elem. Only where it is needed are position and key */
    const ir_expr *position; /* of the query, as c->elem */
    const ir_expr *key;      /* its number, as c->elem */
    const ir_expr *bias;     /* as c->elem */
} mha_score_operands;

/* All steps except the last. `shown` ends the steps early, as the output of scores wants it: SCALED before the cap,
 * CAPPED after it. */
const ir_expr *mha_score(const mha_context *c, const mha_score_operands *operands, const ir_expr *dot,
                         attune_weights_mode shown);

/* The last step: `hidden` where sees is false. sees NULL: no key is hidden. */
const ir_expr *mha_hide(const mha_context *c, const ir_expr *sees, const ir_expr *z, double hidden);

/* ---- softmax_scale ---- */

/* Whether scores are natural: something is done to them that needs them scaled. */
bool mha_has_natural_scores(const attune_problem *p);

/* The factor that makes natural exponents of scores: 1 if these are natural. Otherwise the sign of softmax_scale is in
 * Q already (mha_query_sign), so that the largest score weighs most. */
const ir_expr *mha_score_scale(const mha_context *c);
/* mha_score_scale times log2(e), for exp2. */
const ir_expr *mha_score_log2e(const mha_context *c);
/* Q is multiplied by this: the sign of softmax_scale, or 0 if that is 0 in c->elem. It is only the sign, so that Q is
 * not rounded a second time. NULL where it is 1, as it is for natural scores. */
const ir_expr *mha_query_sign(const mha_context *c);
/* Opens both in a phase, before anything uses them, where calls have scales; and the soft cap of a general problem. */
void mha_scale_open(mha_context *c);

#endif
