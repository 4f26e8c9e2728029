/* What a kernel of linear attention is made for, and the loop IR of it. */
#ifndef ATTUNE_LINEAR_KERNEL_H
#define ATTUNE_LINEAR_KERNEL_H

#include <attune.h>

/* The tensors of a kernel in the order of its parameters; those that a kernel lacks are left out. */
typedef enum lin_tensor {
    LIN_Q,
    LIN_K,
    LIN_V,
    LIN_DECAY,
    LIN_BETA,
    LIN_STATE,
    LIN_OUT,
    LIN_GATE,
    LIN_NORM,
    LIN_NUM_TENSORS
} lin_tensor;

/* How tokens are computed. */
typedef enum lin_which {
    LIN_FEW,        /* one after the other, in the state itself: for a few */
    LIN_TOKENS,     /* one after the other, in a copy of the task's part of the state */
    LIN_CHUNKS,     /* the same, but in chunks first, as many as there are */
    LIN_ANY,        /* as the first, for heads of any size that LIN_ANY_* allow: for tier 0 */
    LIN_ANY_TOKENS, /* likewise the second */
    LIN_NUM_KERNELS
} lin_which;

/* Kernels for any size of heads: rows and columns of the state are multiples of these, and rows at most so many. */
enum { LIN_ANY_ROWS = 16, LIN_ANY_COLUMNS = 64, LIN_ANY_DIM = 256 };

static inline int lin_has(const attune_linear_desc *d, lin_tensor t) {
    return t == LIN_DECAY  ? d->decay != ATTUNE_DECAY_NONE
           : t == LIN_BETA ? d->has_beta
           : t == LIN_GATE ? d->gate != ATTUNE_GATE_NONE
           : t == LIN_NORM ? d->out_norm_eps > 0
                           : 1;
}

/* A step's sizes, the kernel's first scalars. */
enum { LIN_NUM_SIZES = 9 };

/* With so many heads of V, each is one task of a prompt; fewer are cut into more tasks. */
enum { LIN_MANY_HEADS = 16 };

/* Tokens of a chunk. */
enum { LIN_CHUNK = 8 };

/* An attune_build_fn, and the numbers of its schedules. */
int lin_build(void *user, const attune_build_request *request, attune_ir_writer *w);
extern const attune_choice lin_choices[];
enum { LIN_NUM_CHOICES = 1 };

#endif
