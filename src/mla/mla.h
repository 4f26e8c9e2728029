/* An MLA block, which mla.c creates and step.c runs. */
#ifndef ATTUNE_MLA_MLA_H
#define ATTUNE_MLA_MLA_H

#include "described/described.h"
#include "mla/kernel.h"

struct attune_mla {
    at_described described;
    attune_mla_desc desc; /* with all defaults filled in */
    /* Attention to rows of the cache; and to keys and values of heads_at_once heads. */
    attune_attention *absorbed, *unabsorbed;
    attune_attention *listed;                /* attention to listed rows of the cache; NULL without has_ids */
    void *packed;                            /* all matrices, and the weights of the norms */
    unsigned char *matrix[MLA_NUM_MATRICES]; /* NULL: there is none */
    size_t head_bytes[MLA_NUM_MATRICES];     /* from one head's section to the next */
    float *q_norm, *kv_norm;
};

/* step.c: checks and runs a caller's step. is_interpreted: the interpreter runs the kernels around attention. */
attune_status mla_run(at_described *mla, const void *step, bool is_interpreted, at_error *err);

#endif
