/* Linear attention: a state in place of keys and values, as in Qwen3-Next, Kimi Linear, RetNet and GLA.
 *
 *     attune_linear_desc desc = ATTUNE_LINEAR_DESC_INIT;
 *     desc.num_heads = 16, desc.num_k_heads = 16, desc.num_kv_heads = 32;   // as Qwen3-Next: of q, of k, of v
 *     desc.head_dim = 128, desc.dtype = ATTUNE_BF16;
 *     desc.rule = ATTUNE_GATED_DELTA, desc.decay = ATTUNE_DECAY_HEAD, desc.has_beta = 1;
 *     attune_linear *linear;
 *     attune_linear_create(NULL, &desc, &linear);
 *
 *     attune_linear_step step = ATTUNE_LINEAR_STEP_INIT;           // every step, for every layer
 *     step.batch = sequences, step.cu_seqlens = starts;
 *     step.q.data = q, step.k.data = k, step.v.data = v, step.decay.data = g, step.beta.data = beta;
 *     step.state.data = states, step.num_states = slots, step.state_ids = slot_of_sequence, step.out.data = out;
 *     attune_linear_run(linear, &step);
 *
 * Each head of v has a state S of head_dim x head_dim_v numbers. Each token changes it, with a = exp(decay):
 *
 *     linear        S = S + k v^T
 *     gated         S = a S + k v^T
 *     delta         S = S + beta k (v - S^T k)^T
 *     gated_delta   S = a S + beta k (v - a S^T k)^T
 *     out = scale S^T q, then RMS norm and gate if the description has them
 *
 * (Yang et al., "Gated Delta Networks", 2024; ONNX LinearAttention, opset 27.) Arithmetic is f32. A row of out, and the
 * state, have the same bits in every batch. With reproducible=1 they also have the same bits however the tokens are cut
 * into steps. Without it, a step computes the tokens of a sequence in chunks of 8, which is faster, and the rest one by
 * one: cuts at multiples of 8 tokens change no bit, others may. A state in bf16 is rounded at the end of each step, so
 * with it all cuts change the result.
 *
 * With an RMS norm or a gate, out is rounded to its type before and after them, as in models: in f16 a number above
 * 65504 before the norm becomes infinite, and NaN after it.
 *
 * Errors: a status, and attune_last_message() has one sentence. If a call fails, it has written nothing, except with
 * ATTUNE_CANCELLED. Sizes and strides are in elements. */
#ifndef ATTUNE_LINEAR_H
#define ATTUNE_LINEAR_H

#include "attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum attune_linear_rule {
    ATTUNE_LINEAR = 0,
    ATTUNE_GATED,
    ATTUNE_DELTA,
    ATTUNE_GATED_DELTA,
    ATTUNE_LINEAR_RULE_COUNT
} attune_linear_rule;

/* The granularity of the decay. */
typedef enum attune_linear_decay {
    ATTUNE_DECAY_NONE = 0, /* the only one that the rules linear and delta take */
    ATTUNE_DECAY_HEAD,     /* one for each head of v */
    ATTUNE_DECAY_KEY,      /* one for each of its head_dim rows of the state */
    ATTUNE_DECAY_COUNT
} attune_linear_decay;

/* What an element of out is multiplied by at the end. */
typedef enum attune_linear_gate {
    ATTUNE_GATE_NONE = 0,
    ATTUNE_GATE_SILU,    /* g / (1 + exp(-g)) of the gate's element g: Qwen3-Next */
    ATTUNE_GATE_SIGMOID, /* 1 / (1 + exp(-g)): Kimi Linear */
    ATTUNE_GATE_COUNT
} attune_linear_gate;

