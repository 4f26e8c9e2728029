/* Expert tier: most programs need attune/attention.h alone.
 *
 * Descriptions as text: kernels of attune's other operators, for bundles, caches and listings.
 *
 *     op=linear,num_heads=16,num_kv_heads=32,num_k_heads=16,head_dim=128,rule=gated_delta,decay=head,has_beta=1
 *
 * A text begins with op=linear, op=conv, op=index, op=blocks or op=mla. Further pairs NAME=VALUE, in any order, are the
 * members of attune_linear_desc, attune_conv_desc, attune_index_desc, attune_blocks_desc or attune_mla_desc. Those that
 * are left out have the value of ATTUNE_LINEAR_DESC_INIT and so on. Values are numbers, names of types such as bf16
 * (each operator refuses those that it does not have), and words:
 *
 *     rule=linear|gated|delta|gated_delta  decay=none|head|key  gate=none|silu|sigmoid      of linear
 *     form=by_cost|absorbed|unabsorbed                                                      of mla
 *
 * A description has several kernels (op=index has one, which text does not name), and steps use what fits their
 * tensors and lengths. `kernel` names one of them:
 *
 *     linear  few          the longest sequence of the step has fewer than 8 tokens
 *             chunks       it has 8 or more, and the description is not reproducible
 *             tokens       it has 8 or more, and the description is reproducible
 *             any          as few, for heads of many sizes: head_dim a multiple of 16 up to 256, head_dim_v a multiple
 *                          of 64, without gate and norm of out. Calls pass such sizes as dim and dim_v, which
 *                          attune_ir_run does not check. Tier 0 has these kernels; a text names them only by kernel=
 *             any_tokens   as tokens, likewise
 *     conv    channels     channels of x, out and the state are contiguous
 *             state_apart  those of x and out only
 *             tokens       tokens of x and out are contiguous, and the longest sequence has at least 8
 *             apart        any other strides
 *     blocks  64, 512, 4096 or 32768: at most so many blocks of keys
 *     mla     project, absorb, values, expand or out, then _1, _4, _16 or _512: the products around attention, for 1
 *             token, up to 4, up to 16, or more. Attention itself is not among them
 *
 * The complete text of a kernel has all that its code depends on. What steps pass is left out: the scale of linear
 * attention, and the channels of a convolution, which has channels=1 there. Caches list kernels by these texts, and
 * records of misses (ATTUNE_RECORD) are made of them. */
#ifndef ATTUNE_DESCRIPTION_H
#define ATTUNE_DESCRIPTION_H

#include "ir.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The bytes of a kernel's text, with its NUL, at most. */
enum { ATTUNE_DESCRIPTION_BYTES = 512 };

/* Counts the kernels of a text (*count, unless it is NULL), and writes the complete text of one, by its number from 0,
 * into `kernel`, unless that is NULL. A text of another op, or without one first, has 0 kernels: it may be a problem of
 * attention. ATTUNE_INVALID_PROBLEM: a name or a value is wrong. ATTUNE_INVALID_ARGUMENT: there is no kernel of this
 * number, or no room for its text. Statuses for numbers out of range are those of attune_linear_create and so on. */
ATTUNE_CHECKED attune_status attune_description_kernel(const char *text, size_t number, char *kernel, size_t capacity,
                                                       size_t *count);

/* Gives the kernel of a text that has one, as attune_compile does: from memory, a bundle, the disk, or newly compiled.
 * attune_linear_run and so on find it from then on. Release it with attune_kernel_release. Its parameters are those of
 * the text. So without a compiler it is a kernel of the virtual machine, even where steps use one of tier 0, which
 * serves heads of many sizes and has other parameters. */
ATTUNE_CHECKED attune_status attune_description_compile(attune_context *context, const char *text,
                                                        attune_kernel **kernel);

/* One stage of that kernel, as attune_emit gives it. */
ATTUNE_CHECKED attune_status attune_description_emit(attune_context *context, const char *text, attune_stage stage,
                                                     void **data, size_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
