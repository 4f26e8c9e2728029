/* How weights are compared with those of an earlier call. */
#ifndef ATTUNE_TORCH_WEIGHTS_PRINT_H
#define ATTUNE_TORCH_WEIGHTS_PRINT_H

#include "weights.h"

typedef struct weights_state {
    const void *data[WEIGHTS_COUNT];
    int64_t version[WEIGHTS_COUNT]; /* PyTorch's; -1 of a tensor made in inference_mode, which has none */
    uint64_t print;                 /* of the values: of all if there is a tensor without a version, else of some */
} weights_state;

/* `all`: the print is of all values. */
void weights_state_read(const weights_request *request, bool all, weights_state *state);
bool weights_state_equal(const weights_state *a, const weights_state *b);

const char *weights_print_open(void);

#endif