typedef struct attune_linear_desc {
    size_t struct_size;
    int64_t num_heads;        /* of q; one of num_heads and num_kv_heads divides the other. out has the larger number */
    int64_t num_kv_heads;     /* of v and of the state; 0: num_heads */
    int64_t num_k_heads;      /* of k, divides num_kv_heads; 0: num_kv_heads */
    int64_t head_dim;         /* of q and k, at most 1024 */
    int64_t head_dim_v;       /* 0: head_dim */
    attune_dtype dtype;       /* of q, k, v and out: f32 (default), bf16 or f16 */
    attune_dtype decay_dtype; /* default f32; or bf16, f16 */
    attune_dtype beta_dtype;  /* the same */
    attune_dtype state_dtype; /* f32 (default), or bf16: a state is rounded once a step */
    attune_linear_rule rule;
    attune_linear_decay decay;
    int has_beta;            /* delta and gated_delta: there is a beta for each token; 0: it is 1 */
    double scale;            /* of out; ATTUNE_DEFAULT_SCALE: 1 / sqrt(head_dim) */
    double qk_norm_eps;      /* 0: none. Rows of q and k are divided by sqrt(sum of x^2 + qk_norm_eps) first */
    double out_norm_eps;     /* 0: none. Rows of out are divided by sqrt(mean of x^2 + out_norm_eps) and multiplied by
                              * norm_weights at the end: an RMS norm */
    attune_linear_gate gate; /* of out, applied after the norm */
    int reproducible;        /* 1: the same bits for every cut into steps. Prompts take about 1.2 times as long */
} attune_linear_desc;

#ifdef __cplusplus
#define ATTUNE_LINEAR_DESC_INIT attune_initial(attune_linear_desc_init)
#else
#define ATTUNE_LINEAR_DESC_INIT {.struct_size = sizeof(attune_linear_desc), .scale = __builtin_nan("")}
#endif

/* Writes the values of ATTUNE_LINEAR_DESC_INIT, for callers that have no macros. */
ATTUNE_API attune_status attune_linear_desc_init(attune_linear_desc *desc, size_t struct_size);

typedef struct attune_linear attune_linear;

/* Makes a linear attention, which copies the description. `context` as in attune_attention_create. Compiles nothing. A
 * failure sets *linear to NULL. */
ATTUNE_CHECKED attune_status attune_linear_create(attune_context *context, const attune_linear_desc *desc,
                                                  attune_linear **linear);

/* Ends it; no step may be running. NULL is fine. */
ATTUNE_API void attune_linear_destroy(attune_linear *linear);

/* Compiles the kernels for tokens and for prompts now, or loads them from the cache, so that no step waits. */
ATTUNE_CHECKED attune_status attune_linear_prepare(attune_linear *linear);

typedef struct attune_linear_step {
    size_t struct_size;
    int64_t batch;               /* sequences */
    int64_t seq;                 /* tokens of each sequence, without cu_seqlens */
    const int32_t *cu_seqlens;   /* NULL, or [batch + 1]: sequence b has the tokens cu_seqlens[b] to before
                                  * cu_seqlens[b + 1] of q, k, v, decay, beta and out. A sequence may have no tokens */
    attune_view q, k, v;         /* [batch, seq, heads, dim], with cu_seqlens [tokens, heads, dim]; all three strides 0:
                                  * contiguous in this order. Elements of a row are contiguous in any case */
    attune_view decay;           /* logarithms: [batch, seq, num_kv_heads], or with ATTUNE_DECAY_KEY [batch, seq,
                                  * num_kv_heads, head_dim]. Above 0 the state grows; without `reproducible`, 8 in a row
                                  * must then sum to less than 88 */
    attune_view beta;            /* [batch, seq, num_kv_heads]. To use one beta for all heads, set batch and token
                                  * strides, and head stride 0 */
    attune_mutable_view out;     /* [batch, seq, heads, head_dim_v]; out and state share no memory with each other or
                                  * with an input */
    attune_mutable_view state;   /* read and written: [num_states, num_kv_heads, head_dim, head_dim_v]; `token` is the
                                  * stride of a row. Set it to zeros before a sequence's first token */
    int64_t num_states;          /* 0: batch; with state_ids it must be set */
    const int32_t *state_ids;    /* [batch], the state of each sequence, all different; NULL: sequence b has state b */
    uint32_t max_threads;        /* 0: all of the context's */
    const attune_runner *runner; /* NULL: the context's threads */
    const int *cancel;           /* NULL, or a flag that another thread sets to end the step */
    attune_view gate;            /* with a gate: [batch, seq, heads, head_dim_v], as out */
    const void *norm_weights;    /* with out_norm_eps: [head_dim_v], of the type of out */
} attune_linear_step;

#ifdef __cplusplus
#define ATTUNE_LINEAR_STEP_INIT attune_initial(attune_linear_step_init)
#else
#define ATTUNE_LINEAR_STEP_INIT {.struct_size = sizeof(attune_linear_step)}
#endif

