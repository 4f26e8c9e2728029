/* A kernel of the convolution: the problem that it is specialised for, and its loop IR. */
#ifndef ATTUNE_LINEAR_CONV_KERNEL_H
#define ATTUNE_LINEAR_CONV_KERNEL_H

#include <attune.h>

/* Which dim is contiguous in memory, and what a vector's lanes run along. */
typedef enum conv_which {
    CONV_CHANNELS,    /* channels, and channels */
    CONV_STATE_APART, /* channels of x and out; channels */
    CONV_APART,       /* none, all have strides; channels */
    CONV_TOKENS,      /* tokens of x and out; tokens */
    CONV_NUM_KERNELS
} conv_which;

/* The tensors of a kernel in the order of its parameters, without those that it does not have. */
typedef enum conv_tensor { CONV_X, CONV_WEIGHTS, CONV_BIAS, CONV_STATE, CONV_OUT, CONV_NUM_TENSORS } conv_tensor;

/* Its first scalars: sequences, batches and tokens of a tensor, the longest sequence, states, channels. */
enum { CONV_NUM_SIZES = 6 };

/* Tokens that the state holds. */
static inline int64_t conv_kept(const attune_conv_desc *d) { return (d->taps - 1) * d->dilation; }

/* An attune_build_fn. */
int conv_build(void *user, const attune_build_request *request, attune_ir_writer *w);

#endif
