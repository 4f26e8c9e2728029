/* What a kernel of the convolution is made for, and the loop IR of it. */
#ifndef ATTUNE_LINEAR_CONV_KERNEL_H
#define ATTUNE_LINEAR_CONV_KERNEL_H

#include <attune.h>

/* What lies side by side in memory, and what the lanes of a vector are. */
typedef enum conv_form {
    CONV_CHANNELS,    /* channels, and channels */
    CONV_STATE_APART, /* channels of x and out; channels */
    CONV_APART,       /* nothing: there are strides; channels */
    CONV_TOKENS,      /* tokens of x and out; tokens */
    CONV_NUM_FORMS
} conv_form;

/* The tensors of a kernel in the order of its parameters; those that a kernel lacks are left out. */
typedef enum conv_tensor { CONV_X, CONV_WEIGHTS, CONV_BIAS, CONV_STATE, CONV_OUT, CONV_NUM_TENSORS } conv_tensor;

/* Tokens that the state holds. */
static inline int64_t conv_kept(const attune_conv_desc *d) { return (d->taps - 1) * d->dilation; }

enum { CONV_PROBLEM_BYTES = 128 };

/* The problem of an operator: one line of text that says all of it. */
void conv_print(const attune_conv_desc *d, conv_form form, char text[CONV_PROBLEM_BYTES]);

/* An attune_build_fn. */
int conv_build(void *user, const attune_build_request *request, attune_ir_writer *w);

#endif
