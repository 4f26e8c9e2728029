/* The independent meaning of functions on scores, masks and probabilities, as docs/functions.md has it: the text is
 * read anew for each score, and shares no code with src/expr. The text was checked before: what is wrong in it gives 0.
 */
#ifndef ATTUNE_REF_FUNCTIONS_H
#define ATTUNE_REF_FUNCTIONS_H

#include "ref_attention.h"

/* Where a function is evaluated. */
typedef struct ref_place {
    const ref_call *call;
    int64_t b, h, kv_h, q, kv, seq_q, seq_kv;
} ref_place;

/* The score as score_mod has it; `score` without one. */
long double ref_modified(const ref_place *place, long double score);
/* The probability as prob_mod has it; `prob` without one. */
long double ref_modified_prob(const ref_place *place, long double prob);
/* Whether mask_mod lets the query see the key; true without one. */
bool ref_function_sees(const ref_place *place);

#endif
