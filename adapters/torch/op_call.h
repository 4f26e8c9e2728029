/* A call of one of attune's operators: takes the arguments, checks and binds tensors, returns results. An invalid call
 * gets one sentence, which PyTorch raises as a RuntimeError. */
#ifndef ATTUNE_TORCH_OP_CALL_H
#define ATTUNE_TORCH_OP_CALL_H

#include "attention_tensors.h"

enum { OP_MAX_TENSORS = 10 };

typedef struct op_call {
    const char *op; /* "attune::attention" */
    torch_value *stack;
    torch_tensor owned[OP_MAX_TENSORS];
    int num_owned;
    common_kind kind;
    attune_arguments arguments; /* strides and pointers, until there is a plan */
    int64_t batch, heads, rows, kv_heads, keys;
    int32_t torch_dtype;                     /* of q and of out */
    char message[ATTUNE_MESSAGE_BYTES + 64]; /* "" while all is well */
} op_call;

/* Records the first failure; returns false. */
__attribute__((format(printf, 2, 3))) bool op_fail(op_call *call, const char *format, ...);

/* The argument at `index`: a tensor, an optional tensor, or a number. False after a failure, and for an absent tensor.
 * Every tensor argument must be taken, because the call owns it. */
bool op_tensor(op_call *call, int index, const char *name, int rank, torch_view *view);
bool op_optional_tensor(op_call *call, int index, const char *name, torch_view *view);
double op_optional_double(op_call *call, int index);
bool op_is_bottom_right(op_call *call, int index); /* causal_align, which must be taken, too */

/* Fails unless the size of dim `dim` is `size`. */
bool op_check_size(op_call *call, const char *name, const torch_view *view, int dim, int64_t size);

/* Binds q, whose sizes become those of the call. */
bool op_bind_q(op_call *call, const torch_view *q);

/* Binds k and v, or their caches; sets the call's number of keys. */
bool op_bind_kv(op_call *call, const torch_view *k, const torch_view *v);

/* Binds an additive or boolean mask over call->keys keys. */
bool op_bind_mask(op_call *call, const char *name, const torch_view *mask);
bool op_bind_sinks(op_call *call, const torch_view *sinks);
bool op_bind_kv_lens(op_call *call, const torch_view *kv_lens);

/* The options that all operators have: causality, window, cap, scale. */
void op_options(op_call *call, bool is_causal, bool bottom_right, int64_t left, int64_t right, double cap,
                double scale);

/* Allocates the results and runs. lse may be NULL. */
bool op_run(op_call *call, torch_tensor *out, torch_tensor *lse);

/* Frees the arguments, and throws the sentence after a failure. */
void op_end(op_call *call);

torch_kernel_fn op_attention, op_append;

#endif
