/* The parameters of a kernel as IR: the tensors and sizes of problem/signature.h. */
#ifndef ATTUNE_NEST_PARAMS_H
#define ATTUNE_NEST_PARAMS_H

#include "ir/build.h"
#include "problem/signature.h"

typedef struct mha_params {
    const ir_expr *size[MHA_NUM_SIZES]; /* a constant or a parameter; NULL if the problem has no such size */
    const ir_expr *softmax_scale;       /* NULL: a constant of the problem */
    /* NULL if absent. With v_in_k, [MHA_V] is [MHA_K], and so are V's scales and new values. If keys follow queries,
     * [MHA_CU_SEQLENS_KV] is [MHA_CU_SEQLENS_Q]. */
    const ir_buffer *tensor[MHA_NUM_TENSORS];
} mha_params;

/* Declares the parameters, and assumes the facts about run-time sizes: batch and kv_heads >= 1, the others
 * >= 0, dynamic seq_q and seq_kv within their bounds. */
void mha_declare_params(ir_builder *b, const attune_problem *canonical, mha_params *params);

#endif
