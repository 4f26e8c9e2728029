/* The workspace of a call: the shared buffers, each aligned, then one scratch for each worker. Of the kernel these
 * functions know the numbers below, so kernels of contexts and of bundles share them. */
#ifndef ATTUNE_CALL_WORKSPACE_H
#define ATTUNE_CALL_WORKSPACE_H

#include "base/error.h"
#include "target/kernel_abi.h"

enum { AT_WORKSPACE_ALIGN = 64, AT_PLAN_WORDS = AT_MAX_PHASES + AT_MAX_SHARED };

typedef struct at_code_shape {
    uint32_t num_phases, num_shared;
    uint64_t max_scratch; /* bytes, the most of all phases */
} at_code_shape;

/* Bytes of workspace. plan[]: the phases' task counts and the shared sizes, as the at_plan_fn gives them. max_workers:
 * the worker numbers of a phase that has enough tasks. */
attune_status at_code_size(const at_code_shape *code, uint32_t max_workers, const int64_t plan[AT_PLAN_WORDS],
                           size_t *bytes, at_error *err);

/* Sets the shared buffers' addresses, which are at the beginning of the workspace. Returns the bytes that they take. */
size_t at_code_place_shared(const at_code_shape *code, const int64_t *plan, void *workspace, void **shared);

/* Whether a workspace, which may be NULL, is aligned and large enough. */
attune_status at_workspace_check(const void *workspace, size_t bytes, size_t needed, at_error *err);

#endif
