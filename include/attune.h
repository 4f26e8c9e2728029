/* attune: a JIT compiler for multi-head-attention kernels on the CPU.
 *
 * An engine includes attune/attention.h alone. This header has everything else, too.
 *
 * Introduction
 * ------------
 * Describe one attention problem (attune_problem). attune compiles one kernel for exactly that problem
 * (attune_compile). Run the kernel on your pointers (attune_run) as often as you like:
 *
 *     O[b,h,i,:] = sum_j softmax_j(softmax_scale * Q[b,h,i,:] . K[b,h/group,j,:]) * V[b,h/group,j,:]
 *
 * (Vaswani et al., "Attention Is All You Need", 2017, equation 1; group = num_heads / num_kv_heads.)
 * Compiled kernels are cached in memory and on disk under a hash of the problem. Only the first process that needs a
 * kernel compiles it.
 *
 *     attune_context *context = NULL;
 *     attune_kernel *kernel = NULL;
 *     attune_problem problem = ATTUNE_PROBLEM_INIT;
 *     problem.num_heads = 12; problem.seq_q = problem.seq_kv = 512; problem.head_dim = 64;
 *     attune_context_create(NULL, &context);
 *     attune_compile(context, &problem, NULL, &kernel);
 *     attune_arguments arguments;
 *     attune_arguments_init(&arguments, &problem);
 *     arguments.q.data = q; arguments.k.data = k; arguments.v.data = v; arguments.out.data = out;
 *     attune_run(context, kernel, &arguments);
 *     attune_kernel_release(kernel);
 *     attune_context_destroy(context);
 *
 * A problem with embed_dim is the whole block, projections included: see attune_mha_create.
 *
 * Errors: every function that can fail returns an attune_status. attune_last_message() then gives one sentence about
 * the failure, for the calling thread. The library never exits, never prints, and leaves no half-written file. There
 * is one exception: if memory runs out inside LLVM, LLVM prints and ends the process that compiles. With
 * ATTUNE_COMPILE_WORKER that process is the worker, and the host gets an error.
 *
 * Struct sizes: structs that begin with struct_size grow at their end from version to version. The size tells the
 * library which version a program was compiled with.
 *     - A smaller struct, of an older program, is accepted. The fields that it lacks have their defaults. Programs
 *       compiled with a header older than 0.3 must be compiled again: their structs are refused.
 *     - A larger struct, of a newer program, is accepted if all bytes that the library does not know are zero.
 *       Otherwise the call returns ATTUNE_UNSUPPORTED.
 *     - A struct that was never initialised (struct_size 0 or above 16384, for example) is ATTUNE_INVALID_ARGUMENT.
 *     - Results are written up to the size that the caller set. Fields that an older library does not know become zero.
 *
 * Initialise structs with the ATTUNE_…_INIT macros. A binding that has no macros calls the attune_…_init functions,
 * and attune_arguments_init_sized and attune_mha_weights_init_sized in place of the inline functions, with the number
 * of bytes of the struct that it knows. All of them write the same defaults, and never more than those bytes.
 *
 * The floating-point environment and the locale of the calling thread do not matter: rounding mode, flush-to-zero flags
 * and unmasked exceptions change no result, key or text. Every function leaves them as they were, exception flags
 * included. A function that the host passes (a log, an event, a builder, a runner) is called in the default environment
 * and must leave it so.
 *
 * Units: sizes and strides of tensors are counted in elements, workspaces and caches in bytes.
 *
 * Headers
 * -------
 * This header has the version and includes all others. Each of them can be included alone:
 *     attune/attention.h        attention for engines: describe it once, run steps. Start here
 *     attune/linear.h           linear attention: a state in place of keys and values
 *     attune/index.h            the index of sparse attention: which keys a query attends to
 *     attune/blocks.h           which blocks of keys matter to which queries, and lists of blocks
 *     attune/mla.h              multi-head latent attention: a block with its weights, as DeepSeek has it
 *     attune/context.h          attune_context: allocator, log, threads, events, caches
 *     attune/types.h            attune_dtype, attune_scales …; a tensor in DLPack's terms
 *     attune/status.h           status, messages
 * The expert tier, for what attention.h cannot say, or does by itself:
 *     attune/expert/problem.h   attune_problem: what is computed, on which tensors; its text; rows of K and V as panels
 *     attune/expert/kernel.h    attune_compile, attune_arguments, attune_run; tensors, DLPack; block masks
 *     attune/expert/call.h      attune_run_with: threads and cancelling of one call; calls in parts
 *     attune/expert/plan.h      attune_plan: kernels for calls whose sizes vary
 *     attune/expert/mha.h       weights of a block, packing them; attune_mha: a block with its weights
 *     attune/expert/schedule.h  how a kernel computes, as text
 *     attune/expert/tuning.h    attune_tune: a search for a faster schedule; the model; results of searches
 *     attune/expert/info.h      what a kernel is, statistics, the machine
 *     attune/expert/cache.h     the disk cache and packs
 *     attune/expert/bundle.h    kernels compiled ahead of time, for programs without attune
 *     attune/expert/description.h  kernels of linear attention, the index and so on, by their descriptions as text
 *     attune/expert/ir.h        a kernel at each stage; the interpreter; kernels written in loop IR
 *     attune/expert/operator.h  operators of your own */
#ifndef ATTUNE_H
#define ATTUNE_H

#include "attune/attention.h"
#include "attune/linear.h"
#include "attune/index.h"
#include "attune/blocks.h"
#include "attune/mla.h"
#include "attune/context.h"
#include "attune/status.h"
#include "attune/types.h"
#include "attune/expert/problem.h"
#include "attune/expert/kernel.h"
#include "attune/expert/call.h"
#include "attune/expert/plan.h"
#include "attune/expert/mha.h"
#include "attune/expert/schedule.h"
#include "attune/expert/tuning.h"
#include "attune/expert/info.h"
#include "attune/expert/cache.h"
#include "attune/expert/bundle.h"
#include "attune/expert/description.h"
#include "attune/expert/ir.h"
#include "attune/expert/operator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ---- */

#define ATTUNE_VERSION_MAJOR 0
#define ATTUNE_VERSION_MINOR 3
#define ATTUNE_VERSION_PATCH 0
#define ATTUNE_VERSION_STRING "0.3.0"

/* The version of the library that is loaded, which may be newer than the header. Static storage. */
ATTUNE_API const char *attune_version(void);

#ifdef __cplusplus
}
#endif

#endif
