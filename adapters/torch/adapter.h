/* libattune-torch.so: attune as kernels of PyTorch. This is the inside; Python calls the functions of exports.map. */
#ifndef ATTUNE_TORCH_ADAPTER_H
#define ATTUNE_TORCH_ADAPTER_H

#include "attune.h"
#include "common/counters.h"
#include "torch_abi.h"

/* attune's number of a type of PyTorch; 0 if it has none. */
attune_dtype adapter_dtype(int32_t torch_dtype);

/* What is enabled, as bits: operators of PyTorch that attune overrides, and a choice for all kernels. */
enum { ADAPTER_SDPA = 1, ADAPTER_BLOCK = 2, ADAPTER_REPRODUCIBLE = 4, ADAPTER_VERIFY = 8 };

/* Whether these bits are on now. A kernel that overrides one of PyTorch's asks in every call, and runs stock without
 * them: see adapter_override. */
bool adapter_is_on(unsigned bits);

/* Whether kernels are to give a row the same bits whatever the other rows are: problem.reproducible. */
bool adapter_is_reproducible(void);

/* Registers kernels, once per process. A failure returns a sentence. Called under one lock. */
const char *sdpa_register(void);
const char *block_register(void);

/* Replaces a kernel of aten on the CPU for the rest of the process. PyTorch frees a kernel that is taken back, although
 * another thread may be within it. */
const char *adapter_override(const char *name, torch_kernel_fn *kernel);

/* Defines attune's own operators, once per process. */
const char *ops_define(void);

/* ---- What happened ---- */

/* attune is broken for a call that it supports: the call runs as stock, and Python warns once per status. Counted as
 * "broken". `message` is attune's sentence. */
void adapter_broken(const char *op, attune_status status, const char *message);

/* Whether a kernel is missing because the user has forbidden to compile: nothing is broken. Python warns once, and the
 * call runs as stock. */
bool adapter_is_not_compiled(const char *op, attune_status status);

/* Throws the last failure of a function of PyTorch once more; within a kernel only, with nothing left to free. */
void adapter_rethrow(const char *op);

/* Throws an error of attune's own, in the same places. */
void adapter_throw(const char *message);

/* Whether a failed call says that attune cannot do this, rather than that something is broken. */
int adapter_is_unsupported(attune_status status);

#endif
