/* An MLA block, which mla.c creates and step.c runs. */
#ifndef ATTUNE_MLA_MLA_H
#define ATTUNE_MLA_MLA_H

#include "engine/own_operator.h"
#include "mla/kernel.h"

/* Kernels for one token, for a few, for some, and for many. */
enum { MLA_NUM_SIZES = 4 };
extern const int64_t mla_rows[MLA_NUM_SIZES];

struct attune_mla {
    attune_context *context;
    attune_operator *op;
    attune_mla_desc desc; /* with all defaults filled in */
    /* Attention to rows of the cache; and to keys and values of heads_at_once heads. */
    attune_attention *absorbed, *unabsorbed;
    attune_attention *listed; /* attention to listed rows of the cache; NULL without has_ids */
    int64_t heads_at_once;
    void *packed;                            /* all matrices, and the weights of the norms */
    unsigned char *matrix[MLA_NUM_MATRICES]; /* NULL: there is none */
    size_t head_bytes[MLA_NUM_MATRICES];     /* from one head's section to the next */
    float *q_norm, *kv_norm;
    char problem[MLA_NUM_KINDS][MLA_NUM_SIZES][MLA_PROBLEM_BYTES];
    _Atomic(attune_kernel *) kernels[MLA_NUM_KINDS][MLA_NUM_SIZES];
};

/* step.c. is_interpreted: the interpreter runs the kernels around attention. */
attune_status mla_run_step(attune_mla *mla, const attune_mla_step *step, bool is_interpreted, at_error *err);

#endif
