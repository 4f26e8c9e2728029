/* Packed weights of blocks, kept as long as PyTorch's tensors exist and do not change. */
#ifndef ATTUNE_TORCH_WEIGHTS_H
#define ATTUNE_TORCH_WEIGHTS_H

#include "weights_print.h"

typedef struct weights_blob weights_blob;

typedef enum weights_outcome {
    WEIGHTS_READY = 0,
    WEIGHTS_CHANGING, /* they change so often that packing them does not pay */
    WEIGHTS_BUSY,     /* another thread packs them */
    WEIGHTS_FULL,     /* the memory limit for packed weights is reached */
    WEIGHTS_FAILED    /* see *status and attune_last_message() */
} weights_outcome;

/* Finds the packed form of the weights, or packs them. Thread-safe. */
weights_outcome weights_get(const weights_request *request, weights_blob **blob, attune_status *status);
const void *weights_packed(const weights_blob *blob);
void weights_release(weights_blob *blob);

/* Finds PyTorch's functions for tensor versions. Returns NULL, or a sentence. */
const char *weights_open(void);

#endif
