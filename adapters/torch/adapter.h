/* libattune-torch.so: attune as kernels of PyTorch. This is internal; Python calls the functions of exports.map. */
#ifndef ATTUNE_TORCH_ADAPTER_H
#define ATTUNE_TORCH_ADAPTER_H

#include "attune.h"
#include "common/counters.h"
#include "torch_abi.h"

/* attune's dtype for a type of PyTorch; 0 if there is none. */
attune_dtype adapter_dtype(int32_t torch_dtype);

/* What is enabled, as bits: operators of PyTorch that attune overrides, and an option for all kernels. */
enum { ADAPTER_SDPA = 1, ADAPTER_BLOCK = 2, ADAPTER_REPRODUCIBLE = 4, ADAPTER_VERIFY = 8 };

/* Whether these bits are set now. A kernel that overrides one of PyTorch's checks in every call, and runs PyTorch's
 * kernel if they are not: see adapter_override. */
bool adapter_is_on(unsigned bits);

/* Whether a row's result must not depend on other rows, bit for bit: problem.reproducible. */
bool adapter_is_reproducible(void);

/* Registers kernels, once per process. A failure returns a sentence. Called under one lock. */
const char *sdpa_register(void);
const char *block_register(void);

/* Replaces a CPU kernel of aten until the process ends. It is never taken back, because PyTorch would free the kernel
 * while another thread may still run it. */
const char *adapter_override(const char *name, torch_kernel_fn *kernel);

/* Defines attune's own operators, once per process. */
const char *ops_define(void);

/* ---- What happened ---- */

/* Reports that attune has failed for a call that it supports: PyTorch's kernel computes the call, and Python warns once
 * per status. Counted as "broken". `message` is attune's sentence. */
void adapter_broken(const char *op, attune_status status, const char *message);

/* Whether a kernel is missing because the user has disabled compiling, which is no failure. Python warns once, and
 * PyTorch's kernel computes the call. */
bool adapter_is_not_compiled(const char *op, attune_status status);

/* Rethrows the last failure of a function of PyTorch; only within a kernel, when nothing is left to free. */
void adapter_rethrow(const char *op);

/* Throws an error of attune, in the same places. */
void adapter_throw(const char *message);

/* Whether a status says that attune does not support the call, and not that something is broken. */
int adapter_is_unsupported(attune_status status);

#endif
