/* Converts buffers of XLA to tensors of a call, and dims of vmap to a part of its batch. */
#ifndef ATTUNE_JAX_TENSORS_H
#define ATTUNE_JAX_TENSORS_H

#include "attune.h"
#include "xla_ffi.h"

#include <stdbool.h>

enum { TENSORS_MAX = 9, TENSORS_MAX_OUTER = 16, TENSORS_MESSAGE_BYTES = 320 };

typedef enum tensor_kind { TENSOR_TOKENS, TENSOR_SCORES, TENSOR_LENGTHS, TENSOR_SINKS, TENSOR_LSE } tensor_kind;

typedef struct tensor {
    const char *name;
    const xla_buffer *buffer;
    tensor_kind kind;
    attune_dtype dtype;
    int64_t strides[4];                       /* in attune's order of dims; 0 broadcasts; [0] is the batch's */
    int64_t outer_strides[TENSORS_MAX_OUTER]; /* of the dims of vmap */
} tensor;

typedef struct tensors {
    const attune_problem *problem;
    tensor list[TENSORS_MAX];
    int count;
    int64_t batch, rows, heads, keys, kv_heads;
    int64_t outer[TENSORS_MAX_OUTER]; /* dims of vmap that are not part of the batch: one call for each index */
    int num_outer;
    char message[TENSORS_MESSAGE_BYTES]; /* after a failure: which tensor, and why */
} tensors;

/* Reads the tensors of a frame, which must match the problem. False after a failure. */
bool tensors_take(tensors *t, const attune_problem *problem, const xla_call_frame *frame);

/* Merges as many dims of vmap as possible into the batch. */
void tensors_fold(tensors *t);

/* Sets sizes, strides and pointers of the call with this index of the outer dims. */
void tensors_bind(const tensors *t, const int64_t *index, attune_arguments *a);

#endif