ATTUNE_API attune_status attune_linear_step_init(attune_linear_step *step, size_t struct_size);

/* Computes out and the new states. Pointers, lengths, ids and strides are checked before anything is written. Any
 * number of threads may call it at once, if their steps have no state in common. */
ATTUNE_CHECKED attune_status attune_linear_run(attune_linear *linear, const attune_linear_step *step);

/* The same by the interpreter of the kernel's loop IR: slow, bit for bit the same result. For tests. */
ATTUNE_CHECKED attune_status attune_linear_run_interpreted(attune_linear *linear, const attune_linear_step *step);

/* ---- The convolution before it ----
 *
 * A depthwise causal convolution along the tokens (Mamba, Qwen3-Next; ONNX CausalConvWithState, opset 27):
 *
 *     y = bias[c] + sum over i of weights[c, i] x[t - (taps - 1 - i) dilation, c]
 *     out[t, c] = y, or SiLU of it, y / (1 + exp(-y))
 *
 * The state has the (taps - 1) dilation tokens before the first one. Out and the state have the same bits however the
 * tokens are cut into steps. Arithmetic is f32. */

typedef struct attune_conv_desc {
    size_t struct_size;
    int64_t channels;
    int64_t taps;       /* 1 to 64 */
    int64_t dilation;   /* 1 to 64; 0: 1 */
    attune_dtype dtype; /* of all tensors: f32 (default), bf16 or f16 */
    int has_bias;
    int has_silu;
} attune_conv_desc;

#ifdef __cplusplus
#define ATTUNE_CONV_DESC_INIT attune_initial(attune_conv_desc_init)
#else
#define ATTUNE_CONV_DESC_INIT {.struct_size = sizeof(attune_conv_desc)}
#endif

ATTUNE_API attune_status attune_conv_desc_init(attune_conv_desc *desc, size_t struct_size);

typedef struct attune_conv attune_conv;

/* Makes a convolution, which copies the description. `context` as in attune_attention_create. Compiles nothing. A
 * failure sets *conv to NULL. */
ATTUNE_CHECKED attune_status attune_conv_create(attune_context *context, const attune_conv_desc *desc,
                                                attune_conv **conv);

/* Ends it; no step may be running. NULL is fine. */
ATTUNE_API void attune_conv_destroy(attune_conv *conv);

typedef struct attune_conv_step {
    size_t struct_size;
    int64_t batch;               /* sequences */
    int64_t seq;                 /* tokens of each, without cu_seqlens */
    attune_view x;               /* [batch, seq, channels], with cu_seqlens [tokens, channels]; `head` is the stride of
                                  * a channel. All three strides 0: contiguous in this order */
    const void *weights;         /* [channels, taps], contiguous */
    const void *bias;            /* [channels]; NULL without has_bias */
    attune_mutable_view out;     /* [batch, seq, channels], as x */
    attune_mutable_view state;   /* read and written: [num_states, (taps - 1) dilation, channels], as x: the tokens
                                  * before. Set it to zeros before a sequence's first token */
    uint32_t max_threads;        /* 0: all of the context's */
    const attune_runner *runner; /* NULL: the context's threads */
    const int *cancel;           /* NULL, or a flag that another thread sets to end the step */
    const int32_t *cu_seqlens;   /* these three as in attune_linear_step */
    int64_t num_states;
    const int32_t *state_ids;
} attune_conv_step;

#ifdef __cplusplus
#define ATTUNE_CONV_STEP_INIT attune_initial(attune_conv_step_init)
#else
#define ATTUNE_CONV_STEP_INIT {.struct_size = sizeof(attune_conv_step)}
#endif

ATTUNE_API attune_status attune_conv_step_init(attune_conv_step *step, size_t struct_size);

/* Computes out and the new state, which share no memory with each other or with x. Pointers, strides and overlaps are
 * checked before anything is written. Any number of threads may call it at once, if their steps have no state in
 * common. */
ATTUNE_CHECKED attune_status attune_conv_run(attune_conv *conv, const attune_conv_step *step);

/* The same by the interpreter of the kernel's loop IR: slow, bit for bit the same result. For tests. */
ATTUNE_CHECKED attune_status attune_conv_run_interpreted(attune_conv *conv, const attune_conv_step *step);

#ifdef __cplusplus
}
#endif

#endif
