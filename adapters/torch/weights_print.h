/* Fingerprints of weights, by which they are compared with those of an earlier call. */
#ifndef ATTUNE_TORCH_WEIGHTS_PRINT_H
#define ATTUNE_TORCH_WEIGHTS_PRINT_H

#include "adapter.h"

enum { WEIGHTS_QKV = 0, WEIGHTS_QKV_BIAS, WEIGHTS_OUT, WEIGHTS_OUT_BIAS, WEIGHTS_COUNT };

/* The weights of a call. All are contiguous, have one dtype, and the shapes of `problem`, a block of which only
 * embed_dim, num_heads and dtype are used. */
typedef struct weights_request {
    const attune_problem *problem;
    torch_tensor tensor[WEIGHTS_COUNT];
    const void *data[WEIGHTS_COUNT];
    size_t bytes[WEIGHTS_COUNT];
} weights_request;

typedef struct weights_state {
    const void *data[WEIGHTS_COUNT];
    int64_t version[WEIGHTS_COUNT]; /* PyTorch's version; -1 for a tensor of inference_mode, which has none */
    uint64_t print;                 /* fingerprint of the values: of all if a tensor has no version, else of a sample */
} weights_state;

/* The address of PyTorch's object, the same for all handles of a tensor, and as Tensor._cdata in Python. */
const void *torch_object_of(torch_tensor tensor);

/* `all`: the fingerprint is of all values. */
void weights_state_read(const weights_request *request, bool all, weights_state *state);
bool weights_state_equal(const weights_state *a, const weights_state *b);

const char *weights_print_open(void);

#endif
