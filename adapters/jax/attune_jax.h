/* The functions of libattune-jax.so, which attune.jax gets by ctypes. The library needs nothing of JAX to be loaded. */
#ifndef ATTUNE_JAX_H
#define ATTUNE_JAX_H

#include "xla_ffi.h"

#define ATTUNE_JAX_API __attribute__((visibility("default")))

/* The handler of the custom call "attune_attention", for the CPU, by version 1 of JAX's API.
 *
 * Attribute: problem, a text of attune.h with fixed lengths; its batch and numbers of heads give the group only.
 * Operands: q [..., batch, queries, heads, dim], k and v [..., batch, keys, kv heads, dim], then those of attn_mask,
 * attn_bias, kv_lens and sinks that the problem has. Results: out [..., batch, queries, heads, dim], and lse [...,
 * batch, heads, queries] if the problem has it. "..." are dims of vmap, the same number for each tensor; an operand
 * that is not mapped has 1 there. */
ATTUNE_JAX_API xla_error *attune_jax_attention(xla_call_frame *frame);

/* Counters of this process. */
typedef struct attune_jax_counts {
    uint64_t calls; /* of the handler that succeeded */
    uint64_t runs;  /* runs of kernels: more than calls if dims of vmap could not be merged into the batch */
    uint64_t compiles;
    uint64_t disk_hits;
} attune_jax_counts;

ATTUNE_JAX_API void attune_jax_get_counts(attune_jax_counts *counts);

#endif
